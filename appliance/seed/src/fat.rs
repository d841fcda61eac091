//! FAT12, FAT16 and FAT32 (Microsoft's specification of 2000, fatgen103), with long names, which `user-data` needs.

use super::{Bounded, Error, Files, MOST_BYTES, Seed, is_label, u16_at, u32_at};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// Most entries of a directory that are read.
const MOST_ENTRIES: usize = 4096;

/// Width of an entry of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Fat12,
    Fat16,
    Fat32,
}

/// Layout of a volume. Offsets and sizes are in bytes.
struct Layout {
    width: Width,
    /// Of the first table.
    table: u64,
    /// Of cluster 2.
    data: u64,
    cluster: u32,
    /// Clusters have the numbers 2 to this one.
    last: u32,
    root: Root,
}

#[derive(Clone, Copy)]
enum Root {
    /// FAT12 and FAT16: its offset and length.
    Fixed(u64, u32),
    /// FAT32: its first cluster.
    Chain(u32),
}

/// First cluster and length of a file.
struct File {
    first: u32,
    len: u32,
}

/// The seed of a FAT volume; `None` if there is no such volume.
pub fn read(disk: &mut Bounded<'_>) -> Result<Option<Seed>, Error> {
    let boot: [u8; 512] = disk.array(0)?;
    let Some(layout) = Layout::of(&boot) else { return Ok(None) };
    let directory = layout.root(disk)?;
    let mut files = Files::new();
    let mut label = None;
    let mut long = None;
    for entry in directory.chunks_exact(ENTRY).take_while(|entry| entry[0] != 0) {
        const LONG: u8 = 0x0f;
        const LABEL: u8 = 8;
        const DIRECTORY: u8 = 0x10;
        let attributes = entry[11];
        if entry[0] == 0xe5 {
            long = None;
        } else if attributes & 0x3f == LONG {
            long = long_name(entry);
        } else {
            let name = long.take().filter(|(_, sum)| *sum == checksum(entry));
            if attributes & LABEL != 0 {
                label = core::str::from_utf8(&entry[..11]).ok().map(String::from);
            } else if let Some((name, _)) = name.filter(|_| attributes & DIRECTORY == 0) {
                let upper = if layout.width == Width::Fat32 { u16_at(entry, 20) } else { 0 };
                let first = u32::from(upper) << 16 | u32::from(u16_at(entry, 26));
                files.add(&name, File { first, len: u32_at(entry, 28) });
            }
        }
    }
    let at = if layout.width == Width::Fat32 { 71 } else { 43 };
    let of_boot = || core::str::from_utf8(&boot[at..at + 11]).ok().map(String::from);
    if !label.or_else(of_boot).is_some_and(|label| is_label(&label)) {
        return Err(Error::Label);
    }
    files.seed(|file, name| layout.contents(disk, &file, name)).map(Some)
}

impl Layout {
    /// Parses the boot sector; `None` if it is not one of FAT.
    fn of(boot: &[u8; 512]) -> Option<Layout> {
        let sector = u32::from(u16_at(boot, 11));
        let per_cluster = u32::from(boot[13]);
        let (reserved, tables) = (u32::from(u16_at(boot, 14)), u32::from(boot[16]));
        let entries = u32::from(u16_at(boot, 17));
        let either = |small: u16, large: u32| if small == 0 { large } else { small.into() };
        let sectors = either(u16_at(boot, 19), u32_at(boot, 32));
        let per_table = either(u16_at(boot, 22), u32_at(boot, 36));
        let is_one = boot[510..] == [0x55, 0xaa]
            && [512, 1024, 2048, 4096].contains(&sector)
            && per_cluster.is_power_of_two()
            && reserved > 0
            && matches!(tables, 1 | 2)
            && per_table > 0;
        if !is_one {
            return None;
        }
        let root_len = entries * ENTRY as u32;
        let root_at = u64::from(reserved) + u64::from(tables) * u64::from(per_table);
        let data = root_at + u64::from(root_len.div_ceil(sector));
        let clusters = u64::from(sectors).checked_sub(data)? / u64::from(per_cluster);
        let last = u32::try_from(clusters).ok()?.checked_add(1)?;
        let width = match clusters {
            0..4085 => Width::Fat12,
            4085..65525 => Width::Fat16,
            _ => Width::Fat32,
        };
        let bytes = |sectors: u64| sectors * u64::from(sector);
        let root = match width {
            Width::Fat32 => Root::Chain(u32_at(boot, 44)),
            _ => Root::Fixed(bytes(root_at), root_len),
        };
        let (table, data) = (bytes(reserved.into()), bytes(data));
        Some(Layout { width, table, data, cluster: sector * per_cluster, last, root })
    }

