//! The receive queue. Buffer `i` belongs to descriptor `i` for good, and the buffers lie side by side: a frame over
//! several of them, as jumbo frames are, lies in one piece. Where one goes over the end of the ring, its rest is copied
//! behind the last buffer.
//!
//! Descriptors are those that the 82574 calls extended and the 82576 advanced (82574, 7.1.5; 82576, 7.1.5): 16 bytes. As
//! read by the device: bus address of the buffer, 0. As written back: 8 bytes that are not looked at; status and errors
//! (32 bits), length (16 bits), VLAN tag.

use super::Error;
use super::chip::Chip;
use crate::ethernet::ETHERNET;
use crate::hal::{Arena, Cells, Frame, FrameMemory, Registers, Window};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a buffer.
pub const BUFFER: usize = 2048;
/// Most buffers of a frame.
const MOST_SPAN: u32 =
    (crate::ethernet::MOST_MTU as usize + crate::ethernet::OVERHEAD).div_ceil(BUFFER) as u32;
const MOST_ENTRIES: usize = 1024;
const LEAST_ENTRIES: usize = 64;
/// Receive buffers take at most this share of the memory that is free.
const SHARE: usize = 8;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

const DONE: u32 = 1;
const END_OF_PACKET: u32 = 1 << 1;

/// What is next in the ring.
enum Next {
    Nothing,
    Frame {
        span: u32,
        len: usize,
    },
    /// `counted`: it is the rest of one that was counted.
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
    /// Bits of frames that are damaged, and of the end of one.
    judged: u32,
    entries: u32,
    /// Longest frame in bytes, and longest in one buffer.
    longest: usize,
    longest_in_one: usize,
    /// Buffers that were taken from the device, and that came back from the user of the port, in order; descriptors
    /// that were given to the device, and that it was told of; in all.
    taken: u32,
    back: u32,
    given: u32,
    told: u32,
    /// Inside of a frame of which the beginning was dropped.
    dropping: bool,
    /// Buffers of the frame that begins at an index and that the user of the port has.
    held: Box<[u8]>,
    /// Buffers of one that came back before an older one did.
    early: Box<[u8]>,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// Memory for frames of up to [`crate::ethernet::MOST_MTU`]: an eighth of what is free in the arena, as far as the
    /// ring holds so many buffers. For the queue of that number. Windows that it takes are added to `taken`.
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
        // SAFETY: just allocated. `taken` gives it back to the arena, and that only when this is gone.
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
            back: 0,
            given: 0,
            told: 0,
            dropping: false,
            held: alloc::vec![0; entries].into(),
            early: alloc::vec![0; entries].into(),
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    /// Bus address and bytes of the ring.
    pub fn ring(&self) -> (u64, u32) {
        (self.ring.bus_address(), self.ring.len() as u32)
    }

    /// The device has forgotten all, and does not touch memory. Nothing is received before [`Receiver::start`].
    pub fn stop(&mut self) {
        (self.taken, self.back, self.given, self.told) = (0, 0, 0, 0);
        self.dropping = false;
        self.held.fill(0);
        self.early.fill(0);
    }

    /// Gives the device all buffers but one, for frames of up to `longest` bytes. The device knows the ring.
    pub fn start(&mut self, longest: usize, registers: &dyn Registers) {
        self.stop();
        self.longest = longest;
        self.longest_in_one = longest.min(BUFFER);
        for _ in 1..self.entries {
            self.give_one();
        }
        self.tell(registers);
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        (number & (self.entries - 1)) as usize
    }

    #[inline(always)]
    fn give_one(&mut self) {
        let index = self.index(self.given);
        let address = self.memory.bus_address(index * BUFFER);
        self.descriptors.store(index, [address, 0]);
        self.given = self.given.wrapping_add(1);
    }

    /// Tells the device of buffers that it got back, if they are worth it.
    #[inline(always)]
    pub fn tell_some(&mut self, registers: &dyn Registers) {
        if self.given.wrapping_sub(self.told) >= self.entries / 8 {
            self.tell(registers);
        }
    }

