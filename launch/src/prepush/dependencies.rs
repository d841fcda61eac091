//! Checks third-party crates with cargo-deny: licences, sources, advisories and bans.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::capture;
use super::text::MANIFESTS;
use super::tree::{Tree, target};
use crate::{build, command};

/// The targets of each workspace. Crates for other targets are neither downloaded nor linked.
const TARGETS: [&[&str]; 3] = [
    &["x86_64-unknown-linux-gnu", "x86_64-unknown-hermit"],
    &["x86_64-unknown-none"],
    &["x86_64-unknown-uefi"],
];

/// The directory name that cargo-deny derives from the URL of the public advisory database.
const DATABASE: &str = "advisory-db-3157b0e258782691";

/// Checks the three lock files.
pub(super) fn deny(tree: &Tree) -> Result<String> {
    let deny = tree.tools.tool("cargo-deny")?;
    let directory = target().join("deny");
    fs::create_dir_all(&directory)?;
    let config = directory.join("deny.toml");
    let advisories = &tree.advisories;
    fs::write(&config, configuration(tree, advisories.is_some())?)?;
    if let Some(database) = advisories {
        link(database)?;
    }
    let mut checks = Vec::new();
    for (at, (manifest, targets)) in MANIFESTS.iter().zip(TARGETS).enumerate() {
        let metadata = directory.join(format!("metadata-{at}.json"));
        fs::write(&metadata, resolve(tree, manifest, targets)?)?;
        let mut check = tree.command(&deny);
        check.arg("--metadata-path").arg(metadata).arg("--config").arg(&config);
        check.args(["--offline", "--log-level", "error", "check", "--hide-inclusion-graph"]);
        check.args(["licenses", "bans", "sources"]);
        if advisories.is_some() {
            check.arg("advisories");
        }
        checks.push(check);
    }
    capture::all(checks)?;
    Ok(match advisories {
        Some(_) => String::new(),
        None => "advisories not checked: no database in target/advisory-db or ISTHMUS_ADVISORY_DB"
            .into(),
    })
}

/// The crates of a workspace, as cargo resolves its lock file.
fn resolve(tree: &Tree, manifest: &str, targets: &[&str]) -> Result<String> {
    let mut cargo: Command = tree.tools.toolchain.cargo();
    cargo.args(["metadata", "--format-version=1", "--locked", "--manifest-path"]);
    cargo.arg(tree.path(manifest));
    cargo.args(targets.iter().flat_map(|target| ["--filter-platform", target]));
    if manifest.contains("kernel") {
        let kernel = build::kernel(&tree.tools.toolchain)?;
        cargo.arg(format!("--config=patch.crates-io.hermit-kernel.path={:?}", kernel.display()));
    }
    command::output(&mut cargo)
}

/// Puts the database where cargo-deny looks for it.
fn link(database: &Path) -> Result<()> {
    let link = directory_of_databases().join(DATABASE);
    fs::create_dir_all(directory_of_databases())?;
    let _ = fs::remove_file(&link);
    let database = fs::canonicalize(database)?;
    std::os::unix::fs::symlink(database, &link).context("could not link the advisories")
}

fn directory_of_databases() -> PathBuf {
    target().join("deny/advisories")
}

/// `deny.toml`, with the path of the advisory database if there is one.
fn configuration(tree: &Tree, has_database: bool) -> Result<String> {
    let text = fs::read_to_string(tree.path("deny.toml")).context("there is no deny.toml")?;
    if !has_database {
        return Ok(text);
    }
    let section = "[advisories]\n";
    let path = directory_of_databases();
    Ok(text.replacen(section, &format!("{section}db-path = {path:?}\n"), 1))
}
