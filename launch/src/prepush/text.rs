//! Checks that do not compile the product: format, rules of `tests/tidy`, spelling, CI workflow.

use std::process::Command;

use anyhow::Result;

use super::capture;
use super::tools;
use super::tree::Tree;
use crate::{command, workspace};

/// The manifests of the three workspaces.
pub(super) const MANIFESTS: [&str; 3] =
    ["Cargo.toml", "appliance/kernel/Cargo.toml", "images/efi/Cargo.toml"];

/// Runs `cargo fmt --check` in the three workspaces.
pub(super) fn format(tree: &Tree) -> Result<String> {
    let tools = &tree.tools;
    let (cargo_fmt, rustfmt) = (tools.tool("cargo-fmt")?, tools.tool("rustfmt")?);
    capture::all(MANIFESTS.map(|manifest| {
        let mut format = tree.command(&cargo_fmt);
        // Run in the workspace's directory: `--manifest-path` rejects a workspace without a root package.
        format.current_dir(tree.path(manifest).with_file_name("")).arg("--check");
        format.env("CARGO", &tools.toolchain.cargo).env("RUSTFMT", &rustfmt);
        format
    }))
}

/// Checks the rules of `tests/tidy`.
pub(super) fn tidy(tree: &Tree) -> Result<String> {
    let mut cargo = Command::new(&tree.tools.toolchain.cargo);
    // The rules come from this checkout; the text that they check is the tree's.
    cargo.current_dir(workspace::root()).env("ISTHMUS_TREE", &tree.root);
    cargo.env("RUSTC", &tree.tools.toolchain.rustc).env("RUST_BACKTRACE", "0");
    cargo.args(["test", "--quiet", "--locked", "--profile", "host", "-p", "tidy"]);
    cargo.args(["--tests", "--no-fail-fast"]);
    capture::all([cargo])
}

/// Prints the report of `tests/tidy`.
pub(super) fn report(tree: &Tree, places: bool) -> Result<()> {
    let mut cargo = Command::new(&tree.tools.toolchain.cargo);
    cargo.current_dir(workspace::root()).env("ISTHMUS_TREE", &tree.root);
    cargo.env("RUSTC", &tree.tools.toolchain.rustc);
    cargo.args([
        "run",
        "--quiet",
        "--locked",
        "--profile",
        "host",
        "-p",
        "tidy",
        "--bin",
        "report",
    ]);
    cargo.args(places.then_some(["--", "--places"]).into_iter().flatten());
    command::run(&mut cargo)
}

/// Checks spelling.
pub(super) fn typos(tree: &Tree) -> Result<String> {
    let mut typos = tree.command(&tree.tools.tool("typos")?);
    typos.args(["--config", "typos.toml", "--format", "brief"]);
    capture::all([typos])
}

/// Checks the CI workflow against its JSON schema.
pub(super) fn workflow(tree: &Tree) -> Result<String> {
    let Ok(checker) = tree.tools.tool("check-jsonschema") else {
        return Ok("not checked: check-jsonschema is missing".into());
    };
    let mut check = tree.command(&checker);
    check.args(["--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml"]);
    check.env("PATH", tools::path(&tree.tools.toolchain)?);
    capture::all([check])
}
