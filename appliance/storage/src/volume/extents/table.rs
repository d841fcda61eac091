//! The table of a disk's volumes, with the extents of each.
//!
//! | bytes of a copy | field, little-endian |
//! |---|---|
//! | 0..8 | `ISTHMVOL`, or `ISTHMVO2` if volumes have reservations |
//! | 8..12 | CRC-32C (RFC 3720, appendix B.4) of everything from byte 12 to the end of the contents |
//! | 12..16 | bytes of contents |
//! | 16..24 | generation: of two valid copies, the one with the higher generation is current |
//! | 24.. | contents, then zeroes |
//!
//! The contents are the entries. With reservations, they are the number of bytes of the entries (4), the entries, and a
//! record for each volume that has reservations: the volume's place among the entries (2), bytes of reservations (2),
//! reservations. Versions that do not know reservations take such a copy for damaged, and do not open the disk.
//!
//! An entry has the length of the name (1 byte), the name, the number of extents (2), and for each extent its
//! first unit and its number of units (4 each).

use super::super::reservation::Reservations;
use super::{Extent, UNIT_SECTORS};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use crc::{CRC_32_ISCSI, Crc};

/// Bytes of a copy.
pub const COPY_LEN: usize = 32 << 10;
/// Longest name.
const MAX_NAME: usize = 63;
/// Most extents of a volume.
const MAX_EXTENTS: usize = 256;
const MAGIC: &[u8; 8] = b"ISTHMVOL";
const MAGIC_RESERVED: &[u8; 8] = b"ISTHMVO2";
const ENTRIES: usize = 24;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// A volume of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its name.
    pub name: String,
    /// Its extents, in their order in the volume.
    pub extents: Vec<Extent>,
    /// The record of its reservations ([`Reservations::encode`]); empty without any.
    pub reservations: Vec<u8>,
}

impl VolumeEntry {
    /// Its size in sectors.
    pub fn sectors(&self) -> u64 {
        self.extents.iter().map(|extent| extent.sectors).sum()
    }
}

/// A table. Extents do not overlap, and consist of whole units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    volumes: Vec<VolumeEntry>,
}

/// A change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Creates a volume of at least so many sectors.
    Create(&'a str, u64),
    /// Grows a volume to at least so many sectors.
    Grow(&'a str, u64),
    /// Deletes a volume and frees its space.
    Delete(&'a str),
    /// Replaces the record of a volume's reservations.
    Reserve(&'a str, &'a [u8]),
}

/// Why a change is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// A volume of that name exists.
    Exists,
    /// No volume has that name.
    Unknown,
    /// The name is empty, or longer than 63 bytes.
    BadName,
    /// The size is zero, or less than the current size.
    BadSize,
    /// Too few sectors are free: only so many.
    NoSpace(u64),
    /// The free space is too fragmented, or the table is full.
    TooScattered,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableError::Exists => f.write_str("the disk has a volume of that name"),
            TableError::Unknown => f.write_str("the disk has no volume of that name"),
            TableError::BadName => f.write_str("a name must have 1 to 63 bytes"),
            TableError::BadSize => {
                f.write_str("the size must not be zero, and a volume does not shrink")
            }
            TableError::NoSpace(sectors) => {
                write!(f, "the disk has {} MiB free", sectors / UNIT_SECTORS)
            }
            TableError::TooScattered => {
                f.write_str("the table of the disk has no room for more volumes or extents")
            }
        }
    }
}

impl Table {
    /// All volumes.
    pub fn volumes(&self) -> &[VolumeEntry] {
        &self.volumes
    }

