//! Posted send requests.

use crate::pool::Block;
use crate::psn::Psn;
use crate::sges::Sges;
use crate::transmit::{MAX_INLINE, TxBuffer};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use drivers::hal::Window;
use verbs::{Payload, RemoteAddress, SendWith, VerbsError};

/// Longest inline payload stored within a work request: the length of RTRS's answers.
const SHORT: usize = 8;

/// Any payload.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    /// By reference.
    Windows(Sges),
    /// Copied at posting.
    Inline([u8; MAX_INLINE], u8),
}

impl Stored {
    /// Stores a payload; `Invalid` if it is too large.
    #[inline]
    pub fn new(payload: &Payload<'_>) -> Result<Self, VerbsError> {
        match payload {
            Payload::Windows(windows) => Ok(Stored::Windows(Sges::new(windows)?)),
            Payload::Inline(from) => {
                let mut bytes = [0; MAX_INLINE];
                bytes.get_mut(..from.len()).ok_or(VerbsError::Invalid)?.copy_from_slice(from);
                Ok(Stored::Inline(bytes, from.len() as u8))
            }
        }
    }

    /// Sets `length` bytes from `offset` as payload of a packet; all bytes if they are inline.
    #[inline(never)]
    pub fn put(&self, offset: usize, length: usize, tx: &mut TxBuffer) {
        match self {
            Stored::Windows(sges) => tx.refer_part(sges, offset, length),
            Stored::Inline(bytes, len) => {
                tx.copy(bytes.get(..usize::from(*len)).unwrap_or_default());
            }
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Stored::Windows(sges) => sges.len(),
            Stored::Inline(_, len) => *len as usize,
        }
    }
}

/// Payload of a work request in a queue. Most are small; room for large ones in each would make queues several times as
/// long.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// One window.
    Window(Window),
    /// A few bytes, the first as the least significant one, and their number.
    Short(u64, u8),
    /// Number of a large payload, counted from the first one stored.
    Large(u32),
}

/// Up to `SHORT` bytes as a number.
// Inlined with the rest of a SEND: 2,787 instructions with its ACK instead of 3,010 (`bench roce`).
#[inline(always)]
fn short(from: &[u8]) -> u64 {
    match from.as_array() {
        Some(all) => u64::from_le_bytes(*all),
        None => from.iter().rev().fold(0, |above, byte| above << 8 | u64::from(*byte)),
    }
}

/// The large payloads of a queue, in the order of posting, which is that of completion.
#[derive(Debug)]
pub struct LargePayloads {
    queue: VecDeque<Stored>,
    limit: usize,
    /// Number of payloads removed so far.
    gone: u32,
}

impl LargePayloads {
    /// For a queue of `requests` whose payloads are of up to `windows` windows or `inline` bytes.
    pub fn new(requests: usize, windows: usize, inline: usize) -> Self {
        let limit = if windows > 1 || inline > SHORT { requests } else { 0 };
        LargePayloads { queue: VecDeque::with_capacity(limit), limit, gone: 0 }
    }

    /// Stores a payload; `Invalid` if it exceeds the sizes given to `new`.
    // Inlined with the rest of a SEND: 2,787 instructions with its ACK instead of 3,010 (`bench roce`).
    #[inline(always)]
    pub fn store(&mut self, payload: &Payload<'_>) -> Result<Load, VerbsError> {
        Ok(match payload {
            Payload::Windows([]) => Load::Window(Window::empty()),
            Payload::Windows([window]) => Load::Window(*window),
            Payload::Inline(from) if from.len() <= SHORT => {
                Load::Short(short(from), from.len() as u8)
            }
            _ => Load::Large(self.store_large(payload)?),
        })
    }

    /// Stores a large payload; returns its number.
    #[inline(never)]
    fn store_large(&mut self, payload: &Payload<'_>) -> Result<u32, VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::Invalid);
        }
        self.queue.push_back(Stored::new(payload)?);
        Ok(self.gone.wrapping_add(self.queue.len() as u32 - 1))
    }

    fn get(&self, number: u32) -> Option<&Stored> {
        self.queue.get(number.wrapping_sub(self.gone) as usize)
    }

    /// Sets `length` bytes of a payload from `offset` as payload of a packet.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    pub fn put(&self, load: &Load, offset: usize, length: usize, tx: &mut TxBuffer) {
        match load {
            Load::Window(window) => tx.refer(window, offset, length),
            // An inline payload is shorter than any path MTU, so it is in one packet.
            Load::Short(bytes, len) => tx.copy_short(bytes.to_le_bytes(), (*len).into()),
            Load::Large(number) => {
                if let Some(stored) = self.get(*number) {
                    stored.put(offset, length, tx);
                }
            }
        }
    }

    /// Copies `bytes` into the windows of a payload, from `offset` on; false if they do not fit.
    #[inline]
    pub fn write(&self, load: &Load, offset: usize, bytes: &[u8]) -> bool {
        match load {
            Load::Window(window) => window.write(offset, bytes).is_ok(),
            Load::Short(..) => false,
            Load::Large(number) => match self.get(*number) {
                Some(Stored::Windows(sges)) => sges.write(offset, bytes).is_ok(),
                _ => false,
            },
        }
    }

    /// Releases the payload of the oldest request.
    #[inline]
    pub fn release(&mut self, load: &Load) {
        if let Load::Large(_) = load {
            self.queue.pop_front();
            self.gone = self.gone.wrapping_add(1);
        }
    }
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Send(SendWith),
    Write(RemoteAddress, Option<u32>),
    Read(RemoteAddress),
    CompareSwap { at: RemoteAddress, compare: u64, swap: u64 },
    FetchAdd { at: RemoteAddress, add: u64 },
}

