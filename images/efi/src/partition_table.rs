//! Lookup of a partition by its type in the GUID partition table (UEFI 2.10, 5.3), in the first blocks of the disk from
//! which this program was started. The firmware has found this program by the same table.

/// Bytes from the start of a disk that contain the table, with any block size in use.
pub const LOOK: usize = 36 << 10;

const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of an entry; larger entries are allowed, but not used in practice.
const ENTRY: usize = 128;

/// Offset and length in bytes of the first partition of a type. `start` is the first [`LOOK`] bytes of a disk
/// with blocks of `block` bytes. None if there is no such partition, or the table is invalid.
pub fn partition(start: &[u8], block: usize, kind: &[u8; 16]) -> Option<(u64, u64)> {
    let header = start.get(block..)?.get(..92)?;
    if !header.starts_with(SIGNATURE) || u32_at(header, 84)? as usize != ENTRY {
        return None;
    }
    let place = usize::try_from(u64_at(header, 72)?).ok()?.checked_mul(block)?;
    let length = (u32_at(header, 80)? as usize).checked_mul(ENTRY)?;
    let entries = start.get(place..)?.get(..length)?;
    let entry = entries.chunks_exact(ENTRY).find(|entry| entry.starts_with(kind))?;
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    let blocks = last.checked_add(1)?.checked_sub(first)?;
    let block = block as u64;
    let length = blocks.checked_mul(block).filter(|&length| first > 0 && length > 0)?;
    Some((first.checked_mul(block)?, length))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const KIND: [u8; 16] = [7; 16];

    /// A table with an entry of another type, and one of [`KIND`] from `first` to `last`.
    fn table(block: usize, first: u64, last: u64) -> vec::Vec<u8> {
        let mut start = vec![0; LOOK];
        start[block..block + 8].copy_from_slice(SIGNATURE);
        start[block + 72..block + 80].copy_from_slice(&2u64.to_le_bytes());
        start[block + 80..block + 84].copy_from_slice(&128u32.to_le_bytes());
        start[block + 84..block + 88].copy_from_slice(&128u32.to_le_bytes());
        start[2 * block..2 * block + 16].copy_from_slice(&[9; 16]);
        let entry = 2 * block + ENTRY;
        start[entry..entry + 16].copy_from_slice(&KIND);
        start[entry + 32..entry + 40].copy_from_slice(&first.to_le_bytes());
        start[entry + 40..entry + 48].copy_from_slice(&last.to_le_bytes());
        start
    }

    #[test]
    fn partition_of_a_type_is_found_by_that_type_alone() {
        for block in [512, 4096] {
            let start = table(block, 10, 19);
            let size = block as u64;
            assert_eq!(partition(&start, block, &KIND), Some((10 * size, 10 * size)));
            assert_eq!(partition(&start, block, &[8; 16]), None);
        }
    }

    #[test]
    fn partition_of_an_invalid_table_is_none() {
        for (first, last) in [(0, 9), (10, 8), (10, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(partition(&table(512, first, last), 512, &KIND), None, "{first} {last}");
        }
        let whole = table(512, 10, 19);
        for (at, bytes) in [(0, &b"X"[..]), (72, &[0xff; 8]), (80, &[0xff; 4]), (84, &[0; 4])] {
            let mut start = whole.clone();
            start[512 + at..512 + at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(partition(&start, 512, &KIND), None, "{at}");
        }
        assert_eq!(partition(&[], 512, &KIND), None);
        assert_eq!(partition(&whole[..2000], 512, &KIND), None);
    }
}
