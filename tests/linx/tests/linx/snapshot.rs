//! Compares texts with files in `data`.

use std::path::Path;

/// Compares `text` with the file of this name. With `ISTHMUS_UPDATE` set, writes the file.
pub fn check(name: &str, text: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data")).join(name);
    if std::env::var_os("ISTHMUS_UPDATE").is_some() {
        std::fs::write(&path, text).expect("the file is writable");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (n, (is, was)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, was, "{name}, line {}; ISTHMUS_UPDATE=1 rewrites the file", n + 1);
    }
    assert_eq!(text.lines().count(), expected.lines().count(), "{name}: lines");
}
