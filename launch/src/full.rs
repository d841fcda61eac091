//! Runs `launch-full`, the program with all verbs, or the program of `top`, in place of this process. Each is built when
//! the first of its own verbs is used.

use std::convert::Infallible;
use std::ffi::OsString;
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
    let engines = ["-p", "launch", "--features", "engines", "--bin", "launch-full"];
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Err(error) = replace("building the rest of the launcher", &engines, &arguments);
    eprintln!("isthmus: {error:#}");
    ExitCode::FAILURE
}

/// Builds the program of `top`, or finds it up to date, and replaces this process with it. Returns only on failure.
pub fn top() -> Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(2).collect();
    let bin = ["-p", "top", "--bin", "launch-top"];
    replace("building the program of `top`", &bin, &arguments).map(|never| match never {})
}

/// Builds the program that `selection` ends with, and replaces this process with it.
fn replace(what: &str, selection: &[&str], arguments: &[OsString]) -> Result<Infallible> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    // As in `./isthmus`, so that nothing is compiled twice.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.args(["build", "--locked", "--profile", "quick"]).args(selection);
    command::run_quietly(what, &mut cargo)?;
    let name = selection.last().context("a program is named")?;
    let failed = Command::new(workspace::target().join("quick").join(name)).args(arguments).exec();
    Err(failed).with_context(|| format!("could not start {name}"))
}

/// Builds a program of the launcher with the profile of the tests, and returns its path.
pub fn in_tests(name: &str) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    cargo.args(["build", "--quiet", "--locked", "--profile", "host", "--workspace"]);
    command::run(cargo.args(["--bin", name]))?;
    Ok(workspace::target().join("host").join(name))
}
