//! Texts that are compared with files in `data`.

use std::path::Path;

/// Compares `text` with the file of that name; with `ISTHMUS_UPDATE` set, writes it.
pub fn check(name: &str, text: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data")).join(name);
    if std::env::var_os("ISTHMUS_UPDATE").is_some() {
        std::fs::write(&path, text).expect("it can be written");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    for (n, (is, was)) in text.lines().zip(known.lines()).enumerate() {
        assert_eq!(is, was, "{name}, line {}; ISTHMUS_UPDATE=1 writes it anew", n + 1);
    }
    assert_eq!(text.lines().count(), known.lines().count(), "{name}: lines");
}
