//! The fenced blocks of README and docs, whose commands the tests run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace;

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The word after the opening fence: `toml`, `console`, or nothing.
    pub language: String,
    /// The lines, without line feeds.
    pub lines: Vec<String>,
}

impl Block {
    /// The text of its lines, each with a line feed.
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }

    /// The commands after `prompt`, without comments. Lines that end with a backslash are joined. Output is omitted.
    pub fn typed(&self, prompt: &str) -> Vec<String> {
        let mut typed: Vec<String> = Vec::new();
        let mut continues = false;
        for line in &self.lines {
            let rest = if continues { Some(line.trim()) } else { line.strip_prefix(prompt) };
            let Some(rest) = rest else { continue };
            let (part, more) = rest.strip_suffix('\\').map_or((rest, false), |part| (part, true));
            match (typed.last_mut(), continues) {
                (Some(last), true) => last.push_str(part),
                _ => typed.push(part.into()),
            }
            continues = more;
        }
        typed.iter().map(|line| without_comment(line).into()).collect()
    }
}

fn without_comment(line: &str) -> &str {
    line.split_once(" # ").map_or(line, |(command, _)| command).trim_end()
}

/// The fenced blocks of a page in Markdown.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language: language.into(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.into()),
            (None, None) => {}
        }
    }
    blocks
}

/// The part of a page below a heading, up to the next one of its level or above.
pub fn section(page: &str, heading: &str) -> Result<String> {
    let level =
        |line: &str| line.find(|c| c != '#').filter(|&hashes| line[hashes..].starts_with(' '));
    let own = level(heading);
    let mut lines = page.lines().skip_while(|line| *line != heading);
    lines.next().with_context(|| format!("the page has no {heading:?}"))?;
    let mut is_fenced = false;
    let lines = lines.take_while(|line| {
        is_fenced ^= line.starts_with("```");
        is_fenced || !level(line).is_some_and(|hashes| hashes > 0 && Some(hashes) <= own)
    });
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

/// README and every page of docs: file name and text.
pub fn all() -> Result<Vec<(String, String)>> {
    let root = workspace::root();
    let mut paths: Vec<PathBuf> = vec![root.join("README.md")];
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        Ok((name, fs::read_to_string(&path)?))
    };
    paths.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_removes_prompt_comments_and_line_ends() {
        let page = "# A\n```console\n# ./isthmus test  # short\noutput\n# ip link \\\n    add x\n```\n## B\n```toml\na = 1\n```\n# C\n";
        let blocks = blocks(&section(page, "# A").unwrap());
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0].typed("# "), ["./isthmus test", "ip link add x"]);
        assert_eq!((blocks[1].language.as_str(), blocks[1].text().as_str()), ("toml", "a = 1\n"));
        assert_eq!(section(page, "## B").unwrap(), "```toml\na = 1\n```\n");
    }
}
