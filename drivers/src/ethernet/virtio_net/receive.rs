//! The receive queue. Descriptor `i` permanently describes buffer `i`, so posting a buffer takes one entry of the
//! available ring.

use super::{ETHERNET, RECEIVE, entries};
use crate::hal::{Frame, FrameMemory};
use crate::virtio::{Descriptor, Error, Ring, Setup, Taken};

/// Minimum number of buffers: fewer cannot hold the frames that arrive in one round of the loop.
const LEAST_BUFFERS: usize = 32;
/// Receive buffers get at most this fraction of free memory.
const SHARE: usize = 8;

pub struct Receiver {
    ring: Ring,
    memory: FrameMemory,
    /// Length of a buffer in bytes.
    stride: usize,
    /// Length of the virtio header before each frame.
    header: usize,
    /// Length of the longest frame that a buffer holds.
    longest: usize,
    /// Number of buffers. The user of the port holds those that the device does not own.
    count: usize,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// Allocates buffers for frames of up to `longest` bytes, and posts all of them.
    pub fn new(setup: &mut Setup<'_>, header: usize, longest: usize) -> Result<Self, Error> {
        let mut ring = setup.queue(RECEIVE, entries(setup), true)?;
        let stride = (header + longest).next_multiple_of(64);
        let affordable = (setup.available() / SHARE / stride).max(LEAST_BUFFERS);
        let count = affordable.min(ring.size().into());
        let memory = setup.alloc(count * stride, 64)?;
        // SAFETY: just allocated, and the window is used nowhere else.
        let memory = unsafe { FrameMemory::new(memory) };
        for i in 0..count as u16 {
            let address = memory.bus_address(usize::from(i) * stride);
            let len = stride as u32;
            ring.describe(i, Descriptor { address, len, device_writes: true, next: None });
            ring.offer(i);
        }
        let longest = stride - header;
        Ok(Receiver {
            ring,
            memory,
            stride,
            header,
            longest,
            count,
            frames: 0,
            bytes: 0,
            errors: 0,
        })
    }

    #[cfg(test)]
    pub fn buffers(&self) -> (usize, usize) {
        (self.count, self.stride)
    }

    pub fn is_dead(&self) -> bool {
        self.ring.is_dead()
    }

    /// See [`Ring::stands_still`].
    pub fn stands_still(&mut self) -> bool {
        self.ring.stands_still()
    }

    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            match self.ring.take() {
                Taken::Nothing => return None,
                Taken::Nonsense => self.errors += 1,
                Taken::Chain { head, written } => {
                    if let Some(len) = self.length(written) {
                        self.count_frames(1, len);
                        return Some(Frame { buffer: head.into(), len: len as u32 });
                    }
                    self.errors += 1;
                    self.ring.offer(head);
                }
            }
        }
    }

    /// Length of a frame, from the number of bytes that the device reports as written; None if it is invalid.
    #[inline]
    fn length(&self, written: u32) -> Option<usize> {
        let len = (written as usize).wrapping_sub(self.header);
        (ETHERNET..=self.longest).contains(&len).then_some(len)
    }

    #[inline]
    fn count_frames(&mut self, frames: usize, bytes: usize) {
        self.frames += frames as u64;
        self.bytes += bytes as u64;
    }

    #[inline]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        let (buffer, len) = (frame.buffer as usize, frame.len as usize);
        assert!(buffer < self.count, "frame is not of this port");
        assert!(!self.ring.is_lent(buffer as u16), "the device has this buffer");
        // SAFETY: the device does not own the buffer (asserted), does not write to buffers that it does not own (the
        // promise of `Platform`), and gets it again only by `recycle`, which needs `&mut self` and so ends this borrow.
        unsafe { self.memory.bytes(self.offset(buffer), len.min(self.longest)) }
    }

    /// Offset of the frame in a buffer.
    #[inline]
    fn offset(&self, buffer: usize) -> usize {
        buffer * self.stride + self.header
    }

    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        assert!((frame.buffer as usize) < self.count, "frame is not of this port");
        self.ring.offer(frame.buffer as u16);
    }

    /// See `Port::receive_each`.
    pub fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let (mut taken, mut bytes) = (0, 0);
        while taken < most {
            let (head, written) = match self.ring.borrow() {
                Taken::Nothing => break,
                Taken::Nonsense => {
                    self.errors += 1;
                    continue;
                }
                Taken::Chain { head, written } => (head, written),
            };
            let mut go_on = true;
            if let Some(len) = self.length(written) {
                taken += 1;
                bytes += len;
                // SAFETY: the ring has checked that the device owned this chain and returned it, and only buffers were
                // offered. The device gets it again by `give` below, after `take`; until then it does not write there
                // (the promise of `Platform`).
                go_on = take(unsafe { self.memory.bytes(self.offset(head.into()), len) });
            } else {
                self.errors += 1;
            }
            self.ring.give(head);
            if !go_on {
                break;
            }
        }
        self.count_frames(taken, bytes);
        taken
    }

    /// True if the device has to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    pub fn pending(&self) -> bool {
        self.ring.pending()
    }

    pub fn set_interrupts(&mut self, wanted: bool) {
        self.ring.set_interrupts(wanted);
    }

    pub fn interrupt_at(&mut self, frame: usize) {
        self.ring.interrupt_at(Some(u16::try_from(frame).unwrap_or(u16::MAX)));
    }
}
