//! Drivers on QEMU's models of devices.

mod disks;
mod nics;

use std::path::Path;
use std::process::Command;

/// The QEMU that `./isthmus test` unpacks. The host's QEMU may lack some cards, or qtest.
fn qemu() -> Command {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/qemu-vfio-user");
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    let path = format!("{0}:{0}/systemd", libraries.display());
    let mut qemu = Command::new(tree.join("usr/lib64/ld-linux-x86-64.so.2"));
    qemu.env("QEMU_MODULE_DIR", libraries.join("qemu"));
    qemu.arg("--library-path").arg(path).arg(tree.join("usr/bin/qemu-system-x86_64"));
    for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        qemu.arg("-L").arg(tree.join(firmware));
    }
    qemu
}
