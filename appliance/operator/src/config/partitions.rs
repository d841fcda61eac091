//! Reads the first blocks of a disk: the GUID partition table (UEFI 2.10, 5.3), and whether the appliance could boot
//! from the disk.
//!
//! The result must not decide how a disk is used, because a client of a whole disk can write any table to it. It
//! locates partitions on a disk that is identified by other means, and protects disks from being overwritten by
//! mistake.

use crc::{CRC_32_ISO_HDLC, Crc};
use release::layout;

/// Bytes from the start of a disk for [`read`]; fewer if the disk is smaller.
pub const LOOK: usize = 36 << 10;

/// Name of the EFI system partition that `./isthmus image` writes.
const BOOT_NAME: &str = "isthmus";
/// Type of an EFI system partition, c12a7328-f81f-11d2-ba4b-00a0c93ec93b (UEFI 2.10, table 5.7).
const EFI_TYPE: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];

const SIGNATURE: &[u8; 8] = b"EFI PART";
const SECTOR: u64 = 512;
const HEADER: usize = 92;
/// Bytes of an entry. UEFI allows larger entries, but no tool writes them.
const ENTRY: usize = 128;
/// Offset of the primary volume descriptor of ISO 9660 (ECMA-119, 8.4).
const ISO_DESCRIPTOR: usize = 32 << 10;
/// Offset of the volume name in the descriptor.
const ISO_NAME: usize = 40;

/// A range of sectors of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First sector of 512 bytes.
    pub first: u64,
    /// Length in sectors of 512 bytes.
    pub sectors: u64,
}

/// Findings from the first blocks of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The disk has a boot format of `./isthmus image`.
    pub boots: bool,
    /// The first configuration partition.
    pub config: Option<Stretch>,
    /// The first partition with release slots.
    pub slots: Option<Stretch>,
    /// The disk begins with a configuration area, without a partition.
    pub bare_config: bool,
}

/// Examines the first blocks of a disk with `sectors` sectors of 512 bytes. Malformed parts are ignored.
pub fn read(start: &[u8], sectors: u64) -> Look {
    let mut look = Look { bare_config: super::disk::is_area(start), ..Look::default() };
    let descriptor = start.get(ISO_DESCRIPTOR..).unwrap_or_default();
    let name = descriptor.get(ISO_NAME..ISO_NAME + 8);
    look.boots = descriptor.get(1..6) == Some(b"CD001") && name == Some(b"ISTHMUS ");
    // The table is in units of its writer's block size.
    let table = [512, 4096].into_iter().find_map(|block| entries(start, block));
    let Some((entries, block)) = table else { return look };
    let mut has_system = false;
    for entry in entries.chunks_exact(ENTRY) {
        let field = |at: usize| u64_at(entry, at).unwrap_or(0);
        let (first, last) = (field(32), field(40));
        if entry.starts_with(&EFI_TYPE) {
            has_system = true;
            look.boots |= name_is(&entry[56..], BOOT_NAME);
        }
        let unit = block as u64 / SECTOR;
        let stretch = first.checked_mul(unit).zip(last.checked_add(1)).and_then(|(first, end)| {
            let end = end.checked_mul(unit).filter(|&end| end <= sectors)?;
            Some(Stretch { first, sectors: end.checked_sub(first)? })
        });
        let stretch = stretch.filter(|stretch| stretch.first > 0 && stretch.sectors > 0);
        if entry.starts_with(&layout::config_type_on_disk()) && look.config.is_none() {
            look.config = stretch;
        }
        if entry.starts_with(&layout::partition_type_on_disk()) && look.slots.is_none() {
            look.slots = stretch;
        }
    }
    look.boots |= has_system && look.config.is_some();
    look
}

/// The entries of a table in units of `block` bytes, if its checksums are valid.
fn entries(start: &[u8], block: usize) -> Option<(&[u8], usize)> {
    const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
    let header = start.get(block..)?.get(..HEADER)?;
    let len = u32_at(header, 12)? as usize;
    if !header.starts_with(SIGNATURE) || len != HEADER || u32_at(header, 84)? as usize != ENTRY {
        return None;
    }
    let mut digest = CRC32.digest();
    digest.update(&header[..16]);
    digest.update(&[0; 4]);
    digest.update(&header[20..]);
    let place = usize::try_from(u64_at(header, 72)?).ok()?.checked_mul(block)?;
    let len = (u32_at(header, 80)? as usize).checked_mul(ENTRY)?;
    let entries = start.get(place..)?.get(..len)?;
    let whole =
        digest.finalize() == u32_at(header, 16)? && CRC32.checksum(entries) == u32_at(header, 88)?;
    whole.then_some((entries, block))
}

/// Whether the name of an entry (UTF-16, zero-terminated if short) equals `name`.
fn name_is(units: &[u8], name: &str) -> bool {
    let units = units.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    units.take_while(|&unit| unit != 0).eq(name.encode_utf16())
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(offset..offset.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn noise_and_empty_disks_have_no_findings() {
        assert_eq!(read(&[], 0), Look::default());
        assert_eq!(read(&[0; LOOK], 1000), Look::default());
        let area = super::super::disk::format(None).unwrap();
        assert_eq!(read(&area, 128), Look { bare_config: true, ..Look::default() });
    }

    #[test]
    fn isthmus_iso_is_bootable() {
        let mut start = vec![0; LOOK];
        start[ISO_DESCRIPTOR + 1..][..5].copy_from_slice(b"CD001");
        start[ISO_DESCRIPTOR + ISO_NAME..][..8].copy_from_slice(b"ISTHMUS ");
        assert!(read(&start, 1000).boots);
        start[ISO_DESCRIPTOR + ISO_NAME] = b'X';
        assert!(!read(&start, 1000).boots);
    }

    proptest! {
        #[test]
        fn corrupt_header_is_ignored(
            fields in prop::collection::vec(any::<u8>(), HEADER),
            block in prop::sample::select(vec![512usize, 4096]),
            sectors: u64,
        ) {
            let mut start = vec![0xee; LOOK];
            start[block..block + HEADER].copy_from_slice(&fields);
            start[block..block + 8].copy_from_slice(SIGNATURE);
            prop_assert!(read(&start, sectors).config.is_none());
        }
    }
}
