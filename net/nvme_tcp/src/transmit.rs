//! PDUs to send. Their data stays in its windows until there is room for its bytes.

use crate::wire::{
    COMMON, Common, DDGST, DIGEST, Fatal, HDGST, Kind, SHORT, TERM_DATA, data_offset,
};
use alloc::collections::VecDeque;
use drivers::hal::{Crc32c, Window};

/// Longest PDU without data: a TermReq with the offending header.
const LONGEST: usize = SHORT + TERM_DATA;

/// A PDU whose header takes at most `H` bytes with its digest.
#[derive(Clone, Copy, Debug)]
struct Pdu<const H: usize> {
    header: [u8; H],
    header_len: u8,
    /// Zeroes between header and data.
    padding: u8,
    has_data_digest: bool,
    data: Window,
    /// Reported when all of the data is copied.
    tag: Option<u16>,
}

impl<const H: usize> Pdu<H> {
    fn data_start(&self) -> usize {
        usize::from(self.header_len) + usize::from(self.padding)
    }
}

/// A PDU of a connection's beginning or end.
#[derive(Clone, Copy, Debug)]
struct Plain {
    bytes: [u8; LONGEST],
    len: usize,
}

/// The PDUs to send, in order.
#[derive(Debug)]
pub(crate) struct Transmit<const H: usize> {
    queue: VecDeque<Pdu<H>>,
    /// Sent behind the queue.
    plain: Option<Plain>,
    /// Bytes of the first PDU that were sent.
    at: usize,
    crc: Crc32c,
    fresh: Crc32c,
    /// Digests of headers, and of data.
    pub header_digest: bool,
    pub data_digest: bool,
    /// Alignment that the peer asks for (see [`data_offset`]).
    pub alignment: u8,
    /// Tags of PDUs whose data is copied.
    sent: VecDeque<u16>,
    closed: bool,
}

impl<const H: usize> Transmit<H> {
    pub fn new() -> Self {
        let fresh = Crc32c::new();
        Transmit {
            queue: VecDeque::new(),
            plain: None,
            at: 0,
            crc: fresh,
            fresh,
            header_digest: false,
            data_digest: false,
            alignment: 0,
            sent: VecDeque::new(),
            closed: false,
        }
    }

    /// Allocates for that many PDUs.
    pub fn reserve(&mut self, pdus: usize) {
        self.queue.reserve(pdus.saturating_sub(self.queue.len()));
        self.sent.reserve(pdus);
    }

    /// A CRC over no bytes.
    pub fn fresh_crc(&self) -> Crc32c {
        self.fresh
    }

    /// Queues a PDU. `rest` is its header behind the common header. The caller reserved a place for it.
    pub fn push(&mut self, kind: Kind, flags: u8, rest: &[u8], data: Window, tag: Option<u16>) {
        if self.closed {
            self.sent.extend(tag);
            return;
        }
        let plain_header = kind.header_len();
        let data_digest = self.data_digest && !data.is_empty();
        let header_len = plain_header + if self.header_digest { DIGEST } else { 0 };
        let alignment = if kind == Kind::CapsuleCmd { 0 } else { self.alignment };
        let start = match data.is_empty() {
            true => header_len,
            false => data_offset(plain_header, self.header_digest, alignment),
        };
        let plen = start + data.len() + if data_digest { DIGEST } else { 0 };
        let mut flags = flags;
        flags |= if self.header_digest { HDGST } else { 0 };
        flags |= if data_digest { DDGST } else { 0 };
        let pdo = if data.is_empty() { 0 } else { start as u8 };
        let (hlen, plen) = (plain_header as u8, plen as u32);
        let common = Common { kind: kind as u8, flags, hlen, pdo, plen };
        let mut header = [0; H];
        let Some((first, behind)) = header.split_at_mut_checked(COMMON) else { return };
        first.copy_from_slice(&common.emit());
        if let Some(place) = behind.get_mut(..rest.len()) {
            place.copy_from_slice(rest);
        }
        if self.header_digest
            && let Some((covered, digest)) = header.split_at_mut_checked(plain_header)
            && let Some(digest) = digest.first_chunk_mut()
        {
            let mut crc = self.fresh;
            crc.update(covered);
            *digest = crc.finish().to_le_bytes();
        }
        self.queue.push_back(Pdu {
            header,
            header_len: header_len as u8,
            padding: (start - header_len) as u8,
            has_data_digest: data_digest,
            data,
            tag,
        });
    }

