//! Relative links of pages: the file must exist, and the heading in it.

use crate::Finding;
use crate::fences::{Line, lines};

/// Finds dead relative links. `exists` checks a path of the tree, `text_of` returns the text of a page.
pub fn check(
    page: &str,
    text: &str,
    exists: impl Fn(&str) -> bool,
    text_of: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in targets(text) {
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let Some(path) = (if path.is_empty() { Some(page.into()) } else { resolve(page, path) })
        else {
            findings.push(Finding::at(page, line, format!("link out of the tree: {target}")));
            continue;
        };
        if !exists(&path) {
            findings.push(Finding::at(page, line, format!("dead link: {target}")));
        } else if !anchor.is_empty()
            && let Some(there) = text_of(&path).filter(|_| path.ends_with(".md"))
            && !anchors(&there).iter().any(|known| known == anchor)
        {
            findings.push(Finding::at(page, line, format!("dead anchor: {target}")));
        }
    }
    findings
}

/// The relative links of a page, with their line numbers.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (number, line) in lines(text) {
        let Line::Text(line) = line else { continue };
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere && !target.is_empty() {
                targets.push((number, target.to_string()));
            }
        }
    }
    targets
}

/// A line without its text in backticks.
pub(crate) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// Resolves a path relative to `page` to one from the top of the tree; None if it leaves the tree.
fn resolve(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop()?,
            _ => parts.push(part),
        }
    }
    Some(if parts.is_empty() { ".".into() } else { parts.join("/") })
}

/// The anchors of a page's headings, as GitHub generates them.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in lines(text) {
        let Line::Text(line) = line else { continue };
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name: String = heading
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let name = name.to_lowercase();
        let same = |other: &&String| {
            let number = other.strip_prefix(&name).and_then(|rest| rest.strip_prefix('-'));
            **other == name || number.is_some_and(|n| n.parse::<u32>().is_ok())
        };
        let times = anchors.iter().filter(same).count();
        anchors.push(if times == 0 { name } else { format!("{name}-{times}") });
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let pages = [("docs/a.md", text), ("docs/b.md", "# One `two`, three\n"), ("README.md", "")];
        let text_of = |path: &str| {
            pages.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).into())
        };
        let exists = |path: &str| text_of(path).is_some();
        check("docs/a.md", text, exists, text_of).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "# Here\n[a](b.md) [b](b.md#one-two-three) [c](#here) [d](../README.md)\n\
                    [e](https://x.org/y.md) `[f](none.md)`\n```\n[g](none.md)\n```\n";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn a_dead_link_is_found() {
        assert_eq!(found("\n[a](none.md)\n"), ["docs/a.md:2: dead link: none.md"]);
        assert_eq!(found("[a](../../x)\n"), ["docs/a.md:1: link out of the tree: ../../x"]);
    }

    #[test]
    fn a_dead_anchor_is_found() {
        assert_eq!(found("[a](b.md#four)\n"), ["docs/a.md:1: dead anchor: b.md#four"]);
        assert_eq!(found("[a](#four)\n"), ["docs/a.md:1: dead anchor: #four"]);
    }

    #[test]
    fn headings_of_one_name_are_numbered() {
        assert_eq!(anchors("# A\n## A\n#no\n### A\n"), ["a", "a-1", "a-2"]);
    }
}
