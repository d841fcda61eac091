//! The transmit queue. Every packet has a slot: three descriptors, and memory for the virtio header (all zero), the
//! frame's header, and its trailer. Small packets are copied whole into the slot. The device reads the payload of
//! larger ones in place. Frames whose header is larger than a slot, or whose payload is in pieces, are copied to a few
//! full-size buffers.

use super::{ETHERNET, TRANSMIT, entries};
use crate::ethernet::copies::{put_header, put_trailer};
use crate::hal::{Packet, TransmitError, TransmitProgress, Window};
use crate::virtio::{Error, Ring, Setup, Taken};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a slot.
const SLOT: usize = 256;
/// Offset of the trailer in a slot.
const TRAILER: usize = SLOT - Packet::MAX_TRAILER;
/// Descriptors of a slot: headers, payload, trailer.
const DESCRIPTORS: u16 = 3;
/// Number of full-size buffers (used by TCP's segments) for plain Ethernet.
const MOST_BOUNCES: usize = 64;
/// Number of full-size buffers for jumbo frames.
const LEAST_BOUNCES: usize = 16;
/// Maximum size in bytes of full-size buffers beyond the minimum number.
const BOUNCE_MEMORY: usize = 128 << 10;

pub struct Transmitter {
    ring: Ring,
    memory: Window,
    /// Slots that the device does not own.
    free: Vec<u16>,
    slots: usize,
    bounce: Window,
    /// Length of a full-size buffer in bytes.
    bounce_stride: usize,
    bounce_free: Vec<u16>,
    bounces: u16,
    /// The full-size buffer of a slot's packet, if it has one.
    bounced: Box<[Option<u16>]>,
    /// The chains that the device had when the current grace period began, by their first descriptors. Devices may
    /// complete packets in any order, so these are marked, and only while someone asks for the progress.
    awaited: Box<[bool]>,
    /// Number of the marked chains that the device still has.
    awaited_left: u16,
    /// Total of packets queued before the current grace period.
    before: u64,
    /// Total of packets, from the first on, that are known to be sent.
    sent: u64,
    /// Length of the virtio header before each frame.
    header: usize,
    longest: usize,
    pub frames: u64,
    pub bytes: u64,
    pub errors: u64,
    pub full: u64,
    /// A frame was refused, and no packet was reclaimed since.
    starved: bool,
    /// The interrupt for completions is enabled.
    armed: bool,
    /// The device is not used any more.
    pub is_stopped: bool,
}

impl Transmitter {
    /// A queue for frames of up to `longest` bytes.
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
        let awaited = alloc::vec![false; ring.size().into()].into();
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
            awaited,
            awaited_left: 0,
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
        self.frames += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Notes that a frame was refused.
    #[cold]
    fn starve(&mut self) -> TransmitError {
        self.full += 1;
        self.starved = true;
        TransmitError::Full
    }

    /// Whether a refused frame may find room now, judged by the ring alone.
    pub fn has_room(&self) -> bool {
        !self.starved || self.ring.pending()
    }

    /// Whether there is room again after a frame was refused. Always true on uhyve, which does not interrupt for it.
    pub fn pending(&self) -> bool {
        self.starved && (self.ring.dialect().is_uhyve() || self.ring.pending())
    }

    /// Enables the interrupt for completions if a frame was refused, or disables it.
    pub fn set_interrupts(&mut self, wanted: bool) {
        let wanted = wanted && self.starved;
        if wanted || self.armed {
            self.ring.set_interrupts(wanted);
            self.armed = wanted;
        }
    }

    /// Offset of a slot's memory.
    #[inline]
    fn slot(slot: u16) -> usize {
        usize::from(slot) * SLOT
    }

    /// Copies the whole packet to `memory`, from `start` on, and describes it by one descriptor.
    #[inline]
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

    /// Copies header and trailer to the slot, and describes the payload in place.
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

    /// Copies the whole packet to a full-size buffer. False if there is none left.
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

    /// Reclaims sent packets if less than half of the slots are free.
    #[inline]
    pub fn reclaim_some(&mut self) {
        if self.free.len() < self.slots / 2 {
            self.reclaim();
        }
    }

    /// Reclaims sent packets.
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
                    if self.awaited_left > 0
                        && core::mem::take(&mut self.awaited[usize::from(head)])
                    {
                        self.awaited_left -= 1;
                    }
                    if self.bounce_free.len() < usize::from(self.bounces) {
                        self.bounce_free.extend(self.bounced[usize::from(slot)].take());
                    }
                }
            }
        }
    }

    /// Transmit progress. A call begins a grace period, unless the device still has packets from before the last one.
    pub fn progress(&mut self) -> TransmitProgress {
        self.reclaim();
        if self.is_stopped || self.ring.outstanding() == 0 {
            // The device reads no memory.
            (self.awaited_left, self.before, self.sent) = (0, self.frames, self.frames);
        } else if self.awaited_left == 0 {
            // All packets from before this period are sent: the next period begins.
            (self.sent, self.before) = (self.before, self.frames);
            self.awaited.copy_from_slice(self.ring.lent());
            self.awaited_left = self.ring.outstanding();
        }
        TransmitProgress { queued: self.frames, sent: self.sent }
    }

    /// Stops the queue for good, after a reset of the device, which reads no memory any more. Later frames are dropped.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.free.clear();
    }

    /// True if the device has to be notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }
}
