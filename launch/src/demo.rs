//! `./isthmus demo`: the main job, shown: a stock Linux guest maps a volume of the appliance, makes
//! a file system on it, and finds its data again.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};

use crate::build::Image;
use crate::guest::{self, Guest, Wire};
use crate::qemu::{Nic, Spec, accelerator, free_port};
use crate::{http, progress};

/// Data that is written, in MiB.
const MIB: u32 = 32;

/// Metrics that tell the story.
const TOLD: [&str; 5] = [
    "isthmus_rtrs_sessions ",
    "isthmus_volume_writes_total",
    "isthmus_volume_written_bytes_total",
    "isthmus_volume_reads_total",
    "isthmus_loop_seconds_total",
];

/// Shows it. Nothing is left behind.
pub fn demo(image: &Image) -> Result<()> {
    let system = guest::prepare()?;
    let accelerator = accelerator(&image.elf);
    let port = free_port()?;
    let wire = Wire::new()?;
    let (ours, theirs) = wire.datagrams();
    let gateway = Spec::kernel(&image.elf)
        .accelerator(accelerator)
        .memory(256)
        .append("isthmus.net.0.address=10.0.0.1/24")
        .nic(ours)
        .nic(Nic::User { forwards: vec![("tcp", port, 80)] })
        .first_mac(1);
    let client = system.spec("client", &["10.0.0.2/24"], 1500).accelerator(accelerator);
    let client = client.nic(theirs).first_mac(3);

    let booting = progress::step("booting the gateway and a Linux host");
    let mut gateway = gateway.start()?;
    booting.print(&format!("$ {}", gateway.command_line()));
    let mut client = Guest::start("client", client)?;
    booting.print(&format!("$ {}", client.vm.command_line()));
    gateway.wait_ready()?;
    let ready = gateway.age();
    client.wait_up()?;
    booting.done(&format!("the gateway was ready after {:.2} s", ready.as_secs_f64()));

    let step = progress::step("mapping the volume ram0 with rnbd-client over soft-RoCE");
    client.soft_roce()?;
    client.sh("modprobe -a rnbd-client ext4")?;
    client.sh("echo 'sessname=demo path=ip:10.0.0.2@ip:10.0.0.1 device_path=ram0' \
         > /sys/class/rnbd-client/ctl/map_device")?;
    let bytes = client.sh("blockdev --getsize64 /dev/rnbd0")?;
    step.done(&format!("/dev/rnbd0 has {} bytes", bytes.trim()));

    let step = progress::step(format!("mkfs.ext4, mount, {MIB} MiB of random data, sync"));
    client.sh(&format!(
        "set -e
         mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count={MIB} 2>/dev/null
         sync"
    ))?;
    let written = checksum(&mut client)?;
    step.done(&format!("sha256 {}…", written.get(..16).unwrap_or(&written)));

    let step = progress::step("unmounting, dropping caches, mounting, reading back");
    client
        .sh("umount /mnt && echo 3 >/proc/sys/vm/drop_caches && mount -t ext4 /dev/rnbd0 /mnt")?;
    let read = checksum(&mut client)?;
    ensure!(read == written, "the data read back has another checksum: {read}, not {written}");
    client.sh("umount /mnt")?;
    step.done("the same checksum");

    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let metrics = http::get(server, "/metrics").context("reading the gateway's metrics")?;
    println!("\nThe gateway's own account (GET http://{server}/metrics):");
    for line in metrics.body.lines().filter(|l| TOLD.iter().any(|told| l.starts_with(told))) {
        println!("  {line}");
    }
    client.sh("echo normal > /sys/block/rnbd0/rnbd/unmap_device")?;
    println!(
        "\nWhat happened: a stock Debian kernel ({}) mapped a 64 MiB volume of the gateway over \
         RoCEv2,\nmade an ext4 file system on it, wrote {MIB} MiB and read the same bytes back. \
         Both machines were QEMU guests.",
        system.release
    );
    Ok(())
}

fn checksum(client: &mut Guest) -> Result<String> {
    let sum = client.sh("sha256sum </mnt/file")?;
    Ok(sum.split_whitespace().next().unwrap_or_default().to_string())
}
