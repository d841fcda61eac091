//! ISO 9660 (ECMA-119), with the names of Joliet or of Rock Ridge (IEEE P1282), which `user-data` needs.

use super::{Bounded, Error, Files, MOST_BYTES, Seed, is_label, u16_at, u32_at};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

const SECTOR: u64 = 2048;
/// The first volume descriptor (ECMA-119, 8.1).
const FIRST: u64 = 16;
/// Most volume descriptors that are read.
const MOST: u64 = 16;
/// Largest root directory that is read, in bytes.
const MOST_DIRECTORY: u32 = 64 << 10;
/// Root directory's record in a descriptor.
const ROOT: usize = 156;
/// Bytes of a record before its name.
const RECORD: usize = 33;

/// Address in sectors, and length in bytes.
#[derive(Clone, Copy)]
struct Extent {
    sector: u32,
    len: u32,
}

impl Extent {
    /// The extent in a directory record (9.1). Numbers are in both byte orders, little endian first.
    fn of(record: &[u8]) -> Extent {
        Extent { sector: u32_at(record, 2), len: u32_at(record, 10) }
    }

    fn read(self, disk: &mut Bounded<'_>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.len as usize];
        disk.read(u64::from(self.sector) * SECTOR, &mut bytes)?;
        Ok(bytes)
    }
}

/// The seed of an ISO 9660 volume; `None` if there is no such volume.
pub fn read(disk: &mut Bounded<'_>) -> Result<Option<Seed>, Error> {
    let (mut primary, mut joliet) = (None, None);
    for number in FIRST..FIRST + MOST {
        let descriptor = match disk.array::<{ SECTOR as usize }>(number * SECTOR) {
            Ok(descriptor) => descriptor,
            // A small FAT volume ends before.
            Err(_) if primary.is_none() => return Ok(None),
            Err(why) => return Err(why),
        };
        if &descriptor[1..6] != b"CD001" {
            break;
        }
        let root = Extent::of(&descriptor[ROOT..]);
        match descriptor[0] {
            1 if primary.is_none() => {
                let label = core::str::from_utf8(&descriptor[40..72]).unwrap_or_default();
                primary = Some((root, is_label(label), u16_at(&descriptor, 128)));
            }
            // UCS-2 of level 1, 2 or 3 (Joliet).
            2 if matches!(descriptor[88..91], [0x25, 0x2f, 0x40 | 0x43 | 0x45]) => {
                joliet = Some(root);
            }
            255 => break,
            _ => {}
        }
    }
    let Some((root, labelled, block)) = primary else { return Ok(None) };
    if !labelled {
        return Err(Error::Label);
    }
    if u64::from(block) != SECTOR {
        return Err(Error::Damaged("its blocks do not have 2048 bytes"));
    }
    let root_of = joliet.unwrap_or(root);
    if root_of.len > MOST_DIRECTORY {
        return Err(Error::Damaged("its root directory is too long"));
    }
    let directory = root_of.read(disk)?;
    let mut files = Files::new();
    for record in records(&directory) {
        if let Some(name) = name(record, joliet.is_some()) {
            files.add(&name, Extent::of(record));
        }
    }
    let seed = files.seed(|extent, name| match extent.len > MOST_BYTES {
        true => Err(Error::TooLarge(name)),
        false => extent.read(disk),
    });
    seed.map(Some)
}

/// The records of files in a directory. None crosses the border of a sector, and a zero fills the rest of one.
fn records(directory: &[u8]) -> impl Iterator<Item = &[u8]> {
    const IS_DIRECTORY: u8 = 2;
    directory.chunks(SECTOR as usize).flat_map(|sector| {
        let mut rest = sector;
        core::iter::from_fn(move || {
            let len = usize::from(*rest.first()?);
            let record = rest.get(..len).filter(|record| record.len() > RECORD)?;
            rest = &rest[len..];
            Some(record)
        })
        .filter(|record| record[25] & IS_DIRECTORY == 0)
    })
}

/// Name of a file, without its version.
fn name(record: &[u8], joliet: bool) -> Option<String> {
    let len = usize::from(record[32]);
    let plain = record.get(RECORD..RECORD + len)?;
    let name: String = if joliet {
        let units = plain.as_chunks::<2>().0.iter().map(|unit| u16::from_be_bytes(*unit));
        char::decode_utf16(units).collect::<Result<_, _>>().ok()?
    } else {
        // The system use area begins at an even offset.
        let area = record.get((RECORD + len).next_multiple_of(2)..).unwrap_or_default();
        String::from_utf8(rock_ridge(area).unwrap_or(plain).into()).ok()?
    };
    Some(name.split(';').next().unwrap_or_default().trim_end_matches('.').into())
}

/// The name in an entry NM of a system use area (P1282, 4.1.4).
fn rock_ridge(area: &[u8]) -> Option<&[u8]> {
    let mut rest = area;
    loop {
        let [one, two, len, _, ..] = *rest else { return None };
        let entry = rest.get(..usize::from(len)).filter(|entry| entry.len() >= 4)?;
        if [one, two] == *b"NM" {
            return entry.get(5..);
        }
        rest = &rest[entry.len()..];
    }
}
