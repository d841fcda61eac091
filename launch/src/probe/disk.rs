//! Probes disks: identity, health, and reads. Nothing is written.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drivers::block::OpenDisk;
use drivers::driver::Device;
use drivers::hal::{Clock, Disk, Instant, Operation, Platform, Request, Window};
use vfio::Machine;

use super::opened;
use super::report::Report;

/// Time limit of a read, including a reset of the drive.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between calls of the driver's `watch`.
const WATCH: Duration = Duration::from_millis(100);
/// Bytes of a read, unless a block is larger.
const READ: u32 = 4096;
/// Number of reads in the last step, spread over the disk.
const READS: u64 = 256;

/// Opens the device and reads from each of its disks.
pub fn probe(
    device: Device,
    machine: &mut Machine,
    clock: &dyn Clock,
    report: &mut Report,
) -> Result<()> {
    let opened = opened(device.open_disks(machine, clock))?;
    for (place, why) in &opened.refused {
        report.print(&format!("{place} is not used: {why}"));
    }
    ensure!(!opened.disks.is_empty(), "the device has no usable disk");
    for mut open in opened.disks {
        probe_disk(&mut open, machine, clock, report).with_context(|| open.location.to_string())?;
        open.disk.shut_down();
        let began = clock.now();
        while !open.disk.is_shut_down() && clock.now().since(began) < PATIENCE {
            open.disk.watch(clock.now());
        }
    }
    Ok(())
}

fn probe_disk(
    open: &mut OpenDisk,
    machine: &mut Machine,
    clock: &dyn Clock,
    report: &mut Report,
) -> Result<()> {
    let geometry = open.disk.geometry();
    report.print(&format!(
        "{}: {} sectors of 512 bytes, blocks of {}, model {:?}, serial number {:?}, firmware {:?}",
        open.location,
        geometry.sectors,
        geometry.logical_block,
        open.model,
        open.serial,
        open.firmware
    ));
    report.keep(&format!("{geometry:?}, depth {}", open.disk.depth()));
    if let Some(health) = open.disk.health() {
        report.print(&format!("{health:?}"));
    }
    let length = READ.max(geometry.logical_block);
    let sectors = u64::from(length / 512);
    let last =
        geometry.sectors.checked_sub(sectors).context("the disk is smaller than one read")?;
    let block = u64::from(geometry.logical_block / 512);
    let arena = machine.arena();
    let first = arena.alloc(length as usize, 4096).context("no memory")?;
    let again = arena.alloc(length as usize, 4096).context("no memory")?;
    for sector in [0, last / 2 / block * block, last / block * block] {
        let took = read(&mut *open.disk, clock, report, sector, first)?;
        read(&mut *open.disk, clock, report, sector, again)?;
        ensure!(bytes(&first)? == bytes(&again)?, "two reads of sector {sector} differ");
        report
            .print(&format!("read: {length} bytes at sector {sector} in {} µs", took.as_micros()));
    }
    let began = clock.now();
    for number in 0..READS {
        let sector = last / READS * number / block * block;
        read(&mut *open.disk, clock, report, sector, first)?;
    }
    let each = clock.now().since(began) / READS as u32;
    report
        .print(&format!("read: {READS} places, one after the other, {} µs each", each.as_micros()));
    Ok(())
}

fn bytes(window: &Window) -> Result<Vec<u8>> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).ok().context("a window that is too short")?;
    Ok(bytes)
}

/// Reads from `sector` on, waits for the completion, and returns the time taken.
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
                "the drive completed a read of sector {}, which was not requested",
                completion.tag
            );
            return Ok(clock.now().since(began));
        }
        let now = clock.now();
        if now.since(began) > PATIENCE {
            bail!("the drive did not complete a read of sector {sector} within {PATIENCE:?}");
        }
        if now.since(watched) > WATCH {
            watched = now;
            disk.watch(now);
            while let Some(notice) = disk.notice() {
                report.print(&format!("{:?}: {notice}", notice.severity));
            }
        }
        std::hint::spin_loop();
    }
}
