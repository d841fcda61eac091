//! The receive queue: buffer `i` is for ever described by descriptor `i`, so that giving a buffer
//! to the device is one entry of the available ring.

use super::super::Error;
use super::super::ring::{Descriptor, Ring, Taken};
use super::super::transport::Setup;
use super::{ETHERNET, RECEIVE, entries};
use crate::hal::{Frame, Window};

/// Fewer buffers than this cannot hold what arrives in one turn of the loop.
const LEAST_BUFFERS: usize = 32;
/// Receive buffers take at most this share of the memory that is free.
const SHARE: usize = 8;

pub struct Receiver {
    ring: Ring,
    memory: Window,
    /// Length of a buffer in bytes.
    stride: usize,
    /// Length of what stands before each frame.
    header: usize,
    /// Number of buffers. Those that the device does not have were handed to the user of the port.
    count: usize,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
}

impl Receiver {
    /// Buffers for frames of up to `longest` bytes, all of them offered.
    pub fn new(setup: &mut Setup<'_>, header: usize, longest: usize) -> Result<Self, Error> {
        let mut ring = setup.queue(RECEIVE, entries(setup), true)?;
        let stride = (header + longest).next_multiple_of(64);
        let affordable = (setup.available() / SHARE / stride).max(LEAST_BUFFERS);
        let count = affordable.min(ring.size().into());
        let memory = setup.alloc(count * stride, 64)?;
        for i in 0..count as u16 {
            let address = memory.bus_address() + u64::from(i) * stride as u64;
            let len = stride as u32;
            ring.describe(i, Descriptor { address, len, device_writes: true, next: None });
            ring.offer(i);
        }
        Ok(Receiver { ring, memory, stride, header, count, frames: 0, bytes: 0, errors: 0 })
    }

    pub fn buffers(&self) -> (usize, usize) {
        (self.count, self.stride)
    }

    pub fn is_dead(&self) -> bool {
        self.ring.is_dead()
    }

    #[inline]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            match self.ring.take() {
                Taken::Nothing => return None,
                Taken::Nonsense => self.errors += 1,
                Taken::Chain { head, written } => match self.length(written) {
                    Some(len) => return Some(Frame { buffer: head.into(), len: len as u32 }),
                    None => self.ring.offer(head),
                },
            }
        }
    }

    /// Length of a frame, given what the device says it has written, if it can be one.
    #[inline(always)]
    fn length(&mut self, written: u32) -> Option<usize> {
        let len = (written as usize).wrapping_sub(self.header);
        if len < ETHERNET || len > self.stride - self.header {
            self.errors += 1;
            return None;
        }
        self.frames += 1;
        self.bytes += len as u64;
        Some(len)
    }

    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        assert!(!self.ring.is_lent(frame.buffer as u16), "the device has this buffer");
        let len = (frame.len as usize).min(self.stride - self.header);
        // SAFETY: the device does not have the buffer (as asserted) and gets it again only through
        // `recycle`, which needs `&mut self` and so ends this borrow.
        unsafe { self.frame(frame.buffer as usize, len) }
    }

    /// The first `len` bytes of the frame in a buffer.
    ///
    /// # Safety
    /// The device does not have the buffer for as long as the bytes are used.
    #[inline(always)]
    unsafe fn frame(&self, buffer: usize, len: usize) -> &[u8] {
        let Some(window) = self.memory.slice(buffer * self.stride + self.header, len) else {
            return &[];
        };
        // SAFETY: the window is mapped for its length, for ever; the caller promises the rest, and
        // nobody else has a window to it. A device that writes to memory it does not own could write
        // anywhere, not just here: that is for an IOMMU to stop.
        unsafe { core::slice::from_raw_parts(window.as_ptr().as_ptr(), len) }
    }

    #[inline(always)]
    pub fn recycle(&mut self, frame: Frame) {
        assert!((frame.buffer as usize) < self.count, "frame is not of this port");
        self.ring.offer(frame.buffer as u16);
    }

    /// See `Port::receive_each`.
    pub fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut taken = 0;
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
                // SAFETY: the device gets the buffer again with `give` below, when `take` is done.
                go_on = take(unsafe { self.frame(head.into(), len) });
            }
            self.ring.give(head);
            if !go_on {
                break;
            }
        }
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
