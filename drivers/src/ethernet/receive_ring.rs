//! A receive ring: buffers, each for a whole frame or for a part of one, which the device fills in order. Buffer `i`
//! permanently belongs to entry `i`. The buffers are contiguous, so that a frame in several of them is contiguous. If a
//! frame wraps at the end of the ring, its rest is copied behind the last buffer.
//!
//! Buffers are posted in order, too: one that the user returns before older ones waits for them.

use super::ETHERNET;
use super::rings::{Entries, NoMemory, RingMemory};
use crate::hal::{Arena, Frame, FrameMemory};
use alloc::boxed::Box;

const MOST_ENTRIES: usize = 1024;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;

/// A power of two of buffers of `stride` bytes, which get an eighth of the arena's free memory: `least` of them or
/// more, and `most` at most.
pub fn entries(arena: &Arena, stride: usize, least: usize, most: usize) -> Entries {
    let affordable = arena.available() / SHARE / stride;
    Entries::new(1 << affordable.clamp(least, most.clamp(least, MOST_ENTRIES)).ilog2())
}

/// The next completion of a ring.
pub enum Next {
    Nothing,
    /// A frame of `len` bytes in `span` buffers.
    Frame {
        span: u32,
        len: usize,
    },
    /// A bad frame in `span` buffers, to be dropped. `counted`: the rest of one that was counted before.
    Bad {
        span: u32,
        counted: bool,
    },
    /// A completion that is not of the next buffer: nothing is received until a reset.
    OutOfSync,
}

impl Next {
    /// A frame in one buffer. It is bad unless `good`, and of a valid length.
    #[inline]
    pub fn of_one(good: bool, len: usize, longest: usize) -> Self {
        match good && (ETHERNET..=longest).contains(&len) {
            true => Next::Frame { span: 1, len },
            false => Next::Bad { span: 1, counted: false },
        }
    }
}

/// A device's descriptors and completions.
///
/// # Safety
/// If [`ReceiveQueue::next`] returns a frame, its buffers, `span` from number `state.taken` on, were posted, and the device
/// has returned them by completions.
pub unsafe trait ReceiveQueue {
    /// Maximum number of buffers of a frame.
    const MOST_SPAN: u32 = 1;
    /// A descriptor is written each time that its buffer is posted. Others stay as they are.
    const WRITES_EACH: bool;

    /// Bytes of a buffer.
    fn stride(&self) -> usize;

    /// Examines the next completion.
    fn next(&mut self, state: &ReceiveState) -> Next;

    /// Whether a completion waits.
    fn pending(&self, state: &ReceiveState) -> bool;

    /// Writes the descriptor with a running number, of the buffer at a bus address.
    #[inline]
    fn post(&mut self, _entries: Entries, _number: u32, _address: u64) {}

    /// Resets the queue's state, while the device is stopped.
    fn stop(&mut self) {}
}

/// Positions in a ring, as running numbers of buffers.
pub struct ReceiveState {
    pub entries: Entries,
    /// Length of the longest frame.
    pub longest: usize,
    /// Number of buffers that device and user have together; 0 while the device is stopped.
    limit: u32,
    /// Total of buffers taken from the device.
    pub taken: u32,
    /// Total of buffers that the user has returned, in order.
    returned: u32,
    /// Total of buffers posted, as last reported to the device.
    notified: u32,
    pub out_of_sync: bool,
}

impl ReceiveState {
    /// Total of buffers posted.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.returned.wrapping_add(self.limit)
    }

    /// Whether the device has a buffer.
    #[inline]
    pub fn has_posted(&self) -> bool {
        self.taken.wrapping_sub(self.returned) != self.limit
    }

    /// Index of the next buffer.
    #[inline]
    pub fn index(&self) -> usize {
        self.entries.index(self.taken)
    }
}

