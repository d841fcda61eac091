//! SMBIOS (DMTF DSP0134 3.7): the OEM strings (type 11) that a VMM passes to its machine, as QEMU does with
//! `-smbios type=11,value=…`. Lengths and strings in the tables are the firmware's allegations: nothing outside the
//! given bytes is read, and a table that is cut is reported.

/// The memory of a BIOS in which an entry point lies at a multiple of [`STEP`] (5.2).
pub const SEGMENT: core::ops::Range<u64> = 0xf_0000..0x10_0000;
const STEP: usize = 16;
/// Largest structure table that is read, in bytes.
pub const MOST_BYTES: usize = 1 << 20;
/// Bytes of an entry point that suffice to parse it.
pub const ENTRY: usize = 32;

const OEM_STRINGS: u8 = 11;
const END: u8 = 127;
/// Type, length and handle.
const HEADER: usize = 4;

/// Where the structures lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Physical address.
    pub address: u64,
    /// Length in bytes, or an upper limit of it.
    pub len: usize,
}

/// Parses an entry point of 32 or of 64 bits (5.2.1, 5.2.2) at the start of the bytes.
pub fn entry_point(bytes: &[u8]) -> Option<Table> {
    let sums_to_zero = |len: usize| {
        let part = bytes.get(..len)?;
        (part.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0).then_some(part)
    };
    if bytes.starts_with(b"_SM3_") {
        let entry = sums_to_zero(usize::from(*bytes.get(6)?)).filter(|entry| entry.len() >= 24)?;
        let len = u32::from_le_bytes(*entry.get(12..)?.first_chunk()?);
        let address = u64::from_le_bytes(*entry.get(16..)?.first_chunk()?);
        return Some(Table { address, len: len as usize });
    }
    if !bytes.starts_with(b"_SM_") {
        return None;
    }
    // Old firmware reports a length of 30 for 31 bytes.
    let entry = sums_to_zero(usize::from(*bytes.get(5)?).max(31))?;
    let len = u16::from_le_bytes(*entry.get(22..)?.first_chunk()?);
    let address = u32::from_le_bytes(*entry.get(24..)?.first_chunk()?);
    Some(Table { address: address.into(), len: len.into() })
}

/// Searches [`SEGMENT`] for an entry point. One of 64 bits goes before one of 32 bits.
pub fn search(segment: &[u8]) -> Option<Table> {
    let found = |magic: &'static [u8]| {
        let mut places = (0..segment.len()).step_by(STEP).map(|at| &segment[at..]);
        places.find_map(|rest| entry_point(rest).filter(|_| rest.starts_with(magic)))
    };
    found(b"_SM3_").or_else(|| found(b"_SM_"))
}

/// The OEM strings of a structure table, in order, without their NULs.
#[derive(Clone, Debug)]
pub struct OemStrings<'a> {
    /// The rest of the table.
    rest: &'a [u8],
    /// The rest of the strings of a structure of type 11.
    strings: &'a [u8],
    cut: bool,
}

impl<'a> OemStrings<'a> {
    /// Reads a structure table.
    pub fn of(table: &'a [u8]) -> Self {
        OemStrings { rest: table, strings: &[], cut: false }
    }

    /// Whether the table ended within a structure. Meaningful after the last string.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Goes to the next structure. None at the end of the table.
    fn advance(&mut self) -> Option<()> {
        let [kind, len, ..] = *self.rest else {
            self.cut |= !self.rest.is_empty();
            return None;
        };
        let strings = self.rest.get(usize::from(len)..).filter(|_| usize::from(len) >= HEADER);
        if kind == END {
            return None;
        }
        // Two NULs end the strings, also where there are none.
        let end = strings.and_then(|s| s.windows(2).position(|pair| pair == [0, 0]));
        let (Some(strings), Some(end)) = (strings, end) else {
            self.cut = true;
            self.rest = &[];
            return None;
        };
        self.rest = &strings[end + 2..];
        if kind == OEM_STRINGS {
            self.strings = &strings[..end];
        }
        Some(())
    }
}

