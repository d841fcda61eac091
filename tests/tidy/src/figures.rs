//! The figures of README.md, each of which must be in `docs/figures.md`.

use crate::Finding;
use crate::links::without_code;

/// Marks around the figures of README.md.
const MARKS: [&str; 2] = ["<!-- figures:begin -->", "<!-- figures:end -->"];

/// Finds numbers between the marks of README.md that are not in `figures`.
pub fn check(readme: &str, figures: &str) -> Vec<Finding> {
    let known: Vec<&str> = numbers(figures).collect();
    let mut findings = Vec::new();
    let mut inside = false;
    for (at, line) in readme.lines().enumerate() {
        match MARKS.iter().position(|mark| line.trim() == *mark) {
            Some(mark) => inside = mark == 0,
            None if inside => {
                let line = without_code(line);
                let unknown = numbers(&line).filter(|number| !known.contains(number));
                findings.extend(unknown.map(|number| {
                    let text = format!("{number} is not in docs/figures.md");
                    Finding::at("README.md", at + 1, text)
                }));
            }
            None => {}
        }
    }
    if inside {
        findings.push(Finding::of("README.md", format!("no {}", MARKS[1])));
    }
    findings
}

/// The numbers of a text, as they are written.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && !".,_".contains(c));
    let words = words.map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || ".,".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "9\n<!-- figures:begin -->\n| reads of 4 KiB | 0.09 | `x1` |\n\
                          <!-- figures:end -->\n8\n";

    #[test]
    fn figures_that_are_known_pass() {
        assert_eq!(check(README, "| 4 | 0.09. |"), []);
    }

    #[test]
    fn a_figure_that_is_only_in_readme_is_found() {
        let found = check(README, "4 and 0.091");
        assert_eq!(found, [Finding::at("README.md", 3, "0.09 is not in docs/figures.md")]);
    }

    #[test]
    fn a_missing_mark_is_found() {
        let found = check("<!-- figures:begin -->\n", "");
        assert_eq!(found, [Finding::of("README.md", "no <!-- figures:end -->")]);
    }
}
