//! Address ranges of the image's segments, from its own program headers (ELF-64, Elf64_Phdr).

use core::ops::Range;

const PT_LOAD: u32 = 1;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PAGE: u64 = 4096;

/// Permitted access to a page of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and execute.
    Code,
    /// Read.
    ReadOnly,
    /// Read and write.
    Data,
}

/// A range of whole pages.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Their addresses.
    pub pages: Range<u64>,
    /// Permitted access.
    pub access: Access,
}

/// The program headers, of 56 bytes each.
fn program_headers() -> &'static [u8] {
    unsafe extern "C" {
        /// The ELF header. The linker defines the symbol. The header is loaded with the first segment and never
        /// written.
        safe static __ehdr_start: [u8; 64];
    }
    let header = &__ehdr_start;
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let first = (&raw const __ehdr_start).cast::<u8>().wrapping_add(u64_at(header, 32) as usize);
    // SAFETY: the program headers are also loaded with the first segment, and never written.
    unsafe { core::slice::from_raw_parts(first, count * 56) }
}

/// The segments of the image, by address. Later ones override earlier ones (data that is read-only after relocation is
/// part of a data segment).
pub fn segments() -> Vec<Segment> {
    let all = program_headers().chunks_exact(56).filter_map(|header| {
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let flags = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        let (start, len) = (u64_at(header, 16), u64_at(header, 40));
        // The linker gives each segment its own pages. The last page of a relro segment is whole.
        let pages = start & !(PAGE - 1)..(start + len).next_multiple_of(PAGE);
        let access = match (kind, flags & PF_X != 0, flags & PF_W != 0) {
            (PT_LOAD, true, _) => Access::Code,
            (PT_LOAD, _, true) => Access::Data,
            (PT_LOAD, ..) | (PT_GNU_RELRO, ..) => Access::ReadOnly,
            _ => return None,
        };
        Some(Segment { pages, access })
    });
    all.collect()
}

/// The image's build ID (ELF note NT_GNU_BUILD_ID), in hexadecimal; empty if the linker wrote none.
pub fn build_id() -> &'static str {
    const PT_NOTE: u32 = 4;
    const NT_GNU_BUILD_ID: u32 = 3;
    let headers = program_headers();
    let u32_at = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |&bytes| u32::from_le_bytes(bytes))
    };
    for header in headers.chunks_exact(56).filter(|header| u32_at(header, 0) == PT_NOTE) {
        let (start, len) = (u64_at(header, 16), u64_at(header, 40) as usize);
        // SAFETY: the program header says that notes lie there. Their segment is loaded, and they are never written.
        let mut notes = unsafe { core::slice::from_raw_parts(start as *const u8, len) };
        while notes.len() >= 12 {
            let (name, text) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
            let kind = u32_at(notes, 8);
            let begin = 12 + name.next_multiple_of(4);
            let Some(id) = notes.get(begin..begin + text) else { break };
            if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
                let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
                return hex.leak();
            }
            let Some(rest) = notes.get(begin + text.next_multiple_of(4)..) else { break };
            notes = rest;
        }
    }
    ""
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(value)
}
