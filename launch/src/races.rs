//! Tests of several threads under ThreadSanitizer, which sees accesses to the same memory that nothing orders.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::sanitizer::{self, TRIPLE};
use crate::workspace;

/// What the compiler adds, and the copies that it sees into: those of assembly are nothing to it.
const FLAGS: &[&str] = &[
    "-Zsanitizer=thread",
    "-Zexternal-clangrt",
    "--cfg",
    "portable_copy",
    // The standard library is not built for it.
    "-Cunsafe-allow-abi-mismatch=sanitizer",
];

/// How the names of these tests begin.
const CASES: &str = "two_threads";

fn directory() -> PathBuf {
    workspace::target().join("races")
}

/// The cargo command that only builds them.
pub fn compile() -> Result<Command> {
    let mut cargo = cargo_test()?;
    cargo.arg("--no-run");
    Ok(cargo)
}

/// The cargo command that builds and runs them. A report ends the program, so that its test counts as failed.
pub fn cases() -> Result<Command> {
    let mut cargo = cargo_test()?;
    cargo.args(["--", CASES]);
    let suppressions = workspace::root().join("tests/threads/races.supp");
    // LLVM 14's own symbolizer, where it is installed, does not get along with this runtime.
    let symbolizer = "external_symbolizer_path=/usr/bin/addr2line";
    let options = format!("halt_on_error=1:{symbolizer}:suppressions={}", suppressions.display());
    cargo.env("TSAN_OPTIONS", options);
    Ok(cargo)
}

fn cargo_test() -> Result<Command> {
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| flag.to_string()).collect();
    flags.extend(sanitizer::link(&[("tsan", true)])?);
    let mut cargo = sanitizer::cargo(&flags);
    cargo.args(["test", "--locked", "-p", "drivers", "-p", "threads", "--tests"]);
    cargo.args(["--target", TRIPLE]).arg("--target-dir").arg(directory());
    Ok(cargo)
}
