//! Documents in README and the manual pass the check of configurations.

use std::fs;
use std::path::Path;

use super::nvme_host::{DhchapText, PskText};
use super::{Ed25519Key, Sha256, check};

/// The complete documents of a page: page, line and text of each. A block that depends on other parts of the page is
/// fenced as `toml fragment` and skipped.
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

/// Placeholders in the manual's documents for values that each operator has to supply.
const PLACEHOLDERS: [&str; 3] = [
    "(as ./isthmus release prints it)",
    "(as sha256sum prints it)",
    "(another, as sha256sum prints it)",
];

/// Placeholders for secrets of NVMe hosts, and values for them.
const SECRETS: [(&str, &str); 2] = [
    (
        "(as nvme gen-dhchap-key prints it)",
        "DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:",
    ),
    (
        "(as nvme gen-tls-key prints it)",
        "NVMeTLSkey-1:01:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:",
    ),
];

/// A document with values for the placeholders.
pub(super) fn filled(document: &str) -> String {
    let document =
        SECRETS.iter().fold(document.to_string(), |text, (gap, secret)| text.replace(gap, secret));
    let fill = |text: String, (gap, digits): (&&str, &str)| text.replace(gap, &digits.repeat(32));
    PLACEHOLDERS.iter().zip(["ab", "cd", "ef"]).fold(document, fill)
}

/// The problems of a page's documents.
fn mistakes(page: &str, text: &str) -> Vec<String> {
    let wrong = documents(page, text).into_iter().filter_map(|(page, line, document)| {
        let problems = check(filled(&document).as_bytes()).err()?;
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

/// The text of all files of these kinds below a directory of the repository.
fn texts(directory: &Path, kinds: &[&str], into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, kinds, into);
        } else if kinds.iter().any(|kind| path.extension().is_some_and(|end| end == *kind)) {
            into.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Operators copy sample values from pages into configurations.
#[test]
fn samples_are_not_valid_keys_or_tokens() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    for directory in ["docs", "launch/src", "launch/recipes"] {
        texts(&top.join(directory), &["md", "rs", "xml", "toml"], &mut all);
    }
    for page in ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        all.push((page.into(), fs::read_to_string(top.join(page)).unwrap()));
    }
    let mut found = 0;
    for (name, text) in &all {
        for line in text.lines() {
            for value in line.split(|c: char| !c.is_ascii_hexdigit()).filter(|v| v.len() == 64) {
                found += usize::from(line.contains("upgrade_key"));
                let key = !line.contains("upgrade_key") || value.parse::<Ed25519Key>().is_err();
                let token = !line.contains("token") || value.parse::<Sha256>().is_err();
                assert!(key && token, "{name}: {line}");
            }
            for word in line.split(['"', ' ', '`', '\'']) {
                let is_secret =
                    word.parse::<DhchapText>().is_ok() || word.parse::<PskText>().is_ok();
                assert!(!is_secret, "{name}: {line}");
            }
        }
    }
    assert!(found > 0, "the tests of `./isthmus release` have a key");
    for gap in PLACEHOLDERS {
        assert!(gap.parse::<Ed25519Key>().is_err() && gap.parse::<Sha256>().is_err());
        assert!(all.iter().any(|(_, text)| text.contains(gap)), "{gap}");
    }
}

#[test]
fn mistake_in_a_document_is_found() {
    let page = "text\n```toml\n[system]\nhostnam = \"a\"\n```\n```toml fragment\nx = 1\n```\n";
    let found = mistakes("a.md", page);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a.md:2: ") && found[0].contains("hostnam"), "{found:?}");
}
