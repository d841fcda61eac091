//! The programs of the checks: clippy and rustfmt from the compiler's release, the others from PyPI.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::build::toolchain::Toolchain;
use crate::setup::{self, Purpose};
use crate::{command, workspace};

/// Programs pinned by version and file hash.
const PINNED: &str = include_str!("requirements.txt");
/// A program pinned by version only, because its dependencies differ between Python versions.
const SCHEMA: &str = "check-jsonschema==0.39.0";

/// Programs of the compiler's release that the checks require.
const COMPILER_TOOLS: [&str; 3] = ["clippy-driver", "cargo-fmt", "rustfmt"];

/// The compiler; the other programs are found beside it or in the Python environment.
pub(super) struct Tools {
    pub toolchain: Toolchain,
}

impl Tools {
    /// Finds the programs; installs those that are missing.
    pub fn find() -> Result<Tools> {
        setup::install(&[Purpose::Build])?;
        let mut tools = Tools { toolchain: Toolchain::find()? };
        let is_complete =
            |tools: &Tools| COMPILER_TOOLS.iter().all(|name| tools.tool(name).is_ok());
        if !is_complete(&tools) || !can_make_environments() {
            setup::install(&[Purpose::Lint])?;
        }
        if !is_complete(&tools) {
            tools.toolchain = Toolchain::unpacked()?;
        }
        if let Err(error) = make_environment() {
            eprintln!("{error:#}: checks whose programs are missing will fail");
        }
        Ok(tools)
    }

    /// Finds a program by name beside the compiler, or in the Python environment below `target/`.
    pub fn tool(&self, name: &str) -> Result<PathBuf> {
        let places = [
            self.toolchain.rustc.with_file_name(name),
            self.toolchain.cargo.with_file_name(name),
            environment().join("bin").join(name),
        ];
        let found = places.into_iter().find(|path| path.exists());
        found.with_context(|| {
            let rustc = self.toolchain.rustc.display();
            if COMPILER_TOOLS.contains(&name) {
                format!(
                    "there is no {name} beside {rustc}: install rust-web-clippy and rustfmt-web (Debian) or the \
                     components clippy and rustfmt (rustup)"
                )
            } else {
                format!("there is no {name} in {}: pip could not install it", environment().display())
            }
        })
    }
}

fn environment() -> PathBuf {
    workspace::target().join("tools/python")
}

fn can_make_environments() -> bool {
    command::output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok()
}

/// Creates the Python environment unless it exists with these versions.
fn make_environment() -> Result<()> {
    let (directory, wanted) = (environment(), format!("{PINNED}{SCHEMA}\n"));
    let stamp = directory.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let mut make = Command::new("python3");
    command::run(make.args(["-m", "venv", "--clear"]).arg(&directory))?;
    let requirements = directory.join("requirements.txt");
    fs::write(&requirements, PINNED)?;
    let pip = || {
        let mut pip = Command::new(directory.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--only-binary", ":all:"]);
        pip
    };
    command::run(pip().args(["--no-deps", "--require-hashes", "-r"]).arg(&requirements))?;
    if let Err(error) = command::run(pip().arg(SCHEMA)) {
        eprintln!("{error:#}: the check `workflow` will be skipped");
        return Ok(());
    }
    fs::write(&stamp, wanted).context("could not write the stamp of the Python environment")
}

/// `PATH` with the compiler's directory first: cargo and its subcommands look for each other there.
pub(super) fn path(toolchain: &Toolchain) -> Result<std::ffi::OsString> {
    let own = toolchain.cargo.parent().map(PathBuf::from);
    let usual = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(own.into_iter().chain(env::split_paths(&usual)))?)
}
