//! The page at `/`: one document without parts from elsewhere. It has no data; its script asks the API, with the token
//! of its user. `build.rs` makes it of `page/`.

use net::http::{Body, Request, Response, Status};

/// The page, compressed (zlib, RFC 1950).
static PAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.deflate"));
/// Its headers, with the Content-Security-Policy.
const HEADERS: &str = include_str!(concat!(env!("OUT_DIR"), "/page.headers"));
/// Its entity tag.
const ETAG: &str = include_str!(concat!(env!("OUT_DIR"), "/page.etag"));

/// The response with the page, or 304 if the browser has it.
pub(crate) fn response(request: &Request<'_>) -> Response {
    let response = Response::new(Status::OK, "text/html; charset=utf-8", "");
    let response = Response { etag: ETAG.into(), headers: HEADERS, ..response };
    let has_it =
        request.if_none_match.split(',').any(|tag| tag.trim().trim_start_matches("W/") == ETAG);
    match has_it {
        true => Response { status: Status::NOT_MODIFIED, headers: "", ..response },
        false => Response { body: Body::Bytes(PAGE.into()), ..response },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTML: &str = include_str!("../page/page.html");
    const CSS: &str = include_str!("../page/page.css");
    const SCRIPT: &str = include_str!("../page/page.js");

    #[test]
    fn page_is_small() {
        assert!(PAGE.len() <= 80 << 10, "{} bytes", PAGE.len());
        let page = miniz_oxide::inflate::decompress_to_vec_zlib(PAGE).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(SCRIPT) && page.contains(CSS) && !page.contains("/*script*/"));
    }

    #[test]
    fn policy_admits_only_the_script_and_style_of_the_page() {
        let policy =
            HEADERS.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: "));
        let policy = policy.unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'sha256-",
            "style-src 'sha256-",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"));
        for line in HEADERS.split_inclusive('\n') {
            assert!(line.ends_with("\r\n") && line.contains(": "), "{line:?}");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_no_text_becomes_markup() {
        for (name, text) in [("html", HTML), ("css", CSS), ("js", SCRIPT)] {
            for word in ["http:", "https:", "@import", "url(", "src=", "//cdn"] {
                assert!(!text.contains(word), "{name} has {word}");
            }
        }
        for word in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
        {
            assert!(!SCRIPT.contains(word), "{word}");
        }
        assert!(!SCRIPT.contains("localStorage") && !SCRIPT.contains("cookie"));
        // No inline event handlers and no inline styles: the policy would refuse them.
        let lower = HTML.to_lowercase();
        for handler in [" onclick", " onload", " onerror", " onsubmit", " style=", "javascript:"] {
            assert!(!lower.contains(handler), "{handler}");
        }
    }

    #[test]
    fn page_has_landmarks_and_labels() {
        for part in [
            "<main",
            "<nav id=\"nav\" aria-label",
            "<header",
            "<footer",
            "lang=\"en\"",
            "aria-live",
            "name=\"viewport\"",
        ] {
            assert!(HTML.contains(part), "{part}");
        }
        for id in ["token", "document", "minutes"] {
            assert!(HTML.contains(&format!("for=\"{id}\"")), "{id}");
        }
        assert!(CSS.contains("prefers-color-scheme:dark") && CSS.contains(":focus-visible"));
    }

    /// Contrast of text colours on the background (WCAG 2.2, 1.4.3): at least 4.5 in both schemes.
    #[test]
    fn colours_have_the_contrast_of_aa() {
        let luminance = |colour: &str| {
            let digits = colour.trim_start_matches('#');
            let wide: String = match digits.len() {
                3 => digits.chars().flat_map(|c| [c, c]).collect(),
                _ => digits.into(),
            };
            let part = |at: usize| {
                let value = f64::from(u8::from_str_radix(&wide[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
        };
        let schemes: Vec<&str> = CSS.split(":root{").skip(1).collect();
        assert_eq!(schemes.len(), 2);
        for scheme in schemes {
            let scheme = scheme.split('}').next().unwrap();
            let colour = |name: &str| {
                let found =
                    scheme.split(';').find_map(|one| one.strip_prefix(&format!("--{name}:")));
                luminance(found.unwrap_or_else(|| panic!("{name} in {scheme}")))
            };
            for back in ["back", "head", "field"] {
                for text in ["text", "dim", "link", "fault", "warning", "ok"] {
                    let (a, b) = (colour(back), colour(text));
                    let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                    assert!(contrast >= 4.5, "{text} on {back}: {contrast:.2}");
                }
            }
        }
    }
}
