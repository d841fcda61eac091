//! `./isthmus check`: checks a configuration document as the appliance does.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use appliance::config;

/// Checks the document at `path` with the code that runs in the appliance.
pub fn check(path: &Path) -> Result<()> {
    let text = fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    let (lines, mistakes) = report(&text);
    for line in &lines {
        println!("{}: {line}", path.display());
    }
    if mistakes > 0 {
        bail!("{} is not usable; mistakes: {mistakes}", path.display());
    }
    Ok(())
}

/// The messages about a document, and the number of its mistakes.
fn report(text: &[u8]) -> (Vec<String>, usize) {
    let mut lines: Vec<String> =
        config::renamed_keys(text).iter().map(ToString::to_string).collect();
    match config::check(text) {
        Ok(config) => {
            let open = config.open_to_everybody();
            lines.extend(open.iter().map(|what| format!("{what}: open to everybody")));
            lines.push("good".into());
            (lines, 0)
        }
        Err(problems) => {
            lines.extend(problems.iter().map(ToString::to_string));
            (lines, problems.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_document_lists_what_is_open_to_everybody() {
        let (lines, mistakes) = report(b"[http]\nhosts = [\"10.0.0.0/24\"]\n");
        assert_eq!(mistakes, 0);
        assert_eq!(lines, ["export ram0: open to everybody", "good"]);
        let closed =
            b"[http]\nhosts = [\"10.0.0.0/24\"]\n[[export]]\nname = \"a\"\nvolume = \"ram0\"\n\
                       hosts = [\"10.0.0.0/24\"]\n";
        assert_eq!(report(closed), (vec!["good".to_string()], 0));
    }

    /// The appliance ignores an unknown key and continues; the check reports it as a mistake.
    #[test]
    fn an_unknown_key_is_a_mistake() {
        let (lines, mistakes) = report(b"[http]\nhots = [\"10.0.0.0/24\"]\n");
        assert_eq!(mistakes, lines.len());
        assert!(mistakes > 0 && lines[0].contains("http.hots"), "{lines:?}");
        assert!(!lines.iter().any(|line| line == "good"));
    }
}
