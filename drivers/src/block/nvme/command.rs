//! Encoding of commands (NVMe 1.4, 5 and 6) and meaning of their status (4.6.1).

use super::queue::Command;
use crate::hal::DiskError;

/// Admin commands.
const CREATE_SUBMISSIONS: u8 = 0x01;
const GET_LOG_PAGE: u8 = 0x02;
const CREATE_COMPLETIONS: u8 = 0x05;
const IDENTIFY: u8 = 0x06;
const ABORT: u8 = 0x08;
const SET_FEATURES: u8 = 0x09;

const FEATURE_QUEUES: u32 = 7;
const LOG_HEALTH: u32 = 2;
const ALL_NAMESPACES: u32 = u32::MAX;
/// The queue is physically contiguous; the completion queue raises interrupts.
const CONTIGUOUS: u32 = 1;
const INTERRUPTS: u32 = 2;

/// Commands of the NVM command set.
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;

/// Dword 12 of writes: force unit access; of write zeroes: deallocate.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATE: u32 = 1 << 25;
/// Dword 11 of dataset management: deallocate.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// Data structure to identify (CNS, 5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identify {
    /// A namespace.
    Namespace(u32),
    /// The controller.
    Controller,
    /// The active namespaces whose numbers are larger than this one.
    Namespaces(u32),
    /// Namespace Identification Descriptors of a namespace (since 1.3).
    Descriptors(u32),
}

/// A command without an identifier. `prps` are the PRP entries of its data, `dwords` its dwords 10 to 12.
fn command(opcode: u8, nsid: u32, prps: [u64; 2], dwords: [u32; 3]) -> Command {
    let [ten, eleven, twelve] = dwords.map(u64::from);
    let first = u64::from(opcode) | u64::from(nsid) << 32;
    [first, 0, 0, prps[0], prps[1], ten | eleven << 32, twelve, 0]
}

/// The command with its identifier.
#[inline]
pub fn with_identifier(mut command: Command, cid: u16) -> Command {
    command[0] = command[0] & !0xffff_0000 | u64::from(cid) << 16;
    command
}

/// Identify, into a page-aligned page at bus address `into`.
pub fn identify(what: Identify, into: u64) -> Command {
    let (cns, nsid) = match what {
        Identify::Namespace(nsid) => (0, nsid),
        Identify::Controller => (1, 0),
        Identify::Namespaces(after) => (2, after),
        Identify::Descriptors(nsid) => (3, nsid),
    };
    command(IDENTIFY, nsid, [into, 0], [cns, 0, 0])
}

/// Reads `len` bytes (a multiple of 4) of the controller's SMART / health information.
pub fn health(into: u64, len: usize) -> Command {
    let dwords = (len / 4 - 1) as u32;
    command(GET_LOG_PAGE, ALL_NAMESPACES, [into, 0], [dwords << 16 | LOG_HEALTH, 0, 0])
}

/// Requests `count` pairs of I/O queues.
pub fn pairs_of_queues(count: u16) -> Command {
    let less_one = u32::from(count - 1);
    command(SET_FEATURES, 0, [0; 2], [FEATURE_QUEUES, less_one << 16 | less_one, 0])
}

/// Number of pairs that the completion grants (5.21.1.7): the smaller of the numbers of submission and completion
/// queues.
pub fn pairs_granted(answer: u32) -> u16 {
    (answer as u16).min((answer >> 16) as u16).saturating_add(1)
}

/// Creates completion queue `id`, which raises the interrupt of `vector`, if any.
pub fn create_completions(id: u16, entries: u16, at: u64, vector: Option<u16>) -> Command {
    let queue = u32::from(entries - 1) << 16 | u32::from(id);
    let how = vector.map_or(CONTIGUOUS, |vector| u32::from(vector) << 16 | CONTIGUOUS | INTERRUPTS);
    command(CREATE_COMPLETIONS, 0, [at, 0], [queue, how, 0])
}

/// Creates submission queue `id`, whose completions go to the completion queue of the same number.
pub fn create_submissions(id: u16, entries: u16, at: u64) -> Command {
    let queue = u32::from(entries - 1) << 16 | u32::from(id);
    command(CREATE_SUBMISSIONS, 0, [at, 0], [queue, u32::from(id) << 16 | CONTIGUOUS, 0])
}

/// Requests an abort of command `cid` of submission queue `queue`. The controller may ignore it.
pub fn abort(queue: u16, cid: u16) -> Command {
    command(ABORT, 0, [0; 2], [u32::from(cid) << 16 | u32::from(queue), 0, 0])
}

