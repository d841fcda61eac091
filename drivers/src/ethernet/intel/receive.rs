//! The receive queue. Buffer `i` permanently belongs to descriptor `i`, and the buffers are contiguous, so that a jumbo
//! frame in several buffers is contiguous. If a frame wraps at the end of the ring, its rest is copied behind the last
//! buffer.
//!
//! Descriptors are those that the 82574 calls extended and the 82576 advanced (82574, 7.1.5; 82576, 7.1.5): 16 bytes.
//! As read by the device: bus address of the buffer, 0. As written back: 8 unused bytes; status and errors (32 bits),
//! length (16 bits), VLAN tag.

use super::Error;
use super::chip::Chip;
use crate::ethernet::ETHERNET;
use crate::hal::{Arena, Cells, Frame, FrameMemory, Registers, Window};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a buffer.
pub const BUFFER: usize = 2048;
/// Maximum number of buffers of a frame.
const MOST_SPAN: u32 =
    (crate::ethernet::MOST_MTU as usize + crate::ethernet::OVERHEAD).div_ceil(BUFFER) as u32;
const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

const DONE: u32 = 1;
const END_OF_PACKET: u32 = 1 << 1;

/// The next entry of the ring.
enum Next {
    Nothing,
    Frame {
        span: u32,
        len: usize,
    },
    /// `counted`: the rest of a bad frame that was counted before.
    Bad {
        span: u32,
        counted: bool,
    },
}

