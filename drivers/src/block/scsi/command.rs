//! Encoding of SCSI commands and decoding of responses, big endian: SPC-4 (all devices) and SBC-3 (disks).

/// A command descriptor block of 16 bytes at most; shorter ones are followed by zeroes.
pub type Cdb = [u8; 16];

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The command succeeded.
    Done,
    /// The command failed temporarily, because the device was reset or is busy: retry.
    Again {
        /// The unit's capacity has changed.
        capacity: bool,
    },
    /// As `Again`, and the unit may have lost writes that it had acknowledged.
    Lost,
    /// The unit does not support the command or its fields.
    Illegal,
    /// There is no such target or unit.
    Absent,
    /// The command failed.
    Failed,
    /// The adapter wrote no valid response.
    Invalid,
}

// Status codes (SAM-5, 5.3.1).
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const BUSY: u8 = 8;
const TASK_SET_FULL: u8 = 0x28;

// Sense keys (SPC-4, 4.5.6), and additional sense codes with qualifiers.
const NO_SENSE: u8 = 0;
const RECOVERED: u8 = 1;
const NOT_READY: u8 = 2;
const ILLEGAL_REQUEST: u8 = 5;
const UNIT_ATTENTION: u8 = 6;
const ABORTED_COMMAND: u8 = 11;
const POWER_ON: (u8, u8) = (0x29, 0x01);
const INTERNAL_RESET: (u8, u8) = (0x29, 0x04);
const CAPACITY_CHANGED: (u8, u8) = (0x2a, 0x09);
const BECOMING_READY: (u8, u8) = (0x04, 0x01);
const UNIT_NOT_SUPPORTED: (u8, u8) = (0x25, 0x00);

impl Answer {
    /// Decodes the SCSI status and the sense data of a command that the adapter has carried out.
    pub fn of_status(status: u8, sense: &[u8]) -> Answer {
        match status {
            GOOD => Answer::Done,
            CHECK_CONDITION => Answer::of_sense(sense),
            BUSY | TASK_SET_FULL => Answer::Again { capacity: false },
            _ => Answer::Failed,
        }
    }

    /// Decodes sense data in fixed or descriptor format (SPC-4, 4.5.2 and 4.5.3).
    fn of_sense(sense: &[u8]) -> Answer {
        let at = |index| sense.get(index).copied().unwrap_or(0);
        let form = at(0) & 0x7f;
        let (key, code) = match form {
            0x70 | 0x71 => (at(2) & 0xf, (at(12), at(13))),
            0x72 | 0x73 => (at(1) & 0xf, (at(2), at(3))),
            // Nothing says that the command was carried out.
            _ => return Answer::Failed,
        };
        if matches!(form, 0x71 | 0x73) {
            // Of an earlier command, which had succeeded. This one was not carried out (SPC-4, 4.5.7).
            return match key {
                NO_SENSE | RECOVERED => Answer::Again { capacity: false },
                _ => Answer::Lost,
            };
        }
        match (key, code) {
            (RECOVERED, _) => Answer::Done,
            // How much was transferred is not known (Linux: `sd_done`).
            (NO_SENSE, _) => Answer::Again { capacity: false },
            (UNIT_ATTENTION, POWER_ON | INTERNAL_RESET) => Answer::Lost,
            (UNIT_ATTENTION, code) => Answer::Again { capacity: code == CAPACITY_CHANGED },
            (ABORTED_COMMAND, _) | (NOT_READY, BECOMING_READY) => Answer::Again { capacity: false },
            (ILLEGAL_REQUEST, UNIT_NOT_SUPPORTED) => Answer::Absent,
            (ILLEGAL_REQUEST, _) => Answer::Illegal,
            _ => Answer::Failed,
        }
    }
}

fn put16(cdb: &mut Cdb, at: usize, value: u16) {
    cdb[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put32(cdb: &mut Cdb, at: usize, value: u32) {
    cdb[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// A command of 16 bytes for `blocks` logical blocks from `lba`.
#[inline]
fn blocks16(operation: u8, flags: u8, lba: u64, blocks: u32) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (operation, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    put32(&mut cdb, 10, blocks);
    cdb
}

/// READ (16).
#[inline]
pub fn read(lba: u64, blocks: u32) -> Cdb {
    blocks16(0x88, 0, lba, blocks)
}

/// WRITE (16).
#[inline]
pub fn write(lba: u64, blocks: u32) -> Cdb {
    blocks16(0x8a, 0, lba, blocks)
}

/// WRITE SAME (16): writes one block of data to all blocks. With `unmap` the unit may unmap them if they read the same.
pub fn write_same(lba: u64, blocks: u32, unmap: bool) -> Cdb {
    blocks16(0x93, if unmap { 8 } else { 0 }, lba, blocks)
}

/// SYNCHRONIZE CACHE (10) of the whole unit.
pub fn synchronize_cache() -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x35;
    cdb
}

/// Bytes of [`unmap_list`].
pub const UNMAP_LIST: usize = 24;

/// UNMAP, with an [`unmap_list`] as its data.
pub fn unmap() -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x42;
    put16(&mut cdb, 7, UNMAP_LIST as u16);
    cdb
}

/// Parameters of UNMAP with one range of blocks (SBC-3, 5.28.2).
pub fn unmap_list(lba: u64, blocks: u32) -> [u8; UNMAP_LIST] {
    let mut list = [0; UNMAP_LIST];
    list[..2].copy_from_slice(&(UNMAP_LIST as u16 - 2).to_be_bytes());
    list[2..4].copy_from_slice(&16u16.to_be_bytes());
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    list
}

/// TEST UNIT READY.
pub fn test_unit_ready() -> Cdb {
    [0; 16]
}

/// INQUIRY for a page of vital product data, or for the standard data.
pub fn inquiry(page: Option<u8>, len: u16) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x12;
    (cdb[1], cdb[2]) = page.map_or((0, 0), |page| (1, page));
    put16(&mut cdb, 3, len);
    cdb
}

/// REPORT LUNS.
pub fn report_luns(len: u32) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0xa0;
    put32(&mut cdb, 6, len);
    cdb
}

