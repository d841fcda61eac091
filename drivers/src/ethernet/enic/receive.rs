//! A receive queue: a ring of buffers, each for a whole frame, and a ring of completions in the same order. Buffer `i`
//! permanently belongs to descriptor `i`, and the device does not change descriptors: they are written once.
//!
//! A descriptor: bus address; length (14 bits), type 0 (first of a frame). A completion: descriptor (12 bits), bit 14
//! end and bit 15 begin of a frame, bits 16 to 25 the queue; in the second half length (14 bits), bit 14 damaged or cut
//! off, bits 56 to 59 type 3, bit 63 the colour, which changes with each lap (Linux: `cq_enet_desc.h`).

use super::error::Error;
use super::registers::{self, RECEIVE_ERROR, Ring};
use crate::ethernet::{ETHERNET, OVERHEAD};
use crate::hal::{Arena, Cells, Frame, FrameMemory, Registers, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;
const DESCRIPTOR: usize = 16;

/// Completion: begin and end of a frame.
const WHOLE: u64 = 3 << 14;
/// Completion: descriptor and queue.
const NAME: u64 = 0x3ff_0fff;
const DAMAGED: u64 = 1 << 14;
const TYPE: u64 = 0xf << 56;
const RECEIVED: u64 = 3 << 56;
const COLOUR: u64 = 1 << 63;

/// The next completion.
enum Next {
    Nothing,
    Frame(usize),
    Bad,
}

pub struct Receiver {
    /// Number of the queue.
    queue: usize,
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    completions: Cells<AtomicU64>,
    memory: FrameMemory,
    /// Bytes of a buffer.
    stride: usize,
    longest: usize,
    entries: u32,
    log2: u32,
    /// Total of completions taken.
    taken: u32,
    /// Total of buffers that the user has returned, in order.
    returned: u32,
    /// Total of descriptors that the device may use.
    posted: u32,
    /// `posted` as last reported to the device.
    notified: u32,
    /// A completion was not of the next buffer: nothing is received until a reset.
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
    /// Queue number `queue`, for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory, but the
    /// device takes at most `most`. Windows that are allocated are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        queue: usize,
        mtu: u16,
        most: u32,
        taken: &mut Vec<Window>,
    ) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let affordable = (arena.available() / SHARE / stride).max(LEAST_ENTRIES);
        let most = (most as usize).clamp(LEAST_ENTRIES, MOST_ENTRIES);
        let entries = 1usize << affordable.min(most).ilog2();
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let bytes = 2 * entries * DESCRIPTOR;
        let ring = alloc(bytes)?;
        // SAFETY: just allocated. It is freed only after the receiver was dropped.
        let memory = unsafe { FrameMemory::new(alloc(entries * stride)?) };
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let completions = Cells::new(&ring, entries * DESCRIPTOR, 2 * entries);
        Ok(Receiver {
            queue,
            ring,
            descriptors,
            completions: completions.ok_or(Error::NoMemory { bytes })?,
            memory,
            stride,
            longest,
            entries: entries as u32,
            log2: entries.ilog2(),
            taken: 0,
            returned: 0,
            posted: 0,
            notified: 0,
            out_of_sync: false,
            held: alloc::vec![false; entries].into(),
            early: alloc::vec![false; entries].into(),
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    /// Resets the queue's state. Nothing is received before [`Receiver::start`].
    pub fn stop(&mut self) {
        (self.taken, self.returned, self.posted, self.notified) = (0, 0, 0, 0);
        self.out_of_sync = false;
        self.held.fill(false);
        self.early.fill(false);
    }

    /// Sets up the device's queue, which is stopped, and its completion queue, and posts all buffers but one.
    pub fn start(&mut self, queues: &dyn Registers, completions: &dyn Registers, completion: u32) {
        self.stop();
        self.ring.fill(0);
        for index in 0..self.entries as usize {
            let address = self.memory.bus_address(index * self.stride);
            self.descriptors.store(index, [address, self.stride as u64]);
        }
        let (address, entries) = (self.ring.bus_address(), self.entries);
        let behind = address + (entries as usize * DESCRIPTOR) as u64;
        let ring = Ring { address: behind, entries };
        registers::start_completions(completions, completion as usize, ring, 0);
        let ring = Ring { address, entries };
        registers::start(queues, self.queue, RECEIVE_ERROR, ring, completion, 0);
        self.posted = entries - 1;
        self.notify(queues);
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// The colour of an entry: bit 0 of its lap, which begins with 1.
    #[inline(always)]
    fn colour(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    /// Notifies the device of returned buffers, once there is a batch of them.
    #[inline(always)]
    pub fn notify_batch(&mut self, queues: &dyn Registers) {
        if self.posted.wrapping_sub(self.notified) >= self.entries / 8 {
            self.notify(queues);
        }
    }

    fn notify(&mut self, queues: &dyn Registers) {
        self.notified = self.posted;
        registers::post(queues, self.queue, self.index(self.posted) as u32);
    }

    /// The second half of the next completion, if the device has written it.
    #[inline(always)]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.index(self.taken) + 1);
        let there = upper >> 63 == self.colour(self.taken);
        (there && self.taken != self.posted && !self.out_of_sync).then_some(upper & !COLOUR)
    }

    /// The next completion, and the index of its buffer.
    #[inline(always)]
    fn next(&mut self) -> (usize, Next) {
        let index = self.index(self.taken);
        let Some(upper) = self.upper() else { return (index, Next::Nothing) };
        let lower = self.completions.load(2 * index);
        if lower & NAME != (index | self.queue << 16) as u64 || upper & TYPE != RECEIVED {
            self.lose_sync();
            return (index, Next::Nothing);
        }
        self.taken = self.taken.wrapping_add(1);
        let len = (upper & 0x3fff) as usize;
        let good = lower & WHOLE == WHOLE && upper & DAMAGED == 0;
        match good && (ETHERNET..=self.longest).contains(&len) {
            true => (index, Next::Frame(len)),
            false => (index, Next::Bad),
        }
    }

    #[cold]
    fn lose_sync(&mut self) {
        self.errors += 1;
        self.out_of_sync = true;
    }

    /// Returns a buffer, and posts one to the device. The device never has all buffers, so there is always one to post.
    #[inline(always)]
    fn return_buffer(&mut self, index: usize) {
        // The only buffer in use: the order does not matter.
        match self.taken.wrapping_sub(self.returned) == 1 {
            true => {
                self.returned = self.returned.wrapping_add(1);
                self.posted = self.posted.wrapping_add(1);
            }
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
            self.posted = self.posted.wrapping_add(1);
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
            let (index, next) = self.next();
            match next {
                Next::Nothing => return None,
                Next::Frame(len) => {
                    self.held[index] = true;
                    self.frames += 1;
                    self.bytes += len as u64;
                    return Some(Frame { buffer: index as u32, len: len as u32 });
                }
                Next::Bad => {
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
        // returned only by `recycle`, `stop` or `start`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of a buffer.
    ///
    /// # Safety
    /// The device does not own the buffer while the bytes are used.
    #[inline(always)]
    unsafe fn frame(&self, index: usize, len: usize) -> &[u8] {
        debug_assert!(index < self.entries as usize && len <= self.stride);
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
            let (index, next) = self.next();
            let mut go_on = true;
            match next {
                Next::Nothing => break,
                Next::Bad => self.errors += 1,
                Next::Frame(len) => {
                    taken += 1;
                    bytes += len;
                    // SAFETY: the device has returned this buffer. It gets it again by `return_buffer` below, after
                    // `take`; until then it does not write there (the promise of `Platform`).
                    go_on = take(unsafe { self.frame(index, len) });
                }
            }
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
        self.upper().is_some()
    }

    /// The position of the ring, if the next completion is missing but a later one is there. The same position twice
    /// means that the device is out of sync.
    pub fn stuck_at(&self) -> Option<u32> {
        if self.taken == self.posted || self.upper().is_some() {
            return None;
        }
        let next = self.taken.wrapping_add(1);
        let upper = self.completions.load(2 * self.index(next) + 1);
        let is_there = upper >> 63 == self.colour(next) && upper & TYPE == RECEIVED;
        is_there.then_some(self.taken)
    }
}
