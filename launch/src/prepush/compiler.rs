//! Runs clippy and rustdoc; their warnings are errors.
//!
//! Both use one target directory, and cargo runs clippy in place of the compiler for both, so that rustdoc reuses
//! clippy's output for dependencies. Workspaces other than the main one have a target directory of their own: where the
//! standard library's source is unpacked below `target/` they name it by another path, and cargo would rebuild it each
//! time.

use std::process::Command;

use anyhow::Result;

use super::capture;
use super::tree::{Tree, target};
use crate::build;

/// Options for clippy, in the encoding of `cargo clippy`.
const CLIPPY_ARGS: &str = "-Dwarnings__CLIPPY_HACKERY__";

/// The main workspace.
const MAIN: &str = "Cargo.toml";

/// The target of the kernel and of the boot stub.
const BARE: &str = "x86_64-unknown-none";

/// Builds `core` and `alloc` from source.
const BUILD_CORE: &str = "--config=unstable.build-std=[\"core\",\"alloc\"]";

/// Has cargo run clippy.
fn with_clippy(tree: &Tree, mut cargo: Command) -> Result<Command> {
    cargo.current_dir(&tree.root);
    cargo.env("RUSTC", &tree.tools.toolchain.rustc);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", tree.tools.tool("clippy-driver")?);
    cargo.env("CLIPPY_ARGS", CLIPPY_ARGS);
    Ok(cargo)
}

/// The whole workspace, or one crate of it.
fn packages(tree: &Tree) -> Vec<&str> {
    tree.only.map_or_else(|| vec!["--workspace"], |name| vec!["-p", name])
}

/// Checks every crate for the host: libraries, programs, tests.
pub(super) fn host(tree: &Tree) -> Result<String> {
    let mut cargo = with_clippy(tree, Command::new(&tree.tools.toolchain.cargo))?;
    cargo.args(["check", "--quiet", "--locked", "--all-targets", "--keep-going"]);
    cargo.args(packages(tree)).arg("--target-dir").arg(target());
    capture::all([cargo])
}

/// Builds the documentation of every crate, which checks its links.
pub(super) fn documentation(tree: &Tree) -> Result<String> {
    let toolchain = &tree.tools.toolchain;
    let mut cargo = with_clippy(tree, Command::new(&toolchain.cargo))?;
    cargo.args(["doc", "--quiet", "--locked", "--no-deps", "--keep-going"]);
    cargo.args(packages(tree)).arg("--target-dir").arg(target());
    cargo.env("RUSTDOCFLAGS", "-Dwarnings");
    // The rustdoc in PATH may belong to another toolchain.
    let rustdoc = toolchain.rustc.with_file_name("rustdoc");
    if rustdoc.exists() {
        cargo.env("RUSTDOC", rustdoc);
    }
    capture::all([cargo])
}

/// `cargo check` with clippy for the target `triple`.
fn cross(tree: &Tree, manifest: &str, triple: &str) -> Result<Command> {
    let mut cargo = with_clippy(tree, tree.tools.toolchain.cargo())?;
    cargo.args(["check", "--quiet", "--locked", "--target", triple]);
    let directory = if manifest == MAIN { target() } else { target().join("others") };
    cargo.arg("--manifest-path").arg(tree.path(manifest)).arg("--target-dir").arg(directory);
    Ok(cargo)
}

/// Checks the image with every family and fault injection, and the boot stub.
pub(super) fn image(tree: &Tree) -> Result<String> {
    let mut cargo = cross(tree, MAIN, "x86_64-unknown-hermit")?;
    cargo.args(["-p", "image", "--features", "mlx5,faults"]);
    cargo.arg("--config=unstable.build-std=[\"std\",\"panic_abort\"]");
    let mut stub = cross(tree, MAIN, BARE)?;
    stub.args(["-p", "boot", "--features", "stub"]).arg(BUILD_CORE);
    capture::all([cargo, stub])
}

/// Checks the kernel bundle.
pub(super) fn kernel(tree: &Tree) -> Result<String> {
    let kernel = build::kernel(&tree.tools.toolchain)?;
    let mut cargo = cross(tree, "appliance/kernel/Cargo.toml", BARE)?;
    cargo.args(["--features", "stub"]).arg(BUILD_CORE).env("HERMIT_LOG_LEVEL_FILTER", "off");
    cargo.arg(format!("--config=patch.crates-io.hermit-kernel.path={:?}", kernel.display()));
    capture::all([cargo])
}

/// Checks the UEFI front end. It embeds `Cargo.toml` in place of an image, which is not built here.
pub(super) fn efi(tree: &Tree) -> Result<String> {
    let mut cargo = cross(tree, "images/efi/Cargo.toml", "x86_64-unknown-uefi")?;
    cargo.arg(BUILD_CORE).env("ISTHMUS_ELF", tree.path(MAIN));
    capture::all([cargo])
}
