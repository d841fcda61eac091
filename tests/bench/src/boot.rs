//! `./isthmus bench boot`: size, memory, boot time and idle cost of the appliance.
//!
//! Instructions are counted under TCG, where counts hardly differ from run to run. Times are those of this machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use boot_tests::peer::Peer;
use boot_tests::{boot, image};
use launch::progress;
use launch::qemu::{Disk, Nic, NicModel, PROMPT, Spec};
use tempfile::NamedTempFile;

use crate::features;
use crate::instructions::{Counters, Plugin};
use crate::report::Report;

const APPLIANCE: &str = "10.9.0.1";
const DISK_BYTES: u64 = 16 << 20;

/// Number of counted echoes.
const ECHOES: u64 = 2000;
/// Payload of an echo in bytes.
const ECHO_BYTES: usize = 64;

/// Measures, writes `target/bench/boot.json`, and fails if a bar is missed.
pub fn bench() -> Result<()> {
    let plugin = Plugin::compile()?;
    let mut report = Report::new("boot", Some(0));
    let image_bytes = std::fs::metadata(image()?)?.len();
    report.add("image_bytes", image_bytes as f64);
    for (key, bytes) in features::bytes()? {
        report.add(key, bytes as f64);
    }
    report.add("memory_floor_mib", f64::from(memory_floor()?));
    report.add("boot_instructions", boot_instructions(&plugin)?);
    report.add("boot_seconds", boot_seconds()?);
    report.add("udp_echo_instructions", udp_echo_instructions(&plugin)?);
    // With the shipped `idle_after_us`.
    report.add("idle_instructions_per_second", idle_instructions(&plugin)?);
    report.close()
}

/// The machine of all figures: q35, PVH, one NIC and one disk.
fn machine(nic: Nic, disk: &NamedTempFile) -> Result<Spec> {
    disk.as_file().set_len(DISK_BYTES)?;
    Ok(Spec::kernel(image()?).nic(nic).disk(Disk::new(disk.path())))
}

/// The smallest memory, in MiB, with which the prompt is reached.
fn memory_floor() -> Result<u32> {
    let step = progress::step("looking for the memory floor");
    let (mut too_small, mut enough) = (8, 64);
    while enough - too_small > 1 {
        let middle = (too_small + enough) / 2;
        step.at(&format!("{middle} MiB"));
        let disk = NamedTempFile::new()?;
        let mut vm = machine(Nic::user(), &disk)?.memory(middle).start()?;
        // With enough memory the boot takes a fraction of a second.
        let reached = vm.wait_for_within(PROMPT, Duration::from_secs(5)).is_ok();
        if reached { enough = middle } else { too_small = middle }
    }
    if enough == 64 {
        bail!("64 MiB are not enough");
    }
    step.done("found");
    Ok(enough)
}

/// Instructions from reset to the prompt.
fn boot_instructions(plugin: &Plugin) -> Result<f64> {
    instructions_to_prompt(plugin, |disk| machine(Nic::user(), disk))
}

/// The same on a machine without virtio devices: an 82574 and an NVMe drive.
pub fn boot_instructions_metal(plugin: &Plugin) -> Result<f64> {
    instructions_to_prompt(plugin, |disk| {
        disk.as_file().set_len(DISK_BYTES)?;
        let drive = Disk::new(disk.path()).nvme(0, 1).serial("BENCH");
        Ok(Spec::kernel(image()?).nic_of(NicModel::E1000e, Nic::user()).disk(drive))
    })
}

fn instructions_to_prompt(
    plugin: &Plugin,
    machine: impl Fn(&NamedTempFile) -> Result<Spec>,
) -> Result<f64> {
    median(3, "counting the boot", || {
        let disk = NamedTempFile::new()?;
        let counters = plugin.counters()?;
        let mut vm = machine(&disk)?.extra(counters.arguments()).start()?;
        vm.wait_ready()?;
        Ok(counters.read()? as f64)
    })
}

/// Seconds from the start of QEMU to the prompt: the fastest of five, since other work on this machine
/// only makes it slower.
fn boot_seconds() -> Result<f64> {
    let step = progress::step("timing the boot");
    let mut fastest = f64::INFINITY;
    for _ in 0..5 {
        let disk = NamedTempFile::new()?;
        let mut vm = machine(Nic::user(), &disk)?.start()?;
        vm.wait_ready()?;
        fastest = fastest.min(vm.age().as_secs_f64());
    }
    step.done("5 runs");
    Ok((fastest * 1000.0).round() / 1000.0)
}

/// Instructions for one UDP echo, from the halted loop back to the halt.
fn udp_echo_instructions(plugin: &Plugin) -> Result<f64> {
    let step = progress::step("counting UDP echoes");
    let disk = NamedTempFile::new()?;
    let counters = plugin.counters()?;
    let mut peer = Peer::new(&["10.9.0.2/24"])?;
    // Halting at once: otherwise the wait for more traffic would be counted as part of every echo.
    let settings = format!(
        "isthmus.net.0.address={APPLIANCE}/24 isthmus.services.udp_echo=true isthmus.system.idle_after_us=0"
    );
    let spec = machine(peer.nic(), &disk)?.append(&settings).extra(counters.arguments());
    let _vm = boot(spec)?;
    let payload = [0x5a; ECHO_BYTES];
    for _ in 0..100 {
        peer.echo(APPLIANCE, &payload)?;
    }
    let idle = rate(&counters, Duration::from_secs(2))?;
    let (before, started) = (counters.read()?, Instant::now());
    for _ in 0..ECHOES {
        peer.echo(APPLIANCE, &payload)?;
    }
    let counted = (counters.read()? - before) as f64;
    let others = idle * started.elapsed().as_secs_f64();
    step.done(&format!("{ECHOES} echoes"));
    Ok(((counted - others) / ECHOES as f64).round())
}

/// Instructions per second of an idle appliance.
fn idle_instructions(plugin: &Plugin) -> Result<f64> {
    let step = progress::step("counting while idle");
    let disk = NamedTempFile::new()?;
    let counters = plugin.counters()?;
    let settings = format!("isthmus.net.0.address={APPLIANCE}/24");
    let peer = Peer::new(&["10.9.0.2/24"])?;
    let spec = machine(peer.nic(), &disk)?.append(&settings).extra(counters.arguments());
    let _vm = boot(spec)?;
    std::thread::sleep(Duration::from_secs(2)); // the work after the boot is done by then
    let idle = rate(&counters, Duration::from_secs(5))?;
    step.done("5 s");
    Ok(idle.round())
}

/// Instructions per second over `time`.
fn rate(counters: &Counters, time: Duration) -> Result<f64> {
    let (before, started) = (counters.read()?, Instant::now());
    std::thread::sleep(time);
    Ok((counters.read()? - before) as f64 / started.elapsed().as_secs_f64())
}

/// The median of an odd number of runs.
fn median(runs: usize, what: &str, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let step = progress::step(what);
    let mut values = (0..runs).map(|_| measure()).collect::<Result<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    step.done(&format!("{runs} runs"));
    values.get(runs / 2).copied().context("a median needs a run")
}
