//! Renders the files that are made from the record.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::pictures::PICTURES;
use crate::recorded::Recorded;
use crate::{page, readme};

/// A rendered file.
pub struct Rendered {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file.
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
    fn pages_equal_the_rendered_record() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
        let recorded = Recorded::read(&root.join("docs/figures.json")).unwrap();
        for Rendered { path, text } in render(root, &recorded).unwrap() {
            let present = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                present == text,
                "{} is out of date: run ./isthmus bench --render",
                path.display()
            );
        }
    }

    #[test]
    fn record_is_in_its_written_form() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/figures.json"));
        let text = fs::read_to_string(path).unwrap();
        let mut recorded = Recorded::parse(&text).unwrap();
        recorded.forget_unknown();
        assert_eq!(recorded.to_json(), text);
    }
}
