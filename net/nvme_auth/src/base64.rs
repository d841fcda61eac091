//! The common part of both text forms of keys: base64 of the key and its CRC-32 in little-endian order.

use alloc::string::String;
use base64ct::{Base64, Encoding};
use tls_psk::hash::Secret;
use zeroize::Zeroizing;

/// Bytes of a CRC-32.
const CRC: usize = 4;
/// Maximum number of bytes of a key and its CRC.
const LEN: usize = tls_psk::hash::MAX + CRC;

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It is not base64 of at most 68 bytes.
    Encoding,
    /// Its CRC does not match.
    Crc,
}

/// Decodes a key.
pub fn decode(text: &str) -> Result<Secret, Problem> {
    let mut bytes = Zeroizing::new([0; LEN]);
    let decoded = Base64::decode(text, &mut *bytes).map_err(|_| Problem::Encoding)?;
    let (key, crc) = decoded.split_last_chunk::<CRC>().ok_or(Problem::Encoding)?;
    if crc32fast::hash(key).to_le_bytes() != *crc {
        return Err(Problem::Crc);
    }
    Secret::new(key).ok_or(Problem::Encoding)
}

/// Appends the text of a key.
pub fn encode(key: &Secret, into: &mut String) {
    let mut bytes = Zeroizing::new([0; LEN]);
    let key = key.as_bytes();
    let crc = crc32fast::hash(key).to_le_bytes();
    bytes.iter_mut().zip(key.iter().chain(&crc)).for_each(|(to, from)| *to = *from);
    let mut text = Zeroizing::new([0; LEN.div_ceil(3) * 4]);
    let bytes = bytes.get(..key.len() + CRC).unwrap_or_default();
    into.push_str(Base64::encode(bytes, &mut *text).unwrap_or_default());
}