    fn tell(&mut self, registers: &dyn Registers) {
        self.told = self.given;
        fence(Ordering::Release);
        registers.write32(self.tail, self.index(self.given) as u32);
    }

    /// Status, errors and length of a descriptor that the device has.
    #[inline(always)]
    fn written(&self, number: u32) -> (u32, usize) {
        let word = self.words.load(2 * self.index(number) + 1);
        (word as u32, (word >> 32) as u16 as usize)
    }

    /// What the device has written next.
    #[inline(always)]
    fn next(&mut self) -> Next {
        if self.taken == self.given {
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

    /// Likewise, if it is not a good frame in one buffer.
    #[inline(never)]
    fn next_of_several(&mut self) -> Next {
        let counted = self.dropping;
        let (mut span, mut total, mut good) = (0, 0, !counted);
        while span < MOST_SPAN {
            let number = self.taken.wrapping_add(span);
            if number == self.given {
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
        // What follows, up to its end, is no frame of its own.
        self.dropping = true;
        Next::Bad { span, counted }
    }

    /// A frame of `len` bytes that begins in the buffer of this index lies in one piece after this.
    #[inline(always)]
    fn join(&mut self, index: usize, span: u32, len: usize) {
        let before = (self.entries as usize - index) * BUFFER;
        if span > 1 && len > before {
            let is_whole = self.memory.copy_first(self.entries as usize * BUFFER, len - before);
            assert!(is_whole, "there is room for the longest");
        }
    }

    /// Buffers from `index` on come back. The device gets as many: of one more than it has there is always one that
    /// it has not.
    #[inline(always)]
    fn give(&mut self, index: usize, span: u32) {
        // Nobody has another: nothing waits for this one, nor it for another.
        match span == 1 && self.taken.wrapping_sub(self.back) == 1 {
            true => self.came_back(1),
            false => self.give_in_order(index, span),
        }
    }

    #[inline(never)]
    fn give_in_order(&mut self, index: usize, span: u32) {
        if index != self.index(self.back) {
            self.early[index] = span as u8;
            return;
        }
        self.came_back(span);
        // Those that came back early, and were waiting for this one.
        loop {
            let index = self.index(self.back);
            let span = core::mem::take(&mut self.early[index]);
            if span == 0 {
                return;
            }
            self.came_back(span.into());
        }
    }

    #[inline(always)]
    fn came_back(&mut self, span: u32) {
        self.back = self.back.wrapping_add(span);
        (0..span).for_each(|_| self.give_one());
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
        self.give(index, span);
        self.errors += u64::from(!counted);
    }

    /// The bytes of a frame; none if the device was reset since it came.
    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (index, len) = (frame.buffer as usize, frame.len as usize);
        if self.held.get(index).is_none_or(|&span| len > usize::from(span) * BUFFER) {
            return &[];
        }
        // SAFETY: the user of the port holds the frame (as just seen): its buffers were taken from the device, and
        // go back only through `recycle`, `stop` or `start`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of the frame that begins in a buffer.
    ///
    /// # Safety
    /// The device does not have the frame's buffers for as long as the bytes are used.
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
            self.give(index, span.into());
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
                    // SAFETY: the device had these buffers and gave them back. It gets them again with `give` below,
                    // when `take` is done; until then it does not write there (the promise of `Platform`).
                    let go_on = take(unsafe { self.frame(index, len) });
                    self.give(index, span);
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

    /// Whether the device has written something that was not taken.
    #[inline]
    pub fn pending(&self) -> bool {
        self.taken != self.given && self.written(self.taken).0 & DONE != 0
    }

    /// How far the ring was taken, if it should have been further: there is something behind what is next, or a
    /// part of it. The same twice is a device that lost its way.
    pub fn waits_at(&self) -> Option<u32> {
        let left = self.given.wrapping_sub(self.taken);
        let done = |n: u32| self.written(self.taken.wrapping_add(n)).0 & DONE != 0;
        (0..left).any(done).then_some(self.taken)
    }
}
