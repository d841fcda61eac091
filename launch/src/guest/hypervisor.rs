//! A disk that makes a Linux guest a host of machines: Debian's QEMU and all modules of Debian's kernel, unmodified.
//! The guest mounts it read-only.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::packages;
use crate::setup::{self, Purpose};
use crate::{command, workspace};

const PACKAGES: &[&str] = &["coreutils", "dash", "kmod", "pciutils", "qemu-system-x86"];

/// Size of the disk, which is sparse.
const SIZE: &str = "1G";

/// Mounts the disk (/dev/vda) at /host, with tmpfs for files that change, and unpacks a tar archive (/dev/vdb) to
/// /host/root. The kernel loads modules on demand from the disk.
pub const PREPARE: &str = "modprobe ext4 && mkdir -p /host && mount -o ro /dev/vda /host && \
    for place in proc sys dev; do mount --bind /$place /host/$place || exit 1; done && \
    for place in tmp root run; do mount -t tmpfs tmpfs /host/$place || exit 1; done && \
    printf '#!/bin/sh\nexec chroot /host /sbin/modprobe \"$@\"\n' > /bin/load && chmod 755 /bin/load && \
    echo /bin/load > /proc/sys/kernel/modprobe && \
    busybox tar -x -C /host/root -f /dev/vdb";

/// Words before a command that runs on that disk.
pub const ENTER: &str = "chroot /host env HOME=/root TMPDIR=/tmp LC_ALL=C \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin CARGO_TARGET_DIR=/root/target";

/// Makes the disk, unless it exists and is current.
pub fn hypervisor() -> Result<PathBuf> {
    setup::install(&[Purpose::Guest])?;
    let kernel = packages::newest_kernel()?;
    let directory = workspace::target().join("guest-hypervisor");
    let _alone = workspace::lock_in(&directory.with_extension("lock"))?;
    let (disk, stamp) = (directory.join("disk.ext4"), directory.join("recipe"));
    let recipe = format!("{kernel:?}\n{}\n{SIZE}", PACKAGES.join(" "));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
        return Ok(disk);
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let (downloads, root) = (directory.join("packages"), directory.join("root"));
    for one in [&downloads, &root] {
        fs::create_dir_all(one)?;
    }
    packages::fetch_beside(&packages::image(&kernel), PACKAGES, &downloads)?;
    packages::unpack(&downloads, &root)?;
    for place in ["dev", "proc", "root", "run", "sys", "tmp"] {
        fs::create_dir_all(root.join(place))?;
    }
    command::run(Command::new("depmod").arg("-b").arg(&root).arg(&kernel.release))?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-E", "root_owner=0:0", "-d"]).arg(&root).arg(&disk).arg(SIZE);
    command::run_quietly("making the disk of a guest that has QEMU", &mut make)?;
    fs::remove_dir_all(&downloads)?;
    fs::remove_dir_all(&root)?;
    fs::write(stamp, recipe)?;
    Ok(disk)
}