impl<'a> Iterator for OemStrings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.strings.is_empty() {
            self.advance()?;
        }
        let end = self.strings.iter().position(|&byte| byte == 0);
        let (string, rest) = self.strings.split_at(end.unwrap_or(self.strings.len()));
        self.strings = rest.get(1..).unwrap_or_default();
        Some(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A structure with these strings.
    fn structure(kind: u8, body: &[u8], strings: &[&str]) -> Vec<u8> {
        let mut bytes = std::vec![kind, (HEADER + body.len()) as u8, 1, 0];
        bytes.extend_from_slice(body);
        for string in strings {
            bytes.extend_from_slice(string.as_bytes());
            bytes.push(0);
        }
        bytes.extend_from_slice(if strings.is_empty() { &[0, 0] } else { &[0] });
        bytes
    }

    fn table() -> Vec<u8> {
        let bios = structure(0, &[1, 2, 0, 0], &["SeaBIOS", "1.16"]);
        let none = structure(32, &[0; 7], &[]);
        let strings = structure(OEM_STRINGS, &[2], &["isthmus.http.port=81", "other"]);
        let more = structure(OEM_STRINGS, &[1], &["third"]);
        [bios, none, strings, more, structure(END, &[], &[]), std::vec![11; 40]].concat()
    }

    fn strings(table: &[u8]) -> (Vec<&[u8]>, bool) {
        let mut strings = OemStrings::of(table);
        let found = strings.by_ref().collect();
        (found, strings.is_cut())
    }

    fn with_sum(mut entry: Vec<u8>, at: usize) -> Vec<u8> {
        let sum = entry.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        entry[at] = 0u8.wrapping_sub(sum);
        entry
    }

    fn wide() -> Vec<u8> {
        let mut entry = std::vec![0; 24];
        entry[..5].copy_from_slice(b"_SM3_");
        entry[6] = 24;
        entry[12..16].copy_from_slice(&700u32.to_le_bytes());
        entry[16..24].copy_from_slice(&0x7ffe_0000u64.to_le_bytes());
        with_sum(entry, 5)
    }

    fn narrow() -> Vec<u8> {
        let mut entry = std::vec![0; 31];
        entry[..4].copy_from_slice(b"_SM_");
        entry[5] = 30;
        entry[22..24].copy_from_slice(&300u16.to_le_bytes());
        entry[24..28].copy_from_slice(&0xf_5b20u32.to_le_bytes());
        with_sum(entry, 4)
    }

    #[test]
    fn oem_strings_are_found_among_other_structures() {
        let table = table();
        let expected: [&[u8]; 3] = [b"isthmus.http.port=81", b"other", b"third"];
        assert_eq!(strings(&table), (expected.to_vec(), false));
        assert_eq!(strings(&[]), (Vec::new(), false));
    }

    #[test]
    fn cut_table_is_reported_and_its_last_structure_not_used() {
        let table = table();
        let at = table.windows(5).position(|bytes| bytes == b"other").unwrap();
        assert_eq!(strings(&table[..at + 5]), (Vec::new(), true));
        assert_eq!(strings(&table[..at + 6]), (Vec::new(), true), "one NUL does not end it");
        assert_eq!(strings(&table[..at + 7]).0.len(), 2);
        // A length within the header.
        assert_eq!(strings(&[11, 3, 0, 0, b'x', 0, 0]), (Vec::new(), true));
        assert_eq!(strings(&[11]), (Vec::new(), true));
    }

    #[test]
    fn entry_points_of_both_widths_are_found() {
        let (of_wide, of_narrow) =
            (Table { address: 0x7ffe_0000, len: 700 }, Table { address: 0xf_5b20, len: 300 });
        let mut segment = std::vec![0; 0x1000];
        segment[0x320..][..31].copy_from_slice(&narrow());
        assert_eq!(search(&segment), Some(of_narrow));
        segment[0x400..][..24].copy_from_slice(&wide());
        assert_eq!(search(&segment), Some(of_wide));
        segment[0x405] ^= 1;
        assert_eq!(search(&segment), Some(of_narrow), "a wrong sum");
        segment[0x325] = 0xff;
        assert_eq!(search(&segment), None);
        assert_eq!(search(b"_SM3_"), None);
        assert_eq!(search(b"_SM_"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = search(&[&b"_SM3_"[..], &bytes].concat());
            let _ = search(&[&b"_SM_"[..], &bytes].concat());
            prop_assert!(OemStrings::of(&bytes).map(<[u8]>::len).sum::<usize>() <= bytes.len());
        }
    }
}
