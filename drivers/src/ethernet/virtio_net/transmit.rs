//! The transmit queue. Every packet has a slot: three descriptors and a piece of memory, for what the
//! device wants before a frame (all zero for us), the frame's header, and its trailer. Small packets are
//! copied into the slot whole; the payload of larger ones is read by the device where it lies; frames
//! whose header alone is larger than a slot, and those whose payload is in pieces, go through a few
//! buffers of full size.

use super::{ETHERNET, TRANSMIT, entries};
use crate::ethernet::copies::{put_header, put_trailer};
use crate::hal::{Packet, TransmitError, TransmitProgress, Window};
use crate::virtio::{Error, Ring, Setup, Taken};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a slot.
const SLOT: usize = 256;
/// Where the trailer stands in a slot.
const TRAILER: usize = SLOT - Packet::MAX_TRAILER;
/// Descriptors of a slot: what stands before the payload, payload, trailer.
const DESCRIPTORS: u16 = 3;
/// Full-size buffers, which TCP's segments go through: for plain Ethernet, and for jumbo frames.
const MOST_BOUNCES: usize = 64;
const LEAST_BOUNCES: usize = 16;
/// Bytes that those beyond the least may take.
const BOUNCE_MEMORY: usize = 128 << 10;

pub struct Transmitter {
    ring: Ring,
    memory: Window,
    /// Slots that the device does not have.
    free: Vec<u16>,
    slots: usize,
    bounce: Window,
    /// Length of a full-size buffer in bytes.
    bounce_stride: usize,
    bounce_free: Vec<u16>,
    bounces: u16,
    /// The full-size buffer that the packet of a slot lies in.
    bounced: Box<[Option<u16>]>,
    /// Which period each slot's packet is of: devices may give packets back in any order, so those that were queued
    /// before the present period are counted apart.
    periods: Box<[u8]>,
    period: u8,
    under_way: [u16; 2],
    /// Packets that were queued before the present period, and those of them and of all that are known to be sent.
    before: u64,
    sent: u64,
    /// Length of what stands before each frame.
    header: usize,
    longest: usize,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
    pub full: u64,
    /// A frame found no room, and the device has given nothing back since.
    starved: bool,
    /// It is asked for an interrupt when it does.
    armed: bool,
    /// The device is not used any more.
    pub is_stopped: bool,
}

impl Transmitter {
    /// For frames of up to `longest` bytes.
    pub fn new(setup: &mut Setup<'_>, header: usize, longest: usize) -> Result<Self, Error> {
        let ring = setup.queue(TRANSMIT, entries(setup), true)?;
        let slots = ring.size() / DESCRIPTORS;
        if slots == 0 {
            return Err(Error::NoQueue(TRANSMIT));
        }
        let memory = setup.alloc(usize::from(slots) * SLOT, SLOT)?;
        let bounce_stride = (header + longest).next_multiple_of(64);
        let bounces = (BOUNCE_MEMORY / bounce_stride).clamp(LEAST_BOUNCES, MOST_BOUNCES);
        let bounces = slots.min(bounces as u16);
        let bounce = setup.alloc(usize::from(bounces) * bounce_stride, 64)?;
        Ok(Transmitter {
            ring,
            memory,
            free: (0..slots).collect(),
            slots: slots.into(),
            bounce,
            bounce_stride,
            bounce_free: (0..bounces).collect(),
            bounces,
            bounced: alloc::vec![None; slots.into()].into(),
            periods: alloc::vec![0; slots.into()].into(),
            period: 0,
            under_way: [0; 2],
            before: 0,
            sent: 0,
            header,
            longest,
            frames: 0,
            bytes: 0,
            errors: 0,
            full: 0,
            starved: false,
            armed: false,
            is_stopped: false,
        })
    }

    pub fn is_dead(&self) -> bool {
        self.ring.is_dead()
    }