/// MODE SENSE (6) of one page's current values.
pub fn mode_sense(page: u8, len: u8) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[2], cdb[4]) = (0x1a, page, len);
    cdb
}

/// Bytes of the answer to [`read_capacity`].
pub const CAPACITY: usize = 32;

/// READ CAPACITY (16), for parameters of [`CAPACITY`] bytes.
pub fn read_capacity() -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x9e, 0x10);
    put32(&mut cdb, 10, CAPACITY as u32);
    cdb
}

/// Parameters returned by READ CAPACITY (16) (SBC-3, 5.16.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block: u32,
    /// Logical blocks of a physical block.
    pub per_physical: u32,
}

impl Capacity {
    /// Parses the parameters. None for an impossible capacity: blocks must be powers of two from 512 bytes to 64 KiB,
    /// and the disk's size in bytes must fit into 64 bits.
    pub fn parse(answer: &[u8; CAPACITY]) -> Option<Capacity> {
        let (last, rest) = answer.split_first_chunk()?;
        let (block, rest) = rest.split_first_chunk()?;
        let blocks = u64::from_be_bytes(*last).checked_add(1)?;
        let block = u32::from_be_bytes(*block);
        blocks.checked_mul(block.into())?;
        let good = block.is_power_of_two() && (512..=1 << 16).contains(&block);
        let exponent = rest.get(1)? & 0xf;
        good.then_some(Capacity { blocks, block, per_physical: 1 << exponent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_sense_are_decoded() {
        let fixed = |key, asc, ascq| {
            let mut sense = [0; 18];
            (sense[0], sense[2], sense[12], sense[13]) = (0x70, key, asc, ascq);
            sense
        };
        let again = Answer::Again { capacity: false };
        for (status, sense, expected) in [
            (0, fixed(3, 0, 0), Answer::Done),
            (2, fixed(1, 0, 0), Answer::Done),
            (2, fixed(0, 0, 0), again),
            (2, fixed(6, 0x29, 1), Answer::Lost),
            (2, fixed(3, 0x11, 0), Answer::Failed),
            (2, fixed(5, 0x20, 0), Answer::Illegal),
            (2, fixed(5, 0x25, 0), Answer::Absent),
            (2, fixed(6, 0x29, 0), again),
            (2, fixed(6, 0x2a, 9), Answer::Again { capacity: true }),
            (2, fixed(7, 0x27, 0), Answer::Failed),
            (8, fixed(0, 0, 0), again),
            (0x28, fixed(0, 0, 0), again),
            (0x18, fixed(0, 0, 0), Answer::Failed),
        ] {
            assert_eq!(Answer::of_status(status, &sense), expected, "{status}");
        }
        let descriptors = [0x72, 6, 0x2a, 9, 0, 0, 0, 0];
        assert_eq!(Answer::of_status(2, &descriptors), Answer::Again { capacity: true });
        for none in [&[][..], &[0; 18]] {
            assert_eq!(Answer::of_status(2, none), Answer::Failed, "no sense data");
        }
        for deferred in [[0x71, 0, 3, 0, 0, 0, 0, 0], [0x73, 3, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(
                Answer::of_status(2, &deferred),
                Answer::Lost,
                "an earlier write has failed"
            );
        }
        assert_eq!(Answer::of_status(2, &[0x71, 0, 1]), again, "this command was not carried out");
    }

    #[test]
    fn capacities_that_no_disk_has_are_refused() {
        let answer = |last: u64, block: u32| {
            let mut bytes = [0; CAPACITY];
            bytes[..8].copy_from_slice(&last.to_be_bytes());
            bytes[8..12].copy_from_slice(&block.to_be_bytes());
            bytes[13] = 3;
            Capacity::parse(&bytes)
        };
        let good = Capacity { blocks: 1 << 20, block: 512, per_physical: 8 };
        assert_eq!(answer((1 << 20) - 1, 512), Some(good));
        for (last, block) in
            [(7, 0), (7, 513), (7, 256), (7, 1 << 17), (u64::MAX, 512), (1 << 60, 512)]
        {
            assert_eq!(answer(last, block), None, "{last} {block}");
        }
    }
}
