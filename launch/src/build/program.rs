//! The program: the appliance with the full standard library, linked with the kernel bundle.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use super::Kind;
use super::toolchain::Toolchain;
use crate::{command, workspace};

const TARGET: &str = "x86_64-unknown-hermit";

/// The commit of the working tree, with a `+` if it holds more than that; "unknown" outside of a repository.
pub fn commit() -> String {
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

/// Builds and links the program; returns the ELF with symbols.
pub fn build(
    toolchain: &Toolchain,
    kernel: &Path,
    kind: Kind,
    features: &[&str],
) -> Result<PathBuf> {
    // All kinds of image share what is compiled before the last crate, which a feature tells apart.
    let target = workspace::target().join("image");
    let mut features = features.to_vec();
    if kind == Kind::Hermit {
        features.push("uhyve");
    }
    let mut cargo = toolchain.cargo();
    cargo.args(["build", "--release", "-p", "image", "--target", TARGET, "--manifest-path"]);
    cargo.arg(workspace::root().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&target).arg("--locked");
    cargo.arg("--config=unstable.build-std=[\"std\",\"panic_abort\"]");
    // Sorting and printing numbers, which no packet waits for, take a third of what they take otherwise.
    cargo.arg("--config=unstable.build-std-features=[\"optimize_for_size\"]");
    cargo.arg(format!("--config=target.{TARGET}.linker={:?}", toolchain.linker.display()));
    cargo.args(["--no-default-features", "--features"]).arg(features.join(","));
    cargo.env("ISTHMUS_COMMIT", commit());
    cargo.env("ISTHMUS_KERNEL", kernel);
    command::run_quietly("building the appliance", &mut cargo)?;
    Ok(target.join(TARGET).join("release/isthmus"))
}