impl Operation {
    /// Whether only an answer other than an ACK completes it.
    pub const fn wants_answer(&self) -> bool {
        !matches!(self, Operation::Send(_) | Operation::Write(..))
    }
}

/// A posted send request.
#[derive(Debug)]
pub struct Work {
    pub id: u64,
    pub operation: Operation,
    pub payload: Load,
    pub length: u32,
    /// PSN of its first packet.
    pub first: Psn,
    /// Number of its PSNs.
    pub packets: u32,
    pub signaled: bool,
    /// Whether the user waits for its completion.
    pub awaited: bool,
    pub solicited: bool,
    /// Memory on demand that returns to the pool when it completes.
    pub block: Option<Block>,
}

impl Work {
    /// Content of a place without a request.
    const EMPTY: Work = Work {
        id: 0,
        operation: Operation::Send(SendWith::Nothing),
        payload: Load::Short(0, 0),
        length: 0,
        first: Psn::new(0),
        packets: 0,
        signaled: false,
        awaited: false,
        solicited: false,
        block: None,
    };

    /// Whether its success needs no action: no completion, and nothing to release.
    #[inline]
    pub fn is_plain(&self) -> bool {
        !self.signaled && self.block.is_none() && !matches!(self.payload, Load::Large(_))
    }
}

/// The posted requests of a queue pair, oldest first, in places that are allocated once. A request is written where it
/// stays.
#[derive(Debug)]
pub struct WorkQueue {
    places: Box<[Work]>,
    /// Place of the oldest request.
    first: usize,
    len: usize,
}

impl WorkQueue {
    /// A queue with room for `limit` requests.
    pub fn new(limit: usize) -> Self {
        WorkQueue { places: (0..limit).map(|_| Work::EMPTY).collect(), first: 0, len: 0 }
    }

    /// Number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The place of the request with this index, at most the number of places.
    #[inline]
    fn place(&self, index: usize) -> usize {
        let place = self.first + index;
        if place < self.places.len() { place } else { place - self.places.len() }
    }

    /// The request with this index; the oldest has index 0.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&Work> {
        if index >= self.len {
            return None;
        }
        self.places.get(self.place(index))
    }

    /// The oldest request.
    #[inline]
    pub fn front(&self) -> Option<&Work> {
        self.get(0)
    }

    /// The oldest request.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut Work> {
        if self.is_empty() { None } else { self.places.get_mut(self.first) }
    }

    /// The newest request.
    #[inline]
    pub fn back(&self) -> Option<&Work> {
        self.get(self.len.checked_sub(1)?)
    }

    /// Appends a request. False if there is no room.
    // Inlined, so that the request is not assembled elsewhere and copied.
    #[inline(always)]
    pub fn push_back(&mut self, work: Work) -> bool {
        if self.len >= self.places.len() {
            return false;
        }
        let place = self.place(self.len);
        let Some(free) = self.places.get_mut(place) else { return false };
        *free = work;
        self.len += 1;
        true
    }

    /// Removes the oldest request, whose memory on demand has been taken.
    #[inline]
    pub fn drop_front(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.first = self.place(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn work(id: u64) -> Work {
        Work { id, ..Work::EMPTY }
    }

    /// Against a `VecDeque`, at every fill and around the wrap.
    #[test]
    fn queue_returns_requests_in_the_order_of_posting() {
        for limit in [0, 1, 2, 5, 8] {
            let (mut queue, mut model) = (WorkQueue::new(limit), VecDeque::new());
            for step in 0..400u64 {
                let full = model.len() == limit;
                if step % 7 < 4 {
                    assert_eq!(queue.push_back(work(step)), !full);
                    if !full {
                        model.push_back(step);
                    }
                } else {
                    queue.drop_front();
                    model.pop_front();
                }
                let ids: Vec<u64> = (0..).map_while(|n| queue.get(n)).map(|work| work.id).collect();
                assert_eq!(model, ids);
                assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                assert_eq!(queue.front().map(|work| work.id), model.front().copied());
                assert_eq!(queue.front_mut().map(|work| work.id), model.front().copied());
                assert_eq!(queue.back().map(|work| work.id), model.back().copied());
            }
        }
    }

    #[test]
    fn requests_stay_small() {
        assert!(size_of::<Work>() <= 112, "{} bytes", size_of::<Work>());
    }
}
