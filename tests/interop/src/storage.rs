//! Scenarios of a Linux host on a volume, independent of the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::guest::Guest;

use crate::{map, unmap};

/// The path of the client at 10.0.0.2 to the server at 10.0.0.1.
pub const PATH: &str = "ip:10.0.0.2@ip:10.0.0.1";

/// Maps `ram0` as /dev/rnbd0.
pub fn map_ram0(guest: &mut Guest) -> Result<()> {
    guest.sh("modprobe -a rnbd-client ext4")?;
    map(guest, "s1", PATH, "ram0", "").context("mapping ram0")
}

/// An ext4 file system keeps its data: make, fill, unmount, drop the client's cache, mount, compare.
pub fn ext4_keeps_its_data(guest: &mut Guest, mib: u32) -> Result<()> {
    guest.sh(&format!(
        "set -e
         mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count={mib} 2>/dev/null
         sync
         sha256sum </mnt/file >/tmp/sum
         umount /mnt
         echo 3 >/proc/sys/vm/drop_caches
         fsck.ext4 -f -n /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         sha256sum </mnt/file | cmp - /tmp/sum
         umount /mnt"
    ))?;
    Ok(())
}

/// fio writes checksummed data at random places, several I/Os in flight, and reads all of it back.
pub fn fio_verifies(guest: &mut Guest, mib: u32, depth: u32) -> Result<()> {
    let fio = format!(
        "fio --name=verify --filename=/dev/rnbd0 --direct=1 --ioengine=libaio --thread --rw=randrw \
         --bsrange=512-65536 --size={mib}m --iodepth={depth} --verify=crc32c --verify_backlog=64 \
         --verify_fatal=1 --output-format=terse"
    );
    let (status, output) = guest.try_sh(&fio, Duration::from_secs(300))?;
    ensure!(status == 0, "fio ended with status {status}:\n{output}");
    ensure!(fio_error(&output) == Some("0"), "fio reports an error:\n{output}");
    Ok(())
}

/// Starts fio in the background: for a while it writes checksummed data at random places at a limited rate, and reads
/// it back. On a busy host, ACKs may be late at any time; the client survives that with a depth of 1 only (rdma_rxe
/// breaks its own queue pair with more).
pub fn start_fio(guest: &mut Guest, device: &str, seconds: u32, depth: u32) -> Result<()> {
    start_fio_in(guest, device, 24, depth, seconds)
}

/// As `start_fio`, in the first `mib` MiB.
pub fn start_fio_in(
    guest: &mut Guest,
    device: &str,
    mib: u32,
    depth: u32,
    seconds: u32,
) -> Result<()> {
    let done = ios_done(device);
    guest.sh(&format!(
        "rm -f /tmp/fio.*
         {done} >/tmp/fio.before
         (fio --name=verify --filename={device} --direct=1 --ioengine=libaio --thread --rw=randrw \
         --bsrange=4096-16384 --size={mib}m --iodepth={depth} --rate_iops=100,100 --time_based \
         --runtime={seconds} --verify=crc32c --verify_backlog=32 --verify_fatal=1 \
         --output-format=terse >/tmp/fio.out 2>&1; echo $? >/tmp/fio.status) </dev/null >/dev/null 2>&1 &"
    ))?;
    Ok(())
}

/// Waits until the background fio has completed 200 I/Os.
pub fn fio_at_work(guest: &mut Guest, device: &str) -> Result<()> {
    let done = ios_done(device);
    let enough = format!("[ $({done}) -ge $(($(cat /tmp/fio.before) + 200)) ]");
    guest.wait_until(&enough, Duration::from_secs(60)).context("fio does not begin")
}

/// A shell command that prints the number of completed reads and writes of a block device.
fn ios_done(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    format!("{{ set -- $(cat /sys/block/{name}/stat); echo $(($1 + $5)); }}")
}

/// Waits until the background fio ends, and fails if it reports an error.
pub fn finish_fio(guest: &mut Guest, limit: Duration) -> Result<()> {
    guest.wait_until("[ -e /tmp/fio.status ]", limit).context("fio does not end")?;
    let output = guest.sh("cat /tmp/fio.status /tmp/fio.out")?;
    let status = output.lines().next();
    if status != Some("0") {
        let messages = guest.sh("dmesg | grep -E 'rnbd|rtrs|rxe|I/O' | tail -n 20")?;
        bail!("fio ended with status {status:?}:\n{output}\n{messages}");
    }
    ensure!(fio_error(&output) == Some("0"), "fio reports an error:\n{output}");
    Ok(())
}

