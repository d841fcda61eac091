//! Makes the page at `/` of its parts: one document, compressed, with a Content-Security-Policy that names the hashes of
//! its script and its style.

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::{env, fs};

fn main() {
    let part = |name: &str| {
        let path = Path::new("page").join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    let (html, style, script) = (part("page.html"), part("page.css"), part("page.js"));
    let page = html.replace("/*style*/", &style).replace("/*script*/", &script);
    let hash = |text: &str| format!("'sha256-{}'", Base64::encode_string(&Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(&style)
    );
    let headers = format!(
        "Content-Encoding: deflate\r\nContent-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n"
    );
    let etag: String = Sha256::digest(&page).iter().take(8).map(|b| format!("{b:02x}")).collect();
    let to = env::var_os("OUT_DIR").expect("cargo sets it");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(Path::new(&to).join(name), bytes).expect("the target folder can be written");
    };
    write("page.deflate", &miniz_oxide::deflate::compress_to_vec_zlib(page.as_bytes(), 10));
    write("page.headers", headers.as_bytes());
    write("page.etag", format!("\"{etag}\"").as_bytes());
}
