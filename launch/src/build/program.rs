//! The program: the appliance with the full standard library, linked with the kernel bundle.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::toolchain::Toolchain;
use super::{Kind, Profile};
use crate::{command, workspace};

const TARGET: &str = "x86_64-unknown-hermit";

/// The image rarely hashes, and only short data: one implementation of SHA-2 with its rounds in loops takes 18 KB less.
/// (The host's programs and the UEFI front end, which hashes the whole image at each boot, have the crate's fastest.)
const SHA2: [&str; 2] = ["--cfg=sha2_backend=\"soft\"", "--cfg=sha2_backend_soft=\"compact\""];

/// Builds and links the program; returns the ELF with symbols.
pub fn build(
    toolchain: &Toolchain,
    kernel: &Path,
    kind: Kind,
    features: &[&str],
    profile: Profile,
) -> Result<PathBuf> {
    // All kinds of image share every crate but the last, whose features differ.
    let target = profile.target();
    let mut features = features.to_vec();
    if kind == Kind::Uhyve {
        features.push("uhyve");
    }
    let mut cargo = toolchain.cargo_with(&SHA2);
    cargo.args([
        "build",
        "--profile",
        profile.name(),
        "-p",
        "image",
        "--target",
        TARGET,
        "--manifest-path",
    ]);
    cargo.arg(workspace::root().join("Cargo.toml"));
    cargo.arg("--target-dir").arg(&target).arg("--locked");
    cargo.arg("--config=unstable.build-std=[\"std\",\"panic_abort\"]");
    // Reduces the size of sorting and printing numbers, which no packet waits for, to a third.
    cargo.arg("--config=unstable.build-std-features=[\"optimize_for_size\"]");
    cargo.arg(format!("--config=target.{TARGET}.linker={:?}", toolchain.linker.display()));
    cargo.args(["--no-default-features", "--features"]).arg(features.join(","));
    cargo.env("ISTHMUS_KERNEL", kernel);
    // A change recompiles only the code that it touches, except for the last pass over everything. Not in the profile:
    // crates that are measured alone on the host would take a few more instructions.
    if profile != Profile::Quick {
        cargo.env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true");
    }
    command::run_quietly("building the appliance", &mut cargo)?;
    Ok(target.join(TARGET).join(profile.name()).join("isthmus"))
}
