//! A broadcast to more peers than a mailbox can hold at once: a copy of the frame, and the progress over the peers.

use super::MOST;
use super::peers::Peers;
use alloc::boxed::Box;
use drivers::hal::Packet;
use drivers::rapidio::Destination;

/// Maximum number of peers that get a broadcast at once. A mailbox of the Tsi721 holds 127 messages.
pub const AT_ONCE: usize = 64;

/// A broadcast that is sent in parts, in the order of ids.
pub struct Broadcast {
    bytes: Box<[u8; MOST]>,
    len: usize,
    /// Peers from this id on have not got it yet; None once all have.
    next: Option<Destination>,
}

impl Broadcast {
    /// No broadcast in progress.
    pub fn new() -> Self {
        Broadcast { bytes: Box::new([0; MOST]), len: 0, next: None }
    }

    /// Begins a broadcast: copies a packet of at most [`MOST`] bytes; false if it is longer.
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

    /// Whether peers may still wait for it.
    pub fn in_progress(&self) -> bool {
        self.next.is_some()
    }

    /// The next peer, and the frame. None if no peer is left.
    pub fn next(&mut self, peers: &Peers) -> Option<(Destination, &[u8])> {
        let id = self.next.and_then(|from| peers.active_from(from));
        if id.is_none() {
            self.next = None;
        }
        Some((id?, self.bytes.get(..self.len)?))
    }

    /// Notes that the frame was sent to peer `to`.
    pub fn was_sent(&mut self, to: Destination) {
        self.next = to.checked_add(1);
    }
}
