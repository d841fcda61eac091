//! The program: the appliance with the full standard library, linked with the kernel bundle.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Kind;
use super::toolchain::Toolchain;
use crate::{command, workspace};

const TARGET: &str = "x86_64-unknown-hermit";

/// Builds and links the program; returns the ELF with symbols.
pub fn build(toolchain: &Toolchain, kernel: &Path, kind: Kind) -> Result<PathBuf> {
    let target = workspace::target().join("image").join(kind.name());
    let mut cargo = toolchain.cargo();
    cargo.args(["build", "--release", "-p", "image", "--target", TARGET, "--manifest-path"]);
    cargo.arg(workspace::root().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&target).arg("--locked");
    cargo.arg("--config=unstable.build-std=[\"std\",\"panic_abort\"]");
    cargo.arg(format!("--config=target.{TARGET}.linker={:?}", toolchain.linker.display()));
    cargo.env("ISTHMUS_KERNEL", kernel).env("ISTHMUS_IMAGE", kind.name());
    command::run_quietly("building the appliance", &mut cargo)?;
    Ok(target.join(TARGET).join("release/isthmus"))
}
