//! What the first blocks of a disk say of it: a GUID partition table (UEFI 2.10, 5.3), and whether the
//! appliance could boot from the disk.
//!
//! Nothing here says what a disk is for: a client that has a whole disk can write any table to it. It says where the
//! partitions lie on a disk that is known by other means, and which disks are not to be overwritten by mistake.

use crc::{CRC_32_ISO_HDLC, Crc};
use release::layout;

/// Bytes from the start of a disk that [`read`] wants; fewer if the disk has fewer.
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
/// Bytes of an entry; larger ones are allowed, and nobody writes them.
const ENTRY: usize = 128;
/// Where an ISO 9660 volume describes itself, and where its name stands in that (ECMA-119, 8.4).
const ISO_DESCRIPTOR: usize = 32 << 10;
const ISO_NAME: usize = 40;

/// A stretch of a disk that is of use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// First sector of 512 bytes.
    pub first: u64,
    /// Its length in such sectors.
    pub sectors: u64,
}

/// What is known of a disk by its first blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The appliance could boot from it: it is one of the formats of `./isthmus image`.
    pub boots: bool,
    /// Its first partition that is meant for the configuration.
    pub config: Option<Stretch>,
    /// The same with slots for releases.
    pub slots: Option<Stretch>,
    /// It begins as a configuration area does, without a partition around it.
    pub bare_config: bool,
}

/// Looks at the first blocks of a disk of `sectors` sectors of 512 bytes. What makes no sense counts as not
/// there.
pub fn read(start: &[u8], sectors: u64) -> Look {
    let mut look = Look { bare_config: super::disk::is_area(start), ..Look::default() };
    let descriptor = start.get(ISO_DESCRIPTOR..).unwrap_or_default();
    let name = descriptor.get(ISO_NAME..ISO_NAME + 8);
    look.boots = descriptor.get(1..6) == Some(b"CD001") && name == Some(b"ISTHMUS ");
    // The table is in units of the block size of whoever wrote it.
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

/// The entries of a table in units of `block` bytes, if it is whole.
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

/// Whether the name of an entry (UTF-16, ends with 0 if it is short) is this one.
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
    fn noise_and_empty_disks_say_nothing() {
        assert_eq!(read(&[], 0), Look::default());
        assert_eq!(read(&[0; LOOK], 1000), Look::default());
        let area = super::super::disk::format(None).unwrap();
        assert_eq!(read(&area, 128), Look { bare_config: true, ..Look::default() });
    }

    #[test]
    fn an_iso_of_ours_boots() {
        let mut start = vec![0; LOOK];
        start[ISO_DESCRIPTOR + 1..][..5].copy_from_slice(b"CD001");
        start[ISO_DESCRIPTOR + ISO_NAME..][..8].copy_from_slice(b"ISTHMUS ");
        assert!(read(&start, 1000).boots);
        start[ISO_DESCRIPTOR + ISO_NAME] = b'X';
        assert!(!read(&start, 1000).boots);
    }

    proptest! {
        #[test]
        fn any_header_is_survived(
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
