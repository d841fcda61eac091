//! Runs tests with several threads under ThreadSanitizer, which reports unordered accesses to the same memory.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::sanitizer::{self, TRIPLE};
use crate::workspace;

/// The compiler's flags. `portable_copy` replaces copies in assembly, which ThreadSanitizer does not see.
const FLAGS: &[&str] = &[
    "-Zsanitizer=thread",
    "-Zexternal-clangrt",
    "--cfg",
    "portable_copy",
    // The standard library is built without ThreadSanitizer.
    "-Cunsafe-allow-abi-mismatch=sanitizer",
];

/// The prefix of the names of these tests.
const CASES: &str = "two_threads";

fn directory() -> PathBuf {
    workspace::target().join("races")
}

/// The cargo command that only builds the tests.
pub fn compile() -> Result<Command> {
    let mut cargo = cargo_test()?;
    cargo.arg("--no-run");
    Ok(cargo)
}

/// The cargo command that builds and runs the tests. A report of ThreadSanitizer ends the program, so its test fails.
pub fn cases() -> Result<Command> {
    let mut cargo = cargo_test()?;
    cargo.args(["--", CASES]);
    let suppressions = workspace::root().join("tests/threads/races.supp");
    // The symbolizer of LLVM 14, where it is installed, does not work with this runtime.
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
