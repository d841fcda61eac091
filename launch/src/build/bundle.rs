//! The kernel bundle: Hermit and the boot stub as one relocatable object, in which only the symbols that the
//! program may use are visible. It is compiled for another target (soft float, no `std`) with its own copy of
//! `core`, which must not clash with the program's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::toolchain::Toolchain;
use super::{Kind, Profile};
use crate::{command, workspace};

const TARGET: &str = "x86_64-unknown-none";

/// The visible symbols: Hermit's system calls, the entry points, and the C functions that compilers
/// call (`x86_64-unknown-hermit` expects them of the kernel; the program brings its own `memcpy`,
/// `memmove` and `memset`).
const VISIBLE: &[&str] = &[
    "sys_*",
    "_start",
    "isthmus_pvh",
    "isthmus_multiboot2",
    "isthmus_uhyve",
    "isthmus_boot_info",
    "runtime_entry",
    "memcmp",
    "bcmp",
    "strlen",
];

/// Builds the bundle from the kernel's source and returns the object.
pub fn build(
    toolchain: &Toolchain,
    kernel: &Path,
    kind: Kind,
    profile: Profile,
) -> Result<PathBuf> {
    // Not the program's target directory: the two workspaces name the standard library's source differently when it is
    // below `target`, and cargo would rebuild it each time.
    let target = workspace::target().join("kernel");
    // Development images have the shipped kernel.
    let name = if profile == Profile::Quick { profile.name() } else { "release" };
    let mut cargo = toolchain.cargo();
    cargo.args(["rustc", "--profile", name, "--target", TARGET, "--manifest-path"]);
    cargo.arg(workspace::root().join("appliance/kernel/Cargo.toml"));
    cargo.arg("--target-dir").arg(&target).arg("--locked");
    cargo.arg(format!("--config=patch.crates-io.hermit-kernel.path={:?}", kernel.display()));
    cargo.arg("--config=unstable.build-std=[\"core\",\"alloc\"]");
    cargo.env("HERMIT_LOG_LEVEL_FILTER", "off");
    cargo.args(["--features", kind.feature()]);
    // As in `program.rs`: linked to one address.
    cargo.args(["--", "-Crelocation-model=static"]);
    command::run_quietly("building the kernel", &mut cargo)?;

    let archive = target.join(TARGET).join(name).join("libkernel.a");
    let place = target.join(TARGET).join(name);
    let (whole, object) = (place.join("whole.o"), place.join(format!("kernel-{}.o", kind.name())));
    let mut join = Command::new(&toolchain.linker);
    join.args(["-r", "--whole-archive", "-o"]).args([&whole, &archive]);
    command::run(&mut join)?;
    let hidden = place.join("hidden.o");
    let mut hide = Command::new("objcopy");
    hide.args(["--wildcard", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    hide.args(VISIBLE.iter().map(|symbol| format!("--keep-global-symbol={symbol}")));
    command::run(hide.args([&whole, &hidden]))?;
    // Written only if it has changed, because cargo links the program again when the object is newer.
    let new = fs::read(&hidden)?;
    if fs::read(&object).ok().as_deref() != Some(&new) {
        fs::write(&object, new)?;
    }
    Ok(object)
}
