//! ATA commands (ACS-4, chapter 7) as register FISes from host to device (Serial ATA 3.2, 10.5.5), and the log page of
//! a failed queued command.

/// A register FIS without its last, reserved word: two little-endian words of 64 bits.
pub type Fis = [u64; 2];

const READ_DMA_EXT: u8 = 0x25;
const WRITE_DMA_EXT: u8 = 0x35;
const WRITE_DMA_FUA_EXT: u8 = 0x3d;
const READ_FPDMA_QUEUED: u8 = 0x60;
const WRITE_FPDMA_QUEUED: u8 = 0x61;
const DATA_SET_MANAGEMENT: u8 = 0x06;
const READ_LOG_EXT: u8 = 0x2f;
const STANDBY_IMMEDIATE: u8 = 0xe0;
const FLUSH_CACHE_EXT: u8 = 0xea;
const IDENTIFY_DEVICE: u8 = 0xec;
const SET_FEATURES: u8 = 0xef;

/// The LBA bit of the device register.
const LBA: u8 = 1 << 6;
/// Forced unit access of a queued write.
const FUA: u8 = 1 << 7;

/// A transfer of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Read,
    Write,
    /// A write that completes when the data is on the medium.
    WriteThrough,
}

/// A register FIS that is a command (type 27h, bit C).
#[inline]
fn fis(command: u8, features: u16, lba: u64, count: u16, device: u8) -> Fis {
    let low = |value: u64, shift: u32| (value & 0xff) << shift;
    [
        0x8027
            | u64::from(command) << 16
            | low(features.into(), 24)
            | (lba & 0xff_ffff) << 32
            | u64::from(device) << 56,
        (lba >> 24 & 0xff_ffff) | u64::from(features >> 8) << 24 | u64::from(count) << 32,
    ]
}

/// A transfer of `blocks` blocks (0: 65,536) in the native queue, as the command with this tag.
#[inline]
pub fn queued(kind: Transfer, lba: u64, blocks: u16, tag: u8) -> Fis {
    let (command, device) = match kind {
        Transfer::Read => (READ_FPDMA_QUEUED, LBA),
        Transfer::Write => (WRITE_FPDMA_QUEUED, LBA),
        Transfer::WriteThrough => (WRITE_FPDMA_QUEUED, LBA | FUA),
    };
    fis(command, blocks, lba, u16::from(tag) << 3, device)
}

/// A transfer of `blocks` blocks (0: 65,536) by itself.
pub fn transfer(kind: Transfer, lba: u64, blocks: u16) -> Fis {
    let command = match kind {
        Transfer::Read => READ_DMA_EXT,
        Transfer::Write => WRITE_DMA_EXT,
        Transfer::WriteThrough => WRITE_DMA_FUA_EXT,
    };
    fis(command, 0, lba, blocks, LBA)
}

/// FLUSH CACHE EXT.
pub fn flush() -> Fis {
    fis(FLUSH_CACHE_EXT, 0, 0, 0, LBA)
}

/// DATA SET MANAGEMENT with TRIM and one block of ranges.
pub fn trim() -> Fis {
    fis(DATA_SET_MANAGEMENT, 1, 0, 1, LBA)
}

/// IDENTIFY DEVICE.
pub fn identify() -> Fis {
    fis(IDENTIFY_DEVICE, 0, 0, 0, 0)
}

/// SET FEATURES: spin up.
pub fn spin_up() -> Fis {
    fis(SET_FEATURES, 0x07, 0, 0, 0)
}

/// SET FEATURES: disable the volatile write cache.
pub fn cache_off() -> Fis {
    fis(SET_FEATURES, 0x82, 0, 0, 0)
}

/// READ LOG EXT of page 10h: the failed command of the native queue. Clears the error.
pub fn queue_error_log() -> Fis {
    fis(READ_LOG_EXT, 0, 0x10, 1, LBA)
}

/// STANDBY IMMEDIATE.
pub fn standby() -> Fis {
    fis(STANDBY_IMMEDIATE, 0, 0, 0, 0)
}

/// Entry of a TRIM's list: first block, and their number (at most 65,535).
pub fn trim_range(lba: u64, blocks: u16) -> u64 {
    lba & ((1 << 48) - 1) | u64::from(blocks) << 48
}

/// Result of a failed command, by the error register (ACS-4, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The data was damaged on the cable: repeat the command.
    Cable,
    /// The drive could not do it.
    Drive,
}

impl Failure {
    /// Decodes the error register.
    pub fn of(error: u8) -> Failure {
        const INTERFACE_CRC: u8 = 1 << 7;
        const UNCORRECTABLE: u8 = 1 << 6;
        match error & (INTERFACE_CRC | UNCORRECTABLE) {
            INTERFACE_CRC => Failure::Cable,
            _ => Failure::Drive,
        }
    }
}

/// The failed command that log page 10h names (ACS-4, 9.14): its tag and how it failed. None if the page is invalid, or
/// names a command that was not queued.
pub fn failed_in_queue(page: &[u8; 512]) -> Option<(u8, Failure)> {
    let sum = page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let queued = page[0] & 0x80 == 0;
    // Status and error of the command. The drive has transferred nothing if both are 0.
    let has_failed = page[2..4] != [0, 0];
    (sum == 0 && queued && has_failed).then_some((page[0] & 0x1f, Failure::of(page[3])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(fis: Fis) -> [u8; 16] {
        let mut all = [0; 16];
        all[..8].copy_from_slice(&fis[0].to_le_bytes());
        all[8..].copy_from_slice(&fis[1].to_le_bytes());
        all
    }

    #[test]
    fn commands_are_encoded_as_register_fises() {
        let lba = 0x0605_0403_0201;
        assert_eq!(
            bytes(queued(Transfer::WriteThrough, lba, 0x0807, 31)),
            [0x27, 0x80, 0x61, 7, 1, 2, 3, 0xc0, 4, 5, 6, 8, 31 << 3, 0, 0, 0]
        );
        assert_eq!(
            bytes(transfer(Transfer::Read, lba, 0x0807)),
            [0x27, 0x80, 0x25, 0, 1, 2, 3, 0x40, 4, 5, 6, 0, 7, 8, 0, 0]
        );
        assert_eq!(bytes(queue_error_log())[..8], [0x27, 0x80, 0x2f, 0, 0x10, 0, 0, 0x40]);
        assert_eq!(bytes(trim())[2..4], [6, 1]);
        assert_eq!(trim_range(0x1234, 8), 8 << 48 | 0x1234);
    }

    #[test]
    fn log_page_names_the_failed_command_only_if_its_checksum_holds() {
        let mut page = [0; 512];
        (page[0], page[3]) = (5, 0x40);
        assert_eq!(failed_in_queue(&page), None);
        page[511] = 0u8.wrapping_sub(5 + 0x40);
        assert_eq!(failed_in_queue(&page), Some((5, Failure::Drive)));
        (page[0], page[511]) = (0x85, page[511].wrapping_sub(0x80));
        assert_eq!(failed_in_queue(&page), None, "not a queued command");
        assert_eq!(failed_in_queue(&[0; 512]), None, "no page at all");
        assert_eq!((Failure::of(0x84), Failure::of(0x04)), (Failure::Cable, Failure::Drive));
    }
}
