//! Compiling for sanitizers with the compiler that builds everything else. A distribution's compiler has no runtimes for
//! them; LLVM's are taken, as Debian's package `libclang-rt-16-dev` has them. (ThreadSanitizer's of Debian's default,
//! LLVM 14, lacks functions that this compiler calls.)

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace;

/// Where it runs: naming it keeps build scripts and macros as they are.
pub const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The LLVM whose runtimes are taken, all of them.
const LLVM: u32 = 16;

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

/// The runtime `name`.
fn runtime(name: &str) -> Result<PathBuf> {
    let directory = format!("/usr/lib/llvm-{LLVM}/lib/clang/{LLVM}/lib/linux");
    let file = Path::new(&directory).join(format!("libclang_rt.{name}-x86_64.a"));
    if !file.exists() {
        bail!("there is no {}: install libclang-rt-{LLVM}-dev", file.display());
    }
    Ok(file)
}
