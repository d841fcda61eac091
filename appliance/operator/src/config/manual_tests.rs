//! Documents in README and the manual pass the check of configurations.

use std::fs;
use std::path::Path;

use super::check;

/// A block of a page that is a whole document: its page, its line, its text. One that refers to things which the page
/// has elsewhere is fenced as `toml fragment`.
fn documents(page: &str, text: &str) -> Vec<(String, usize, String)> {
    let mut documents = Vec::new();
    let mut document: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        match &mut document {
            None if line == "```toml" => document = Some((at + 1, Default::default())),
            None => {}
            Some(_) if line.starts_with("```") => {
                documents.extend(document.take().map(|(line, text)| (page.into(), line, text)));
            }
            Some((_, text)) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    documents
}

/// The problems of a page's documents.
fn mistakes(page: &str, text: &str) -> Vec<String> {
    let wrong = documents(page, text).into_iter().filter_map(|(page, line, document)| {
        let problems = check(document.as_bytes()).err()?;
        let list: Vec<_> = problems.iter().map(|problem| format!("{problem}")).collect();
        Some(format!("{page}:{line}: {}", list.join("; ")))
    });
    wrong.collect()
}

#[test]
fn documents_of_the_manual_are_valid() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manual = fs::read_dir(top.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in manual.chain([top.join("README.md")]) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            found.extend(mistakes(&name, &fs::read_to_string(&path).unwrap()));
        }
    }
    let list = found.join("\n");
    assert!(found.is_empty(), "\n{list}\n(a part of a document is fenced as `toml fragment`)");
}

#[test]
fn a_mistake_in_a_document_is_found() {
    let page = "text\n```toml\n[system]\nhostnam = \"a\"\n```\n```toml fragment\nx = 1\n```\n";
    let found = mistakes("a.md", page);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a.md:2: ") && found[0].contains("hostnam"), "{found:?}");
}
