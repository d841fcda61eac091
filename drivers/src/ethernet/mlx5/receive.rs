//! The receive queue: a ring of buffers, each for a whole frame. The device does not change entries: length, key and
//! address are written once, and only the counter in the doorbell record changes.

use super::completions::{Completions, Done};
use super::error::Error;
use super::objects::PairObjects;
use crate::ethernet::OVERHEAD;
use crate::ethernet::receive_ring::{self, Next, ReceiveQueue, ReceiveRing, ReceiveState};
use crate::ethernet::rings::{RingMemory, cells};
use crate::hal::{Arena, Cells, Window};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Log2 of the bytes of an entry.
pub const LOG_STRIDE: u32 = 4;
/// Distance of doorbell records, which lie in separate cache lines.
const LINE: usize = 64;

/// A receive queue with its buffers.
pub type Receiver = ReceiveRing<Queue>;

/// Entries, completions, and the doorbell record.
pub struct Queue {
    ring: Window,
    /// Bytes of a buffer.
    stride: usize,
    entries: Cells<[AtomicU64; 2]>,
    record: Window,
    pub completions: Completions,
    running: bool,
}

// SAFETY: the device writes a completion when it returns a buffer. It is of the next buffer, which was posted: both are
// checked.
unsafe impl ReceiveQueue for Queue {
    const WRITES_EACH: bool = false;

    #[inline]
    fn stride(&self) -> usize {
        self.stride
    }

    #[inline]
    fn next(&mut self, state: &ReceiveState) -> Next {
        if !self.running || state.out_of_sync {
            return Next::Nothing;
        }
        match self.completions.take() {
            None => Next::Nothing,
            Some(Done::Received(counter, len))
                if counter == state.taken as u16 && state.has_posted() =>
            {
                Next::of_one(true, len as usize, state.longest)
            }
            Some(_) => Next::OutOfSync,
        }
    }

    #[inline]
    fn pending(&self, state: &ReceiveState) -> bool {
        self.running && !state.out_of_sync && self.completions.pending()
    }

    fn stop(&mut self) {
        self.running = false;
    }
}

impl Receiver {
    /// A queue for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory. Windows that are allocated
    /// are added to `taken`.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let entries = receive_ring::entries(arena, stride, LEAST_ENTRIES, MOST_ENTRIES);
        let mut memory = RingMemory { arena, taken };
        let count = entries.count() as usize;
        let ring = memory.alloc((count << LOG_STRIDE).max(4096))?;
        let completions = memory.alloc(Completions::bytes(entries.log2()).max(4096))?;
        let records = memory.alloc(4096)?;
        let part = |at| records.slice(at, 8).ok_or(Error::NoMemory { bytes: 8 });
        let queue = Queue {
            ring,
            stride,
            entries: cells(&ring, 0, count)?,
            record: part(0)?,
            completions: Completions::new(completions, part(LINE)?, entries.log2())?,
            running: false,
        };
        Ok(ReceiveRing::with(&mut memory, entries, longest, queue)?)
    }

    pub fn ring(&self) -> Window {
        self.queue.ring
    }

    pub fn record(&self) -> Window {
        self.queue.record
    }

    pub fn log(&self) -> u32 {
        self.state().entries.log2()
    }

    /// Initializes the ring, before any buffer is posted. `key` is the key for bus addresses.
    pub fn prepare(&mut self, key: u32) {
        self.stop();
        self.queue.record.fill(0);
        let first = (self.queue.stride as u64) << 32 | u64::from(key);
        for index in 0..self.state().entries.count() as usize {
            let words = [first, self.address(index)].map(u64::swap_bytes);
            self.queue.entries.store(index, words);
        }
    }

    /// Initializes the ring and the completion queue, before they are created in the device.
    pub fn lay_out(&mut self, key: u32) {
        self.prepare(key);
        self.queue.completions.clear();
    }

    /// Starts the queue, which the device has created with these numbers, and posts all buffers.
    pub fn begin(&mut self, objects: &PairObjects) {
        self.queue.completions.named(objects.receive_completions);
        self.queue.running = true;
        self.post_all(self.state().entries.count());
        let posted = self.report_posted();
        self.queue.notify(posted);
    }

    /// Notifies the device of returned buffers, and of completions taken, once there is a batch of them.
    #[inline]
    pub fn notify_batch(&mut self) {
        if let Some(posted) = self.batch() {
            self.queue.notify(posted);
        }
    }

    /// The position of the completion queue, if it has a gap. The same position twice means that the device is out of
    /// sync.
    pub fn stuck_at(&self) -> Option<u32> {
        let completions = &self.queue.completions;
        (self.queue.running && completions.has_gap()).then(|| completions.taken())
    }
}

impl Queue {
    /// Notifies the device. Completions first, so that the completion queue cannot overflow.
    fn notify(&mut self, posted: u32) {
        self.completions.tell();
        self.record.store32(0, (posted & 0xffff).swap_bytes());
    }
}
