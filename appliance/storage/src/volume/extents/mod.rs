//! Several volumes on one disk: each consists of extents, which a table on the disk lists.
//!
//! | bytes of the disk | contents |
//! |---|---|
//! | 0..16 | `ISTHMUS VOLUMES1`, which identifies the disk |
//! | 32768.. | first copy of the table, see `table` |
//! | 65536.. | second copy |
//! | 1 MiB.. | extents, in units of 1 MiB |
//!
//! As with the configuration, a new table replaces the older copy, between two flushes.
//! Space is zeroed, and the zeroes are flushed, before a table that allocates it to a volume is
//! written. So new space reads as zeroes, and after a power cut a change is on the disk completely or
//! not at all. The format is specific to Isthmus.
//!
//! A wipe replaces the first bytes by `ISTHMUS WIPING 1`, erases the first MiB behind them, reads it back, and erases the
//! first block last. After a power cut the disk has its table, or none.

mod store;
mod table;
#[cfg(test)]
mod test_model;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wipe_tests;

pub use store::{Store, StoreEvent, StoreState, WIPED};
pub use table::{Change, Table, TableError, VolumeEntry};

/// Bytes of an allocation unit.
pub const UNIT: u64 = 1 << 20;
/// Sectors of an allocation unit.
const UNIT_SECTORS: u64 = UNIT / 512;

/// A contiguous range of a disk, in sectors of 512 bytes; ordered by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Its first sector.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u64,
}
