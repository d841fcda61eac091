//! A stock Linux host maps a volume of the gateway over NVMe/TCP: with Debian's own kernel, modules and nvme-cli.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::Stage;
use super::storage::checksum;
use crate::guest::Guest;
use crate::progress;

const SUBSYSTEM: &str = "nqn.2026-01.com.example:demo";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
const HOST_ID: &str = "6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
/// The namespace's UUID: block devices are found by it, because their numbers are not those of namespaces.
const UUID: &str = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0";
/// MiB of data to write.
const MIB: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(30);

pub fn show(stage: &Stage) -> Result<Vec<String>> {
    let words = format!(
        "isthmus.volume.0.name=ram0 isthmus.volume.0.size=64MiB isthmus.subsystem.0.nqn={SUBSYSTEM} \
         isthmus.subsystem.0.hosts={HOST} isthmus.subsystem.0.namespace.0.nsid=1 \
         isthmus.subsystem.0.namespace.0.volume=ram0 isthmus.subsystem.0.namespace.0.uuid={UUID}"
    );
    let mut pair = stage.plain_pair(&words)?;
    let host = &mut pair.host;

    let step = progress::step("discovering and connecting with nvme-cli");
    host.sh("modprobe -a nvme-tcp ext4")?;
    let names = format!("-q {HOST} -I {HOST_ID}");
    let found = host.sh(&format!("nvme discover -t tcp -a 10.0.0.1 -s 8009 {names}"))?;
    ensure!(found.contains(SUBSYSTEM), "the gateway's discovery log lacks {SUBSYSTEM}:\n{found}");
    host.sh(&format!("nvme connect -t tcp -a 10.0.0.1 -s 4420 -n {SUBSYSTEM} {names}"))?;
    let device = device(host)?;
    let bytes = host.sh(&format!("blockdev --getsize64 {device}"))?;
    step.done(&format!("{device} has {} bytes", bytes.trim()));

    let step = progress::step(format!("mkfs.ext4, mount, {MIB} MiB of random data, sync"));
    host.sh(&format!(
        "set -e
         mkfs.ext4 -q -E lazy_itable_init=0 {device}
         mount -t ext4 {device} /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count={MIB} 2>/dev/null
         sync"
    ))?;
    let written = checksum(host)?;
    step.done(&format!("sha256 {}…", written.get(..16).unwrap_or(&written)));

    let step = progress::step("unmounting, dropping caches, mounting, reading back");
    host.sh(&format!(
        "umount /mnt && echo 3 >/proc/sys/vm/drop_caches && mount -t ext4 {device} /mnt"
    ))?;
    let read = checksum(host)?;
    ensure!(read == written, "the data read back has another checksum: {read}, not {written}");
    host.sh("umount /mnt")?;
    step.done("the same checksum");

    println!("\nThe gateway's console, `nvme hosts`:");
    println!("{}", pair.gateway.run("nvme hosts")?.text.trim_end());
    println!("and `nvme show {SUBSYSTEM}`:");
    println!("{}", pair.gateway.run(&format!("nvme show {SUBSYSTEM}"))?.text.trim_end());
    pair.host.sh(&format!("nvme disconnect -n {SUBSYSTEM}"))?;
    Ok(vec![
        format!(
            "Stock Debian kernel {} mapped the gateway's 64 MiB volume ram0 over NVMe/TCP",
            stage.system.release
        ),
        "with its own nvme-tcp and nvme-cli: `nvme discover`, `nvme connect`. No module was built."
            .into(),
        format!("It made an ext4 file system, wrote {MIB} MiB and read the same bytes back."),
    ])
}

/// The block device of the namespace.
fn device(host: &mut Guest) -> Result<String> {
    // Not the hidden device of a path, `nvme0c0n1`.
    let found = format!("grep -l {UUID} /sys/block/nvme*/uuid | grep -v c[0-9]*n");
    host.wait_until(&found, PATIENCE).context("the namespace does not appear")?;
    let path = host.sh(&found)?;
    let name = path.split('/').nth(3).context("no block device")?;
    Ok(format!("/dev/{name}"))
}