pub struct Receiver {
    ring: Window,
    descriptors: Cells<[AtomicU64; 2]>,
    words: Cells<AtomicU64>,
    memory: FrameMemory,
    /// The register of the tail.
    tail: usize,
    /// Status bits that decide about a frame: errors, and end of packet.
    judged: u32,
    entries: u32,
    /// Length of the longest frame.
    longest: usize,
    /// Length of the longest frame in one buffer.
    longest_in_one: usize,
    /// Total of buffers taken from the device.
    taken: u32,
    /// Total of buffers that the user has returned, in order.
    returned: u32,
    /// Total of descriptors posted.
    posted: u32,
    /// `posted` as last reported to the device.
    notified: u32,
    /// Inside a frame whose beginning was dropped.
    dropping: bool,
    /// By index of a frame's first buffer: number of buffers that the user holds.
    held: Box<[u8]>,
    /// By index of a frame's first buffer: number of buffers that the user has returned before older ones.
    early: Box<[u8]>,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// Queue number `queue`, for frames of up to [`crate::ethernet::MOST_MTU`]. Buffers get an eighth of the arena's
    /// free memory, up to the maximum size of the ring. Windows that are allocated are added to `taken`.
    pub fn new(
        arena: &mut Arena,
        chip: &dyn Chip,
        queue: usize,
        taken: &mut alloc::vec::Vec<Window>,
    ) -> Result<Self, Error> {
        let affordable = (arena.available() / SHARE / BUFFER).max(LEAST_ENTRIES);
        let entries = 1usize << affordable.min(MOST_ENTRIES).ilog2();
        let mut alloc = |bytes| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            taken.push(window);
            Ok(window)
        };
        let ring = alloc(entries * DESCRIPTOR)?;
        let memory = alloc((entries + MOST_SPAN as usize) * BUFFER)?;
        // SAFETY: just allocated. The owner of `taken` frees it, and only after the receiver was dropped.
        let memory = unsafe { FrameMemory::new(memory) };
        let bytes = ring.len();
        let descriptors = Cells::new(&ring, 0, entries).ok_or(Error::NoMemory { bytes })?;
        let words = Cells::new(&ring, 0, 2 * entries).ok_or(Error::NoMemory { bytes })?;
        Ok(Receiver {
            ring,
            descriptors,
            words,
            memory,
            tail: chip.tails(queue)[0],
            judged: chip.damage() | END_OF_PACKET,
            entries: entries as u32,
            longest: 0,
            longest_in_one: 0,
            taken: 0,
            returned: 0,
            posted: 0,
            notified: 0,
            dropping: false,
            held: alloc::vec![0; entries].into(),
            early: alloc::vec![0; entries].into(),
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    /// Bus address and length in bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.ring.bus_address(), self.ring.len() as u32)
    }

    /// Resets the queue's state. The device was reset, and accesses no memory. Nothing is received before
    /// [`Receiver::start`].
    pub fn stop(&mut self) {
        (self.taken, self.returned, self.posted, self.notified) = (0, 0, 0, 0);
        self.dropping = false;
        self.held.fill(0);
        self.early.fill(0);
    }

    /// Posts all buffers but one, for frames of up to `longest` bytes. The device is set up with the ring.
    pub fn start(&mut self, longest: usize, registers: &dyn Registers) {
        self.stop();
        self.longest = longest;
        self.longest_in_one = longest.min(BUFFER);
        for _ in 1..self.entries {
            self.post_one();
        }
        self.notify(registers);
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    #[inline(always)]
    fn post_one(&mut self) {
        let index = self.index(self.posted);
        let address = self.memory.bus_address(index * BUFFER);
        self.descriptors.store(index, [address, 0]);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Notifies the device of returned buffers, once there is a batch of them.
    #[inline(always)]
    pub fn notify_batch(&mut self, registers: &dyn Registers) {
        if self.posted.wrapping_sub(self.notified) >= self.entries / 8 {
            self.notify(registers);
        }
    }

    fn notify(&mut self, registers: &dyn Registers) {
        self.notified = self.posted;
        fence(Ordering::Release);
        registers.write32(self.tail, self.index(self.posted) as u32);
    }

    /// Status with errors, and length of a descriptor.
    #[inline(always)]
    fn written(&self, number: u32) -> (u32, usize) {
        let word = self.words.load(2 * self.index(number) + 1);
        (word as u32, (word >> 32) as u16 as usize)
    }

    /// The next frame in the ring.
    #[inline(always)]
    fn next(&mut self) -> Next {
        if self.taken == self.posted {
            return Next::Nothing;
        }
        let (status, len) = self.written(self.taken);
        if status & DONE == 0 {
            return Next::Nothing;
        }
        let whole = status & self.judged == END_OF_PACKET && !self.dropping;
        match whole && (ETHERNET..=self.longest_in_one).contains(&len) {
            true => Next::Frame { span: 1, len },
            false => self.next_of_several(),
        }
    }

    /// As [`Receiver::next`], if it is not a good frame in one buffer.
    #[inline(never)]
    fn next_of_several(&mut self) -> Next {
        let counted = self.dropping;
        let (mut span, mut total, mut good) = (0, 0, !counted);
        while span < MOST_SPAN {
            let number = self.taken.wrapping_add(span);
            if number == self.posted {
                return Next::Nothing;
            }
            let (status, len) = self.written(number);
            if status & DONE == 0 {
                return Next::Nothing;
            }
            span += 1;
            total += len;
            let last = status & END_OF_PACKET != 0;
            good &= status & self.judged & !END_OF_PACKET == 0
                && if last { len <= BUFFER } else { len == BUFFER };
            if last {
                self.dropping = false;
                good &= (ETHERNET..=self.longest).contains(&total);
                return if good {
                    Next::Frame { span, len: total }
                } else {
                    Next::Bad { span, counted }
                };
            }
        }
        // The buffers that follow, up to the end of the packet, belong to this frame.
        self.dropping = true;
        Next::Bad { span, counted }
    }

    /// Makes a frame of `len` bytes that begins in buffer `index` contiguous.
    #[inline(always)]
    fn join(&mut self, index: usize, span: u32, len: usize) {
        let before = (self.entries as usize - index) * BUFFER;
        if span > 1 && len > before {
            let is_whole = self.memory.copy_first(self.entries as usize * BUFFER, len - before);
            assert!(is_whole, "there is room for the longest");
        }
    }

    /// Returns buffers from `index` on, and posts as many to the device. The device never has all buffers, so there are
    /// always some to post.
    #[inline(always)]
    fn return_buffer(&mut self, index: usize, span: u32) {
        // The only buffer in use: the order does not matter.
        match span == 1 && self.taken.wrapping_sub(self.returned) == 1 {
            true => self.repost(1),
            false => self.return_in_order(index, span),
        }
    }

    #[inline(never)]
    fn return_in_order(&mut self, index: usize, span: u32) {
        if index != self.index(self.returned) {
            self.early[index] = span as u8;
            return;
        }
        self.repost(span);
        // Buffers that were returned early, and have waited for this one.
        loop {
            let index = self.index(self.returned);
            let span = core::mem::take(&mut self.early[index]);
            if span == 0 {
                return;
            }
            self.repost(span.into());
        }
    }

    #[inline(always)]
    fn repost(&mut self, span: u32) {
        self.returned = self.returned.wrapping_add(span);
        (0..span).for_each(|_| self.post_one());
    }

    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            let index = self.index(self.taken);
            match self.next() {
                Next::Nothing => return None,
                Next::Frame { span, len } => {
                    self.taken = self.taken.wrapping_add(span);
                    self.join(index, span, len);
                    self.held[index] = span as u8;
                    self.frames += 1;
                    self.bytes += len as u64;
                    return Some(Frame { buffer: index as u32, len: len as u32 });
                }
                Next::Bad { span, counted } => self.drop_frame(index, span, counted),
            }
        }
    }

    #[cold]
    fn drop_frame(&mut self, index: usize, span: u32, counted: bool) {
        self.taken = self.taken.wrapping_add(span);
        self.return_buffer(index, span);
        self.errors += u64::from(!counted);
    }

    /// The bytes of a frame; none if the device was reset since it was received.
    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (index, len) = (frame.buffer as usize, frame.len as usize);
        if self.held.get(index).is_none_or(|&span| len > usize::from(span) * BUFFER) {
            return &[];
        }
        // SAFETY: the user of the port holds the frame (just checked): its buffers were taken from the device, and are
        // returned only by `recycle`, `stop` or `start`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of the frame that begins in a buffer.
    ///
    /// # Safety
    /// The device does not own the frame's buffers while the bytes are used.
    #[inline(always)]
    unsafe fn frame(&self, index: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.bytes(index * BUFFER, len) }
    }

