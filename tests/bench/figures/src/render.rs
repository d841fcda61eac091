//! All that is rendered from the record, and where it belongs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::pictures::PICTURES;
use crate::recorded::Recorded;
use crate::{page, readme};

/// A file as it has to be.
pub struct Rendered {
    /// Where it belongs.
    pub path: PathBuf,
    /// What has to be in it.
    pub text: String,
}

/// The files of the checkout at `root` that are rendered from the record.
pub fn render(root: &Path, recorded: &Recorded) -> Result<Vec<Rendered>> {
    let docs = root.join("docs");
    let mut files = vec![Rendered { path: docs.join("figures.md"), text: page::page(recorded) }];
    for picture in PICTURES.iter().filter(|picture| picture.is_drawn(recorded)) {
        let path = docs.join("pictures").join(format!("{}.svg", picture.name));
        files.push(Rendered { path, text: picture.svg(recorded) });
    }
    let path = root.join("README.md");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    if let Some(text) = readme::replaced(&text, recorded)? {
        files.push(Rendered { path, text });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_is_rendered_from_the_record() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
        let recorded = Recorded::read(&root.join("docs/figures.json")).unwrap();
        for Rendered { path, text } in render(root, &recorded).unwrap() {
            let present = fs::read_to_string(&path).unwrap_or_default();
            assert!(present == text, "./isthmus bench --render has not written {}", path.display());
        }
    }

    #[test]
    fn the_record_is_as_it_would_be_written() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/figures.json"));
        let text = fs::read_to_string(path).unwrap();
        let mut recorded = Recorded::parse(&text).unwrap();
        recorded.forget_unknown();
        assert_eq!(recorded.to_json(), text);
    }
}
