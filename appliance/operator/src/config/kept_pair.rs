//! The self-made certificate of the appliance with its key, stored on the config disk.
//!
//! | bytes | contents, little-endian |
//! |---|---|
//! | 0..8 | `ISTHMTLS` |
//! | 8..12 | CRC-32C (RFC 3720, appendix B.4) of everything from byte 12 to the end of the pair |
//! | 12..16 | length of the pair |
//! | 16.. | the pair as [`Pair::to_bytes`] writes it, then zeroes |

use crc::{CRC_32_ISCSI, Crc};
use net::tls::Pair;

/// Bytes reserved for the pair.
pub const LEN: usize = 4 << 10;

const MAGIC: &[u8; 8] = b"ISTHMTLS";
const HEADER: usize = 16;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// The pair in these bytes, if it is whole.
pub fn read(place: &[u8]) -> Option<Pair> {
    let field = |at: usize| Some(u32::from_le_bytes(place.get(at..at + 4)?.try_into().ok()?));
    let end = HEADER.checked_add(field(12)? as usize)?;
    let summed = place.get(12..end)?;
    let whole = place.starts_with(MAGIC) && field(8)? == CRC32C.checksum(summed);
    whole.then(|| Pair::from_bytes(place.get(HEADER..end)?))?
}

/// The bytes that store a pair. None if the pair is too long.
pub fn write(pair: &Pair) -> Option<Vec<u8>> {
    let pair = pair.to_bytes();
    let end = HEADER + pair.len();
    let mut place = vec![0; LEN];
    place.get_mut(HEADER..end)?.copy_from_slice(&pair);
    place[..8].copy_from_slice(MAGIC);
    place[12..16].copy_from_slice(&(pair.len() as u32).to_le_bytes());
    let crc = CRC32C.checksum(&place[12..end]);
    place[8..12].copy_from_slice(&crc.to_le_bytes());
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_pair_is_read_back_and_a_damaged_one_is_not() {
        let mut byte = 0_u8;
        let mut random = |into: &mut [u8]| {
            into.iter_mut().for_each(|to| {
                byte = byte.wrapping_mul(5).wrapping_add(7);
                *to = byte;
            });
        };
        let pair = Pair::self_signed("gw", &["fd00::1".parse().unwrap()], &mut random);
        let place = write(&pair).unwrap();
        assert_eq!(read(&place).unwrap().fingerprint(), pair.fingerprint());
        for at in 0..HEADER + pair.to_bytes().len() {
            let mut damaged = place.clone();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_none(), "{at}");
        }
        assert!(read(&[0; LEN]).is_none() && read(&[]).is_none() && read(&place[..40]).is_none());
    }
}
