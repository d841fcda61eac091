//! The memory map in the form of the PVH boot protocol: `hvm_memmap_table_entry`, kinds numbered as in
//! E820 (Linux include/xen/interface/hvm/start_info.h; ACPI 6.5 table 15.6).

use core::ops::Range;

/// One `hvm_memmap_table_entry`: little-endian, 24 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// What a range of memory is for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Free to use.
    Ram = 1,
    /// Not to be touched.
    Reserved = 2,
    /// ACPI tables.
    AcpiTables = 3,
    /// The firmware's memory across sleep.
    AcpiNonVolatile = 4,
}

impl Entry {
    /// An entry of no bytes, to fill a table with.
    pub const EMPTY: Entry =
        Entry { address: 0, size: 0, kind: Kind::Reserved as u32, reserved: 0 };
}

/// Fills `table` with `ranges`, neighbours of one kind made one, and returns how many entries that took.
///
/// What does not fit is left out, which is safe: memory that no entry names is not used.
pub fn fill(table: &mut [Entry], ranges: impl Iterator<Item = (Range<u64>, Kind)>) -> usize {
    let mut used = 0usize;
    for (range, kind) in ranges.filter(|(range, _)| !range.is_empty()) {
        let (kind, size) = (kind as u32, range.end - range.start);
        // Firmware lists its memory in ascending order, so the neighbour is the entry before.
        if let Some(last) = used.checked_sub(1).and_then(|last| table.get_mut(last))
            && last.kind == kind
            && last.address.checked_add(last.size) == Some(range.start)
        {
            last.size += size;
        } else if let Some(entry) = table.get_mut(used) {
            *entry = Entry { address: range.start, size, kind, reserved: 0 };
            used += 1;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_kind_become_one() {
        let mut table = [Entry::EMPTY; 4];
        let ranges = [
            (0..10, Kind::Ram),
            (10..20, Kind::Ram),
            (20..20, Kind::Reserved),
            (20..30, Kind::AcpiTables),
            (40..50, Kind::AcpiTables),
        ];
        assert_eq!(fill(&mut table, ranges.into_iter()), 3);
        let found = table.map(|entry| (entry.address, entry.size, entry.kind));
        assert_eq!(found[..3], [(0, 20, 1), (20, 10, 3), (40, 10, 3)]);
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = [Entry::EMPTY; 2];
        let ranges = (0..9).map(|i| (i * 16..i * 16 + 8, Kind::Ram));
        assert_eq!(fill(&mut table, ranges), 2);
        assert_eq!(table[1].address, 16);
    }

    #[test]
    fn an_entry_has_the_size_that_the_protocol_says() {
        assert_eq!(size_of::<Entry>(), 24);
    }
}
