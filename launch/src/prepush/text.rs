//! Checks that compile nothing of the product.

use std::process::Command;

use anyhow::Result;

use super::capture;
use super::tools;
use super::tree::Tree;
use crate::workspace;

/// The manifests of the three workspaces.
pub(super) const MANIFESTS: [&str; 3] =
    ["Cargo.toml", "appliance/kernel/Cargo.toml", "images/efi/Cargo.toml"];

/// `cargo fmt --check` of the three workspaces.
pub(super) fn format(tree: &Tree) -> Result<String> {
    let tools = &tree.tools;
    let (cargo_fmt, rustfmt) = (tools.tool("cargo-fmt")?, tools.tool("rustfmt")?);
    capture::all(MANIFESTS.map(|manifest| {
        let mut format = tree.command(&cargo_fmt);
        // In its directory: `--manifest-path` would take no workspace without a package of its own.
        format.current_dir(tree.path(manifest).with_file_name("")).arg("--check");
        format.env("CARGO", &tools.toolchain.cargo).env("RUSTFMT", &rustfmt);
        format
    }))
}

/// The rules of `tests/tidy`.
pub(super) fn tidy(tree: &Tree) -> Result<String> {
    let mut cargo = Command::new(&tree.tools.toolchain.cargo);
    // The rules are this checkout's, the text is the tree's.
    cargo.current_dir(workspace::root()).env("ISTHMUS_TREE", &tree.root);
    cargo.env("RUSTC", &tree.tools.toolchain.rustc).env("RUST_BACKTRACE", "0");
    cargo.args(["test", "--quiet", "--locked", "--profile", "host", "-p", "tidy"]);
    cargo.args(["--tests", "--no-fail-fast"]);
    capture::all([cargo])
}

/// Spelling.
pub(super) fn typos(tree: &Tree) -> Result<String> {
    let mut typos = tree.command(&tree.tools.tool("typos")?);
    typos.args(["--config", "typos.toml", "--format", "brief"]);
    capture::all([typos])
}

/// The shape of the workflows of continuous integration.
pub(super) fn workflow(tree: &Tree) -> Result<String> {
    let Ok(checker) = tree.tools.tool("check-jsonschema") else {
        return Ok("not checked, no check-jsonschema".into());
    };
    let mut check = tree.command(&checker);
    check.args(["--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml"]);
    check.env("PATH", tools::path(&tree.tools.toolchain)?);
    capture::all([check])
}