/// A ring with its buffers.
pub struct ReceiveRing<Q> {
    pub queue: Q,
    state: ReceiveState,
    memory: FrameMemory,
    /// By index of a frame's first buffer: number of buffers that the user holds.
    held: Box<[u8]>,
    /// By index of a frame's first buffer: number of buffers that the user has returned before older ones.
    early: Box<[u8]>,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl<Q: ReceiveQueue> ReceiveRing<Q> {
    /// A stopped ring for frames of up to `longest` bytes.
    pub fn with(
        memory: &mut RingMemory<'_>,
        entries: Entries,
        longest: usize,
        queue: Q,
    ) -> Result<Self, NoMemory> {
        let count = entries.count() as usize;
        // A frame that wraps ends behind the last buffer.
        let spare = if Q::MOST_SPAN > 1 { Q::MOST_SPAN as usize } else { 0 };
        // SAFETY: just allocated. It is freed only after the ring was dropped.
        let memory = unsafe { FrameMemory::new(memory.alloc((count + spare) * queue.stride())?) };
        let (limit, taken, returned, notified, out_of_sync) = (0, 0, 0, 0, false);
        let state =
            ReceiveState { entries, longest, limit, taken, returned, notified, out_of_sync };
        Ok(ReceiveRing {
            queue,
            state,
            memory,
            held: alloc::vec![0; count].into(),
            early: alloc::vec![0; count].into(),
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    pub fn state(&self) -> &ReceiveState {
        &self.state
    }

    /// Sets the length of the longest frame.
    pub fn set_longest(&mut self, longest: usize) {
        self.state.longest = longest;
    }

    /// A completion was not of the next buffer: nothing is received until a reset.
    pub fn out_of_sync(&self) -> bool {
        self.state.out_of_sync
    }

    /// Bus address of the buffer with an index.
    #[inline]
    pub fn address(&self, index: usize) -> u64 {
        self.memory.bus_address(index * self.queue.stride())
    }

    /// Resets the ring's state. The device is stopped, and accesses no memory.
    pub fn stop(&mut self) {
        let state = &mut self.state;
        (state.limit, state.taken, state.returned, state.notified) = (0, 0, 0, 0);
        state.out_of_sync = false;
        self.held.fill(0);
        self.early.fill(0);
        self.queue.stop();
    }

    /// Posts the first `limit` buffers of a stopped ring.
    pub fn post_all(&mut self, limit: u32) {
        for number in 0..limit {
            self.post(number);
        }
        self.state.limit = limit;
    }

    #[inline]
    fn post(&mut self, number: u32) {
        if Q::WRITES_EACH {
            let entries = self.state.entries;
            let address = self.address(entries.index(number));
            self.queue.post(entries, number, address);
        }
    }

    /// Total of buffers posted, to report it to the device, once there is a batch of returned ones.
    #[inline]
    pub fn batch(&mut self) -> Option<u32> {
        let posted = self.state.posted();
        let is_batch = posted.wrapping_sub(self.state.notified) >= self.state.entries.count() / 8;
        is_batch.then(|| self.report_posted())
    }

    /// Total of buffers posted, to report it to the device now.
    #[inline]
    pub fn report_posted(&mut self) -> u32 {
        self.state.notified = self.state.posted();
        self.state.notified
    }

    #[cold]
    fn lose_sync(&mut self) {
        self.errors += 1;
        self.state.out_of_sync = true;
    }

    /// Takes a frame from the device, and makes it contiguous.
    #[inline]
    fn take(&mut self, index: usize, span: u32, len: usize) {
        self.state.taken = self.state.taken.wrapping_add(span);
        if span > 1 {
            self.join(index, len);
        }
    }

    /// Makes a frame of `len` bytes that begins in buffer `index` contiguous.
    #[inline(never)]
    fn join(&mut self, index: usize, len: usize) {
        let end = self.state.entries.count() as usize * self.queue.stride();
        let before = end - index * self.queue.stride();
        if len > before {
            let is_whole = self.memory.copy_first(end, len - before);
            assert!(is_whole, "there is room for the longest");
        }
    }

    /// Returns buffers from `index` on, and posts as many to the device.
    #[inline]
    fn return_buffers(&mut self, index: usize, span: u32) {
        // The only buffer in use: the order does not matter.
        match span == 1 && self.state.taken.wrapping_sub(self.state.returned) == 1 {
            true => self.repost(1),
            false => self.return_in_order(index, span),
        }
    }

    #[inline(never)]
    fn return_in_order(&mut self, index: usize, span: u32) {
        if index != self.state.entries.index(self.state.returned) {
            self.early[index] = span as u8;
            return;
        }
        self.repost(span);
        // Buffers that were returned early, and have waited for this one.
        loop {
            let index = self.state.entries.index(self.state.returned);
            let span = core::mem::take(&mut self.early[index]);
            if span == 0 {
                return;
            }
            self.repost(span.into());
        }
    }

    #[inline]
    fn repost(&mut self, span: u32) {
        let posted = self.state.posted();
        (0..span).for_each(|n| self.post(posted.wrapping_add(n)));
        self.state.returned = self.state.returned.wrapping_add(span);
    }

    #[cold]
    fn drop_frame(&mut self, index: usize, span: u32, counted: bool) {
        self.state.taken = self.state.taken.wrapping_add(span);
        self.return_buffers(index, span);
        self.errors += u64::from(!counted);
    }

    /// See `Port::receive`.
    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            let index = self.state.index();
            match self.queue.next(&self.state) {
                Next::Nothing => return None,
                Next::OutOfSync => {
                    self.lose_sync();
                    return None;
                }
                Next::Bad { span, counted } => self.drop_frame(index, span, counted),
                Next::Frame { span, len } => {
                    self.take(index, span, len);
                    self.held[index] = span as u8;
                    self.frames += 1;
                    self.bytes += len as u64;
                    return Some(Frame { buffer: index as u32, len: len as u32 });
                }
            }
        }
    }

    /// The bytes of a frame; none if the device was reset since it was received.
    #[inline]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (index, len) = (frame.buffer as usize, frame.len as usize);
        if self.held.get(index).is_none_or(|&span| len > usize::from(span) * self.queue.stride()) {
            return &[];
        }
        // SAFETY: the user of the port holds the frame (just checked): its buffers were taken from the device, and are
        // posted again only by `recycle`, or by `post_all` after `stop`, which need `&mut self` and so end this borrow.
        unsafe { self.frame(index, len) }
    }

    /// The first `len` bytes of the frame that begins in a buffer.
    ///
    /// # Safety
    /// The device does not own the frame's buffers while the bytes are used.
    #[inline]
    unsafe fn frame(&self, index: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.bytes(index * self.queue.stride(), len) }
    }

    /// See `Port::recycle`.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        let index = frame.buffer as usize;
        let span = self.held.get_mut(index).map_or(0, core::mem::take);
        if span > 0 {
            self.return_buffers(index, span.into());
        }
    }

    /// See `Port::receive_each`.
    pub fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < most {
            let index = self.state.index();
            match self.queue.next(&self.state) {
                Next::Nothing => break,
                Next::OutOfSync => {
                    self.lose_sync();
                    break;
                }
                Next::Bad { span, counted } => self.drop_frame(index, span, counted),
                Next::Frame { span, len } => {
                    self.take(index, span, len);
                    taken += 1;
                    bytes += len;
                    // SAFETY: the device has returned these buffers (promise of `ReceiveQueue`). It gets them again by
                    // `return_buffers` below, after `take`; until then it does not write there (promise of
                    // `Platform`).
                    let go_on = take(unsafe { self.frame(index, len) });
                    self.return_buffers(index, span);
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
        self.queue.pending(&self.state)
    }
}
