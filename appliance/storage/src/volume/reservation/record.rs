//! Reservations as a disk's table has them, for those that are kept through a power loss.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | type of the reservation, 0 without one |
//! | 2..4 | number of registrants, little-endian |
//! | 4..20 | host that acquired the reservation |
//! | 20.. | registrants: host (16), key (8, little-endian) |
//!
//! Reservations that are not kept have an empty record.

use super::{HostId, Kind, MAX_REGISTRANTS, Registrant, Reservations};
use alloc::vec::Vec;

const VERSION: u8 = 1;
const HEADER: usize = 20;
const REGISTRANT: usize = 24;
/// Longest record in bytes.
pub const MAX_RECORD: usize = HEADER + MAX_REGISTRANTS * REGISTRANT;

impl Reservations {
    /// The record; empty if they are not kept through a power loss.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.persist {
            return bytes;
        }
        let (kind, holder) = self.held.map_or((0, [0; 16]), |(kind, host)| (kind as u8, host));
        bytes.extend([VERSION, kind]);
        bytes.extend((self.registrants.len() as u16).to_le_bytes());
        bytes.extend(holder);
        for one in &self.registrants {
            bytes.extend(one.host);
            bytes.extend(one.key.to_le_bytes());
        }
        bytes
    }

    /// The reservations of a record. None if it is invalid.
    pub fn decode(record: &[u8]) -> Option<Reservations> {
        if record.is_empty() {
            return Some(Reservations::default());
        }
        let (head, rest) = record.split_at_checked(HEADER)?;
        let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if head[0] != VERSION || count > MAX_REGISTRANTS || rest.len() != count * REGISTRANT {
            return None;
        }
        let holder: HostId = head[4..].try_into().ok()?;
        let mut registrants: Vec<Registrant> = Vec::with_capacity(count);
        for one in rest.chunks_exact(REGISTRANT) {
            let (host, key) = one.split_first_chunk::<16>()?;
            let key = u64::from_le_bytes(key.try_into().ok()?);
            if key == 0 || registrants.iter().any(|other| other.host == *host) {
                return None;
            }
            registrants.push(Registrant { host: *host, key });
        }
        let held = match head[1] {
            0 => None,
            number => Some((Kind::of(number)?, holder)),
        };
        let read = Reservations { generation: 0, persist: true, registrants, held };
        let is_held = match held {
            None => true,
            Some((kind, _)) if kind.is_held_by_all() => !read.registrants.is_empty(),
            Some((_, holder)) => read.is_registered(&holder),
        };
        is_held.then_some(read)
    }
}
