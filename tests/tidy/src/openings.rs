//! Opening comments of files: the first sentence must name its subject by a noun of the field.

use crate::Finding;

/// Words in a first sentence that replace an actor or a verb of the field.
const WORDS: &[&str] = &[
    "told",
    "tells",
    "hear",
    "hears",
    "heard",
    "heed",
    "heeds",
    "heeded",
    "nobody",
    "whoever",
    "somebody",
    "anybody",
    "everybody",
    "whom",
];

/// Reports an opening comment of a shape to avoid.
pub fn check(path: &str, text: &str) -> Option<Finding> {
    let sentence = first_sentence(text)?;
    let mut words = sentence.split(|c: char| !c.is_alphanumeric());
    if sentence.starts_with("What ") {
        return Some(Finding::at(path, 1, format!("\"What …\" stands for a noun: {sentence}")));
    }
    let word = words.find(|word| WORDS.contains(&word.to_lowercase().as_str()))?;
    Some(Finding::at(path, 1, format!("\"{word}\": name the actor and a verb: {sentence}")))
}

/// The first sentence of a file's opening comment.
fn first_sentence(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let opening: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let opening = opening.join(" ");
    let end = opening.find(". ").map_or(opening.len(), |at| at + 1);
    (!opening.is_empty()).then(|| opening[..end].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_to_avoid_are_found() {
        let bad = [
            "//! What is said of it.\n",
            "//! The state, as the peer\n//! was told. More.\n",
            "//! Whoever connects has it.\n",
        ];
        for text in bad {
            assert!(check("a.rs", text).is_some(), "{text}");
        }
    }

    #[test]
    fn only_the_first_sentence_counts() {
        let good = [
            "//! Reports errors to the caller. What it is told is kept.\n",
            "//! Timers.\n//!\n//! Nobody waits.\n",
            "// What is said.\n",
            "fn f() {}\n",
        ];
        for text in good {
            assert_eq!(check("a.rs", text), None, "{text}");
        }
    }
}
