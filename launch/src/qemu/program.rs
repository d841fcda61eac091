//! Which QEMU runs a machine: the host's own, or a newer one that shows device models of other processes.
//!
//! `vfio-user-pci` came with QEMU 10.1, and Debian 12 has an older one. The newer one is unpacked from the
//! backports of Debian 13 below `target/`, with the libraries that it needs: nothing is installed or
//! configured, and nothing of the host is used but its kernel.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::setup::{self, Purpose};
use crate::{command, workspace};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The host's.
    Installed,
    /// One that was unpacked in this directory.
    Unpacked(PathBuf),
}

impl Program {
    /// The command that starts it, without arguments.
    pub(super) fn command(&self) -> Command {
        let Program::Unpacked(tree) = self else { return Command::new("qemu-system-x86_64") };
        let libraries = tree.join(LIBRARIES);
        let path = format!("{0}:{0}/systemd", libraries.display());
        // Started by its own dynamic linker, because its C library is newer than the host's.
        let mut qemu = Command::new(tree.join("usr/lib64/ld-linux-x86-64.so.2"));
        qemu.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        qemu.arg("--library-path").arg(path).arg(tree.join("usr/bin/qemu-system-x86_64"));
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            qemu.arg("-L").arg(tree.join(firmware));
        }
        qemu
    }

    /// What it says of its version.
    pub fn version(&self) -> Result<String> {
        command::output(self.command().arg("--version"))
    }

    /// Whether it was built with a filter of system calls.
    pub fn has_sandbox(&self) -> bool {
        // It reads its arguments in their order, and refuses this one where it has none.
        command::output(self.command().args(super::arguments::SANDBOX).arg("-version")).is_ok()
    }

    /// Unpacks the newer one, or finds that it is there. Some seconds, and 45 MB of downloads, the first time.
    pub fn with_vfio_user() -> Result<Program> {
        let tree = workspace::target().join("qemu-vfio-user");
        let program = Program::Unpacked(tree.clone());
        if offers_vfio_user(&program) {
            return Ok(program);
        }
        // Also where one was unpacked that has not.
        let _ = fs::remove_file(workspace::target().join("tools/stamps/vfio-user"));
        setup::install(&[Purpose::Models])?;
        if !offers_vfio_user(&program) {
            bail!("the QEMU of Debian 13's backports, in {}, has no vfio-user-pci", tree.display());
        }
        Ok(program)
    }
}

fn offers_vfio_user(program: &Program) -> bool {
    // Not the list of all devices: for that it loads all its modules, the host's where it has none.
    let help = command::output(program.command().args(["-device", "vfio-user-pci,help"]));
    help.is_ok_and(|text| text.contains("x-msg-timeout"))
}
