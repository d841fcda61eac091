//! Reassembles fragmented IP packets (RFC 791, RFC 8200 section 4.5): a few at a time, for a few seconds, in bounded
//! memory. A packet is discarded as a whole if its fragments overlap (RFC 5722) or contradict each other. Also answers
//! fragmented echo requests.

use crate::checksum::{fold, pseudo, sum};
use crate::link::{ETHERNET_HEADER, Queue};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use core::time::Duration;
use drivers::hal::Instant;

/// Limits: packets at a time, packets of one host, fragments of one packet.
const PACKETS: usize = 16;
const OF_HOST: usize = 4;
const PIECES: usize = 64;
/// Bytes of all packets.
const MEMORY: usize = 256 << 10;
/// Time limit for the reassembly of a packet.
const REASSEMBLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest packet, by the length in its header.
const LONGEST: usize = 65_535;

const IPV4: usize = 20;
const IPV6: usize = 40;
const FRAGMENT_HEADER: usize = 8;
const FRAGMENT: u8 = 44;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;

/// Identifies the packet of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: u8,
}

/// One fragment.
struct Piece<'a> {
    key: Key,
    bytes: Range<usize>,
    more: bool,
    /// Ethernet and IP header.
    head: &'a [u8],
    data: &'a [u8],
}

/// A packet in reassembly.
#[derive(Debug)]
struct Packet {
    key: Key,
    until: Instant,
    head: Vec<u8>,
    data: Vec<u8>,
    /// Byte ranges that have arrived.
    pieces: Vec<Range<usize>>,
    /// Length of its data, once the last fragment has arrived.
    total: Option<usize>,
    refused: bool,
}

/// Packets in reassembly.
#[derive(Debug, Default)]
pub struct Fragments {
    /// Oldest first.
    packets: Vec<Packet>,
}

impl Fragments {
    /// Handles a fragment that the filter has accepted. Returns the frame of the whole packet if it is complete.
    pub fn take(&mut self, frame: &[u8], now: Instant) -> Option<Vec<u8>> {
        let piece = Piece::of(frame)?;
        self.packets.retain(|packet| now < packet.until);
        let found = self.packets.iter().position(|packet| packet.key == piece.key);
        let at = found.unwrap_or_else(|| self.begin(piece.key, now));
        let missing = piece.bytes.end.saturating_sub(self.packets[at].data.len());
        let at = self.make_room(at, missing)?;
        let packet = &mut self.packets[at];
        if !packet.add(&piece) {
            packet.refused = true;
            packet.data = Vec::new();
            packet.head = Vec::new();
        }
        let whole = packet.whole()?;
        self.packets.remove(at);
        Some(whole)
    }

    /// Starts the reassembly of a packet. At the limits the oldest packet of its host, or of all, is evicted.
    fn begin(&mut self, key: Key, now: Instant) -> usize {
        let of_host = |packet: &Packet| packet.key.source == key.source;
        let oldest = self.packets.iter().position(of_host);
        if self.packets.iter().filter(|packet| of_host(packet)).count() >= OF_HOST
            && let Some(oldest) = oldest
        {
            self.packets.remove(oldest);
        } else if self.packets.len() >= PACKETS {
            self.packets.remove(0);
        }
        self.packets.push(Packet {
            key,
            until: now + REASSEMBLY_TIMEOUT,
            head: Vec::new(),
            data: Vec::new(),
            pieces: Vec::new(),
            total: None,
            refused: false,
        });
        self.packets.len() - 1
    }

    /// Makes room for `bytes` more of the packet at index `at` by evicting older packets. Returns its new index.
    fn make_room(&mut self, mut at: usize, bytes: usize) -> Option<usize> {
        let held = |packets: &[Packet]| packets.iter().map(|p| p.data.capacity()).sum::<usize>();
        while held(&self.packets) + bytes > MEMORY {
            let other = (0..self.packets.len()).find(|&other| other != at)?;
            self.packets.remove(other);
            at -= usize::from(other < at);
        }
        Some(at)
    }
}

impl Packet {
    /// Adds a fragment. False if it overlaps or contradicts others, or there are too many.
    fn add(&mut self, piece: &Piece<'_>) -> bool {
        if self.refused {
            return false;
        }
        let bytes = &piece.bytes;
        if self.pieces.contains(bytes) {
            return true;
        }
        let overlaps = |other: &Range<usize>| other.start < bytes.end && bytes.start < other.end;
        let end = self.pieces.iter().map(|piece| piece.end).max().unwrap_or(0).max(bytes.end);
        let total = if piece.more { self.total } else { Some(bytes.end) };
        let contradicts =
            self.total.is_some() && self.total != total || total.is_some_and(|total| total < end);
        if self.pieces.iter().any(overlaps) || contradicts || self.pieces.len() >= PIECES {
            return false;
        }
        self.total = total;
        if bytes.start == 0 {
            self.head = piece.head.into();
        }
        if self.data.len() < bytes.end {
            self.data.reserve_exact(bytes.end - self.data.len());
            self.data.resize(bytes.end, 0);
        }
        self.data[bytes.clone()].copy_from_slice(piece.data);
        self.pieces.push(bytes.clone());
        true
    }

    /// The frame of the whole packet, if nothing is missing.
    fn whole(&self) -> Option<Vec<u8>> {
        let total = self.total?;
        let there: usize = self.pieces.iter().map(Range::len).sum();
        if self.refused || there != total || self.head.is_empty() {
            return None;
        }
        let mut frame = self.head.clone();
        let packet = frame.get_mut(ETHERNET_HEADER..)?;
        let header = packet.len();
        match self.key.source {
            IpAddr::V4(_) => {
                let length = u16::try_from(header + total).ok()?;
                packet[2..4].copy_from_slice(&length.to_be_bytes());
                packet[6..8].fill(0);
                write_checksum(packet);
            }
            IpAddr::V6(_) => {
                packet[4..6].copy_from_slice(&u16::try_from(total).ok()?.to_be_bytes());
                packet[6] = self.key.protocol;
            }
        }
        frame.extend_from_slice(&self.data);
        Some(frame)
    }
}

