//! A copy of the working tree, into which mistakes are planted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::list::Mistake;
use crate::command;

/// The directory of the planted advisory database, relative to the top of the copy.
pub(super) const DATABASE: &str = "planted-advisories";

pub(super) struct Copy(TempDir);

/// A planted mistake. Dropping it restores the files.
pub(super) struct Planted {
    root: PathBuf,
    before: Vec<(PathBuf, Option<Vec<u8>>)>,
}

impl Copy {
    /// Copies the files that git tracks, and untracked files that it does not ignore.
    pub fn of(root: &Path) -> Result<Copy> {
        let directory = tempfile::Builder::new().prefix("isthmus-mistakes-").tempdir()?;
        let mut list = Command::new("git");
        list.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        for file in command::output(&mut list)?.lines() {
            let (from, to) = (root.join(file), directory.path().join(file));
            if from.is_file() {
                fs::create_dir_all(to.parent().context("the path has no parent directory")?)?;
                fs::copy(&from, &to).with_context(|| format!("could not copy {file}"))?;
            }
        }
        Ok(Copy(directory))
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn plant(&self, mistake: &Mistake) -> Result<Planted> {
        let mut planted = Planted { root: self.root().into(), before: Vec::new() };
        for (file, edit) in &mistake.edits {
            let path = self.root().join(file);
            let before = fs::read(&path).ok();
            let text = String::from_utf8_lossy(before.as_deref().unwrap_or_default()).into_owned();
            let edited = edit(&text);
            planted.before.push((path.clone(), before));
            fs::create_dir_all(path.parent().context("the path has no parent directory")?)?;
            fs::write(&path, edited)?;
        }
        Ok(planted)
    }
}

impl Planted {
    /// Makes the planted advisory database a git repository, because cargo-deny accepts nothing else.
    pub fn advisories(&self) -> Option<PathBuf> {
        let database = self.root.join(DATABASE);
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=x", "-c", "user.email=x@localhost"])
                .arg("-C")
                .arg(&database);
            command::output(git.args(arguments)).ok()
        };
        git(&["init", "--quiet"]).filter(|_| database.join("crates").is_dir())?;
        git(&["add", "."])?;
        git(&["commit", "--quiet", "-m", "planted"])?;
        Some(database)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        for (path, before) in self.before.drain(..) {
            let _ = match before {
                Some(bytes) => fs::write(path, bytes),
                None => fs::remove_file(path),
            };
        }
    }
}
