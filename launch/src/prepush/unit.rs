//! The unit tests of the crates that changed.

use std::process::Command;

use anyhow::Result;

use super::capture;
use super::changed;
use super::tree::Tree;
use crate::workspace;

/// Runs the unit tests of the changed crates, in the profile of `./isthmus test`.
pub(super) fn changed_crates(tree: &Tree) -> Result<String> {
    let crates = match tree.only {
        Some(name) => vec![name.to_string()],
        None => changed::crates(&tree.root)?,
    };
    if crates.is_empty() {
        return Ok("no crate has changed".into());
    }
    let mut cargo = Command::new(&tree.tools.toolchain.cargo);
    cargo.current_dir(&tree.root).env("RUSTC", &tree.tools.toolchain.rustc);
    cargo.env("RUST_BACKTRACE", "0");
    cargo.args(["test", "--quiet", "--locked", "--profile", "host", "--lib", "--no-fail-fast"]);
    cargo.args(crates.iter().flat_map(|name| ["-p", name]));
    cargo.arg("--target-dir").arg(workspace::target());
    capture::all([cargo])?;
    Ok(crates.join(", "))
}
