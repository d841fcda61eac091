//! Compiling for sanitizers with the compiler that builds everything else. A distribution's compiler has no runtimes for
//! them; LLVM's are taken, as Debian's package `libclang-rt-dev` has them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace;

/// Where it runs: naming it keeps build scripts and macros as they are.
pub const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Flags for linking runtimes, by their names; as a whole those of which nothing may be left out.
pub fn link(names: &[(&str, bool)]) -> Result<Vec<String>> {
    // GNU's linker does not get along with thread-local storage in these.
    let mut flags = vec!["-Clink-arg=-fuse-ld=lld".to_string()];
    for &(name, whole) in names {
        let library = format!("-Clink-arg={}", runtime(name)?.display());
        let around = |flag: &str| whole.then(|| format!("-Clink-arg=-Wl,{flag}"));
        flags.extend(around("--whole-archive"));
        flags.push(library);
        flags.extend(around("--no-whole-archive"));
    }
    Ok(flags)
}

/// Cargo, with flags for the compiler that are not for stable ones.
pub fn cargo(flags: &[String]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).env("RUSTC_BOOTSTRAP", "1");
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    cargo
}

/// The runtime `name` of the newest LLVM that has it.
fn runtime(name: &str) -> Result<PathBuf> {
    let below = |place: &Path| {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_llvm = |place: &&PathBuf| {
        place.file_name().unwrap_or_default().to_string_lossy().starts_with("llvm-")
    };
    let llvm = below(Path::new("/usr/lib"));
    let versions = llvm.iter().filter(is_llvm).flat_map(|llvm| below(&llvm.join("lib/clang")));
    let file = format!("lib/linux/libclang_rt.{name}-x86_64.a");
    match versions.map(|version| version.join(&file)).filter(|file| file.exists()).max() {
        Some(file) => Ok(file),
        None => bail!("there is no {file} below /usr/lib/llvm-*: install libclang-rt-dev"),
    }
}
