//! The README's figures, between two marks.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::page::values;
use crate::recorded::Recorded;
use crate::suite;

const BEGIN: &str = "<!-- figures:begin -->\n";
const END: &str = "<!-- figures:end -->";

/// The figures of the README, by suite and key.
const KEYS: [(&str, &str); 6] = [
    ("rnbd", "read4k_qd32_ratio"),
    ("rnbd", "iops_ratio"),
    ("smcr", "echo64_ratio"),
    ("boot", "boot_seconds"),
    ("boot", "image_bytes"),
    ("boot", "memory_floor_mib"),
];

/// Replaces the figures between the marks of a text. None if it has no marks.
pub fn replaced(text: &str, recorded: &Recorded) -> Result<Option<String>> {
    let Some((before, rest)) = text.split_once(BEGIN) else { return Ok(None) };
    let (_, after) = rest.split_once(END).context("the end mark of the figures is missing")?;
    Ok(Some(format!("{before}{BEGIN}{}{END}{after}", table(recorded)?)))
}

fn table(recorded: &Recorded) -> Result<String> {
    let mut text =
        String::from("| meaning | unit | Linux | Isthmus | ratio |\n|---|---|--:|--:|--:|\n");
    for (name, key) in KEYS {
        let figure = suite(name).and_then(|suite| suite.figure(key));
        let figure = figure.with_context(|| format!("no figure {key} of {name}"))?;
        let Some(measured) = recorded.get(name, key) else { continue };
        let [linux, ours, ratio] =
            values(figure, measured).map(|cell| if cell.is_empty() { "–".into() } else { cell });
        let _ =
            writeln!(text, "| {} | {} | {linux} | {ours} | {ratio} |", figure.meaning, figure.unit);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::Measured;

    #[test]
    fn text_between_the_marks_is_replaced() {
        let mut recorded = Recorded::default();
        let value = |value| Measured { value, ..Measured::default() };
        recorded.set("boot", "boot_seconds", value(0.146));
        recorded.set("smcr", "echo64_ratio", value(0.099));
        let sample = "before\n<!-- figures:begin -->\nold\nold\n<!-- figures:end -->\nafter\n";
        let new = replaced(sample, &recorded).unwrap().unwrap();
        assert!(new.starts_with("before\n<!-- figures:begin -->\n| meaning "), "{new}");
        assert!(new.ends_with("\n<!-- figures:end -->\nafter\n"), "{new}");
        assert!(new.contains(
            "\n| an SMC-R echo of 64 bytes at the server | instructions | – | – | 0.099 |\n"
        ));
        assert!(new.contains(" | s | – | 0.146 | – |\n"), "{new}");
        assert!(!new.contains("old"));
        assert_eq!(replaced(&new, &recorded).unwrap().unwrap(), new);
    }

    #[test]
    fn text_without_marks_is_unchanged() {
        assert_eq!(replaced("text", &Recorded::default()).unwrap(), None);
        assert!(replaced(BEGIN, &Recorded::default()).is_err());
    }

    #[test]
    fn readme_figures_are_in_the_table() {
        for (name, key) in KEYS {
            assert!(suite(name).and_then(|suite| suite.figure(key)).is_some(), "{name} {key}");
        }
    }
}
