//! IDENTIFY DEVICE data of a SATA drive (ACS-4, 7.12.7): names, geometry, and the commands that it supports. 256 words,
//! little-endian; text has its bytes swapped in each word.

use crate::hal::{Features, Geometry, Window};
use alloc::string::String;
use core::fmt;

/// Bytes of the data.
pub const BYTES: usize = 512;
const WORDS: usize = BYTES / 2;

/// Ranges in one block of a TRIM's list, and most blocks of a range (ACS-4, 7.5.5).
pub const TRIM_RANGES: u64 = 64;
pub const TRIM_BLOCKS: u64 = 0xffff;

/// Largest transfer: one entry of a command's scatter list has 4 MiB at most.
const MOST_TRANSFER: u32 = 1 << 20;

/// Why a drive cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The data describes no ATA disk.
    NotADisk,
    /// Without 48-bit addresses.
    ShortAddresses,
    /// Blocks of this size.
    BlockSize(u64),
    /// The drive reports no blocks.
    Empty,
    /// A password locks the drive.
    Locked,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::NotADisk => {
                f.write_str("drive describes itself as no ATA disk: not supported")
            }
            Unusable::ShortAddresses => {
                f.write_str("drive has no 48-bit addresses: too old, replace it")
            }
            Unusable::BlockSize(bytes) => write!(
                f,
                "drive has blocks of {bytes} bytes; only 512 and 4096 are supported: reformat it"
            ),
            Unusable::Empty => f.write_str("drive reports that it has no blocks: replace it"),
            Unusable::Locked => {
                f.write_str("drive is locked by a password (ATA security): unlock it, then restart")
            }
        }
    }
}

/// What a drive reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub serial: String,
    pub model: String,
    pub firmware: String,
    pub geometry: Geometry,
    /// Commands in its native queue; 0 without one.
    pub queue: u8,
    /// READ LOG EXT is supported.
    pub logs: bool,
    /// The drive waits for a command before it spins up.
    pub waits_to_spin_up: bool,
}

/// The words of IDENTIFY DEVICE.
struct Words([u16; WORDS]);

impl Words {
    fn at(&self, word: usize) -> u16 {
        self.0.get(word).copied().unwrap_or(0)
    }

    fn has(&self, word: usize, bit: u32) -> bool {
        self.at(word) >> bit & 1 != 0
    }

    /// Whether a word with support bits is valid: bits 15 and 14 are 0 and 1.
    fn is_valid(&self, word: usize) -> bool {
        self.at(word) >> 14 == 1
    }

    /// `N` words as a number.
    fn number(&self, first: usize, words: usize) -> u64 {
        (0..words).rev().fold(0, |all, n| all << 16 | u64::from(self.at(first + n)))
    }

    /// Text of `words` words, without surrounding spaces. Characters that are not visible are dropped.
    fn text(&self, first: usize, words: usize) -> String {
        let bytes = (first..first + words).flat_map(|word| self.at(word).to_be_bytes());
        let text: String = bytes.filter(|b| matches!(b, b' '..=b'~')).map(char::from).collect();
        text.trim().into()
    }

    /// Bytes of a logical and of a physical block.
    fn blocks(&self) -> (u64, u64) {
        if !self.is_valid(106) {
            return (512, 512);
        }
        let logical = if self.has(106, 12) { 2 * self.number(117, 2) } else { 512 };
        let exponent = if self.has(106, 13) { self.at(106) & 0xf } else { 0 };
        (logical, logical << exponent)
    }
}

impl Identity {
    /// Reads the data at the beginning of `data`. `queued`: the controller supports native queuing.
    pub fn read(data: &Window, queued: bool) -> Result<Identity, Unusable> {
        let mut bytes = [0; BYTES];
        data.read(0, &mut bytes).map_err(|_| Unusable::NotADisk)?;
        let mut words = [0; WORDS];
        for (word, pair) in words.iter_mut().zip(bytes.chunks_exact(2)) {
            *word = u16::from_le_bytes([pair[0], pair[1]]);
        }
        Identity::of(&Words(words), queued)
    }