/// Reads or writes `count` blocks, 1 to 65,536.
#[inline]
pub fn transfer(kind: Transfer, nsid: u32, block: u64, count: u32, prps: [u64; 2]) -> Command {
    let (opcode, flags) = match kind {
        Transfer::Read => (READ, 0),
        Transfer::Write => (WRITE, 0),
        Transfer::WriteThrough => (WRITE, FORCE_UNIT_ACCESS),
    };
    let first = u64::from(opcode) | u64::from(nsid) << 32;
    let rest = u64::from((count - 1) | flags);
    [first, 0, 0, prps[0], prps[1], block, rest, 0]
}

/// Direction of a transfer, and durability of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// From the drive to memory.
    Read,
    /// To the drive, which may keep the data in its volatile cache.
    Write,
    /// To the drive's non-volatile media (force unit access).
    WriteThrough,
}

/// Makes all completed writes of the namespace durable.
pub fn flush(nsid: u32) -> Command {
    command(FLUSH, nsid, [0; 2], [0; 3])
}

/// Zeroes `count` blocks, 1 to 65,536; with `deallocate` the drive may deallocate them.
pub fn write_zeroes(nsid: u32, block: u64, count: u32, deallocate: bool) -> Command {
    let flags = if deallocate { DEALLOCATE } else { 0 };
    let dwords = [block as u32, (block >> 32) as u32, (count - 1) | flags];
    command(WRITE_ZEROES, nsid, [0; 2], dwords)
}

/// Deallocates the one range of blocks ([`range`]) that is stored at bus address `at`.
pub fn deallocate(nsid: u32, at: u64) -> Command {
    command(DATASET_MANAGEMENT, nsid, [at, 0], [0, ATTRIBUTE_DEALLOCATE, 0])
}

/// A range of dataset management (6.7): two words.
pub fn range(block: u64, count: u32) -> [u64; 2] {
    [u64::from(count) << 32, block]
}

/// Meaning of a status field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded.
    Done,
    /// The command failed for a temporary reason: retry.
    Again,
    /// The command failed.
    Failed(DiskError),
}

impl Outcome {
    /// Decodes a status field without the phase bit: code in bits 0 to 7, type in bits 8 to 10, "do not retry" in bit
    /// 14.
    #[inline]
    pub fn of(status: u16) -> Outcome {
        match status & 0x7ff {
            0 => Outcome::Done,
            _ => Outcome::of_error(status),
        }
    }

    #[cold]
    fn of_error(status: u16) -> Outcome {
        const DO_NOT_RETRY: u16 = 1 << 14;
        match status & 0x7ff {
            // Invalid opcode; invalid field; invalid namespace or format.
            0x01 | 0x02 | 0x0b => Outcome::Failed(DiskError::Unsupported),
            // Aborted by request, by a deleted submission queue, by a notified power loss; interrupted; namespace not
            // ready; path errors (type 3).
            0x05 | 0x07 | 0x08 | 0x21 | 0x82 | 0x300 | 0x360 | 0x370 | 0x371
                if status & DO_NOT_RETRY == 0 =>
            {
                Outcome::Again
            }
            _ => Outcome::Failed(DiskError::Io),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_laid_out_as_the_specification_has_them() {
        let read = transfer(Transfer::Read, 7, 0x1_0000_0002, 8, [0x1000, 0x2000]);
        let read = with_identifier(read, 0xabcd);
        assert_eq!(read, [7 << 32 | 0xabcd_0002, 0, 0, 0x1000, 0x2000, 0x1_0000_0002, 7, 0]);
        let through = transfer(Transfer::WriteThrough, 1, 0, 65_536, [0; 2]);
        assert_eq!((through[0], through[6]), (1 << 32 | 1, 0x4000_ffff));
        assert_eq!(write_zeroes(1, 1 << 32, 1, true)[5..7], [1 << 32, 1 << 25]);
        assert_eq!(deallocate(1, 0x3000)[3..6], [0x3000, 0, 4 << 32]);
        assert_eq!(health(0, 512)[5], 127 << 16 | 2);
        assert_eq!(create_completions(1, 256, 0, Some(1))[5], 0x1_0003 << 32 | 0xff_0001);
        assert_eq!(create_submissions(1, 256, 0)[5], 0x1_0001 << 32 | 0xff_0001);
        assert_eq!(abort(1, 0x203)[5], 0x203_0001);
        assert_eq!(pairs_of_queues(32)[5], 0x1f_001f << 32 | 7);
        assert_eq!([0, 0x3_0005, 0x3f_0000, u32::MAX].map(pairs_granted), [1, 4, 1, u16::MAX]);
    }

    #[test]
    fn status_decodes_to_retry_or_error() {
        assert_eq!(Outcome::of(0), Outcome::Done);
        assert_eq!(Outcome::of(0x07), Outcome::Again);
        assert_eq!(Outcome::of(0x4007), Outcome::Failed(DiskError::Io));
        assert_eq!(Outcome::of(0x01), Outcome::Failed(DiskError::Unsupported));
        assert_eq!(Outcome::of(0x281), Outcome::Failed(DiskError::Io), "unrecovered read error");
    }
}
