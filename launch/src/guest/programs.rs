//! Programs in `launch/programs` that guests run: compiled on the host, which also runs Debian 12, and sent through the
//! guest's shell.

use std::fs;
use std::process::Command;

use anyhow::Result;

use super::Guest;
use crate::{command, workspace};

/// Bytes of the program in a command line.
const PIECE: usize = 3000;

/// Builds `programs/NAME.c` and puts it into the guest's /bin.
pub fn install(guest: &mut Guest, name: &str) -> Result<()> {
    install_as(guest, name, name, &[])
}

/// Builds `programs/NAME.c` as a library and puts it into the guest's /bin as NAME.so.
pub fn install_library(guest: &mut Guest, name: &str) -> Result<()> {
    install_as(guest, name, &format!("{name}.so"), &["-shared", "-fPIC"])
}

fn install_as(guest: &mut Guest, name: &str, to: &str, options: &[&str]) -> Result<()> {
    let source = workspace::root().join("launch/programs").join(format!("{name}.c"));
    let directory = workspace::target().join("interop");
    fs::create_dir_all(&directory)?;
    // Tests run in parallel, and each builds its own file.
    let program = tempfile::NamedTempFile::new_in(&directory)?.into_temp_path();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Werror", "-s"]).args(options).arg("-o").arg(&program).arg(&source);
    command::run_quietly("building a guest's program", &mut cc)?;
    let bytes = fs::read(&program)?;
    guest.sh(&format!("rm -f /bin/{to}"))?;
    for piece in bytes.chunks(PIECE) {
        let text: String = piece.iter().map(|byte| format!("\\\\x{byte:02x}")).collect();
        guest.sh(&format!("busybox printf {text} >> /bin/{to}"))?;
    }
    guest.sh(&format!("chmod 755 /bin/{to}"))?;
    Ok(())
}