    /// Looks up a volume by its name.
    pub fn find(&self, name: &str) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// The table after a change, on a disk of `disk` sectors, and the newly allocated extents.
    pub fn changed(
        &self,
        change: Change<'_>,
        disk: u64,
    ) -> Result<(Table, Vec<Extent>), TableError> {
        let mut table = self.clone();
        let mut added = Vec::new();
        match change {
            Change::Create(name, sectors) => {
                if name.is_empty() || name.len() > MAX_NAME {
                    return Err(TableError::BadName);
                }
                if self.find(name).is_some() {
                    return Err(TableError::Exists);
                }
                if sectors == 0 {
                    return Err(TableError::BadSize);
                }
                added = self.take(sectors, 0, disk)?;
                let (extents, reservations) = (added.clone(), Vec::new());
                table.volumes.push(VolumeEntry { name: name.into(), extents, reservations });
            }
            Change::Grow(name, sectors) => {
                let volumes = &mut table.volumes;
                let volume = volumes.iter_mut().find(|volume| volume.name == name);
                let volume = volume.ok_or(TableError::Unknown)?;
                let more = sectors.checked_sub(volume.sectors()).ok_or(TableError::BadSize)?;
                let end = volume.extents.last().map_or(0, |last| last.start + last.sectors);
                if more > 0 {
                    added = self.take(more, end, disk)?;
                }
                volume.extents.extend(&added);
                join(&mut volume.extents);
            }
            Change::Delete(name) => {
                let before = table.volumes.len();
                table.volumes.retain(|volume| volume.name != name);
                if table.volumes.len() == before {
                    return Err(TableError::Unknown);
                }
            }
            Change::Reserve(name, record) => {
                let volume = table.volumes.iter_mut().find(|volume| volume.name == name);
                volume.ok_or(TableError::Unknown)?.reservations = record.into();
            }
        }
        let scattered = table.volumes.iter().any(|volume| volume.extents.len() > MAX_EXTENTS);
        if scattered || ENTRIES + table.contents().1.len() > COPY_LEN {
            return Err(TableError::TooScattered);
        }
        Ok((table, added))
    }

    /// The extents of all volumes, ordered by position.
    fn extents(&self) -> Vec<Extent> {
        let mut all: Vec<Extent> =
            self.volumes.iter().flat_map(|volume| &volume.extents).copied().collect();
        all.sort_unstable();
        all
    }

    /// Free space of a disk of `disk` sectors, in whole units.
    pub fn free(&self, disk: u64) -> Vec<Extent> {
        let used = self.extents();
        let end = disk / UNIT_SECTORS * UNIT_SECTORS;
        let mut free = Vec::new();
        let mut at = UNIT_SECTORS;
        for extent in used.iter().chain([&Extent { start: end, sectors: 0 }]) {
            if extent.start > at && at < end {
                free.push(Extent { start: at, sectors: extent.start.min(end) - at });
            }
            at = at.max(extent.start + extent.sectors);
        }
        free
    }

