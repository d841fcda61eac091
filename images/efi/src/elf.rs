//! Parser for the appliance's ELF file: its segments and its PVH entry, as a loader needs them.
//!
//! Formats: System V ABI (ELF-64); the entry is in the ELF note XEN_ELFNOTE_PHYS32_ENTRY
//! (Linux include/xen/interface/elfnote.h). Nothing is relocated: the image is linked to fixed addresses.

use core::ops::Range;

use object::elf::{FileHeader64, NoteType, PT_LOAD, PT_NOTE, ProgramHeader64};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};

const XEN_ELFNOTE_PHYS32_ENTRY: NoteType = NoteType(18);

type Headers<'a> = &'a [ProgramHeader64<LittleEndian>];

/// A checked image: the bytes of every segment are in the file, its memory is below 4 GiB, and it has an entry.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    data: &'a [u8],
    headers: Headers<'a>,
    /// Physical address of the PVH entry (32-bit protected mode, paging off).
    pub entry: u32,
    /// Physical memory from the first byte of the lowest segment to the last byte of the highest one.
    pub memory: Range<u64>,
}

/// A segment in memory: `bytes`, then zeros up to `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Physical address.
    pub address: u64,
    /// Contents from the file; not longer than `size`.
    pub bytes: &'a [u8],
    /// Size in memory.
    pub size: u64,
}

impl<'a> Image<'a> {
    /// Checks the whole file. The errors are for the builder of the image.
    pub fn parse(data: &'a [u8]) -> Result<Self, &'static str> {
        let file = FileHeader64::<LittleEndian>::parse(data).map_err(|_| "not an ELF-64 file")?;
        let endian = file.endian().map_err(|_| "not a little-endian ELF file")?;
        let headers =
            file.program_headers(endian, data).map_err(|_| "its program headers are cut off")?;
        let (mut start, mut end) = (u64::MAX, 0);
        for header in headers.iter().filter(|header| header.p_type(endian) == PT_LOAD) {
            let segment =
                segment(data, header).ok_or("a segment is cut off, or lies above 4 GiB")?;
            start = start.min(segment.address);
            end = end.max(segment.address + segment.size);
        }
        let memory = start..end;
        if memory.is_empty() {
            return Err("it has no segment to load");
        }
        let entry = pvh_entry(data, headers).ok_or("it has no PVH entry note")?;
        if !memory.contains(&u64::from(entry)) {
            return Err("its PVH entry lies outside of it");
        }
        Ok(Image { data, headers, entry, memory })
    }

    /// The segments, in the order of the file.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> {
        let loaded = self.headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD);
        loaded.filter_map(|header| segment(self.data, header))
    }
}

fn segment<'a>(data: &'a [u8], header: &ProgramHeader64<LittleEndian>) -> Option<Segment<'a>> {
    let (address, size) = (header.p_paddr(LittleEndian), header.p_memsz(LittleEndian));
    let bytes = header.data(LittleEndian, data).ok()?;
    let fits = bytes.len() as u64 <= size && address.checked_add(size)? <= 1 << 32;
    fits.then_some(Segment { address, bytes, size })
}

fn pvh_entry(data: &[u8], headers: Headers) -> Option<u32> {
    for header in headers.iter().filter(|header| header.p_type(LittleEndian) == PT_NOTE) {
        let Ok(Some(mut notes)) = header.notes(LittleEndian, data) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.n_type(LittleEndian) == XEN_ELFNOTE_PHYS32_ENTRY && note.name() == b"Xen" {
                return Some(u32::from_le_bytes(note.desc().first_chunk().copied()?));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::ProgramType;
    use std::vec::Vec;

    /// ELF header, two program headers (one PT_LOAD, one PT_NOTE), the note, four bytes of program.
    fn sample() -> Vec<u8> {
        let mut file = Vec::new();
        file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [0x20_0000u64, 64, 0] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0u32, 56 << 16 | 64, 2, 0].iter().flat_map(|word| word.to_le_bytes()));
        let mut header =
            |kind: ProgramType, offset: u64, address: u64, in_file: u64, in_memory: u64| {
                file.extend(kind.0.to_le_bytes());
                file.extend(5u32.to_le_bytes());
                for word in [offset, address, address, in_file, in_memory, 4] {
                    file.extend(word.to_le_bytes());
                }
            };
        header(PT_LOAD, 196, 0x20_0000, 4, 0x1000);
        header(PT_NOTE, 176, 0, 20, 20);
        file.extend([4u32, 4, 18].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(b"Xen\0");
        file.extend(0x20_0002u32.to_le_bytes());
        file.extend([1, 2, 3, 4]);
        file
    }

    #[test]
    fn parse_finds_segments_and_entry() {
        let file = sample();
        let image = Image::parse(&file).unwrap();
        assert_eq!(image.entry, 0x20_0002);
        assert_eq!(image.memory, 0x20_0000..0x20_1000);
        let segments: Vec<_> = image.segments().collect();
        assert_eq!(segments, [Segment { address: 0x20_0000, bytes: &[1, 2, 3, 4], size: 0x1000 }]);
    }

    #[test]
    fn parse_reports_the_defect() {
        assert_eq!(Image::parse(b"MZ").unwrap_err(), "not an ELF-64 file");
        let mut file = sample();
        file[188] = b'Y';
        assert_eq!(Image::parse(&file).unwrap_err(), "it has no PVH entry note");
        let mut file = sample();
        file[194] = 0x30;
        assert_eq!(Image::parse(&file).unwrap_err(), "its PVH entry lies outside of it");
    }

    #[test]
    fn a_damaged_file_is_an_error_or_stays_in_bounds() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(Image::parse(&whole[..length]).is_err(), "{length}");
        }
        for position in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut file = whole.clone();
                file[position] = value;
                if let Ok(image) = Image::parse(&file) {
                    assert!(
                        image.segments().all(|segment| segment.bytes.len() as u64 <= segment.size)
                    );
                }
            }
        }
    }
}