    #[inline(always)]
    pub fn recycle(&mut self, frame: Frame) {
        let index = frame.buffer as usize;
        let span = self.held.get_mut(index).map_or(0, core::mem::take);
        if span > 0 {
            self.return_buffer(index, span.into());
        }
    }

    /// See `Port::receive_each`.
    pub fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < most {
            let index = self.index(self.taken);
            match self.next() {
                Next::Nothing => break,
                Next::Bad { span, counted } => self.drop_frame(index, span, counted),
                Next::Frame { span, len } => {
                    self.taken = self.taken.wrapping_add(span);
                    self.join(index, span, len);
                    taken += 1;
                    bytes += len;
                    // SAFETY: the device has returned these buffers. It gets them again by `return_buffer` below, after
                    // `take`; until then it does not write there (the promise of `Platform`).
                    let go_on = take(unsafe { self.frame(index, len) });
                    self.return_buffer(index, span);
                    if !go_on {
                        break;
                    }
                }
            }
        }
        self.frames += taken as u64;
        self.bytes += bytes as u64;
        taken
    }

    /// Whether completions wait.
    #[inline]
    pub fn pending(&self) -> bool {
        self.taken != self.posted && self.written(self.taken).0 & DONE != 0
    }

    /// The position of the ring, if the next frame is incomplete but a later descriptor is done. The same position
    /// twice means that the device is out of sync.
    pub fn stuck_at(&self) -> Option<u32> {
        let left = self.posted.wrapping_sub(self.taken);
        let done = |n: u32| self.written(self.taken.wrapping_add(n)).0 & DONE != 0;
        (0..left).any(done).then_some(self.taken)
    }
}