    /// See [`Ring::stands_still`].
    pub fn stands_still(&mut self) -> bool {
        self.ring.stands_still()
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
        if self.free.is_empty() {
            if self.is_stopped {
                self.errors += 1;
                return Ok(());
            }
            self.reclaim();
        }
        let Some(slot) = self.free.pop() else { return Err(self.starve()) };
        match packet.payload {
            _ if self.header + len <= SLOT => {
                let memory = self.memory;
                self.copy(slot, packet, &memory, Self::slot(slot), len);
            }
            [payload] if self.header + packet.header.len() <= TRAILER => {
                self.refer(slot, packet, payload);
            }
            _ if self.bounce(slot, packet, len) => {}
            _ => {
                self.free.push(slot);
                return Err(self.starve());
            }
        }
        self.ring.offer(slot * DESCRIPTORS);
        self.periods[usize::from(slot)] = self.period;
        self.under_way[usize::from(self.period)] += 1;
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// There is no room for a frame.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Whether a frame that found no room would find some now, as far as one can tell without looking closer.
    pub fn has_room(&self) -> bool {
        !self.starved || self.ring.pending()
    }

    /// Whether there is room again for a frame that found none; or there may be, with nobody to tell of it.
    pub fn pending(&self) -> bool {
        self.starved && (self.ring.dialect().is_uhyve() || self.ring.pending())
    }

    /// Asks for an interrupt when there is room again for a frame that found none, or for none.
    pub fn set_interrupts(&mut self, wanted: bool) {
        let wanted = wanted && self.starved;
        if wanted || self.armed {
            self.ring.set_interrupts(wanted);
            self.armed = wanted;
        }
    }

    /// Where the memory of a slot begins.
    #[inline]
    fn slot(slot: u16) -> usize {
        usize::from(slot) * SLOT
    }

    /// One descriptor, with a copy of the whole packet in `memory`, from `start` on.
    #[inline(always)]
    fn copy(&mut self, slot: u16, packet: &Packet<'_>, memory: &Window, start: usize, len: usize) {
        let mut at = start + self.header;
        put_header(memory, at, packet.header);
        at += packet.header.len();
        for window in packet.payload {
            memory.write_window(at, window).expect("checked against the buffer's length");
            at += window.len();
        }
        put_trailer(memory, at, packet.trailer);
        let piece = (memory.bus_address() + start as u64, self.header + len);
        self.ring.describe_chain(slot * DESCRIPTORS, [piece]);
    }

    /// Header and trailer copied to the slot, the payload described where it lies.
    #[inline]
    fn refer(&mut self, slot: u16, packet: &Packet<'_>, payload: &Window) {
        let start = Self::slot(slot);
        let bus = self.memory.bus_address() + start as u64;
        put_header(&self.memory, start + self.header, packet.header);
        let first = slot * DESCRIPTORS;
        let header = (bus, self.header + packet.header.len());
        let payload = (payload.bus_address(), payload.len());
        if packet.trailer.is_empty() {
            return self.ring.describe_chain(first, [header, payload]);
        }
        put_trailer(&self.memory, start + TRAILER, packet.trailer);
        let trailer = (bus + TRAILER as u64, packet.trailer.len());
        self.ring.describe_chain(first, [header, payload, trailer]);
    }

    /// A full-size buffer with a copy of the whole packet. False if there is none left.
    #[inline(never)]
    fn bounce(&mut self, slot: u16, packet: &Packet<'_>, len: usize) -> bool {
        if self.bounce_free.is_empty() {
            self.reclaim();
        }
        let Some(number) = self.bounce_free.pop() else { return false };
        let start = usize::from(number) * self.bounce_stride;
        let memory = self.bounce;
        self.bounced[usize::from(slot)] = Some(number);
        self.copy(slot, packet, &memory, start, len);
        true
    }

    /// Takes back what the device has sent if there is little room left; until then there is no
    /// need to look.
    #[inline]
    pub fn reclaim_some(&mut self) {
        if self.free.len() < self.slots / 2 {
            self.reclaim();
        }
    }

    /// Takes back what the device has sent.
    fn reclaim(&mut self) {
        if self.is_stopped {
            return;
        }
        loop {
            match self.ring.take() {
                Taken::Nothing => return,
                Taken::Nonsense => self.errors += 1,
                Taken::Chain { head, .. } => {
                    self.starved = false;
                    let slot = head / DESCRIPTORS;
                    self.free.push(slot);
                    self.under_way[usize::from(self.periods[usize::from(slot)])] -= 1;
                    if self.bounce_free.len() < usize::from(self.bounces) {
                        self.bounce_free.extend(self.bounced[usize::from(slot)].take());
                    }
                }
            }
        }
    }

    /// How far the device has come.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        for _ in 0..2 {
            if self.under_way[usize::from(self.period ^ 1)] > 0 {
                break;
            }
            // All that were queued before this period are sent: another begins.
            self.sent = self.before;
            self.before = self.frames;
            self.period ^= 1;
        }
        TransmitProgress { queued: self.frames, sent: self.sent }
    }

    /// The device was reset: it reads no memory, and is not used any more. What is to be sent is lost.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.under_way = [0; 2];
        self.free.clear();
    }

    /// True if the device has to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }
}
