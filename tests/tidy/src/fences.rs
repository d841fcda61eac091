//! Code fences in Markdown.

use crate::Finding;

/// Kind of a line of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Prose.
    Text(&'a str),
    /// The beginning or the end of a block of code.
    Fence,
    /// A line of code within a block.
    Code,
}

/// The lines of a page, numbered from 1.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, Line<'_>)> {
    let mut inside = false;
    text.lines().enumerate().map(move |(at, line)| {
        let kind = match (line.trim_start().starts_with("```"), inside) {
            (true, _) => {
                inside = !inside;
                Line::Fence
            }
            (false, true) => Line::Code,
            (false, false) => Line::Text(line),
        };
        (at + 1, kind)
    })
}

/// Finds fences that do not close, and text after closing fences, because renderers treat such a line as code.
pub fn check(page: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut opened = None;
    for (at, line) in text.lines().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        match opened {
            None => opened = Some(at + 1),
            Some(_) => {
                opened = None;
                if !info.trim_matches('`').trim().is_empty() {
                    findings.push(Finding::at(page, at + 1, "text after a closing fence"));
                }
            }
        }
    }
    findings.extend(opened.map(|at| Finding::at(page, at, "a fence that does not close")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_fences_pass() {
        assert_eq!(check("a.md", "a\n```toml\nb\n```\nc\n"), []);
    }

    #[test]
    fn text_after_a_closing_fence_is_found() {
        let found = check("a.md", "```\nb\n``` c\n");
        assert_eq!(found, [Finding::at("a.md", 3, "text after a closing fence")]);
    }

    #[test]
    fn an_open_fence_is_found() {
        let found = check("a.md", "a\n```\nb\n");
        assert_eq!(found, [Finding::at("a.md", 2, "a fence that does not close")]);
    }

    #[test]
    fn lines_within_fences_are_code() {
        let kinds: Vec<_> = lines("a\n```\nb\n```\n").map(|(_, line)| line).collect();
        assert_eq!(kinds, [Line::Text("a"), Line::Fence, Line::Code, Line::Fence]);
    }
}