/// The error that fio reports. Terse version 3: field 4.
fn fio_error(output: &str) -> Option<&str> {
    output.lines().find_map(|line| line.strip_prefix("3;")?.split(';').nth(3))
}

/// fsx, whose binary is the guest's first disk, finds no fault with a file on the volume.
pub fn fsx_finds_nothing(guest: &mut Guest, operations: u32) -> Result<()> {
    guest.sh(
        "cat /dev/vda >/tmp/fsx && chmod +x /tmp/fsx
         mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0 && mount -t ext4 -o discard /dev/rnbd0 /mnt",
    )?;
    for seed in 1..=2 {
        let fsx = format!("/tmp/fsx /mnt/file {} {seed}", operations / 2);
        let (status, output) = guest.try_sh(&fsx, Duration::from_secs(600))?;
        ensure!(status == 0, "fsx found:\n{output}");
    }
    guest.sh("umount /mnt && fsck.ext4 -f -n /dev/rnbd0")?;
    Ok(())
}

/// Maps and unmaps repeatedly.
pub fn map_and_unmap(guest: &mut Guest, times: u32) -> Result<()> {
    guest.sh("modprobe rnbd-client")?;
    for turn in 1..=times {
        map(guest, "s1", PATH, "ram0", "")
            .with_context(|| format!("mapping for the {turn}th time"))?;
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        unmap(guest, 0)?;
        guest.wait_until(
            "[ -z \"$(ls /sys/class/rtrs-client | grep s1)\" ]",
            Duration::from_secs(20),
        )?;
    }
    Ok(())
}

/// Connects repeatedly with empty neighbour tables, without a delay. (Linux misses a neighbour reply that arrives at
/// once, and then waits for 30 s.)
pub fn connects_without_delay(guest: &mut Guest, times: u32) -> Result<()> {
    guest.sh("modprobe rnbd-client")?;
    for turn in 1..=times {
        let path = if turn.is_multiple_of(2) { PATH } else { "ip:fd00::2@ip:fd00::1" };
        guest.sh("ip neigh flush all; ip -6 neigh flush all")?;
        let began = Instant::now();
        map(guest, "s1", path, "ram0", "")?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(10), "connecting for the {turn}th time took {took:?}");
        unmap(guest, 0)?;
        guest.wait_until("! ls /sys/class/rtrs-client | grep s1", Duration::from_secs(20))?;
    }
    Ok(())
}

/// Access modes as in Linux: `ro` is not writable; a second `rw` is refused; a second `migration` is accepted, and a
/// third is refused.
pub fn access_modes_match_linux(guest: &mut Guest) -> Result<()> {
    guest.sh("modprobe rnbd-client")?;
    map(guest, "s1", PATH, "ram0", "access_mode=ro")?;
    guest.sh("[ $(cat /sys/block/rnbd0/ro) = 1 ] && ! dd if=/dev/zero of=/dev/rnbd0 bs=4k count=1 2>/dev/null")?;
    map(guest, "s2", PATH, "ram0", "access_mode=rw")?;
    ensure!(
        map(guest, "s3", PATH, "ram0", "access_mode=rw").is_err(),
        "a second writer was accepted"
    );
    map(guest, "s3", PATH, "ram0", "access_mode=migration")?;
    let third = map(guest, "s4", PATH, "ram0", "access_mode=migration");
    ensure!(third.is_err(), "a third writer was accepted");
    ensure!(map(guest, "s5", PATH, "none", "").is_err(), "an unknown volume was mapped");
    ensure!(map(guest, "s5", PATH, "../ram0", "").is_err(), "a path with .. was mapped");
    for number in 0..3 {
        unmap(guest, number)?;
    }
    Ok(())
}

/// Flush, discard and write-zeroes reach the volume and take effect.
pub fn flushes_and_discards(guest: &mut Guest) -> Result<()> {
    guest.sh("set -e
         dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=4 oflag=direct conv=fsync 2>/dev/null
         blkdiscard -z -o 1048576 -l 1048576 /dev/rnbd0
         dd if=/dev/rnbd0 bs=1M skip=1 count=1 iflag=direct 2>/dev/null | cmp -n 1048576 - /dev/zero
         blkdiscard -o 2097152 -l 1048576 /dev/rnbd0
         ! blkdiscard -s -o 3145728 -l 1048576 /dev/rnbd0 2>/dev/null
         dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    Ok(())
}
