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

/// Kind of a range of memory.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Free to use.
    Ram = 1,
    /// Reserved.
    Reserved = 2,
    /// ACPI tables.
    AcpiTables = 3,
    /// Memory that the firmware preserves across sleep.
    AcpiNonVolatile = 4,
}

impl Entry {
    /// An empty entry, for initialising a table.
    pub const EMPTY: Entry =
        Entry { address: 0, size: 0, kind: Kind::Reserved as u32, reserved: 0 };
}

/// Fills `table` with `ranges`, merges adjacent ranges of one kind, and returns the number of entries.
///
/// Ranges that do not fit are dropped, which is safe: memory without an entry is not used.
pub fn fill(table: &mut [Entry], ranges: impl Iterator<Item = (Range<u64>, Kind)>) -> usize {
    let mut used = 0usize;
    for (range, kind) in ranges.filter(|(range, _)| !range.is_empty()) {
        let (kind, size) = (kind as u32, range.end - range.start);
        // Firmware lists its memory in ascending order, so only the entry before can be adjacent.
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
    fn adjacent_ranges_of_one_kind_are_merged() {
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
    fn full_table_drops_further_ranges() {
        let mut table = [Entry::EMPTY; 2];
        let ranges = (0..9).map(|i| (i * 16..i * 16 + 8, Kind::Ram));
        assert_eq!(fill(&mut table, ranges), 2);
        assert_eq!(table[1].address, 16);
    }

    #[test]
    fn entry_has_the_size_of_the_protocol() {
        assert_eq!(size_of::<Entry>(), 24);
    }
}