    fn of(words: &Words, queued: bool) -> Result<Identity, Unusable> {
        let (first, last) = (words.at(0), words.at(255));
        if first & 1 << 15 != 0 || first == 0 && last == 0 {
            return Err(Unusable::NotADisk);
        }
        let mut identity = Identity {
            // A serial number names the disk in the configuration, where spaces are not allowed.
            serial: words.text(10, 10).replace(' ', ""),
            firmware: words.text(23, 4),
            model: words.text(27, 20),
            geometry: Geometry::ABSENT,
            queue: 0,
            logs: words.is_valid(84) && words.has(84, 5),
            // ACS-4, 7.12.7.4: the drive needs SET FEATURES to spin up, and its data is incomplete.
            waits_to_spin_up: matches!(words.at(2), 0x37c8 | 0x738c),
        };
        if identity.waits_to_spin_up {
            return Ok(identity);
        }
        if words.has(128, 1) && words.has(128, 2) {
            return Err(Unusable::Locked);
        }
        if !words.is_valid(83) || !words.has(83, 10) {
            return Err(Unusable::ShortAddresses);
        }
        let (logical, physical) = words.blocks();
        if !matches!(logical, 512 | 4096) {
            return Err(Unusable::BlockSize(logical));
        }
        let blocks = words.number(100, 4) & ((1 << 48) - 1);
        if blocks == 0 {
            return Err(Unusable::Empty);
        }
        let capabilities = words.at(76);
        if queued && !matches!(capabilities, 0 | 0xffff) && words.has(76, 8) {
            identity.queue = (words.at(75) & 0x1f) as u8 + 1;
        }
        identity.geometry = geometry(words, blocks, logical, physical);
        Ok(identity)
    }
}

fn geometry(words: &Words, blocks: u64, logical: u64, physical: u64) -> Geometry {
    let per_block = (logical / 512) as u32;
    let mut features = Features::empty();
    let active = words.is_valid(87);
    features.set(Features::VOLATILE_CACHE, !active || words.has(85, 5));
    features.set(Features::WRITE_THROUGH, words.is_valid(84) && words.has(84, 6));
    let trims = words.has(169, 0);
    features.set(Features::DISCARD, trims);
    let most_discard = (TRIM_RANGES * TRIM_BLOCKS) as u32 * per_block;
    Geometry {
        sectors: blocks * u64::from(per_block),
        logical_block: logical as u32,
        physical_block: physical.min(u64::from(MOST_TRANSFER)) as u32,
        max_transfer: MOST_TRANSFER,
        max_discard_sectors: if trims { most_discard } else { 0 },
        discard_granularity: physical as u32,
        max_write_zeroes_sectors: 0,
        features,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        let mut words = Words([0; WORDS]);
        words.0[0] = 0x0040;
        for (word, pair) in words.0[10..].iter_mut().zip(b" S1 2               ".chunks(2)) {
            *word = u16::from_be_bytes([pair[0], pair[1]]);
        }
        words.0[75] = 31;
        words.0[76] = 1 << 8;
        words.0[83] = 1 << 14 | 1 << 10;
        words.0[84] = 1 << 14 | 1 << 6 | 1 << 5;
        words.0[85] = 1 << 5;
        words.0[87] = 1 << 14;
        words.0[100] = 0x800;
        words.0[169] = 1;
        words
    }

    #[test]
    fn identity_has_names_and_features() {
        let identity = Identity::of(&words(), true).unwrap();
        assert_eq!((identity.serial.as_str(), identity.queue, identity.logs), ("S12", 32, true));
        let geometry = identity.geometry;
        assert_eq!(
            (geometry.sectors, geometry.logical_block, geometry.physical_block),
            (2048, 512, 512)
        );
        assert_eq!(geometry.max_discard_sectors, 64 * 65535);
        let all = Features::VOLATILE_CACHE | Features::WRITE_THROUGH | Features::DISCARD;
        assert_eq!(geometry.features, all);
        assert_eq!(Identity::of(&words(), false).unwrap().queue, 0, "the controller has no queue");
    }

    #[test]
    fn blocks_of_512e_and_4kn_are_understood_and_others_refused() {
        let with = |word: u16, size: u16| {
            let mut words = words();
            (words.0[106], words.0[117]) = (word, size);
            Identity::of(&words, true).map(|identity| {
                let geometry = identity.geometry;
                (geometry.sectors, geometry.logical_block, geometry.physical_block)
            })
        };
        assert_eq!(with(0, 0), Ok((2048, 512, 512)));
        assert_eq!(with(1 << 14 | 1 << 13 | 3, 0), Ok((2048, 512, 4096)));
        assert_eq!(with(1 << 14 | 1 << 12, 2048), Ok((16384, 4096, 4096)));
        assert_eq!(with(1 << 14 | 1 << 12, 260), Err(Unusable::BlockSize(520)));
    }

    #[test]
    fn unusable_drives_are_refused() {
        let change = |word: usize, value: u16| {
            let mut words = words();
            words.0[word] = value;
            Identity::of(&words, true)
        };
        assert_eq!(change(0, 1 << 15), Err(Unusable::NotADisk));
        assert_eq!(change(83, 1 << 14), Err(Unusable::ShortAddresses));
        assert_eq!(change(100, 0), Err(Unusable::Empty));
        assert_eq!(change(128, 6), Err(Unusable::Locked));
        assert!(change(2, 0x37c8).unwrap().waits_to_spin_up);
    }
}
