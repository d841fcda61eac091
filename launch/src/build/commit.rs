//! The commit that an image names itself by, and when that was made. They are written into the image after linking, so
//! that a commit, or a change of what is no part of the image, compiles nothing anew.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::section;
use crate::workspace;

/// Where an image has them: the commit's bytes, then zeroes, and in the last eight bytes the time.
const SECTION: &str = ".isthmus.commit";

/// The commit of the working tree, with a `+` if it holds more than that; "unknown" outside of a repository.
pub fn of_tree() -> String {
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        let output =
            git.arg("-C").arg(workspace::root()).args(words).stderr(Stdio::null()).output();
        output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_some_and(|changes| changes.is_empty()) { "" } else { "+" };
    format!("{}{mark}", String::from_utf8_lossy(&commit).trim())
}

/// When the commit of the working tree was made, in seconds since 1970; 0 outside of a repository. It is not when the
/// image was built, which would make each build another one.
pub fn time_of_tree() -> u64 {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace::root()).args(["log", "-1", "--format=%ct"]).stderr(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Writes `commit`, made at `time`, into the image file `elf`.
pub fn write(elf: &Path, commit: &str, time: u64) -> Result<()> {
    let mut bytes = fs::read(elf).with_context(|| format!("could not read {}", elf.display()))?;
    fill(section::find(&mut bytes, SECTION)?, commit, time)?;
    fs::write(elf, bytes).with_context(|| format!("could not write {}", elf.display()))
}

/// Fills the section. One zero at least is left, by which the image knows where the text ends.
fn fill(section: &mut [u8], commit: &str, time: u64) -> Result<()> {
    let room = section.len().saturating_sub(8);
    let (room, place) = section.split_at_mut(room);
    ensure!(commit.len() < room.len(), "{commit:?} does not fit into {SECTION} of the image");
    room.fill(0);
    room[..commit.len()].copy_from_slice(commit.as_bytes());
    place.copy_from_slice(&time.to_le_bytes()[..place.len()]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_fills_its_section_and_ends_with_a_zero() {
        let mut room = *b"unknown\0????????";
        fill(&mut room, "abc+", 1 << 56 | 2).unwrap();
        assert_eq!(&room, b"abc+\0\0\0\0\x02\0\0\0\0\0\0\x01");
        fill(&mut room, "1234567", 0).unwrap();
        assert_eq!(&room, b"1234567\0\0\0\0\0\0\0\0\0");
        assert!(fill(&mut room, "12345678", 0).is_err());
        assert_eq!(&room, b"1234567\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn a_file_without_the_section_is_left_alone_with_an_error() {
        let this = std::env::current_exe().unwrap();
        let error = section::find(&mut fs::read(this).unwrap(), SECTION).unwrap_err();
        assert!(error.to_string().contains("has no section .isthmus.commit"), "{error}");
        assert!(section::find(&mut b"no ELF".to_vec(), SECTION).is_err());
    }
}
