//! Synchronous reads and writes of a disk during start, when nothing else uses the disk.

use super::disks::DiskSlot;
use core::time::Duration;
use drivers::hal::{Arena, Clock, Disk, Operation, Request, Window};

/// The error of a disk that did not answer in time. It may still complete the request, so the next answer may be that of
/// this one.
pub(super) const SILENT: &str = "does not answer";
/// How long a disk may take to answer while the appliance starts.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const SECTOR: u64 = 512;
/// Every request is a multiple of this.
pub(super) const BLOCK: usize = 4096;

/// Reads `len` bytes, a multiple of 4096, from a sector on, and waits for them.
pub(super) fn read(
    slot: &mut DiskSlot,
    sector: u64,
    len: usize,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Result<Vec<u8>, String> {
    let buffer = arena.alloc(len, BLOCK).ok_or("no memory to read from it")?;
    transfer(slot, Operation::Read, sector, buffer, clock)?;
    let mut bytes = vec![0; len];
    let read = buffer.read(0, &mut bytes);
    arena.free(buffer);
    read.map(|()| bytes).map_err(|_| "the buffer is too short".into())
}

/// Writes bytes, a multiple of 4096, from a sector on, and waits until they are durable.
pub(super) fn write(
    slot: &mut DiskSlot,
    sector: u64,
    bytes: &[u8],
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Result<(), String> {
    let buffer = arena.alloc(bytes.len(), BLOCK).ok_or("no memory to write to it")?;
    buffer.write(0, bytes).map_err(|_| "it is too long")?;
    transfer(slot, Operation::Write, sector, buffer, clock)?;
    arena.free(buffer);
    transfer(slot, Operation::Flush, 0, Window::empty(), clock)
}

/// Executes one operation and waits for it. After an error the device may still use the memory.
fn transfer(
    slot: &mut DiskSlot,
    operation: Operation,
    sector: u64,
    data: Window,
    clock: &dyn Clock,
) -> Result<(), String> {
    let deadline = clock.now() + PATIENCE;
    let most = (slot.geometry.max_transfer as usize / BLOCK * BLOCK).max(BLOCK);
    let mut at = 0;
    loop {
        let len = (data.len() - at).min(most);
        let part = data.slice(at, len).unwrap_or(Window::empty());
        let request =
            Request { tag: 0, operation, sector: sector + at as u64 / SECTOR, data: part };
        slot.disk.submit(&request).map_err(|why| format!("does not take a request: {why}"))?;
        slot.disk.flush_queue();
        let result = loop {
            match slot.disk.poll() {
                Some(completion) => break completion.result,
                None if clock.now() > deadline => return Err(SILENT.into()),
                None => {
                    slot.disk.advance(clock.now());
                    drivers::hal::relax();
                }
            }
        };
        result.map_err(|why| format!("cannot be used: {why}"))?;
        at += len;
        if at >= data.len() {
            return Ok(());
        }
    }
}
