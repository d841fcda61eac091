//! A stock Linux host maps a volume of the gateway, makes a file system on it, and reads its data back.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};

use super::stage::{Stage, http_port};
use crate::guest::Guest;
use crate::qemu::free_port;
use crate::{http, progress};

/// MiB of data to write.
const MIB: u32 = 32;

pub fn show(stage: &Stage) -> Result<Vec<String>> {
    let port = free_port()?;
    let mut pair = stage.pair("", |gateway| gateway.nic(http_port(port)))?;
    let host = &mut pair.host;
    map(host, "demo", "ram0")?;

    let step = progress::step(format!("mkfs.ext4, mount, {MIB} MiB of random data, sync"));
    host.sh(&format!(
        "set -e
         mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count={MIB} 2>/dev/null
         sync"
    ))?;
    let written = checksum(host)?;
    step.done(&format!("sha256 {}…", written.get(..16).unwrap_or(&written)));

    let step = progress::step("unmounting, dropping caches, mounting, reading back");
    host.sh("umount /mnt && echo 3 >/proc/sys/vm/drop_caches && mount -t ext4 /dev/rnbd0 /mnt")?;
    let read = checksum(host)?;
    ensure!(read == written, "the data read back has another checksum: {read}, not {written}");
    host.sh("umount /mnt")?;
    step.done("the same checksum");

    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let metrics = http::get(server, "/metrics").context("reading the gateway's metrics")?.body;
    let total = |name: &str| {
        let samples = metrics.lines().filter(|line| line.starts_with(name));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    host.sh("echo normal > /sys/block/rnbd0/rnbd/unmap_device")?;
    Ok(vec![
        format!(
            "Stock Debian kernel {} mapped the gateway's 64 MiB volume ram0",
            stage.system.release
        ),
        "with its own rnbd-client over RoCEv2 (rdma_rxe): `echo sessname=… > map_device`.".into(),
        format!("It made an ext4 file system, wrote {MIB} MiB and read the same bytes back."),
        format!(
            "The gateway counted {} writes and {} reads (GET /metrics). Both machines were QEMU guests.",
            total("isthmus_volume_writes_total"),
            total("isthmus_volume_reads_total"),
        ),
    ])
}

/// Maps a volume of the gateway as /dev/rnbd0.
pub fn map(host: &mut Guest, session: &str, volume: &str) -> Result<()> {
    let step =
        progress::step(format!("mapping the volume {volume} with rnbd-client over soft-RoCE"));
    host.sh("modprobe -a rnbd-client ext4")?;
    host.sh(&format!(
        "echo 'sessname={session} path=ip:10.0.0.2@ip:10.0.0.1 device_path={volume}' \
         > /sys/class/rnbd-client/ctl/map_device"
    ))?;
    let bytes = host.sh("blockdev --getsize64 /dev/rnbd0")?;
    step.done(&format!("/dev/rnbd0 has {} bytes", bytes.trim()));
    Ok(())
}

/// SHA-256 of /mnt/file.
pub fn checksum(host: &mut Guest) -> Result<String> {
    let sum = host.sh("sha256sum </mnt/file")?;
    Ok(sum.split_whitespace().next().unwrap_or_default().to_string())
}
