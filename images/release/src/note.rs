//! The note that an appliance writes next to the slots, for the release that it restarts into. Front ends do not read
//! it.

use crc::{CRC_32_ISO_HDLC, Crc};

/// Bytes of a note.
pub const NOTE: usize = 16 << 10;
/// Most bytes of its text.
pub const MAX_TEXT: usize = NOTE - TEXT;

const MAGIC: &[u8; 8] = b"ISTHNOTE";
const CHECKED: usize = 32;
const TEXT: usize = 36;
const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note<'a> {
    /// Counts the notes of a disk.
    pub generation: u64,
    /// Latest build time of the releases that were installed on this disk, in seconds since 1970.
    pub made: u64,
    /// Configuration that was in force, one item a line.
    pub text: &'a str,
    /// The text was truncated.
    pub is_cut: bool,
}

impl<'a> Note<'a> {
    /// Parses a copy; None if it is invalid.
    pub fn parse(bytes: &'a [u8]) -> Option<Note<'a>> {
        let header = bytes.first_chunk::<TEXT>()?;
        let long = |at: usize| u64::from_le_bytes(part(header, at));
        let short = |at: usize| u32::from_le_bytes(part(header, at));
        let text = bytes.get(TEXT..)?.get(..short(24) as usize)?;
        let whole = header.starts_with(MAGIC) && short(32) == crc(&header[..CHECKED], text);
        let text = core::str::from_utf8(text).ok()?;
        let (generation, made, is_cut) = (long(8), long(16), short(28) != 0);
        whole.then_some(Note { generation, made, text, is_cut })
    }

    /// Encodes the note. A text that is too long is truncated before the line that does not fit.
    pub fn emit(&self, bytes: &mut [u8; NOTE]) {
        let lines = self.text.split_inclusive('\n');
        let ends = lines.scan(0, |end, line| {
            *end += line.len();
            Some(*end)
        });
        let length = ends.take_while(|&end| end <= MAX_TEXT).last().unwrap_or(0);
        let text = &self.text.as_bytes()[..length];
        let is_cut = self.is_cut || length < self.text.len();
        bytes.fill(0);
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.made.to_le_bytes());
        bytes[24..28].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&u32::from(is_cut).to_le_bytes());
        bytes[TEXT..TEXT + length].copy_from_slice(text);
        let crc = crc(&bytes[..CHECKED], text);
        bytes[CHECKED..TEXT].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The current note, and the index of the copy that the next note replaces.
pub fn latest<'a>(copies: [&'a [u8]; 2]) -> (Option<Note<'a>>, usize) {
    match copies.map(Note::parse) {
        [Some(first), Some(second)] if second.generation > first.generation => (Some(second), 0),
        [Some(first), _] => (Some(first), 1),
        [None, second] => (second, 0),
    }
}

fn crc(header: &[u8], text: &[u8]) -> u32 {
    let mut digest = CRC32.digest();
    digest.update(header);
    digest.update(text);
    digest.finalize()
}

fn part<const N: usize>(bytes: &[u8; TEXT], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn note_is_parsed_back_and_damage_is_detected() {
        let note = Note { generation: 3, made: 77, text: "a\nb\n", is_cut: false };
        let mut bytes = [0; NOTE];
        note.emit(&mut bytes);
        assert_eq!(Note::parse(&bytes), Some(note));
        for at in 0..TEXT + note.text.len() {
            let mut bytes = bytes;
            bytes[at] ^= 4;
            assert_eq!(Note::parse(&bytes), None, "{at}");
        }
        assert_eq!(Note::parse(&[0; NOTE]), None);
        assert_eq!(Note::parse(&bytes[..20]), None);
    }

    #[test]
    fn long_text_is_truncated_at_a_line_and_marked() {
        let text: String = (0..2000).map(|i| std::format!("line {i}\n")).collect();
        let mut bytes = [0; NOTE];
        Note { text: &text, ..Note::default() }.emit(&mut bytes);
        let note = Note::parse(&bytes).unwrap();
        assert!(note.is_cut && note.text.ends_with('\n') && text.starts_with(note.text));
        assert!(note.text.len() > MAX_TEXT - 12);
    }

    #[test]
    fn later_of_two_copies_is_current_and_the_other_is_replaced() {
        let copy = |generation| {
            let mut bytes = [0; NOTE];
            Note { generation, ..Note::default() }.emit(&mut bytes);
            bytes
        };
        let current = |a: &[u8], b: &[u8]| {
            let (note, older) = latest([a, b]);
            (note.map(|note| note.generation), older)
        };
        assert_eq!(current(&copy(1), &copy(2)), (Some(2), 0));
        assert_eq!(current(&copy(2), &copy(1)), (Some(2), 1));
        assert_eq!(current(&[0; 99], &copy(1)), (Some(1), 0));
        assert_eq!(current(&copy(1), &[0; 99]), (Some(1), 1));
        assert_eq!(current(&[], &[]), (None, 0));
    }
}
