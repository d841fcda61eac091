//! Clippy and rustdoc, whose warnings are errors here.
//!
//! Both share a target directory, and rustdoc takes what clippy has made of the crates below: cargo is told to run
//! clippy in place of the compiler in either case. Workspaces besides the main one have another directory: they name
//! the standard library's source differently where that is unpacked below `target/`, and cargo would build it again
//! for each in turn.

use std::process::Command;

use anyhow::Result;

use super::capture;
use super::tree::{Tree, target};
use crate::build;

/// Options for clippy, in the form in which `cargo clippy` hands them to it.
const CLIPPY_ARGS: &str = "-Dwarnings__CLIPPY_HACKERY__";

/// The main workspace.
const MAIN: &str = "Cargo.toml";

/// The target of the kernel and of the boot stub.
const BARE: &str = "x86_64-unknown-none";

/// `core` and `alloc` from their source.
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

/// The host's build of every crate: libraries, programs, tests.
pub(super) fn host(tree: &Tree) -> Result<String> {
    let mut cargo = with_clippy(tree, Command::new(&tree.tools.toolchain.cargo))?;
    cargo.args(["check", "--quiet", "--locked", "--all-targets", "--keep-going"]);
    cargo.args(packages(tree)).arg("--target-dir").arg(target());
    capture::all([cargo])
}

/// The documentation of every crate, with its links.
pub(super) fn documentation(tree: &Tree) -> Result<String> {
    let toolchain = &tree.tools.toolchain;
    let mut cargo = with_clippy(tree, Command::new(&toolchain.cargo))?;
    cargo.args(["doc", "--quiet", "--locked", "--no-deps", "--keep-going"]);
    cargo.args(packages(tree)).arg("--target-dir").arg(target());
    cargo.env("RUSTDOCFLAGS", "-Dwarnings");
    // That in the path may be another toolchain's.
    let rustdoc = toolchain.rustc.with_file_name("rustdoc");
    if rustdoc.exists() {
        cargo.env("RUSTDOC", rustdoc);
    }
    capture::all([cargo])
}

/// A check for another target, as the image and what boots it are built.
fn cross(tree: &Tree, manifest: &str, triple: &str) -> Result<Command> {
    let mut cargo = with_clippy(tree, tree.tools.toolchain.cargo())?;
    cargo.args(["check", "--quiet", "--locked", "--target", triple]);
    let directory = if manifest == MAIN { target() } else { target().join("others") };
    cargo.arg("--manifest-path").arg(tree.path(manifest)).arg("--target-dir").arg(directory);
    Ok(cargo)
}

/// The image with every family and the faults that tests provoke, and the boot stub.
pub(super) fn image(tree: &Tree) -> Result<String> {
    let mut cargo = cross(tree, MAIN, "x86_64-unknown-hermit")?;
    cargo.args(["-p", "image", "--features", "mlx5,faults"]);
    cargo.arg("--config=unstable.build-std=[\"std\",\"panic_abort\"]");
    let mut stub = cross(tree, MAIN, BARE)?;
    stub.args(["-p", "boot", "--features", "stub"]).arg(BUILD_CORE);
    capture::all([cargo, stub])
}

/// The kernel bundle.
pub(super) fn kernel(tree: &Tree) -> Result<String> {
    let kernel = build::kernel(&tree.tools.toolchain)?;
    let mut cargo = cross(tree, "appliance/kernel/Cargo.toml", BARE)?;
    cargo.args(["--features", "stub"]).arg(BUILD_CORE).env("HERMIT_LOG_LEVEL_FILTER", "off");
    cargo.arg(format!("--config=patch.crates-io.hermit-kernel.path={:?}", kernel.display()));
    capture::all([cargo])
}

/// The UEFI front end, which carries this program's own file in place of an image.
pub(super) fn efi(tree: &Tree) -> Result<String> {
    let mut cargo = cross(tree, "images/efi/Cargo.toml", "x86_64-unknown-uefi")?;
    cargo.arg(BUILD_CORE).env("ISTHMUS_ELF", tree.path(MAIN));
    capture::all([cargo])
}
