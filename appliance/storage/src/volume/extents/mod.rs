//! Several volumes on one disk: each is made of extents, and a table on the disk says which.
//!
//! | bytes of the disk | what |
//! |---|---|
//! | 0..16 | `ISTHMUS VOLUMES1`, by which the disk is known |
//! | 32768.. | first copy of the table, see `table` |
//! | 65536.. | second copy |
//! | 1 MiB.. | extents, in units of 1 MiB |
//!
//! The table is written as the configuration is: to the copy that does not hold the current one,
//! between two flushes. Space is zeroed, and the zeroes are flushed, before a table that gives it
//! to a volume is written: new space reads as zeroes, whatever was there before, and after a
//! power cut a change was made completely or not at all. The format is Isthmus's own.

mod store;
mod table;
#[cfg(test)]
mod tests;

pub use store::{Store, StoreEvent, StoreState};
pub use table::{Change, Table, TableError, VolumeEntry};

/// Bytes of the unit that space is given out in.
pub const UNIT: u64 = 1 << 20;
/// Sectors of it.
const UNIT_SECTORS: u64 = UNIT / 512;

/// A stretch of a disk, in sectors of 512 bytes; ordered by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Its first sector.
    pub start: u64,
    /// How many.
    pub sectors: u64,
}
