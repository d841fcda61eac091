//! The receive queue: a ring of buffers, each for a whole frame. Buffer `i` permanently belongs to entry `i`, and the
//! device does not change entries: length, key and address are written once, and only the counter in the doorbell
//! record changes.

use super::completions::{Completions, Done};
use super::error::Error;
use super::objects::PairObjects;
use crate::ethernet::{ETHERNET, OVERHEAD};
use crate::hal::{Arena, Cells, Frame, FrameMemory, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;
/// Log2 of the bytes of an entry.
pub const LOG_STRIDE: u32 = 4;
/// Distance of doorbell records, which lie in separate cache lines.
const LINE: usize = 64;

/// The next completion.
enum Next {
    Nothing,
    Frame(usize, usize),
    Bad(usize),
}

pub struct Receiver {
    ring: Window,
    entries: Cells<[AtomicU64; 2]>,
    record: Window,
    pub completions: Completions,
    memory: FrameMemory,
    /// Bytes of a buffer.
    stride: usize,
    longest: usize,
    count: u32,
    /// Total of frames taken.
    taken: u32,
    /// Total of buffers that the user has returned, in order.
    returned: u32,
    /// Total of buffers posted, as last reported to the device.
    notified: u32,
    running: bool,
    /// A completion was not of the next buffer, or reported an error: nothing is received until a reset.
    pub out_of_sync: bool,
    /// By index: the user holds the buffer.
    held: Box<[bool]>,
    /// By index: the user has returned the buffer before older ones.
    early: Box<[bool]>,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// A queue for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory. Windows that are allocated
    /// are added to `taken`.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let affordable = (arena.available() / SHARE / stride).clamp(LEAST_ENTRIES, MOST_ENTRIES);
        let log = affordable.ilog2();
        let count = 1usize << log;
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let ring = alloc((count << LOG_STRIDE).max(4096))?;
        let bytes = ring.len();
        let completions = alloc(Completions::bytes(log).max(4096))?;
        let records = alloc(4096)?;
        // SAFETY: just allocated. It is freed only after the receiver was dropped.
        let memory = unsafe { FrameMemory::new(alloc(count * stride)?) };
        let part = |at| records.slice(at, 8).ok_or(Error::NoMemory { bytes: 8 });
        Ok(Receiver {
            ring,
            entries: Cells::new(&ring, 0, count).ok_or(Error::NoMemory { bytes })?,
            record: part(0)?,
            completions: Completions::new(completions, part(LINE)?, log)?,
            memory,
            stride,
            longest,
            count: count as u32,
            taken: 0,
            returned: 0,
            notified: count as u32,
            running: false,
            out_of_sync: false,
            held: alloc::vec![false; count].into(),
            early: alloc::vec![false; count].into(),
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    pub fn ring(&self) -> Window {
        self.ring
    }

    pub fn record(&self) -> Window {
        self.record
    }

    pub fn log(&self) -> u32 {
        self.count.ilog2()
    }

    /// Resets the queue's state. Nothing is received or posted before [`Receiver::begin`].
    pub fn stop(&mut self) {
        (self.taken, self.returned, self.notified) = (0, 0, self.count);
        (self.running, self.out_of_sync) = (false, false);
        self.held.fill(false);
        self.early.fill(false);
    }

    /// Initializes the ring, before any buffer is posted. `key` is the key for bus addresses.
    pub fn prepare(&mut self, key: u32) {
        self.stop();
        self.record.fill(0);
        for index in 0..self.count as usize {
            let address = self.memory.bus_address(index * self.stride);
            let first = (self.stride as u64) << 32 | u64::from(key);
            self.entries.store(index, [first.swap_bytes(), address.swap_bytes()]);
        }
    }

    /// Initializes the ring and the completion queue, before they are created in the device.
    pub fn lay_out(&mut self, key: u32) {
        self.prepare(key);
        self.completions.clear();
    }

    /// Starts the queue, which the device has created with these numbers, and posts all buffers.
    pub fn begin(&mut self, objects: &PairObjects) {
        self.completions.named(objects.receive_completions);
        self.running = true;
        self.notify();
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.count - 1)) as usize
    }

    /// Notifies the device of returned buffers, and of completions taken, once there is a batch of them.
    #[inline(always)]
    pub fn notify_batch(&mut self) {
        if self.returned.wrapping_add(self.count).wrapping_sub(self.notified) >= self.count / 8 {
            self.notify();
        }
    }

    /// Notifies the device. Completions first, so that the completion queue cannot overflow.
    fn notify(&mut self) {
        self.completions.tell();
        self.notified = self.returned.wrapping_add(self.count);
        self.record.store32(0, (self.notified & 0xffff).swap_bytes());
    }

    /// Takes the next completion.
    #[inline(always)]
    fn next(&mut self) -> Next {
        if !self.running || self.out_of_sync {
            return Next::Nothing;
        }
        let Some(done) = self.completions.take() else { return Next::Nothing };
        let index = self.index(self.taken);
        match done {
            Done::Received(counter, len)
                if counter == self.taken as u16
                    && self.taken.wrapping_sub(self.returned) < self.count =>
            {
                self.taken = self.taken.wrapping_add(1);
                let len = len as usize;
                match (ETHERNET..=self.longest).contains(&len) {
                    true => Next::Frame(index, len),
                    false => Next::Bad(index),
                }
            }
            _ => {
                self.lose_sync();
                Next::Nothing
            }
        }
    }

    #[cold]
    fn lose_sync(&mut self) {
        self.errors += 1;
        self.out_of_sync = true;
    }

    /// Returns a buffer to the device.
    #[inline(always)]
    fn return_buffer(&mut self, index: usize) {
        // The only buffer in use: the order does not matter.
        match self.taken.wrapping_sub(self.returned) == 1 {
            true => self.returned = self.returned.wrapping_add(1),
            false => self.return_in_order(index),
        }
    }

    #[inline(never)]
    fn return_in_order(&mut self, index: usize) {
        if index != self.index(self.returned) {
            self.early[index] = true;
            return;
        }
        loop {
            self.returned = self.returned.wrapping_add(1);
            // A buffer that was returned early, and has waited for this one.
            let index = self.index(self.returned);
            if !core::mem::take(&mut self.early[index]) {
                return;
            }
        }
    }

    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            match self.next() {
                Next::Nothing => return None,
                Next::Frame(index, len) => {
                    self.held[index] = true;
                    self.frames += 1;
                    self.bytes += len as u64;
                    return Some(Frame { buffer: index as u32, len: len as u32 });
                }
                Next::Bad(index) => {
                    self.errors += 1;
                    self.return_buffer(index);
                }
            }
        }
    }

    /// The bytes of a frame; none if the device was reset since it was received.
    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (index, len) = (frame.buffer as usize, frame.len as usize);
        if !self.held.get(index).is_some_and(|&held| held) || len > self.longest {
            return &[];
        }
        // SAFETY: the user of the port holds the frame (just checked): its buffer was taken from the device, and is
        // returned only by `recycle`, `stop` or `begin`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The device does not own the buffer while the bytes are used.
    #[inline(always)]
    unsafe fn frame(&self, index: usize, len: usize) -> &[u8] {
        debug_assert!(index < self.count as usize && len <= self.stride);
        // SAFETY: the caller's promise.
        unsafe { self.memory.bytes(index * self.stride, len) }
    }

    #[inline(always)]
    pub fn recycle(&mut self, frame: Frame) {
        let index = frame.buffer as usize;
        if self.held.get_mut(index).is_some_and(core::mem::take) {
            self.return_buffer(index);
        }
    }

    /// See `Port::receive_each`.
    pub fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < most {
            let (index, go_on) = match self.next() {
                Next::Nothing => break,
                Next::Bad(index) => {
                    self.errors += 1;
                    (index, true)
                }
                Next::Frame(index, len) => {
                    taken += 1;
                    bytes += len;
                    // SAFETY: the device has returned this buffer. It gets it again by `return_buffer` below, after
                    // `take`; until then it does not write there (the promise of `Platform`).
                    (index, take(unsafe { self.frame(index, len) }))
                }
            };
            self.return_buffer(index);
            if !go_on {
                break;
            }
        }
        self.frames += taken as u64;
        self.bytes += bytes as u64;
        taken
    }

    /// Whether completions wait.
    #[inline]
    pub fn pending(&self) -> bool {
        self.running && !self.out_of_sync && self.completions.pending()
    }

    /// The position of the completion queue, if it has a gap. The same position twice means that the device is out of
    /// sync.
    pub fn stuck_at(&self) -> Option<u32> {
        (self.running && self.completions.has_gap()).then(|| self.completions.taken())
    }
}
