//! Compiles for sanitizers with the compiler that builds everything else. A distribution's Rust compiler has no
//! runtimes for sanitizers, so LLVM's are linked, from Debian's package `libclang-rt-16-dev`. (The ThreadSanitizer of
//! LLVM 14, Debian's default, lacks functions that this compiler calls.)

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace;

/// The host's target. Cargo does not apply the flags to build scripts and macros if a target is named.
pub const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The LLVM version of all runtimes.
const LLVM: u32 = 16;

/// Linker flags for runtimes by name. With `true` the linker keeps every object of the runtime.
pub fn link(names: &[(&str, bool)]) -> Result<Vec<String>> {
    // GNU's linker cannot handle the thread-local storage of these runtimes.
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

/// Cargo with unstable flags for the compiler.
pub fn cargo(flags: &[String]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root()).env("RUSTC_BOOTSTRAP", "1");
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    cargo
}

/// The archive of the runtime `name`.
fn runtime(name: &str) -> Result<PathBuf> {
    let directory = format!("/usr/lib/llvm-{LLVM}/lib/clang/{LLVM}/lib/linux");
    let file = Path::new(&directory).join(format!("libclang_rt.{name}-x86_64.a"));
    if !file.exists() {
        bail!("there is no {}: install libclang-rt-{LLVM}-dev", file.display());
    }
    Ok(file)
}
