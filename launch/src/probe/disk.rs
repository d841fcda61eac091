//! Trying disks: what they are, how they fare, and reads. Nothing is written.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drivers::block::OpenDisk;
use drivers::device::Device;
use drivers::hal::{Clock, Disk, Instant, Operation, Platform, Request, Window};
use vfio::Machine;

use super::opened;
use super::report::Report;

/// How long a read may take, a reset of the drive included.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the driver looks after the drive.
const WATCH: Duration = Duration::from_millis(100);
/// Bytes of a read, at least a block.
const READ: u32 = 4096;
/// Reads of the last trial.
const READS: u64 = 256;

/// Opens it, and reads from each of its disks.
pub fn probe(
    device: Device,
    machine: &mut Machine,
    clock: &dyn Clock,
    report: &mut Report,
) -> Result<()> {
    let opened = opened(device.open_disks(machine, clock))?;
    for (place, why) in &opened.refused {
        report.say(&format!("{place} is not used: {why}"));
    }
    ensure!(!opened.disks.is_empty(), "it has no disk that can be used");
    for mut one in opened.disks {
        try_one(&mut one, machine, clock, report).with_context(|| one.location.to_string())?;
        one.disk.shut_down();
        let began = clock.now();
        while !one.disk.is_shut_down() && clock.now().since(began) < PATIENCE {
            one.disk.watch(clock.now());
        }
    }
    Ok(())
}

fn try_one(
    one: &mut OpenDisk,
    machine: &mut Machine,
    clock: &dyn Clock,
    report: &mut Report,
) -> Result<()> {
    let geometry = one.disk.geometry();
    report.say(&format!(
        "{}: {} sectors of 512 bytes, blocks of {}, model {:?}, serial number {:?}, firmware {:?}",
        one.location, geometry.sectors, geometry.logical_block, one.model, one.serial, one.firmware
    ));
    report.keep(&format!("{geometry:?}, depth {}", one.disk.depth()));
    if let Some(health) = one.disk.health() {
        report.say(&format!("{health:?}"));
    }
    let length = READ.max(geometry.logical_block);
    let sectors = u64::from(length / 512);
    let last = geometry.sectors.checked_sub(sectors).context("it is smaller than a read")?;
    let block = u64::from(geometry.logical_block / 512);
    let arena = machine.arena();
    let first = arena.alloc(length as usize, 4096).context("no memory")?;
    let again = arena.alloc(length as usize, 4096).context("no memory")?;
    for sector in [0, last / 2 / block * block, last / block * block] {
        let took = read(&mut *one.disk, clock, report, sector, first)?;
        read(&mut *one.disk, clock, report, sector, again)?;
        ensure!(bytes(&first)? == bytes(&again)?, "two reads of sector {sector} differ");
        report.say(&format!("read: {length} bytes at sector {sector} in {} µs", took.as_micros()));
    }
    let began = clock.now();
    for number in 0..READS {
        let sector = last / READS * number / block * block;
        read(&mut *one.disk, clock, report, sector, first)?;
    }
    let each = clock.now().since(began) / READS as u32;
    report.say(&format!("read: {READS} places, one after the other, {} µs each", each.as_micros()));
    Ok(())
}

fn bytes(window: &Window) -> Result<Vec<u8>> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).ok().context("a window that is too short")?;
    Ok(bytes)
}

/// Reads from `sector` on, and waits for it. How long it took.
fn read(
    disk: &mut dyn Disk,
    clock: &dyn Clock,
    report: &mut Report,
    sector: u64,
    data: Window,
) -> Result<Duration> {
    let began = clock.now();
    disk.submit(&Request { tag: sector, operation: Operation::Read, sector, data })?;
    disk.flush_queue();
    let mut watched = Instant::ZERO;
    loop {
        if let Some(completion) = disk.poll() {
            completion.result.with_context(|| format!("reading sector {sector}"))?;
            ensure!(
                completion.tag == sector,
                "an answer to sector {}, which was not asked",
                completion.tag
            );
            return Ok(clock.now().since(began));
        }
        let now = clock.now();
        if now.since(began) > PATIENCE {
            bail!("a read of sector {sector} is not answered within {PATIENCE:?}");
        }
        if now.since(watched) > WATCH {
            watched = now;
            disk.watch(now);
            while let Some(notice) = disk.notice() {
                report.say(&format!("{:?}: {notice}", notice.severity));
            }
        }
        std::hint::spin_loop();
    }
}
