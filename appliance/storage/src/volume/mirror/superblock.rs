//! Records at the start of each member. A member has two. The newer one with a valid checksum is
//! current, and the other one is overwritten next, so that a power cut leaves at least one.
//!
//! Little-endian: magic 8, version 4, CRC-32C of all the rest 4, UUID 16, generation 8, sectors 8,
//! sectors of a region 8, flags 4 (1: the other member is left out), zeroes up to 512, bitmap.

use super::Shape;
use super::bitmap::{BITS, BYTES, Bitmap};
use core::ops::Range;
use crc::{CRC_32_ISCSI, Crc};
use rtrs::wire::{array, put};

const MAGIC: [u8; 8] = *b"ISTHMIRR";
const VERSION: u32 = 1;
const ALONE: u32 = 1;

const HEAD: usize = 512;
/// Bytes of a record.
pub(super) const SIZE: usize = HEAD + BYTES;
/// Bytes between the starts of the two records.
pub(super) const DISTANCE: usize = 8192;
/// Bytes of both records.
pub(super) const SIZE_ON_DISK: usize = 2 * DISTANCE;

/// Most sectors of a mirror, and of a region: the size in bytes has to fit in 63 bits.
const MOST_SECTORS: u64 = i64::MAX as u64 / 512;
/// Largest valid generation. No member outlives as many writes of a record.
const MOST_GENERATIONS: u64 = u64::MAX / 2;

const CRC: Range<usize> = 12..16;
const SUM: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// A record.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Superblock {
    pub shape: Shape,
    pub generation: u64,
    /// The other member is left out.
    pub alone: bool,
    /// Regions in which the members may differ.
    pub dirty: Bitmap,
}

impl Superblock {
    /// The newest valid record of a member, with its index; None if neither record is valid.
    pub fn newest(bytes: &[u8; SIZE_ON_DISK]) -> Option<(usize, Self)> {
        let (first, second) = bytes.split_at(DISTANCE);
        let records = [first, second].map(|part| Self::parse(part.first_chunk()?));
        let records = records.into_iter().enumerate().filter_map(|(n, record)| Some((n, record?)));
        records.max_by_key(|(_, record)| record.generation)
    }

    /// Whether the first sector of a record was written, so that the member belonged to a mirror.
    pub fn has_remnant(bytes: &[u8; SIZE_ON_DISK]) -> bool {
        bytes.starts_with(&MAGIC) || bytes[DISTANCE..].starts_with(&MAGIC)
    }

    fn parse(bytes: &[u8; SIZE]) -> Option<Self> {
        let number = |field: Range<usize>| u64::from_le_bytes(array(bytes, field));
        if bytes[..8] != MAGIC || u32::from_le_bytes(array(bytes, 8..12)) != VERSION {
            return None;
        }
        if SUM.checksum(&bytes[CRC.end..]) != u32::from_le_bytes(array(bytes, CRC)) {
            return None;
        }
        let shape = Shape {
            uuid: array(bytes, 16..32),
            sectors: number(40..48),
            region_sectors: number(48..56),
        };
        let generation = number(32..40);
        let sizes = [shape.sectors, shape.region_sectors];
        let sizes_valid = sizes.iter().all(|sectors| (1..=MOST_SECTORS).contains(sectors));
        let regions = shape.sectors.div_ceil(shape.region_sectors.max(1));
        if !sizes_valid || regions > BITS as u64 || generation > MOST_GENERATIONS {
            return None;
        }
        let mut dirty = Bitmap::parse(&array(bytes, HEAD..SIZE));
        // Ignore marks beyond the last region.
        (regions as usize..BITS).for_each(|region| dirty.clear(region));
        let alone = u32::from_le_bytes(array(bytes, 56..60)) & ALONE != 0;
        Some(Superblock { shape, generation, alone, dirty })
    }

    /// Encodes the record.
    pub fn emit(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        put(&mut bytes, 0..8, &MAGIC);
        put(&mut bytes, 8..12, &VERSION.to_le_bytes());
        put(&mut bytes, 16..32, &self.shape.uuid);
        put(&mut bytes, 32..40, &self.generation.to_le_bytes());
        put(&mut bytes, 40..48, &self.shape.sectors.to_le_bytes());
        put(&mut bytes, 48..56, &self.shape.region_sectors.to_le_bytes());
        put(&mut bytes, 56..60, &(if self.alone { ALONE } else { 0 }).to_le_bytes());
        let mut dirty = [0; BYTES];
        self.dirty.emit(&mut dirty);
        put(&mut bytes, HEAD..SIZE, &dirty);
        let sum = SUM.checksum(&bytes[CRC.end..]);
        put(&mut bytes, CRC, &sum.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(generation: u64, regions: &[usize]) -> Superblock {
        let mut dirty = Bitmap::new();
        regions.iter().for_each(|region| dirty.set(*region));
        let shape = Shape { uuid: [3; 16], sectors: 1 << 30, region_sectors: 1 << 15 };
        Superblock { shape, generation, alone: generation % 2 == 1, dirty }
    }

    /// The first sectors of a member with these records.
    fn member(records: &[&Superblock]) -> [u8; SIZE_ON_DISK] {
        let mut bytes = [0; SIZE_ON_DISK];
        for (n, record) in records.iter().enumerate() {
            bytes[n * DISTANCE..][..SIZE].copy_from_slice(&record.emit());
        }
        bytes
    }

    #[test]
    fn newest_valid_record_is_chosen_over_a_torn_one() {
        let (old, new) = (record(6, &[1, 2]), record(7, &[2, 32767]));
        let both = member(&[&old, &new]);
        assert!(Superblock::newest(&both) == Some((1, new.clone())));
        for sector in 0..SIZE / 512 {
            let mut torn = both;
            let at = DISTANCE + sector * 512;
            torn[at..at + 512].fill(0x55);
            assert!(Superblock::newest(&torn) == Some((0, old.clone())), "sector {sector}");
        }
        assert!(Superblock::newest(&[0; SIZE_ON_DISK]).is_none());
    }

    #[test]
    fn parse_rejects_impossible_records() {
        let valid = record(6, &[1]);
        let with = |sectors, region_sectors, generation| {
            let shape = Shape { sectors, region_sectors, ..valid.shape };
            Superblock::newest(&member(&[&Superblock { shape, generation, ..valid.clone() }]))
        };
        assert!(with(64, 8, 1).is_some());
        for (sectors, region, generation) in [
            (0, 8, 1),
            (64, 0, 1),
            (u64::MAX, u64::MAX, 1),
            (u64::MAX - 64, 1 << 50, 1),
            (1 << 20, 8, 1),
            (64, 8, u64::MAX),
        ] {
            assert!(with(sectors, region, generation).is_none(), "{sectors} {region}");
        }
        // 64 sectors are eight regions: marks beyond them are ignored.
        let mut marked = record(6, &[1, 8, 32767]);
        marked.shape = Shape { sectors: 64, region_sectors: 8, ..marked.shape };
        let (_, read) = Superblock::newest(&member(&[&marked])).unwrap();
        assert!(read.dirty.contains(1..2) && read.dirty.count() == 1);
    }

    proptest! {
        #[test]
        fn parse_rejects_any_flipped_bit(bit in 0..SIZE * 8) {
            let record = record(4, &[5, 100]);
            let mut bytes = member(&[&record]);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let read = Superblock::newest(&bytes);
            prop_assert!(read.is_none());
        }
    }
}
