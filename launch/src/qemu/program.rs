//! The QEMU that runs a machine: the host's own, or a newer one that supports device models in other processes.
//!
//! `vfio-user-pci` needs QEMU 10.1, and Debian 12 has an older QEMU. The newer QEMU is unpacked with its
//! libraries from the backports of Debian 13 below `target/`: nothing is installed or configured, and of the
//! host it uses the kernel only.

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
    /// Unpacked in this directory.
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

    /// The output of `--version`.
    pub fn version(&self) -> Result<String> {
        command::output(self.command().arg("--version"))
    }

    /// Whether it was built with seccomp, the filter of system calls.
    pub fn has_sandbox(&self) -> bool {
        // QEMU parses its arguments in order, and rejects this one if it was built without seccomp.
        command::output(self.command().args(super::arguments::SANDBOX).arg("-version")).is_ok()
    }

    /// The QEMU with `vfio-user-pci`. The first call unpacks it: some seconds, and a download of 45 MB.
    pub fn with_vfio_user() -> Result<Program> {
        let tree = workspace::target().join("qemu-vfio-user");
        let program = Program::Unpacked(tree.clone());
        if offers_vfio_user(&program) {
            return Ok(program);
        }
        // Also replaces an unpacked QEMU that lacks vfio-user.
        let _ = fs::remove_file(workspace::target().join("tools/stamps/vfio-user"));
        setup::install(&[Purpose::Models])?;
        if !offers_vfio_user(&program) {
            bail!("the QEMU of Debian 13's backports, in {}, has no vfio-user-pci", tree.display());
        }
        Ok(program)
    }
}

fn offers_vfio_user(program: &Program) -> bool {
    // Not the list of all devices: QEMU would load all its modules for it, and those of the host that it lacks.
    let help = command::output(program.command().args(["-device", "vfio-user-pci,help"]));
    help.is_ok_and(|text| text.contains("x-msg-timeout"))
}
