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

    #[inline(always)]
    pub fn receive(&mut self) -> Option<Frame> {
        loop {
            match self.ring.take() {
                Taken::Nothing => return None,
                Taken::Nonsense => self.errors += 1,
                Taken::Chain { head, written } => {
                    let len = (written as usize).wrapping_sub(self.header);
                    if len < ETHERNET || len > self.stride - self.header {
                        self.errors += 1;
                        self.ring.offer(head);
                        continue;
                    }
                    self.frames += 1;
                    self.bytes += len as u64;
                    return Some(Frame { buffer: head.into(), len: len as u32 });
                }
            }
        }
    }

    #[inline(always)]
    pub fn bytes(&self, frame: &Frame) -> &[u8] {
        assert!(!self.ring.is_lent(frame.buffer as u16), "the device has this buffer");
        let at = frame.buffer as usize * self.stride + self.header;
        let len = (frame.len as usize).min(self.stride - self.header);
        let Some(window) = self.memory.slice(at, len) else { return &[] };
        // SAFETY: the window is mapped for its length, for ever. The device does not have the buffer
        // (as asserted) and gets it again only through `recycle`, which needs `&mut self` and so ends this
        // borrow; nobody else has a window to it. A device that writes to memory it does not own
        // could write anywhere, not just here: that is for an IOMMU to stop.
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
        while taken < most
            && let Some(frame) = self.receive()
        {
            taken += 1;
            let go_on = take(self.bytes(&frame));
            self.recycle(frame);
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
}
