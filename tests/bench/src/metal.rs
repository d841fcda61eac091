//! The `metal` suite: instructions of drivers of real hardware, counted by callgrind on device models without the
//! models' own instructions; and instructions of the appliance on QEMU's `nvme` and `e1000e`.

use anyhow::Result;
use launch::progress;
use launch::qemu::Disk;
use launch::setup::{self, Purpose};
use tempfile::NamedTempFile;

use crate::boot::boot_instructions_metal;
use crate::callgrind::Program;
use crate::instructions::Plugin;
use crate::report::Report;
use crate::rnbd::{READ_4K_QD32, ROUNDS, fio, volumes};
use crate::site::{Appliance, LINUX, Site};

/// Functions of the models, which are not counted.
const MODEL: &str = "of_the_model";

/// Runs the suite.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Count, Purpose::Run, Purpose::Guest])?;
    let program = Program::build("bench-metal")?;
    let mut report = Report::new("metal", None);
    for (scenario, key) in [
        ("nvme-read4k", "nvme_read4k_instructions"),
        ("ahci-read4k", "ahci_read4k_instructions"),
        ("pvscsi-read4k", "pvscsi_read4k_instructions"),
    ] {
        report.add(key, program.instructions_within(scenario, "bench_metal*turn", MODEL)?);
    }
    for (scenario, key) in [
        ("igb-packet", "igb_packet_instructions"),
        ("e1000-packet", "e1000_packet_instructions"),
        ("enic-packet", "enic_packet_instructions"),
    ] {
        report.add(key, program.instructions_within(scenario, "bench_metal*packets", MODEL)?);
    }
    let plugin = Plugin::compile()?;
    report.add("boot_instructions_metal", boot_instructions_metal(&plugin)?);
    let (disk, memory) = read4k(&plugin)?;
    report.ratio("nvme_rnbd_read4k_ratio", disk, memory);
    report.close()
}

/// The appliances with a volume on an NVMe drive and in memory. Both halt as soon as they are idle.
const NVME: usize = 2;
const RAM: usize = 1;

/// Instructions per read of 4 KiB, 32 at a time by a stock client, from a drive and from memory.
fn read4k(plugin: &Plugin) -> Result<(f64, f64)> {
    let file = NamedTempFile::new()?;
    file.as_file().set_len(64 << 20)?;
    // With the name of the volume in memory.
    let volume = "isthmus.volume.0.name=ram0 isthmus.volume.0.disk=nvme:BENCH/1";
    let drive = Disk::new(file.path()).nvme(0, 1).serial("BENCH");
    let appliances = [Appliance::halting(""), Appliance::halting(volume).disk(drive)];
    let mut site = Site::boot(plugin, &appliances)?;
    volumes::serve(&mut site)?;
    // The client numbers its devices in the order of mapping.
    for server in [LINUX, RAM, NVME] {
        volumes::map_and_fill(&mut site, server)?;
    }
    site.count_idle()?;
    let step = progress::step("reads from a drive and from memory");
    let (mut memory, mut disk) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        memory.push(volumes::run(&mut site, RAM, &READ_4K_QD32)?);
        disk.push(volumes::run(&mut site, NVME, &READ_4K_QD32)?);
    }
    let (memory, disk) = (fio::median(&memory)?.instructions, fio::median(&disk)?.instructions);
    step.done(&format!("{disk:.0} and {memory:.0} instructions"));
    Ok((disk, memory))
}
