//! Data memory of a command by PRP entries (NVMe 1.4, 4.3), checked strictly.

use crate::{Machine, Unreachable};

pub const PAGE: u64 = 4096;

/// Status: a PRP entry has an invalid offset.
const INVALID_OFFSET: u16 = 0x4013;
/// Status: memory cannot be reached.
const TRANSFER_ERROR: u16 = 0x0004;

impl From<Unreachable> for Status {
    fn from(_: Unreachable) -> Self {
        Status(TRANSFER_ERROR)
    }
}

/// A status field other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// The memory ranges of `len` bytes of data.
pub fn stretches(
    prps: [u64; 2],
    len: usize,
    machine: &mut dyn Machine,
) -> Result<Vec<(u64, usize)>, Status> {
    if !prps[0].is_multiple_of(4) {
        return Err(Status(INVALID_OFFSET));
    }
    let first = len.min((PAGE - prps[0] % PAGE) as usize);
    let mut found = vec![(prps[0], first)];
    let mut left = len - first;
    if left == 0 {
        return Ok(found);
    }
    if left <= PAGE as usize {
        if !prps[1].is_multiple_of(PAGE) {
            return Err(Status(INVALID_OFFSET));
        }
        found.push((prps[1], left));
        return Ok(found);
    }
    let mut at = prps[1];
    if !at.is_multiple_of(8) {
        return Err(Status(INVALID_OFFSET));
    }
    while left > 0 {
        let mut entry = [0; 8];
        machine.read(at, &mut entry)?;
        let entry = u64::from_le_bytes(entry);
        if !entry.is_multiple_of(PAGE) {
            return Err(Status(INVALID_OFFSET));
        }
        // The last entry of a page is the next list's address if more than one page remains.
        if (at + 8).is_multiple_of(PAGE) && left > PAGE as usize {
            at = entry;
            continue;
        }
        let part = left.min(PAGE as usize);
        found.push((entry, part));
        left -= part;
        at += 8;
    }
    Ok(found)
}

/// Writes data to memory.
pub fn put(prps: [u64; 2], bytes: &[u8], machine: &mut dyn Machine) -> Result<(), Status> {
    let mut rest = bytes;
    for (address, len) in stretches(prps, bytes.len(), machine)? {
        let (part, later) = rest.split_at(len);
        machine.write(address, part)?;
        rest = later;
    }
    Ok(())
}

/// Reads data from memory.
pub fn get(prps: [u64; 2], into: &mut [u8], machine: &mut dyn Machine) -> Result<(), Status> {
    let mut at = 0;
    for (address, len) in stretches(prps, into.len(), machine)? {
        machine.read(address, &mut into[at..at + len])?;
        at += len;
    }
    Ok(())
}
