//! The transmit queue. Every packet has the header slot of its first descriptor: what the device
//! wants before a frame (all zero for us), the frame's header, and its trailer. Small packets are
//! copied into the slot whole; payload of larger ones is read by the device where it lies; frames
//! whose header alone is larger than a slot go through a few buffers of full size.

use super::super::Error;
use super::super::ring::{Descriptor, Ring, Taken};
use super::super::transport::Setup;
use super::{ETHERNET, TRANSMIT, entries};
use crate::hal::{Packet, TransmitError, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a header slot.
const SLOT: usize = 256;
/// Where the trailer stands in a slot.
const TRAILER: usize = SLOT - Packet::MAX_TRAILER;
/// Buffers for frames with long headers (those of the control plane).
const BOUNCE_BUFFERS: u16 = 16;

/// What is remembered of a descriptor while the device has it.
#[derive(Clone, Copy, Default)]
struct Link {
    /// Next free descriptor, or next of the chain.
    next: u16,
    /// Of the first of a chain: the last of it.
    tail: u16,
    /// Of the first of a chain: how many they are.
    count: u16,
    /// Of the first of a chain: its full-size buffer.
    bounce: Option<u16>,
}

pub struct Transmitter {
    ring: Ring,
    slots: Window,
    bounce: Window,
    /// Length of a full-size buffer in bytes.
    bounce_stride: usize,
    bounce_free: Vec<u16>,
    links: Box<[Link]>,
    /// First free descriptor, if `free` is not 0.
    free_head: u16,
    free: u16,
    /// Length of what stands before each frame.
    header: usize,
    longest: usize,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
    pub full: u64,
}

impl Transmitter {
    /// For frames of up to `longest` bytes.
    pub fn new(setup: &mut Setup<'_>, header: usize, longest: usize) -> Result<Self, Error> {
        let ring = setup.queue(TRANSMIT, entries(setup), false)?;
        let size = ring.size();
        let slots = setup.alloc(usize::from(size) * SLOT, SLOT)?;
        let bounce_stride = (header + longest).next_multiple_of(64);
        let bounce = setup.alloc(usize::from(BOUNCE_BUFFERS) * bounce_stride, 64)?;
        Ok(Transmitter {
            ring,
            slots,
            bounce,
            bounce_stride,
            bounce_free: (0..BOUNCE_BUFFERS).collect(),
            links: (1..=size).map(|next| Link { next, ..Link::default() }).collect(),
            free_head: 0,
            free: size,
            header,
            longest,
            frames: 0,
            bytes: 0,
            errors: 0,
            full: 0,
        })
    }

    pub fn is_dead(&self) -> bool {
        self.ring.is_dead()
    }

    #[inline]
    pub fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let len = packet.len();
        if !(ETHERNET..=self.longest).contains(&len)
            || packet.payload.len() > Packet::MAX_PAYLOAD_WINDOWS
            || packet.trailer.len() > Packet::MAX_TRAILER
        {
            return Err(TransmitError::TooLarge);
        }
        let small = self.header + len <= SLOT;
        let long_header = !small && self.header + packet.header.len() > TRAILER;
        let needed = if small || long_header { 1 } else { packet.payload.len() as u16 + 2 };
        if !self.has_room(needed, long_header) {
            self.reclaim();
            if !self.has_room(needed, long_header) {
                self.full += 1;
                return Err(TransmitError::Full);
            }
        }
        if small || long_header {
            self.queue_copied(packet, len, long_header);
        } else {
            self.queue_by_reference(packet);
        }
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    #[inline]
    fn has_room(&self, descriptors: u16, bounce: bool) -> bool {
        self.free >= descriptors && (!bounce || !self.bounce_free.is_empty())
    }

    /// Header slot of the chain that starts with `head`.
    #[inline]
    fn slot(&self, head: u16) -> Window {
        self.slots.slice(usize::from(head) * SLOT, SLOT).unwrap_or(Window::empty())
    }

    /// One descriptor, with a copy of the whole packet.
    #[inline]
    fn queue_copied(&mut self, packet: &Packet<'_>, len: usize, long_header: bool) {
        let head = self.free_head;
        let bounce = if long_header { self.bounce_free.pop() } else { None };
        let buffer = match bounce {
            Some(n) => self.bounce.slice(usize::from(n) * self.bounce_stride, self.bounce_stride),
            None => None,
        }
        .unwrap_or_else(|| self.slot(head));
        let mut at = self.header;
        put(&buffer, at, packet.header);
        at += packet.header.len();
        for window in packet.payload {
            buffer.write_window(at, window).expect("checked against the buffer's length");
            at += window.len();
        }
        put(&buffer, at, packet.trailer);
        let address = buffer.bus_address();
        self.ring.describe(head, to_read(address, self.header + len, None));
        self.offer(head, head, 1, bounce);
    }

    /// Header and trailer copied to the slot, the payload described where it lies.
    #[inline]
    fn queue_by_reference(&mut self, packet: &Packet<'_>) {
        let head = self.free_head;
        let slot = self.slot(head);
        put(&slot, self.header, packet.header);
        put(&slot, TRAILER, packet.trailer);
        let trailer = (slot.bus_address() + TRAILER as u64, packet.trailer.len());
        let payload = packet.payload.iter().map(|w| (w.bus_address(), w.len()));
        let (mut address, mut len) = (slot.bus_address(), self.header + packet.header.len());
        let (mut index, mut count) = (head, 1);
        for part in payload.chain([trailer]).filter(|&(_, len)| len > 0) {
            let next = self.links[usize::from(index)].next;
            self.ring.describe(index, to_read(address, len, Some(next)));
            (address, len) = part;
            index = next;
            count += 1;
        }
        self.ring.describe(index, to_read(address, len, None));
        self.offer(head, index, count, None);
    }

    /// Takes `count` descriptors from `head` to `tail` off the free list and offers them.
    #[inline]
    fn offer(&mut self, head: u16, tail: u16, count: u16, bounce: Option<u16>) {
        self.free_head = self.links[usize::from(tail)].next;
        self.free -= count;
        let link = &mut self.links[usize::from(head)];
        (link.tail, link.count, link.bounce) = (tail, count, bounce);
        self.ring.offer(head);
    }

    /// Takes back what the device has sent if there is little room left; until then there is no
    /// need to look.
    #[inline]
    pub fn reclaim_some(&mut self) {
        if self.free < self.ring.size() / 2 {
            self.reclaim();
        }
    }

    /// Takes back what the device has sent.
    fn reclaim(&mut self) {
        loop {
            match self.ring.take() {
                Taken::Nothing => return,
                Taken::Nonsense => self.errors += 1,
                Taken::Chain { head, .. } => {
                    let Link { tail, count, bounce, .. } = self.links[usize::from(head)];
                    self.links[usize::from(tail)].next = self.free_head;
                    self.free_head = head;
                    self.free += count;
                    self.bounce_free.extend(bounce);
                }
            }
        }
    }

    /// True if the device has to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }
}

/// A descriptor of `len` bytes for the device to read.
#[inline]
fn to_read(address: u64, len: usize, next: Option<u16>) -> Descriptor {
    Descriptor { address, len: len as u32, device_writes: false, next }
}

/// Copies into a slot or buffer that was found long enough.
#[inline]
fn put(buffer: &Window, at: usize, bytes: &[u8]) {
    buffer.write(at, bytes).expect("checked against the buffer's length");
}
