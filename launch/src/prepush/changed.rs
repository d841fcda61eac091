//! The crates that changed since the upstream.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// Revisions to compare with; the first that exists is used.
const UPSTREAM: [&str; 3] = ["@{upstream}", "origin/main", "HEAD~1"];

/// Names of the workspace's libraries with files that differ from the merge base with the upstream, or that are not
/// committed.
pub(super) fn crates(root: &Path) -> Result<Vec<String>> {
    let base =
        UPSTREAM.iter().find_map(|revision| git(root, &["merge-base", "HEAD", revision]).ok());
    let base = base.context("there is no commit to compare with")?;
    let changed = git(root, &["diff", "--name-only", base.trim()])?;
    let new = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    let names: BTreeSet<String> =
        changed.lines().chain(new.lines()).filter_map(|file| library(root, file)).collect();
    Ok(names.into_iter().collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    command::output(Command::new("git").current_dir(root).args(arguments))
}

/// The library that a file belongs to; `None` for a file of a program or of another workspace.
fn library(root: &Path, file: &str) -> Option<String> {
    let mut directories = Path::new(file).ancestors().skip(1).map(|path| root.join(path));
    let directory: PathBuf = directories.find(|path| path.join("Cargo.toml").exists())?;
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).ok()?;
    let is_elsewhere = manifest.lines().any(|line| line == "[workspace]");
    // A library that compiles files of another crate, which has the unit tests.
    let is_tested_elsewhere = manifest.contains("[lib]\ntest = false\n");
    if is_elsewhere || is_tested_elsewhere || !directory.join("src/lib.rs").exists() {
        return None;
    }
    name(&manifest).map(str::to_string)
}

/// The package's name in a manifest.
fn name(manifest: &str) -> Option<&str> {
    let (_, package) = manifest.split_once("[package]")?;
    let line = package.lines().find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn files_belong_to_the_crate_around_them() {
        let of = |file| library(workspace::root(), file);
        assert_eq!(of("rdma/rtrs/src/server/io.rs").as_deref(), Some("rtrs"));
        assert_eq!(of("rdma/rtrs/gone/gone.rs").as_deref(), Some("rtrs"));
        assert_eq!(of("appliance/operator/src/crash.rs").as_deref(), Some("operator"));
        assert_eq!(of("appliance/image/src/main.rs"), None, "a program");
        assert_eq!(of("images/efi/src/main.rs"), None, "another workspace");
        assert_eq!(of("tests/threads/src/lib.rs"), None, "tested elsewhere");
        assert_eq!(of("docs/run.md"), None);
    }
}
