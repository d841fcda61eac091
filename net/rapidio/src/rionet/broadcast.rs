//! A broadcast to more peers than go out at once: a copy of it, and who has it already.

use super::MOST;
use super::peers::Peers;
use alloc::boxed::Box;
use drivers::hal::Packet;
use drivers::rapidio::Destination;

/// Peers that a broadcast goes to at once. A mailbox of the Tsi721 holds 127 messages.
pub const AT_ONCE: usize = 64;

/// A broadcast that goes out in parts, in the order of ids.
pub struct Broadcast {
    bytes: Box<[u8; MOST]>,
    len: usize,
    /// The id from which on nobody has it; None once all have.
    next: Option<Destination>,
}

impl Broadcast {
    /// None.
    pub fn new() -> Self {
        Broadcast { bytes: Box::new([0; MOST]), len: 0, next: None }
    }

    /// Copies a packet of at most [`MOST`] bytes, which all are to have; false if it is longer.
    pub fn begin(&mut self, packet: &Packet<'_>) -> bool {
        self.len = packet.len();
        let Some(bytes) = self.bytes.get_mut(..self.len) else { return false };
        let (header, rest) = bytes.split_at_mut(packet.header.len());
        header.copy_from_slice(packet.header);
        let (mut payload, trailer) = rest.split_at_mut(rest.len() - packet.trailer.len());
        trailer.copy_from_slice(packet.trailer);
        for window in packet.payload {
            let part;
            (part, payload) = payload.split_at_mut(window.len());
            if window.read(0, part).is_err() {
                return false;
            }
        }
        self.next = Some(0);
        true
    }

    /// Whether there are some who have not got it.
    pub fn is_under_way(&self) -> bool {
        self.next.is_some()
    }

    /// Who is to have it next, and what. Nobody is left if None.
    pub fn next(&mut self, peers: &Peers) -> Option<(Destination, &[u8])> {
        let id = self.next.and_then(|from| peers.active_from(from));
        if id.is_none() {
            self.next = None;
        }
        Some((id?, self.bytes.get(..self.len)?))
    }

    /// That one has it.
    pub fn was_sent(&mut self, to: Destination) {
        self.next = to.checked_add(1);
    }
}
