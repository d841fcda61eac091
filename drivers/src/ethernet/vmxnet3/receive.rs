//! The receive queue: a ring of buffers, each for a whole frame, and a ring of completions that name them. Buffer `i`
//! permanently belongs to descriptor `i`.
//!
//! A descriptor: bus address; length (14 bits), type 0 (head), in bit 31 the generation, which changes with each lap. A
//! completion: descriptor (12 bits), bit 14 end and bit 15 begin of a frame; in the second half length (14 bits), bit
//! 14 error, and in bit 63 the generation.

use super::Error;
use super::shared::Rings;
use crate::ethernet::{ETHERNET, OVERHEAD};
use crate::hal::{Arena, Cells, Frame, FrameMemory, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 32;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;
const DESCRIPTOR: usize = 16;

/// Completion: begin and end of a frame.
const WHOLE: u64 = 3 << 14;
const ERROR: u64 = 1 << 14;
const GENERATION: u64 = 1 << 63;

/// The next completion.
enum Next {
    Nothing,
    Frame(usize),
    Bad,
}

pub struct Receiver {
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
    /// Total of descriptors posted.
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
    /// A queue for packets of `mtu` bytes. Buffers get an eighth of the arena's free memory, up to the maximum size of
    /// the ring. Windows that are allocated are added to `taken`.
    pub fn new(arena: &mut Arena, mtu: u16, taken: &mut Vec<Window>) -> Result<Self, Error> {
        let longest = OVERHEAD + usize::from(mtu);
        let stride = longest.next_multiple_of(64);
        let affordable = (arena.available() / SHARE / stride).max(LEAST_ENTRIES);
        let entries = 1usize << affordable.min(MOST_ENTRIES).ilog2();
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let bytes = 2 * entries * DESCRIPTOR;
        let ring = alloc(bytes)?;
        // SAFETY: just allocated. The owner of `taken` frees it, and only after the receiver was dropped.
        let memory = unsafe { FrameMemory::new(alloc(entries * stride)?) };
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let completions = Cells::new(&ring, entries * DESCRIPTOR, 2 * entries);
        Ok(Receiver {
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

    pub fn rings(&self) -> Rings {
        let ring = self.ring.bus_address();
        let completions = ring + (self.entries as usize * DESCRIPTOR) as u64;
        Rings { ring, completions, entries: self.entries }
    }

    /// Resets the queue's state. The device was reset, and accesses no memory. Nothing is received before
    /// [`Receiver::start`].
    pub fn stop(&mut self) {
        self.ring.fill(0);
        (self.taken, self.returned, self.posted, self.notified) = (0, 0, 0, 0);
        self.out_of_sync = false;
        self.held.fill(false);
        self.early.fill(false);
    }

    /// Posts all buffers but one, before the device is activated.
    pub fn start(&mut self) {
        self.stop();
        for _ in 1..self.entries {
            self.post_one();
        }
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    /// The generation of an entry: bit 0 of its lap, which begins with 1.
    #[inline(always)]
    fn generation(&self, number: u32) -> u64 {
        u64::from(!(number >> self.log2) & 1)
    }

    #[inline(always)]
    fn post_one(&mut self) {
        let index = self.index(self.posted);
        let address = self.memory.bus_address(index * self.stride);
        let word = self.stride as u64 | self.generation(self.posted) << 31;
        self.descriptors.store(index, [address, word]);
        self.posted = self.posted.wrapping_add(1);
    }

    /// The producer index to report to the device, once there is a batch of returned buffers.
    #[inline(always)]
    pub fn producer_update(&mut self) -> Option<u32> {
        (self.posted.wrapping_sub(self.notified) >= self.entries / 8).then(|| {
            self.notified = self.posted;
            self.index(self.posted) as u32
        })
    }

    /// The second half of the next completion, if the device has written it.
    #[inline(always)]
    fn upper(&self) -> Option<u64> {
        let upper = self.completions.load(2 * self.index(self.taken) + 1);
        let there = (upper & GENERATION != 0) == (self.generation(self.taken) == 1);
        (there && self.taken != self.posted && !self.out_of_sync).then_some(upper)
    }

    /// The next completion, and the index of its buffer.
    #[inline(always)]
    fn next(&mut self) -> (usize, Next) {
        let index = self.index(self.taken);
        let Some(upper) = self.upper() else { return (index, Next::Nothing) };
        let lower = self.completions.load(2 * index);
        if (lower & 0xfff) as usize != index {
            self.lose_sync();
            return (index, Next::Nothing);
        }
        self.taken = self.taken.wrapping_add(1);
        let len = (upper & 0x3fff) as usize;
        let good = lower & WHOLE == WHOLE && upper & ERROR == 0;
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
        if index != self.index(self.returned) {
            self.early[index] = true;
            return;
        }
        loop {
            self.returned = self.returned.wrapping_add(1);
            self.post_one();
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
}
