//! The commit of an image and the time of the commit. They are written into the image after linking, so that a commit,
//! or a change outside of the image, recompiles nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::section;
use crate::workspace;

/// The section for the commit: 16 bytes for the commit and zeroes, then the time in seconds since 1970, little-endian.
const SECTION: &str = ".isthmus.commit";

/// The commit of the working tree, with a `+` if tracked files differ from it; "unknown" outside of a repository.
pub fn of_tree() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_some_and(|changes| changes.is_empty()) { "" } else { "+" };
    format!("{}{mark}", String::from_utf8_lossy(&commit).trim())
}

/// When the commit of the working tree was made, in seconds since 1970; 0 outside of a repository.
fn made() -> u64 {
    let time = git(&["log", "-1", "--format=%ct"]);
    time.and_then(|time| String::from_utf8_lossy(&time).trim().parse().ok()).unwrap_or(0)
}

fn git(words: &[&str]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    let output = git.arg("-C").arg(workspace::root()).args(words).stderr(Stdio::null()).output();
    output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
}

/// Writes `commit` into the image file `elf`.
pub fn write(elf: &Path, commit: &str) -> Result<()> {
    let mut bytes = fs::read(elf).with_context(|| format!("could not read {}", elf.display()))?;
    fill(section::find(&mut bytes, SECTION)?, commit, made())?;
    fs::write(elf, bytes).with_context(|| format!("could not write {}", elf.display()))
}

/// Fills the section. At least one zero ends the text.
fn fill(room: &mut [u8], commit: &str, made: u64) -> Result<()> {
    let (name, time) = room.split_at_mut_checked(16).context("the section is too short")?;
    ensure!(commit.len() < name.len(), "{commit:?} does not fit into {SECTION} of the image");
    let time = time.first_chunk_mut().context("the section is too short")?;
    *time = made.to_le_bytes();
    name.fill(0);
    name[..commit.len()].copy_from_slice(commit.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_fills_its_section_and_ends_with_a_zero() {
        let mut room = *b"unknown\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        fill(&mut room, "abc+", 0x0102).unwrap();
        assert_eq!(&room, b"abc+\0\0\0\0\0\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
        fill(&mut room, "123456789012345", 0).unwrap();
        assert_eq!(&room, b"123456789012345\0\0\0\0\0\0\0\0\0");
        assert!(fill(&mut room, "1234567890123456", 0).is_err());
        assert_eq!(&room, b"123456789012345\0\0\0\0\0\0\0\0\0");
        assert!(fill(&mut room[..20], "a", 0).is_err());
    }

    #[test]
    fn a_file_without_the_section_is_left_alone_with_an_error() {
        let this = std::env::current_exe().unwrap();
        let error = section::find(&mut fs::read(this).unwrap(), SECTION).unwrap_err();
        assert!(error.to_string().contains("has no section .isthmus.commit"), "{error}");
        assert!(section::find(&mut b"no ELF".to_vec(), SECTION).is_err());
    }
}
