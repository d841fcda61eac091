//! Python programs and packages from PyPI, pinned by version, in environments below `target/`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use launch::{command, workspace};

/// Cases that run at a time use one environment.
static MAKING: Mutex<()> = Mutex::new(());

/// The environment of this name, with these packages (`name==version`).
pub fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let _only = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = workspace::target().join("tools").join(name);
    let stamp = directory.join("installed");
    let wanted = packages.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(directory);
    }
    let mut make = Command::new("python3");
    command::run(make.args(["-m", "venv", "--clear"]).arg(&directory))?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command::run(pip.args(["--only-binary", ":all:"]).args(packages))?;
    fs::write(&stamp, wanted).context("could not write the stamp of the Python environment")?;
    Ok(directory)
}
