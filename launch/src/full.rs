//! Runs `launch-full`, the program with all verbs, in place of this process. It is built when the first of its own
//! verbs is used.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::{command, workspace};

/// The verbs that only `launch-full` has.
const VERBS: [&str; 7] = ["check", "devices", "image", "ntb", "probe", "release", "run"];

/// Whether `verb` needs `launch-full`.
pub fn is_needed(verb: Option<&str>) -> bool {
    verb.is_some_and(|verb| VERBS.contains(&verb))
}

/// Builds `launch-full`, or finds it up to date, and replaces this process with it. Returns only on failure.
pub fn exec() -> ExitCode {
    let failed = build().and_then(|mut program| {
        Err(program.args(std::env::args_os().skip(1)).exec()).context("could not start launch-full")
    });
    let Err::<(), _>(error) = failed else { unreachable!("exec returns errors only") };
    eprintln!("isthmus: {error:#}");
    ExitCode::FAILURE
}

fn build() -> Result<Command> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    // As in `./isthmus`, so that nothing is compiled twice.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.args(["build", "--locked", "--profile", "quick", "-p", "launch"]);
    cargo.args(["--features", "engines", "--bin", "launch-full"]);
    command::run_quietly("building the rest of the launcher", &mut cargo)?;
    Ok(Command::new(workspace::target().join("quick/launch-full")))
}

/// Builds `launch-full` with the profile of the tests, and returns the program.
pub fn in_tests() -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    cargo.args(["build", "--quiet", "--locked", "--profile", "host", "--workspace"]);
    command::run(cargo.args(["--bin", "launch-full"]))?;
    Ok(workspace::target().join("host/launch-full"))
}
