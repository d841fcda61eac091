//! The receive queue: a ring of buffers, each for a whole frame. Buffer `i` belongs to entry `i` for good, and the device
//! does not change entries: length, key and address are written once, and only the counter in the doorbell record moves.

use super::completions::{Completions, Done};
use super::error::Error;
use super::objects::Named;
use crate::ethernet::{ETHERNET, OVERHEAD};
use crate::hal::{Arena, Cells, Frame, FrameMemory, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Receive buffers take at most this share of the memory that is free.
const SHARE: usize = 8;
/// Bytes of an entry, as log2.
pub const LOG_STRIDE: u32 = 4;
/// Records lie on lines of their own.
const LINE: usize = 64;

/// What was completed next.
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
    /// Frames that were taken, buffers that came back in order, and how far the device was told; in all.
    taken: u32,
    back: u32,
    told: u32,
    running: bool,
    /// A completion was not of the next buffer, or said that the queue has failed: nothing is taken until a reset.
    pub is_lost: bool,
    /// Frames that the user of the port has, and buffers that came back before older ones.
    held: Box<[bool]>,
    early: Box<[bool]>,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// For packets of `mtu` bytes: an eighth of what is free in the arena.
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
        // SAFETY: just allocated. It goes back to the arena only when this is gone.
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
            back: 0,
            told: count as u32,
            running: false,
            is_lost: false,
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

    /// Nothing is received, and the device is told of no buffer, before [`Receiver::begin`].
    pub fn stop(&mut self) {
        (self.taken, self.back, self.told) = (0, 0, self.count);
        (self.running, self.is_lost) = (false, false);
        self.held.fill(false);
        self.early.fill(false);
    }

    /// Makes the ring ready, before the device is told of any buffer. `key` is that of bus addresses.
    pub fn prepare(&mut self, key: u32) {
        self.stop();
        self.record.fill(0);
        for index in 0..self.count as usize {
            let address = self.memory.bus_address(index * self.stride);
            let first = (self.stride as u64) << 32 | u64::from(key);
            self.entries.store(index, [first.swap_bytes(), address.swap_bytes()]);
        }
    }

    /// The same, and that of completions, before the device has them.
    pub fn lay_out(&mut self, key: u32) {
        self.prepare(key);
        self.completions.clear();
    }

    /// The device has the rings, and calls them so: it gets all buffers.
    pub fn begin(&mut self, named: &Named) {
        self.completions.named(named.receive_completions);
        self.running = true;
        self.tell();
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.count - 1)) as usize
    }

    /// Tells the device of buffers that it got back, and of completions that were taken, if they are worth it.
    #[inline(always)]
    pub fn tell_some(&mut self) {
        if self.back.wrapping_add(self.count).wrapping_sub(self.told) >= self.count / 8 {
            self.tell();
        }
    }

    /// Completions first: there is never one more than there is room for.
    fn tell(&mut self) {
        self.completions.tell();
        self.told = self.back.wrapping_add(self.count);
        self.record.store32(0, (self.told & 0xffff).swap_bytes());
    }

    /// The next completion.
    #[inline(always)]
    fn next(&mut self) -> Next {
        if !self.running || self.is_lost {
            return Next::Nothing;
        }
        let Some(done) = self.completions.take() else { return Next::Nothing };
        let index = self.index(self.taken);
        match done {
            Done::Received(counter, len)
                if counter == self.taken as u16
                    && self.taken.wrapping_sub(self.back) < self.count =>
            {
                self.taken = self.taken.wrapping_add(1);
                let len = len as usize;
                match (ETHERNET..=self.longest).contains(&len) {
                    true => Next::Frame(index, len),
                    false => Next::Bad(index),
                }
            }
            _ => {
                self.lose();
                Next::Nothing
            }
        }
    }

    #[cold]
    fn lose(&mut self) {
        self.errors += 1;
        self.is_lost = true;
    }

    /// A buffer comes back.
    #[inline(always)]
    fn give(&mut self, index: usize) {
        // Nobody has another: nothing waits for this one, nor it for another.
        match self.taken.wrapping_sub(self.back) == 1 {
            true => self.back = self.back.wrapping_add(1),
            false => self.give_in_order(index),
        }
    }

    #[inline(never)]
    fn give_in_order(&mut self, index: usize) {
        if index != self.index(self.back) {
            self.early[index] = true;
            return;
        }
        loop {
            self.back = self.back.wrapping_add(1);
            // One that came back early, and was waiting for this one.
            let index = self.index(self.back);
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
                    self.give(index);
                }
            }
        }
    }

    /// The bytes of a frame; none if the device was reset since it came.
    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (index, len) = (frame.buffer as usize, frame.len as usize);
        if !self.held.get(index).is_some_and(|&held| held) || len > self.longest {
            return &[];
        }
        // SAFETY: the user of the port holds the frame (as just seen): its buffer was taken from the device, and goes
        // back only through `recycle`, `stop` or `begin`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The device does not have the buffer for as long as the bytes are used.
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
            self.give(index);
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
                    // SAFETY: the device had this buffer and gave it back. It gets it again with `give` below, when
                    // `take` is done; until then it does not write there (the promise of `Platform`).
                    (index, take(unsafe { self.frame(index, len) }))
                }
            };
            self.give(index);
            if !go_on {
                break;
            }
        }
        self.frames += taken as u64;
        self.bytes += bytes as u64;
        taken
    }

    /// Whether there is something that was not taken.
    #[inline]
    pub fn pending(&self) -> bool {
        self.running && !self.is_lost && self.completions.pending()
    }

    /// How far completions were taken, if they should have been further. The same twice is a device that lost its way.
    pub fn waits_at(&self) -> Option<u32> {
        (self.running && self.completions.has_gap()).then(|| self.completions.taken())
    }
}
