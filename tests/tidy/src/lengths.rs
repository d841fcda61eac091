//! Lengths of pages and of source files.

use crate::Finding;

/// Maximum lines of a source file.
pub const FILE: usize = 600;

/// Reports a page of more than `lines` lines, and its lines of more than `characters` characters.
pub fn page(page: &str, text: &str, lines: usize, characters: usize) -> Vec<Finding> {
    let count = text.lines().count();
    let long =
        (count > lines).then(|| Finding::of(page, format!("{count} lines, at most {lines}")));
    let wide = text.lines().enumerate().filter_map(|(at, line)| {
        let width = line.chars().count();
        let text = || format!("{width} characters, at most {characters}");
        (width > characters).then(|| Finding::at(page, at + 1, text()))
    });
    long.into_iter().chain(wide).collect()
}

/// Reports a source file of more than [`FILE`] lines, or of more than its ceiling in `allowed`.
pub fn file(path: &str, text: &str, allowed: &[(&str, usize)]) -> Option<Finding> {
    let count = text.lines().count();
    let ceiling = allowed.iter().find(|(name, _)| *name == path).map(|(_, ceiling)| *ceiling);
    match ceiling {
        None if count > FILE => Some(Finding::of(path, format!("{count} lines, at most {FILE}"))),
        Some(ceiling) if count > ceiling => {
            Some(Finding::of(path, format!("{count} lines; it had {ceiling} and may only shrink")))
        }
        Some(_) if count <= FILE => {
            Some(Finding::of(path, "short enough now: remove it from `allowances.rs`"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_page_and_a_wide_line_are_found() {
        assert_eq!(page("a.md", "a\nb\n", 2, 1), []);
        let found = page("a.md", "a\nbcd\ne\n", 2, 2);
        let expected = ["a.md: 3 lines, at most 2", "a.md:2: 3 characters, at most 2"];
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_long_file_is_found_and_an_allowed_one_may_not_grow() {
        let text = |lines: usize| "\n".repeat(lines);
        let found = |lines| file("a.rs", &text(lines), &[]).map(|found| found.text);
        assert_eq!(found(600), None);
        assert_eq!(found(601).as_deref(), Some("601 lines, at most 600"));
        let found = |lines| file("a.rs", &text(lines), &[("a.rs", 700)]).map(|found| found.text);
        assert_eq!(found(700), None);
        assert_eq!(found(701).as_deref(), Some("701 lines; it had 700 and may only shrink"));
        assert!(found(600).unwrap().contains("remove it"));
    }
}
