//! Receive filters: which frames the port accepts, and which receive queue gets a frame.

use super::Enic;
use crate::registers::number;

/// Bits of PACKET_FILTER.
const DIRECTED: u32 = 1;
const MULTICAST: u32 = 2;
const BROADCAST: u32 = 4;
const PROMISCUOUS: u32 = 8;
const ALL_MULTICAST: u32 = 0x10;

/// Flags of a 5-tuple: the fields to compare.
const PROTOCOL: u32 = 1;
const SOURCE: u32 = 2;
const DESTINATION: u32 = 4;
const SOURCE_PORT: u32 = 8;
const DESTINATION_PORT: u32 = 16;

/// Most bytes of a filter's description.
const LONGEST: usize = 100;
/// Most filters of a port.
const MOST: usize = 16;

pub const EINVAL: u32 = 1;
pub const EMAXRES: u32 = 10;
pub const ENOTSUPPORTED: u32 = 11;

/// An IPv4 5-tuple filter, and the receive queue for matching frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    pub id: u32,
    flags: u32,
    /// 17 (UDP) or 6 (TCP).
    protocol: u8,
    addresses: [u32; 2],
    ports: [u16; 2],
    pub queue: usize,
}

/// Parses a filter's description: two type-length-value parts, filter and action (Linux: `filter_tlv`).
fn parse(bytes: &[u8], id: u32) -> Result<Filter, u32> {
    let word = |at: usize| bytes.get(at..at + 4).map(|part| number(part) as u32).ok_or(EINVAL);
    let half = |at: usize| bytes.get(at..at + 2).map(|part| number(part) as u16).ok_or(EINVAL);
    let len = word(4)? as usize;
    let action = 8usize.checked_add(len).ok_or(EINVAL)?;
    // The filter part: its type, and room for the longest kind of filter.
    if word(0)? != 0 || len < 24 || bytes.len() > LONGEST {
        return Err(EINVAL);
    }
    if word(8)? != 1 {
        return Err(ENOTSUPPORTED);
    }
    let flags = word(12)?;
    let protocol = match word(16)? {
        0 => 17,
        1 => 6,
        _ => return Err(EINVAL),
    };
    if flags == 0 || flags >> 5 != 0 {
        return Err(EINVAL);
    }
    // The action part: steer to a receive queue.
    if word(action)? != 1 || word(action + 4)? != 8 || word(action + 8)? != 0 {
        return Err(EINVAL);
    }
    Ok(Filter {
        id,
        flags,
        protocol,
        addresses: [word(20)?, word(24)?],
        ports: [half(28)?, half(30)?],
        queue: word(action + 12)? as usize,
    })
}

impl Filter {
    fn matches(&self, frame: &[u8]) -> bool {
        let at = |at: usize, len: usize| {
            let part = frame.get(at..at + len)?;
            Some(part.iter().fold(0u32, |all, &byte| all << 8 | u32::from(byte)))
        };
        let is_whole = at(12, 2) == Some(0x0800)
            && at(14, 1).is_some_and(|first| first == 0x45)
            && at(20, 2).is_some_and(|fragment| fragment & 0x3fff == 0);
        let wants = |flag: u32, found: Option<u32>, wanted: u32| {
            self.flags & flag == 0 || found == Some(wanted)
        };
        is_whole
            && wants(PROTOCOL, at(23, 1), self.protocol.into())
            && wants(SOURCE, at(26, 4), self.addresses[0])
            && wants(DESTINATION, at(30, 4), self.addresses[1])
            && wants(SOURCE_PORT, at(34, 2), self.ports[0].into())
            && wants(DESTINATION_PORT, at(36, 2), self.ports[1].into())
    }
}

impl Enic {
    /// Adds a filter, and returns its number.
    pub(super) fn add_filter(&mut self, bytes: &[u8]) -> Result<u32, u32> {
        self.last_filter += 1;
        let filter = parse(bytes, self.last_filter)?;
        if filter.queue >= self.receive.len() {
            return Err(EINVAL);
        }
        if self.filters.len() == MOST {
            return Err(EMAXRES);
        }
        self.filters.push(filter);
        Ok(filter.id)
    }

    pub(super) fn delete_filter(&mut self, id: u64) -> Result<(), u32> {
        let before = self.filters.len();
        self.filters.retain(|filter| u64::from(filter.id) != id);
        if self.filters.len() < before { Ok(()) } else { Err(EINVAL) }
    }

    /// Whether the port accepts the frame.
    pub(super) fn accepts(&self, frame: &[u8]) -> bool {
        let Some(&to) = frame.first_chunk::<6>() else { return false };
        let mode = self.packet_filter;
        let listed = self.addresses.contains(&to);
        mode & PROMISCUOUS != 0
            || match to {
                [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => mode & BROADCAST != 0,
                [first, ..] if first & 1 != 0 => {
                    mode & ALL_MULTICAST != 0 || mode & MULTICAST != 0 && listed
                }
                _ => mode & DIRECTED != 0 && (listed || self.is_virtual() && to == self.mac()),
            }
    }

    /// The receive queue of a frame.
    pub(super) fn queue_of(&self, frame: &[u8]) -> usize {
        self.filters.iter().find(|filter| filter.matches(frame)).map_or(0, |filter| filter.queue)
    }
}