    /// Finds free space for at least `sectors` sectors. It prefers the piece that starts at `near`, then the smallest
    /// piece that is large enough, then the largest pieces.
    fn take(&self, sectors: u64, near: u64, disk: u64) -> Result<Vec<Extent>, TableError> {
        let mut free = self.free(disk);
        let available = free.iter().map(|extent| extent.sectors).sum();
        let wanted = sectors
            .checked_next_multiple_of(UNIT_SECTORS)
            .filter(|&wanted| wanted <= available)
            .ok_or(TableError::NoSpace(available))?;
        // Rank 0: the piece at `near`. Rank 1: pieces that are large enough, smallest first. Rank 2: the others,
        // largest first.
        let order = |piece: &Extent| {
            let fits = piece.sectors >= wanted;
            let rank = match (piece.start == near, fits) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => 2,
            };
            (rank, if fits { piece.sectors } else { u64::MAX - piece.sectors })
        };
        let (mut taken, mut left) = (Vec::new(), wanted);
        while left > 0
            && let Some(next) = (0..free.len()).min_by_key(|&at| order(&free[at]))
        {
            if taken.len() == MAX_EXTENTS {
                return Err(TableError::TooScattered);
            }
            let piece = free.remove(next);
            let extent = Extent { sectors: piece.sectors.min(left), ..piece };
            left -= extent.sectors;
            taken.push(extent);
        }
        Ok(taken)
    }

    fn entries(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for volume in &self.volumes {
            bytes.push(volume.name.len() as u8);
            bytes.extend(volume.name.as_bytes());
            bytes.extend((volume.extents.len() as u16).to_le_bytes());
            for extent in &volume.extents {
                bytes.extend(((extent.start / UNIT_SECTORS) as u32).to_le_bytes());
                bytes.extend(((extent.sectors / UNIT_SECTORS) as u32).to_le_bytes());
            }
        }
        bytes
    }

    /// The contents of a copy, and its magic.
    fn contents(&self) -> (&'static [u8; 8], Vec<u8>) {
        let entries = self.entries();
        if self.volumes.iter().all(|volume| volume.reservations.is_empty()) {
            return (MAGIC, entries);
        }
        let mut contents = Vec::with_capacity(COPY_LEN);
        contents.extend((entries.len() as u32).to_le_bytes());
        contents.extend(entries);
        for (place, volume) in self.volumes.iter().enumerate() {
            if !volume.reservations.is_empty() {
                contents.extend((place as u16).to_le_bytes());
                contents.extend((volume.reservations.len() as u16).to_le_bytes());
                contents.extend(&volume.reservations);
            }
        }
        (MAGIC_RESERVED, contents)
    }

    /// Reads the records of reservations. None if one is invalid.
    fn read_reservations(&mut self, mut records: &[u8]) -> Option<()> {
        while !records.is_empty() {
            let place = u16::from_le_bytes(take(&mut records, 2)?.try_into().ok()?);
            let length = u16::from_le_bytes(take(&mut records, 2)?.try_into().ok()?);
            let record = take(&mut records, length.into())?;
            Reservations::decode(record)?;
            self.volumes.get_mut(usize::from(place))?.reservations = record.into();
        }
        Some(())
    }

    /// Encodes a copy of the table.
    pub fn encode(&self, generation: u64) -> Vec<u8> {
        let (magic, contents) = self.contents();
        let mut body = Vec::with_capacity(COPY_LEN);
        body.extend((contents.len() as u32).to_le_bytes());
        body.extend(generation.to_le_bytes());
        body.extend(contents);
        let mut copy = Vec::with_capacity(COPY_LEN);
        copy.extend(magic);
        copy.extend(CRC32C.checksum(&body).to_le_bytes());
        copy.extend(body);
        copy.resize(COPY_LEN, 0);
        copy
    }

    /// Generation and table of a copy, if it is valid.
    pub fn decode(copy: &[u8]) -> Option<(u64, Table)> {
        let field = |at: usize| Some(u32::from_le_bytes(copy.get(at..at + 4)?.try_into().ok()?));
        let end = ENTRIES.checked_add(field(12)? as usize)?;
        let has_reservations = copy.starts_with(MAGIC_RESERVED);
        let body = copy.get(12..end)?;
        if !(copy.starts_with(MAGIC) || has_reservations) || field(8)? != CRC32C.checksum(body) {
            return None;
        }
        let generation = u64::from_le_bytes(copy.get(16..24)?.try_into().ok()?);
        let mut rest = copy.get(ENTRIES..end)?;
        let mut reservations: &[u8] = &[];
        if has_reservations {
            let length = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
            (rest, reservations) = rest.split_at_checked(length as usize)?;
        }
        let mut table = Table::default();
        while !rest.is_empty() {
            let name_len = usize::from(take(&mut rest, 1)?[0]);
            let name = core::str::from_utf8(take(&mut rest, name_len)?).ok()?;
            let count = u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?);
            let mut extents = Vec::new();
            for _ in 0..count {
                let start = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
                let units = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
                extents.push(Extent {
                    start: u64::from(start) * UNIT_SECTORS,
                    sectors: u64::from(units) * UNIT_SECTORS,
                });
            }
            if name.is_empty() || name.len() > MAX_NAME || table.find(name).is_some() {
                return None;
            }
            let entry = VolumeEntry { name: name.into(), extents, reservations: Vec::new() };
            table.volumes.push(entry);
        }
        table.read_reservations(reservations)?;
        table.is_sound().then_some((generation, table))
    }

    /// Whether no extent is empty, begins before the first unit, or overlaps another.
    fn is_sound(&self) -> bool {
        let mut at = UNIT_SECTORS;
        self.extents().iter().all(|extent| {
            let sound = extent.sectors > 0 && extent.start >= at;
            at = extent.start + extent.sectors;
            sound
        })
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

/// Merges adjacent extents.
fn join(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, before| {
        let joins = before.start + before.sectors == next.start;
        if joins {
            before.sectors += next.sectors;
        }
        joins
    });
}
