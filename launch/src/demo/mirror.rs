//! A mirror of a local disk and a volume of a stock Linux server, which is lost under a mounted file system.

use anyhow::{Result, ensure};

use super::stage::Stage;
use super::storage::map;
use super::wait;
use crate::progress;
use crate::qemu::{Disk, Vm};

const MIB: u64 = 16;

/// The host's /dev/ram0 is the remote volume `far`, the second member of the mirror `safe` beside `disk`.
const WORDS: &str = "isthmus.volume.0.name=disk isthmus.volume.0.disk=0 \
    isthmus.remote.0.name=far isthmus.remote.0.sessname=gw isthmus.remote.0.device_path=/dev/ram0 \
    isthmus.remote.0.path=ip:10.0.0.1@ip:10.0.0.2 isthmus.remote.0.wait_seconds=5";

pub fn show(stage: &Stage) -> Result<Vec<String>> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(MIB << 20)?;
    let mut pair = stage.pair(WORDS, |gateway| gateway.disk(Disk::new(disk.path())))?;
    let (gateway, host) = (&mut pair.gateway, &mut pair.host);

    let step = progress::step(
        "a stock rnbd-server exports /dev/ram0, the gateway maps it, and makes a mirror",
    );
    host.sh("modprobe brd rd_nr=1 rd_size=65536 && modprobe -a rnbd-client ext4 rtrs-server rnbd-server")?;
    // The gateway tried before the server ran, and would retry only later.
    gateway.run("remote remap far")?;
    wait::for_text(gateway, "remote list csv", |rows| rows.contains("/dev/ram0,open,"))?;
    let made = gateway.run("mirror create safe disk far force")?.text;
    ensure!(made.contains("in force"), "{made}");
    wait_until_in_sync(gateway, true)?;
    step.done("both members are in sync");

    map(host, "demo", "safe")?;
    let step = progress::step("ext4 on the mirror, and a file");
    host.sh("set -e; mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0; mount -t ext4 /dev/rnbd0 /mnt
             dd if=/dev/urandom of=/mnt/before bs=1M count=8 2>/dev/null; sync")?;
    step.done("written to both members");
    let step = progress::step(
        "the server closes the gateway's session; writing to the file system continues",
    );
    host.sh("for close in /sys/class/rnbd-server/ctl/devices/*/sessions/gw/force_close; do echo 1 >$close; done")?;
    host.sh("set -e; dd if=/dev/urandom of=/mnt/after bs=1M count=4 2>/dev/null; sync
             cat /mnt/before /mnt/after | sha256sum > /root/sum")?;
    wait::for_text(gateway, "remote list csv", |rows| rows.contains("/dev/ram0,closed,"))?;
    step.done("no write failed");
    let step =
        progress::step("the gateway maps the server's volume again, and copies what has changed");
    gateway.run("remote remap far")?;
    wait_until_in_sync(gateway, true)?;
    host.sh("set -e; umount /mnt; echo 3 >/proc/sys/vm/drop_caches; mount -t ext4 /dev/rnbd0 /mnt
             cat /mnt/before /mnt/after | sha256sum | cmp - /root/sum; umount /mnt")?;
    step.done("in sync, and the same checksum");
    println!(
        "\nThe gateway's console, `mirror list`:\n{}",
        gateway.run("mirror list")?.text.trim_end()
    );
    host.sh("echo normal > /sys/block/rnbd0/rnbd/unmap_device")?;
    Ok(vec![
        "The gateway mirrored a local disk and a volume that a stock Linux rnbd-server exports."
            .into(),
        format!("A stock client (kernel {}) had ext4 on the mirror.", stage.system.release),
        "The server dropped the gateway's session under it: no write failed,".into(),
        "and afterwards the gateway copied what had changed. Both members hold the same.".into(),
    ])
}

/// Waits until the first member of the mirror is in sync, and the second if and only if `both` is true.
fn wait_until_in_sync(gateway: &mut Vm, both: bool) -> Result<()> {
    wait::for_json(gateway, "cat /mirrors/safe --json", |mirror| {
        let is_in_sync = |n: usize| mirror["members"][n]["state"] == "in sync";
        is_in_sync(0) && is_in_sync(1) == both
    })
}
