//! SATA drives at QEMU's `ich9-ahci`, on machines without a virtio disk.

use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Disk, Machine};
use tempfile::NamedTempFile;

use super::drives::{Model, cases};

const AHCI: Model = Model {
    attach: Disk::ahci,
    unit: |n| format!("/port{n}"),
    controller: "ahci0",
    pulled: "controller does not answer any more",
    // QEMU's SATA disks have no other.
    largest_block: 512,
    writes_zeroes: false,
    model: "QEMU HARDDISK",
};

cases!(AHCI);

#[test]
fn image_boots_from_the_drive_and_saves_there() -> Result<()> {
    super::drives::image_boots_from_the_drive_and_saves_there(AHCI)
}

/// q35 has a controller of its own, where a CD is, and no drive.
#[test]
fn drive_of_packets_and_empty_ports_are_left_alone() -> Result<()> {
    let disc = NamedTempFile::new()?;
    disc.as_file().set_len(1 << 20)?;
    let path = disc.path().display().to_string();
    let words = ["-drive".to_string(), format!("if=ide,media=cdrom,format=raw,file={path}")];
    let mut vm = boot(spec()?.machine(Machine::Q35).extra(words))?;
    let disks = vm.run("show disks --json")?.json()?;
    ensure!(disks.as_array().is_some_and(Vec::is_empty), "{disks}");
    vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    Ok(())
}