    /// Queues a PDU of the connection's beginning.
    pub fn push_plain(&mut self, pdu: &[u8]) {
        let mut bytes = [0; LONGEST];
        let len = pdu.len().min(LONGEST);
        bytes[..len].copy_from_slice(&pdu[..len]);
        self.plain = Some(Plain { bytes, len });
    }

    /// Queues a TermReq of type `kind`, with the offending header, in place of all PDUs that were not begun.
    pub fn terminate(&mut self, kind: Kind, fatal: Fatal, offending: &[u8]) {
        if self.closed {
            return;
        }
        self.close();
        let copy = offending.get(..TERM_DATA).unwrap_or(offending);
        let plen = (SHORT + copy.len()) as u32;
        let common = Common { kind: kind as u8, flags: 0, hlen: SHORT as u8, pdo: 0, plen };
        let mut pdu = [0; LONGEST];
        pdu[..COMMON].copy_from_slice(&common.emit());
        pdu[8..10].copy_from_slice(&(fatal.status as u16).to_le_bytes());
        pdu[10..14].copy_from_slice(&fatal.info.to_le_bytes());
        pdu[SHORT..SHORT + copy.len()].copy_from_slice(copy);
        self.push_plain(&pdu[..SHORT + copy.len()]);
    }

    /// Drops all PDUs but one that is partly sent, and all that follow.
    pub fn close(&mut self) {
        self.closed = true;
        let keep = usize::from(self.at > 0 && !self.queue.is_empty());
        let dropped = self.queue.drain(keep..).filter_map(|pdu| pdu.tag);
        self.sent.extend(dropped);
    }

    /// Number of PDUs that are not sent.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.plain.is_none()
    }

    /// The tag of the next PDU whose data is copied or dropped.
    pub fn next_sent(&mut self) -> Option<u16> {
        self.sent.pop_front()
    }

    /// Number of bytes to send, at most `limit`.
    pub fn pending(&self, limit: usize) -> usize {
        let plain = self.plain.as_ref().map_or(0, |plain| plain.len);
        let mut bytes = 0;
        for pdu in &self.queue {
            let digest = if pdu.has_data_digest { DIGEST } else { 0 };
            bytes += pdu.data_start() + pdu.data.len() + digest;
            if bytes.saturating_sub(self.at) >= limit {
                return limit;
            }
        }
        (bytes + plain).saturating_sub(self.at).min(limit)
    }

    /// Fills `into` with bytes to send. Returns their number.
    pub fn fill(&mut self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(room) = into.get_mut(filled..).filter(|room| !room.is_empty()) {
            let written = match self.queue.front() {
                Some(pdu) => {
                    let pdu = *pdu;
                    self.fill_from(&pdu, room)
                }
                None => self.fill_plain(room),
            };
            if written == 0 && self.is_empty() {
                break;
            }
            filled += written;
        }
        filled
    }

    /// Copies bytes of the first PDU, and removes it at its end.
    fn fill_from(&mut self, pdu: &Pdu<H>, room: &mut [u8]) -> usize {
        let start = pdu.data_start();
        let end = start + pdu.data.len();
        let at = self.at;
        let written = if at < start {
            // Behind the header's bytes the array has zeroes only up to `H`.
            let n = room.len().min(start - at);
            let header = pdu.header.get(..usize::from(pdu.header_len)).unwrap_or_default();
            for (i, byte) in room[..n].iter_mut().enumerate() {
                *byte = header.get(at + i).copied().unwrap_or(0);
            }
            n
        } else if at < end {
            let n = room.len().min(end - at);
            let place = &mut room[..n];
            if pdu.data.read(at - start, place).is_err() {
                place.fill(0);
            }
            if pdu.has_data_digest {
                if at == start {
                    self.crc = self.fresh;
                }
                self.crc.update(place);
            }
            n
        } else if pdu.has_data_digest {
            let digest = self.crc.finish().to_le_bytes();
            let left = digest.get(at - end..).unwrap_or_default();
            let n = room.len().min(left.len());
            room[..n].copy_from_slice(&left[..n]);
            n
        } else {
            0
        };
        self.at += written;
        let digest = if pdu.has_data_digest { DIGEST } else { 0 };
        if self.at >= end + digest {
            self.at = 0;
            self.sent.extend(pdu.tag);
            self.queue.pop_front();
        }
        written
    }

    fn fill_plain(&mut self, room: &mut [u8]) -> usize {
        let Some(plain) = &self.plain else { return 0 };
        let left = plain.bytes.get(self.at..plain.len).unwrap_or_default();
        let n = room.len().min(left.len());
        room[..n].copy_from_slice(&left[..n]);
        self.at += n;
        if self.at >= plain.len {
            self.at = 0;
            self.plain = None;
        }
        n
    }
}