impl<'a> Piece<'a> {
    fn of(frame: &'a [u8]) -> Option<Self> {
        let packet = frame.get(ETHERNET_HEADER..)?;
        let word = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let (header, data, place, key) = if packet.first()? >> 4 == 4 {
            let header = usize::from(packet.first()? & 15) * 4;
            let address = |at: usize| -> Option<IpAddr> {
                Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?).into())
            };
            let key = Key {
                source: address(12)?,
                destination: address(16)?,
                identification: word(4)?.into(),
                protocol: *packet.get(9)?,
            };
            let (flags, end) = (word(6)?, usize::from(word(2)?));
            let place = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
            (header, packet.get(header..end)?, place, key)
        } else {
            let address = |at: usize| -> Option<IpAddr> {
                Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?).into())
            };
            let end = IPV6 + usize::from(word(4)?);
            let key = Key {
                source: address(8)?,
                destination: address(24)?,
                identification: u32::from(word(IPV6 + 4)?) << 16 | u32::from(word(IPV6 + 6)?),
                protocol: *packet.get(IPV6)?,
            };
            let flags = word(IPV6 + 2)?;
            let place = (usize::from(flags & 0xfff8), flags & 1 != 0);
            (IPV6, packet.get(IPV6 + FRAGMENT_HEADER..end)?, place, key)
        };
        let (start, more) = place;
        let bytes = start..start + data.len();
        let sensible = !data.is_empty()
            && (!more || data.len().is_multiple_of(8))
            && header + bytes.end <= LONGEST;
        let head = frame.get(..ETHERNET_HEADER + header)?;
        sensible.then_some(Piece { key, bytes, more, head, data })
    }
}

/// Answers a reassembled echo request with fragments that fit into `mtu`. False if the frame is no echo request.
pub fn answer_echo(frame: &[u8], mtu: usize, identification: u16, queue: &mut Queue) -> bool {
    answer(frame, mtu, identification, queue).is_some()
}

fn answer(frame: &[u8], mtu: usize, identification: u16, queue: &mut Queue) -> Option<()> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_HEADER>()?;
    let v4 = packet.first()? >> 4 == 4;
    let (header, protocol, kinds) = match v4 {
        true => (usize::from(packet.first()? & 15) * 4, *packet.get(9)?, (8, 0)),
        false => (IPV6, *packet.get(6)?, (128, 129)),
    };
    let mut message: Vec<u8> = packet.get(header..)?.into();
    let mut ip: Vec<u8>;
    let addresses = if v4 {
        ip = [&[0x45, 0, 0, 0][..], &identification.to_be_bytes(), &[0, 0, HOP_LIMIT, ICMP, 0, 0]]
            .concat();
        ip.extend_from_slice(packet.get(16..20)?);
        ip.extend_from_slice(packet.get(12..16)?);
        0
    } else {
        ip = Vec::from([0x60, 0, 0, 0, 0, 0, FRAGMENT, HOP_LIMIT]);
        ip.extend_from_slice(packet.get(24..40)?);
        ip.extend_from_slice(packet.get(8..24)?);
        ip.extend_from_slice(&[ICMPV6, 0, 0, 0, 0, 0]);
        ip.extend_from_slice(&identification.to_be_bytes());
        let address = |at: usize| -> Option<IpAddr> {
            Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?).into())
        };
        pseudo(address(8)?, address(24)?, ICMPV6, message.len())
    };
    let is_request = protocol == if v4 { ICMP } else { ICMPV6 }
        && message.len() >= 8
        && message[..2] == [kinds.0, 0]
        && fold(addresses + sum(&message)) == 0xffff;
    if !is_request {
        return None;
    }
    message[0] = kinds.1;
    message[2..4].fill(0);
    let checksum = !fold(addresses + sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let room = mtu.checked_sub(ip.len())? & !7;
    let pieces = message.chunks(room.max(8));
    let last = pieces.len() - 1;
    for (n, piece) in pieces.enumerate() {
        let (offset, more) = (n * room.max(8), u16::from(n < last));
        let length = ETHERNET_HEADER + ip.len() + piece.len();
        queue.append(length, |into| {
            into[..6].copy_from_slice(&ethernet[6..12]);
            into[6..12].copy_from_slice(&ethernet[..6]);
            into[12..14].copy_from_slice(&ethernet[12..]);
            let (header, rest) = into[ETHERNET_HEADER..].split_at_mut(ip.len());
            header.copy_from_slice(&ip);
            rest[..piece.len()].copy_from_slice(piece);
            if v4 {
                let total = (IPV4 + piece.len()) as u16;
                header[2..4].copy_from_slice(&total.to_be_bytes());
                let place = (offset / 8) as u16 | more << 13;
                header[6..8].copy_from_slice(&place.to_be_bytes());
                write_checksum(header);
            } else {
                let total = (FRAGMENT_HEADER + piece.len()) as u16;
                header[4..6].copy_from_slice(&total.to_be_bytes());
                let place = offset as u16 | more;
                header[IPV6 + 2..IPV6 + 4].copy_from_slice(&place.to_be_bytes());
            }
            ((), length)
        });
    }
    Some(())
}

/// Writes the checksum of an IPv4 header.
fn write_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let checksum = !fold(sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests;
