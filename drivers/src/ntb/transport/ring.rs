//! Transmit and receive rings in the memory of both windows. Values of the peer are checked: an index beyond the ring,
//! or a length beyond an entry, is a violation by the peer.

use super::protocol::{self, CONSUMED, DONE, ENTRY, FLAGS, LENGTH, LINK_DOWN, NUMBER};
use crate::dma::Dma;
use crate::hal::{Packet, Window};
use core::sync::atomic::{Ordering, fence};

/// Offset of entry `index`.
fn start(index: u32) -> usize {
    index as usize * ENTRY
}

/// Transmit ring: entries in the peer's memory, through the window.
pub struct Sending {
    window: Window,
    /// DMA memory for headers and trailers of frames, one place for each entry.
    staging: Window,
    place: usize,
    entries: u32,
    next: u32,
    number: u32,
}

impl Sending {
    /// A ring in `window`; `staging` has a place of `place` bytes for each entry.
    pub fn new(window: Window, staging: Window, place: usize) -> Option<Self> {
        let entries = protocol::entries(window.len())?;
        let enough = staging.len() >= place * entries as usize;
        enough.then_some(Sending { window, staging, place, entries, next: 0, number: 0 })
    }

    /// Restarts at the first entry.
    pub fn begin(&mut self) {
        (self.next, self.number) = (0, 0);
    }

    /// Clears all entries.
    pub fn clear(&self, dma: &mut dyn Dma) {
        for index in 0..self.entries {
            self.put(dma, start(index) + FLAGS, 0);
        }
        dma.order();
    }

    fn put(&self, dma: &mut dyn Dma, at: usize, value: u32) {
        if let Some(to) = self.window.slice(at, 4) {
            dma.put32(&to, value);
        }
    }

    /// Number of free entries, by the peer's index of the last consumed entry. None if the index is invalid.
    pub fn free(&self, consumed: u32) -> Option<u32> {
        (consumed < self.entries).then(|| match consumed >= self.next {
            true => consumed - self.next,
            false => self.entries + consumed - self.next,
        })
    }

    /// Writes a frame of at most [`protocol::NUMBER`] bytes, whose header and trailer fit a place, into the next entry.
    pub fn write(&mut self, dma: &mut dyn Dma, packet: &Packet<'_>) {
        let mut at = start(self.next);
        self.stage(dma, at, 0, packet.header);
        at += packet.header.len();
        for from in packet.payload {
            if let Some(to) = self.window.slice(at, from.len()) {
                dma.submit(&to, from);
            }
            at += from.len();
        }
        self.stage(dma, at, packet.header.len(), packet.trailer);
        self.finish(dma, packet.len() as u32, 0);
    }

    /// Copies bytes to the entry's place in the staging memory, at `offset`, and submits them.
    fn stage(&self, dma: &mut dyn Dma, at: usize, offset: usize, bytes: &[u8]) {
        let place = self.place * self.next as usize + offset;
        let (from, to) =
            (self.staging.slice(place, bytes.len()), self.window.slice(at, bytes.len()));
        if let (Some(from), Some(to)) = (from, to)
            && from.write(0, bytes).is_ok()
        {
            dma.submit(&to, &from);
        }
    }

    /// Writes an entry that reports link down.
    pub fn write_link_down(&mut self, dma: &mut dyn Dma) {
        self.finish(dma, 0, LINK_DOWN);
    }

    fn finish(&mut self, dma: &mut dyn Dma, length: u32, flags: u32) {
        let at = start(self.next);
        self.put(dma, at + LENGTH, length);
        self.put(dma, at + NUMBER, self.number);
        dma.order();
        self.put(dma, at + FLAGS, flags | DONE);
        self.next = (self.next + 1) % self.entries;
        self.number = self.number.wrapping_add(1);
    }

    /// Reports the index of the last consumed entry to the peer.
    pub fn write_consumed(&self, dma: &mut dyn Dma, index: u32) {
        dma.order();
        self.put(dma, self.window.len() - CONSUMED, index);
    }
}

/// Content of the next entry of the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The entry was not written yet.
    Nothing,
    /// A frame with this number of bytes.
    Frame(usize),
    /// The peer takes the queue down.
    LinkDown,
    /// The entry is invalid.
    Invalid,
}

/// Receive ring: entries in this side's exposed memory, which the peer may write at any time.
pub struct Receiving {
    memory: Window,
    entries: u32,
    next: u32,
    number: u32,
}

impl Receiving {
    /// A ring in `memory`, which has the size of the peer's window.
    pub fn new(memory: Window) -> Option<Self> {
        let entries = protocol::entries(memory.len())?;
        let receiving = Receiving { memory, entries, next: 0, number: 0 };
        for index in 0..entries {
            receiving.memory.store32(start(index) + FLAGS, 0);
        }
        Some(receiving)
    }

    /// Restarts at the first entry, with all entries of `sending` marked as consumed by the peer.
    pub fn begin(&mut self, sending: &Sending) {
        (self.next, self.number) = (0, 0);
        self.memory.store32(self.memory.len() - CONSUMED, sending.entries - 1);
    }

    /// The peer's index of the last consumed entry; not checked.
    pub fn consumed_by_peer(&self) -> u32 {
        self.memory.load32(self.memory.len() - CONSUMED)
    }

    /// Whether the peer has written the next entry.
    pub fn is_waiting(&self) -> bool {
        self.memory.load32(start(self.next) + FLAGS) & DONE != 0
    }

    /// Reads the header of the next entry.
    pub fn peek(&self) -> Received {
        let at = start(self.next);
        let flags = self.memory.load32(at + FLAGS);
        if flags & DONE == 0 {
            return Received::Nothing;
        }
        // The flags are read before the rest of the entry, which the peer writes before the flags.
        fence(Ordering::Acquire);
        if flags & LINK_DOWN != 0 {
            return Received::LinkDown;
        }
        let length = self.memory.load32(at + LENGTH) as usize;
        if self.memory.load32(at + NUMBER) != self.number || length > NUMBER {
            return Received::Invalid;
        }
        Received::Frame(length)
    }

    /// Copies the beginning of the next entry.
    pub fn copy(&self, into: &mut [u8]) {
        // The length was checked by `peek`.
        let _ = self.memory.read(start(self.next), into);
    }

    /// Releases the next entry, and returns its index.
    pub fn consume(&mut self) -> u32 {
        let index = self.next;
        self.memory.store32(start(index) + FLAGS, 0);
        self.next = (index + 1) % self.entries;
        self.number = self.number.wrapping_add(1);
        index
    }
}