    /// The cluster after another one; `None` at the end of its chain.
    fn next(&self, disk: &mut Bounded<'_>, cluster: u32) -> Result<Option<u32>, Error> {
        let (n, table) = (u64::from(cluster), self.table);
        let (next, end) = match self.width {
            Width::Fat12 => {
                let pair = u16::from_le_bytes(disk.array(table + n + n / 2)?);
                let next = if cluster.is_multiple_of(2) { pair & 0xfff } else { pair >> 4 };
                (next.into(), 0xff8)
            }
            Width::Fat16 => (u16::from_le_bytes(disk.array(table + 2 * n)?).into(), 0xfff8),
            Width::Fat32 => {
                (u32::from_le_bytes(disk.array(table + 4 * n)?) & 0x0fff_ffff, 0x0fff_fff8)
            }
        };
        Ok((next < end).then_some(next))
    }

    /// Reads a cluster, or less.
    fn read(&self, disk: &mut Bounded<'_>, cluster: u32, into: &mut [u8]) -> Result<(), Error> {
        if !(2..=self.last).contains(&cluster) {
            return Err(Error::Damaged("a file has a cluster that does not exist"));
        }
        disk.read(self.data + u64::from(cluster - 2) * u64::from(self.cluster), into)
    }

    /// The root directory, up to [`MOST_ENTRIES`].
    fn root(&self, disk: &mut Bounded<'_>) -> Result<Vec<u8>, Error> {
        const MOST: usize = MOST_ENTRIES * ENTRY;
        let mut cluster = match self.root {
            Root::Fixed(at, len) => {
                let mut bytes = vec![0; (len as usize).min(MOST)];
                return disk.read(at, &mut bytes).map(|()| bytes);
            }
            Root::Chain(first) => Some(first),
        };
        let mut bytes = Vec::new();
        while let Some(at) = cluster.filter(|_| bytes.len() < MOST) {
            let start = bytes.len();
            bytes.resize(start + self.cluster as usize, 0);
            self.read(disk, at, &mut bytes[start..])?;
            cluster = self.next(disk, at)?;
        }
        Ok(bytes)
    }

    fn contents(
        &self,
        disk: &mut Bounded<'_>,
        file: &File,
        name: &'static str,
    ) -> Result<Vec<u8>, Error> {
        if file.len > MOST_BYTES {
            return Err(Error::TooLarge(name));
        }
        let mut bytes = vec![0; file.len as usize];
        let mut cluster = Some(file.first);
        for part in bytes.chunks_mut(self.cluster as usize) {
            let at = cluster.ok_or(Error::Damaged("a file is shorter than its length"))?;
            self.read(disk, at, part)?;
            cluster = self.next(disk, at)?;
        }
        Ok(bytes)
    }
}

/// The name in a long entry and the checksum of its short entry, if the entry has the whole name.
fn long_name(entry: &[u8]) -> Option<(String, u8)> {
    /// The first part of a name, and the last one.
    const ONLY: u8 = 0x41;
    if entry[0] != ONLY {
        return None;
    }
    let units = entry[1..11].as_chunks::<2>().0.iter();
    let units =
        units.chain(entry[14..26].as_chunks::<2>().0).chain(entry[28..32].as_chunks::<2>().0);
    let units = units.map(|unit| u16::from_le_bytes(*unit)).take_while(|unit| *unit != 0);
    let name = char::decode_utf16(units).collect::<Result<_, _>>().ok()?;
    Some((name, entry[13]))
}

/// Checksum of a short name, in its long entries.
fn checksum(entry: &[u8]) -> u8 {
    entry[..11].iter().fold(0, |sum: u8, byte| sum.rotate_right(1).wrapping_add(*byte))
}
