//! A slot: 16 KiB that store one document. The image has one slot and the config disk two.
//!
//! | bytes | contents, little-endian |
//! |---|---|
//! | 0..8 | `ISTHMCFG`: a document; `ISTHMTRY`: a trial; `ISTHMTRD`: a trial that was started; `ISTHMREV`: a revision |
//! | 8..12 | CRC-32C (RFC 3720, appendix B.4) of everything from byte 12 to the end of the text |
//! | 12..16 | length of the text |
//! | 16..24 | sequence number: the valid document with the higher number is current; of a trial: seconds for its confirmation |
//! | 24.. | the text, then zeroes |

use crc::{CRC_32_ISCSI, Crc};

/// Bytes of a slot.
pub const SLOT_LEN: usize = 16 << 10;
/// Longest text in a slot, in bytes.
pub const MAX_TEXT: usize = SLOT_LEN - TEXT;

/// Contents of a slot, as its first 8 bytes.
pub type Kind = [u8; 8];

/// A document.
const MAGIC: &Kind = b"ISTHMCFG";
/// A document for the next boot only, unless it is confirmed.
pub const TRIAL: &Kind = b"ISTHMTRY";
/// A trial that a boot has started. The next boot ignores it.
pub const SPENT: &Kind = b"ISTHMTRD";
/// A revision of the running configuration.
pub const REVISION: &Kind = b"ISTHMREV";
const TEXT: usize = 24;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The slot of the image. It holds the magic and no document until a tool fills it. It has its own section,
/// `.isthmus.config`, so that the tool finds it.
#[used]
#[unsafe(link_section = ".isthmus.config")]
pub static EMBEDDED: [u8; SLOT_LEN] = {
    let mut slot = [0; SLOT_LEN];
    let mut i = 0;
    while i < MAGIC.len() {
        slot[i] = MAGIC[i];
        i += 1;
    }
    slot
};

/// The document embedded in this image, if any.
pub fn embedded() -> Option<&'static [u8]> {
    // The compiler must not assume the slot's contents, because the tool fills the slot after compilation.
    read(core::hint::black_box(&EMBEDDED[..])).map(|(_, text)| text)
}

/// The sequence number and the document in a slot, if it is whole.
pub fn read(slot: &[u8]) -> Option<(u64, &[u8])> {
    read_as(slot, MAGIC)
}

/// The number and the text in a slot of this kind, if it is whole.
pub fn read_as<'a>(slot: &'a [u8], kind: &Kind) -> Option<(u64, &'a [u8])> {
    let (header, rest) = slot.split_at_checked(TEXT)?;
    let field = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let text = rest.get(..field(12)? as usize)?;
    let mut digest = CRC32C.digest();
    digest.update(&header[12..]);
    digest.update(text);
    let whole = header.starts_with(kind) && field(8)? == digest.finalize();
    let sequence = u64::from_le_bytes(header.get(16..24)?.try_into().ok()?);
    whole.then_some((sequence, text))
}

/// Whether a slot was never written.
pub fn is_blank(slot: &[u8]) -> bool {
    slot.iter().all(|&byte| byte == 0)
}

/// Fills a slot of [`SLOT_LEN`] bytes with a document. The error is a message for the operator.
pub fn write(slot: &mut [u8], sequence: u64, text: &str) -> Result<(), String> {
    write_as(slot, MAGIC, sequence, text)
}

/// Bytes of the header and the text in a slot, by its header. A slot that is not filled has the length of a header.
pub fn length(header: &[u8]) -> usize {
    let field = header.get(12..16).and_then(|field| field.try_into().ok());
    TEXT + (field.map_or(0, u32::from_le_bytes) as usize).min(MAX_TEXT)
}

/// Fills a slot of [`SLOT_LEN`] bytes. The error is a message for the operator.
pub fn write_as(slot: &mut [u8], kind: &Kind, sequence: u64, text: &str) -> Result<(), String> {
    assert_eq!(slot.len(), SLOT_LEN, "a slot has one size");
    if text.len() > MAX_TEXT {
        return Err(format!("the document has {} bytes; at most {MAX_TEXT} fit", text.len()));
    }
    slot.fill(0);
    slot[..8].copy_from_slice(kind);
    slot[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
    slot[16..24].copy_from_slice(&sequence.to_le_bytes());
    let end = TEXT + text.len();
    slot[TEXT..end].copy_from_slice(text.as_bytes());
    let crc = CRC32C.checksum(&slot[12..end]);
    slot[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unfilled_image_has_no_document() {
        assert_eq!(embedded(), None);
    }

    proptest! {
        #[test]
        fn slot_with_a_wrong_bit_is_rejected(
            text in "[a-z]{0,300}", sequence: u64, bit in 0usize..2592,
        ) {
            let mut slot = vec![0xff; SLOT_LEN];
            write(&mut slot, sequence, &text).unwrap();
            prop_assert_eq!(read(&slot), Some((sequence, text.as_bytes())));
            let bit = bit % ((TEXT + text.len()) * 8);
            slot[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&slot), None);
        }

        #[test]
        fn slot_of_another_kind_is_rejected(text in "[a-z]{0,300}", sequence: u64) {
            let mut slot = vec![0xff; SLOT_LEN];
            for kind in [MAGIC, TRIAL, SPENT, REVISION] {
                write_as(&mut slot, kind, sequence, &text).unwrap();
                for other in [MAGIC, TRIAL, SPENT, REVISION] {
                    prop_assert_eq!(read_as(&slot, other).is_some(), other == kind);
                }
                prop_assert_eq!(length(&slot), TEXT + text.len());
            }
        }

        #[test]
        fn noise_is_rejected(slot in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(read(&slot), None);
        }
    }
}
