//! Compiles our plugins for QEMU's TCG on demand.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Program;
use crate::{command, workspace};

/// The declarations of QEMU's plugin interface, as `plugin.h`: no Debian package has QEMU's own header.
const HEADER: &str = include_str!("plugin.h");

/// Compiles a plugin in C for a QEMU; returns the library for its option `-plugin`.
pub fn compile(name: &str, source: &str, program: &Program) -> Result<PathBuf> {
    let api = api_version(&program.version()?);
    let directory = workspace::target().join("plugins");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("plugin.h"), HEADER)?;
    let file = directory.join(format!("{name}.c"));
    fs::write(&file, source)?;
    let library = directory.join(format!("{name}-{api}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-shared", "-fPIC"]).arg(format!("-DAPI_VERSION={api}"));
    command::run(cc.arg("-o").arg(&library).arg(&file))?;
    Ok(library)
}

/// The plugin interface that this QEMU accepts: 1 before 9.0, from then on at least 2, from 11 on at least 7.
fn api_version(version: &str) -> u32 {
    let major = version.split("version ").nth(1).and_then(|v| v.split('.').next()?.parse().ok());
    match major.unwrap_or(10) {
        ..9 => 1,
        9..11 => 2,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_interface_follows_the_qemu_version() {
        assert_eq!(api_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)"), 1);
        assert_eq!(api_version("QEMU emulator version 10.0.2 (Debian 1:10)"), 2);
    }
}
