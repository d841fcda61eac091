//! A captured ring as a pcapng file (draft-ietf-opsawg-pcapng): section header, one interface
//! description per port, enhanced packet blocks with nanosecond stamps and direction flags.
//! Little-endian. Own code, because the file is streamed piece by piece from the ring.

use super::ring::{Direction, Ring};
use alloc::string::String;
use alloc::vec::Vec;

/// Link type of a port, with its number in pcapng files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet frames.
    Ethernet = 1,
    /// RapidIO messages after an 8-byte header, big-endian: sender id (2), receiver id (2), mailbox (1), 0 (3).
    /// The number is USER0, reserved for private use; `net/linx/wireshark/riocm.lua` decodes it.
    RapidIo = 147,
}

/// State of a download of the ring.
#[derive(Debug)]
pub struct Reader {
    names: Option<Vec<(String, LinkType)>>,
    epoch: u64,
    position: u64,
    /// End of the download, fixed at its start: the download is captured itself and would never end otherwise.
    end: u64,
}

impl Reader {
    pub(super) fn new(names: Vec<(String, LinkType)>, epoch: u64, ring: Option<&Ring>) -> Self {
        let (position, end) = ring.map_or((0, 0), |ring| (ring.oldest(), ring.newest()));
        Reader { names: Some(names), epoch, position, end }
    }

    pub(super) fn read(&mut self, ring: Option<&Ring>, into: &mut Vec<u8>, room: usize) -> bool {
        let start = into.len();
        if let Some(names) = self.names.take() {
            section_header(into);
            for (name, link_type) in names {
                interface(into, &name, link_type);
            }
        }
        let Some(ring) = ring else { return false };
        self.position = self.position.max(ring.oldest());
        while self.position < self.end {
            if into.len() - start >= room {
                return true;
            }
            self.position = packet(into, ring, self.position, self.epoch);
        }
        false
    }
}

/// Writes a block of type `kind` around what `body` appends.
fn block(into: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = into.len();
    into.extend_from_slice(&kind.to_le_bytes());
    into.extend_from_slice(&[0; 4]);
    body(into);
    pad(into, start);
    let length = ((into.len() - start + 4) as u32).to_le_bytes();
    into[start + 4..start + 8].copy_from_slice(&length);
    into.extend_from_slice(&length);
}

fn pad(into: &mut Vec<u8>, start: usize) {
    while !(into.len() - start).is_multiple_of(4) {
        into.push(0);
    }
}

fn option(into: &mut Vec<u8>, code: u16, value: &[u8]) {
    into.extend_from_slice(&code.to_le_bytes());
    into.extend_from_slice(&(value.len() as u16).to_le_bytes());
    let start = into.len();
    into.extend_from_slice(value);
    pad(into, start);
}

fn section_header(into: &mut Vec<u8>) {
    block(into, 0x0a0d_0d0a, |b| {
        b.extend_from_slice(&0x1a2b_3c4du32.to_le_bytes());
        b.extend_from_slice(&1u16.to_le_bytes());
        b.extend_from_slice(&0u16.to_le_bytes());
        b.extend_from_slice(&u64::MAX.to_le_bytes());
        option(b, 4, b"Isthmus");
        option(b, 0, &[]);
    });
}

fn interface(into: &mut Vec<u8>, name: &str, link_type: LinkType) {
    block(into, 1, |b| {
        b.extend_from_slice(&(link_type as u16).to_le_bytes());
        b.extend_from_slice(&[0; 2]);
        b.extend_from_slice(&0u32.to_le_bytes());
        option(b, 2, name.as_bytes());
        option(b, 9, &[9]); // if_tsresol: nanoseconds
        option(b, 0, &[]);
    });
}

fn packet(into: &mut Vec<u8>, ring: &Ring, position: u64, epoch: u64) -> u64 {
    let mut next = position;
    block(into, 6, |b| {
        let header = b.len();
        b.extend_from_slice(&[0; 20]);
        let data = b.len();
        let (frame, after) = ring.get(position, b);
        next = after;
        let kept = (b.len() - data) as u32;
        let time = epoch.saturating_add(frame.time.as_nanos());
        let fields = [u32::from(frame.port), (time >> 32) as u32, time as u32, kept, frame.length];
        for (i, field) in fields.iter().enumerate() {
            b[header + 4 * i..header + 4 * i + 4].copy_from_slice(&field.to_le_bytes());
        }
        pad(b, data);
        let flags: u32 = if frame.way == Direction::Received { 1 } else { 2 };
        option(b, 2, &flags.to_le_bytes());
        option(b, 0, &[]);
    });
    next
}
