//! Work, receive and completion queues: rings of 16-byte descriptors (Linux: `wq_enet_desc.h`, `rq_enet_desc.h`,
//! `cq_enet_desc.h`).

use super::{Enic, Fault};
use crate::Machine;
use crate::registers::{byte_of, with_half};

const DESCRIPTOR: u64 = 16;
const ALIGNMENT: u64 = 512;
const MOST_ENTRIES: u32 = 4096;
/// Ethertype of a VLAN tag.
const TAG: [u8; 2] = [0x81, 0];

/// Kind of a queue. From [`Kind::error`] on, the offsets of its registers depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Work,
    Receive,
}

impl Kind {
    /// Offset of the error registers: interrupt enable, interrupt, status.
    fn error(self) -> u64 {
        match self {
            Kind::Work => 0x40,
            Kind::Receive => 0x38,
        }
    }
}

/// A work or receive queue.
#[derive(Clone, Debug)]
pub struct Queue {
    kind: Kind,
    pub base: u64,
    pub size: u32,
    pub posted: u32,
    completions: u32,
    pub running: bool,
    pub fetch: u32,
    /// Interrupt enable, interrupt, status.
    error: [u32; 3],
    dropped: u32,
    /// Data of a packet whose last descriptor was not fetched yet.
    partial: Vec<u8>,
    /// First descriptor of that packet: it has the offload flags.
    first: Option<u64>,
}

impl Queue {
    pub fn new(kind: Kind) -> Self {
        Queue {
            kind,
            base: 0,
            size: 0,
            posted: 0,
            completions: 0,
            running: false,
            fetch: 0,
            error: [0; 3],
            dropped: 0,
            partial: Vec::new(),
            first: None,
        }
    }

    pub fn read(&self, offset: u64) -> u32 {
        let error = self.kind.error();
        match offset {
            0x00 => self.base as u32,
            0x04 => (self.base >> 32) as u32,
            0x08 => self.size,
            0x10 => self.posted,
            0x18 => self.completions,
            0x20 | 0x28 => self.running.into(),
            0x30 => self.fetch,
            _ if offset >= error && offset < error + 24 && offset.is_multiple_of(8) => {
                self.error[((offset - error) / 8) as usize]
            }
            0x50 if self.kind == Kind::Receive => self.dropped,
            _ => 0,
        }
    }

    /// Handles a write of the driver. Returns a complaint if the write is invalid.
    pub fn write(&mut self, offset: u64, value: u32) -> Option<String> {
        let error = self.kind.error();
        let changes = matches!(offset, 0x00 | 0x04 | 0x08 | 0x18 | 0x30);
        if self.running && changes {
            return Some(format!("{value:#x} goes to {offset:#x} of a queue that runs"));
        }
        match offset {
            0x00 | 0x04 => self.base = with_half(self.base, offset, value),
            0x08 => self.size = value,
            0x10 if self.running && value >= self.size => {
                return Some(format!("descriptor {value} of {} is posted", self.size));
            }
            0x10 => self.posted = value,
            0x18 => self.completions = value,
            0x20 => return self.enable(value),
            0x30 => self.fetch = value,
            0x38 if self.kind == Kind::Work => {}
            0x50 if self.kind == Kind::Receive => self.dropped = value,
            _ if offset >= error && offset < error + 24 && offset.is_multiple_of(8) => {
                self.error[((offset - error) / 8) as usize] = value;
            }
            _ => return Some(format!("{value:#x} goes to {offset:#x} of a {:?} queue", self.kind)),
        }
        None
    }

    fn enable(&mut self, value: u32) -> Option<String> {
        self.partial.clear();
        self.first = None;
        self.running = value & 1 != 0;
        if !self.running {
            return None;
        }
        let sane = self.size.is_multiple_of(32) && (32..=MOST_ENTRIES).contains(&self.size);
        let placed = self.base != 0 && self.base.is_multiple_of(ALIGNMENT);
        if sane && placed && self.fetch < self.size && self.posted < self.size {
            return None;
        }
        self.running = false;
        Some(format!("a {:?} queue of {} at {:#x} is enabled", self.kind, self.size, self.base))
    }

    /// Stops the queue after an error or a reset.
    pub fn stop(&mut self, status: u32) {
        self.running = false;
        self.error[2] = status;
    }

    fn has_more(&self) -> bool {
        self.running && self.fetch != self.posted
    }

    fn entry(&self) -> u64 {
        self.base + DESCRIPTOR * u64::from(self.fetch)
    }

    fn advance(&mut self) -> u32 {
        let at = self.fetch;
        self.fetch = (at + 1) % self.size;
        at
    }
}

/// A completion queue.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    base: u64,
    size: u32,
    /// Flow control enable, colour enable, head, tail, tail colour, interrupt enable, entry enable, message enable,
    /// interrupt number.
    words: [u32; 9],
    message: u64,
}

const COLOUR_ENABLE: usize = 1;
const TAIL: usize = 3;
const TAIL_COLOUR: usize = 4;
const INTERRUPT_ENABLE: usize = 5;
const ENTRY_ENABLE: usize = 6;
const INTERRUPT: usize = 8;

impl Completions {
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            0x00 => self.base as u32,
            0x04 => (self.base >> 32) as u32,
            0x08 => self.size,
            0x10..0x58 if offset.is_multiple_of(8) => self.words[(offset as usize - 0x10) / 8],
            _ => 0,
        }
    }

    pub fn write(&mut self, offset: u64, value: u32) -> Option<String> {
        match offset {
            0x00 | 0x04 => self.base = with_half(self.base, offset, value),
            0x08 => self.size = value,
            0x10..0x58 if offset.is_multiple_of(8) => {
                self.words[(offset as usize - 0x10) / 8] = value;
            }
            0x58 | 0x5c => self.message = with_half(self.message, offset - 0x58, value),
            _ => return Some(format!("{value:#x} goes to {offset:#x} of a completion queue")),
        }
        None
    }

    fn is_usable(&self) -> bool {
        let sane = self.size.is_multiple_of(32) && (32..=MOST_ENTRIES).contains(&self.size);
        let placed = self.base != 0 && self.base.is_multiple_of(ALIGNMENT);
        let enabled = [COLOUR_ENABLE, ENTRY_ENABLE].iter().all(|&n| self.words[n] == 1);
        sane && placed && enabled && self.words[TAIL] < self.size
    }
}

/// A completion without its colour: 16 bytes, as two words.
type Completion = [u64; 2];

impl Enic {
    /// Stops a queue with an error, and counts the error event.
    fn fail(&mut self, kind: Kind, n: usize, status: u32, machine: &mut dyn Machine) {
        let queue = match kind {
            Kind::Work => &mut self.work[n],
            Kind::Receive => &mut self.receive[n],
        };
        queue.stop(status);
        let [enabled, interrupt, _] = queue.error;
        if enabled != 0 {
            self.event(interrupt, machine);
        }
    }

    /// Stops the receive queues for which [`Fault::QueueError`] was injected.
    pub(super) fn fail_queues(&mut self, machine: &mut dyn Machine) {
        let failed = |fault| match fault {
            Fault::QueueError(n) => Some(n),
            _ => None,
        };
        while let Some(n) = self.once(failed) {
            self.fail(Kind::Receive, n, 2, machine);
        }
    }

    /// Writes a completion, its colour last.
    /// Each has `bytes` bytes in the queue.
    fn complete(
        &mut self,
        n: u32,
        words: Completion,
        bytes: u64,
        stale: bool,
        machine: &mut dyn Machine,
    ) {
        let Some(queue) = self.completions.get_mut(n as usize) else {
            return self.complain(format!("there is no completion queue {n}"));
        };
        if !queue.is_usable() {
            return self.complain(format!("completion queue {n} is not set up"));
        }
        let entry = queue.base + bytes * u64::from(queue.words[TAIL]);
        let colour = queue.words[TAIL_COLOUR] & 1 ^ u32::from(stale);
        queue.words[TAIL] += 1;
        if queue.words[TAIL] == queue.size {
            queue.words[TAIL] = 0;
            queue.words[TAIL_COLOUR] ^= 1;
        }
        let (wakes, interrupt) = (queue.words[INTERRUPT_ENABLE] == 1, queue.words[INTERRUPT]);
        let upper = words[1] | u64::from(colour) << 63;
        let written = machine.write(entry, &words[0].to_le_bytes());
        if written.and_then(|()| machine.write(entry + 8, &upper.to_le_bytes())).is_err() {
            self.complain(format!("a completion at {entry:#x} cannot be written"));
        }
        if wakes {
            self.event(interrupt, machine);
        }
    }

    fn descriptor(&mut self, at: u64, machine: &mut dyn Machine) -> Option<[u64; 2]> {
        let mut bytes = [0; 16];
        if machine.read(at, &mut bytes).is_err() {
            self.complain(format!("a descriptor at {at:#x} cannot be reached"));
            return None;
        }
        let (lower, upper) = bytes.split_at(8);
        Some([crate::registers::number(lower), crate::registers::number(upper)])
    }

    /// Sends the packets of all posted descriptors.
    pub(super) fn send(&mut self, machine: &mut dyn Machine) {
        for n in 0..self.work.len() {
            while !self.hung && self.work[n].has_more() {
                let at = self.work[n].entry();
                let Some(descriptor) = self.descriptor(at, machine) else {
                    return self.fail(Kind::Work, n, 1, machine);
                };
                if !self.take_piece(n, descriptor, machine) {
                    return self.fail(Kind::Work, n, 1, machine);
                }
            }
        }
    }

    /// Processes a descriptor of a work queue. Returns false if it is invalid.
    fn take_piece(
        &mut self,
        n: usize,
        [address, word]: [u64; 2],
        machine: &mut dyn Machine,
    ) -> bool {
        let len = (word & 0x3fff) as usize;
        if len == 0 || word & 0xc000 != 0 {
            self.complain(format!("a descriptor of {len} bytes: {word:#x}"));
            return false;
        }
        if self.once(|fault| (fault == Fault::NeverCompletes).then_some(())).is_some() {
            self.hung = true;
            return true;
        }
        let mut piece = vec![0; len];
        if machine.read(address, &mut piece).is_err() {
            self.complain(format!("a packet at {address:#x} cannot be reached"));
            return false;
        }
        let queue = &mut self.work[n];
        let index = queue.advance();
        queue.partial.extend_from_slice(&piece);
        let first = *queue.first.get_or_insert(word);
        if word & 1 << 44 != 0 {
            let packet = std::mem::take(&mut queue.partial);
            queue.first = None;
            if !self.transmit(packet, first) {
                return false;
            }
        }
        if word & 1 << 45 != 0 {
            self.report_sent(n, index, machine);
        }
        true
    }

    fn report_sent(&mut self, n: usize, index: u32, machine: &mut dyn Machine) {
        let another = |fault| match fault {
            Fault::CompletesAnother(by) => Some(by),
            _ => None,
        };
        let queue = |fault| match fault {
            Fault::CompletesQueue(queue) => Some(queue),
            _ => None,
        };
        let size = u64::from(self.work[n].size);
        let by = self.once(another).map_or(0, u64::from);
        let of = self.once(queue).map_or(n as u64, u64::from);
        let twice = self.once(|fault| (fault == Fault::CompletesTwice).then_some(())).is_some();
        let stale = self.once(|fault| (fault == Fault::CompletionColour).then_some(())).is_some();
        let words = [((u64::from(index) + by) % size) | of << 16, 0];
        for _ in 0..=u32::from(twice) {
            self.complete(self.work[n].completions, words, DESCRIPTOR, stale, machine);
        }
    }

    /// Sends a packet with the offloads of its first descriptor. Returns false if they are invalid.
    fn transmit(&mut self, mut packet: Vec<u8>, first: u64) -> bool {
        let (mss, flags) = (first >> 18 & 0x3fff, first >> 32 & 0xffff);
        let (header, mode) = ((flags & 0x3ff) as usize, flags >> 10 & 3);
        match mode {
            0 if mss == 0 => {}
            2 => {
                let place = mss as usize;
                if header >= packet.len() || place + 2 > packet.len() {
                    self.complain(format!("a sum from {header} on goes to {place}"));
                    return false;
                }
                let sum = ones_complement(&packet[header..]);
                packet[place..place + 2].copy_from_slice(&sum.to_be_bytes());
            }
            _ => {
                self.complain(format!("offload {mode} with {mss}"));
                return false;
            }
        }
        if flags & 1 << 15 != 0 {
            let tag = (first >> 48) as u16;
            let tag = [TAG, tag.to_be_bytes()].concat();
            packet.splice(12..12, tag);
        }
        let longest = usize::from(self.settings.mtu) + 18;
        if packet.len() < 14 || packet.len() > longest {
            self.complain(format!("a frame of {} bytes is sent", packet.len()));
            self.counts.transmit_errors += 1;
            return true;
        }
        packet.resize(packet.len().max(60), 0);
        self.counts.sent += 1;
        self.counts.sent_bytes += packet.len() as u64;
        if self.enabled && self.link {
            self.sent.push(packet);
        }
        true
    }

    /// Receives all arrived frames.
    pub(super) fn take_in(&mut self, machine: &mut dyn Machine) {
        while let Some(frame) = self.arriving.pop_front() {
            if !self.enabled || !self.link || !self.accepts(&frame) {
                continue;
            }
            let n = self.queue_of(&frame);
            if !self.receive[n].has_more() {
                self.receive[n].dropped += 1;
                self.counts.no_buffers += 1;
                continue;
            }
            let at = self.receive[n].entry();
            let Some(descriptor) = self.descriptor(at, machine) else {
                return self.fail(Kind::Receive, n, 1, machine);
            };
            if !self.put(n, frame, descriptor, machine) {
                return self.fail(Kind::Receive, n, 1, machine);
            }
        }
    }

    /// Puts a frame into a descriptor's buffer. Returns false if the descriptor is invalid.
    fn put(
        &mut self,
        n: usize,
        mut frame: Vec<u8>,
        [address, word]: [u64; 2],
        machine: &mut dyn Machine,
    ) -> bool {
        let room = (word & 0x3fff) as usize;
        if room == 0 || word >> 14 != 0 {
            self.complain(format!("a buffer of {room} bytes: {word:#x}"));
            return false;
        }
        let mut tag = 0;
        let strips = self.nic_config & 1 << 24 != 0;
        let stripped = strips && frame.get(12..14) == Some(&TAG) && frame.len() > 18;
        if stripped {
            tag = u64::from(u16::from_be_bytes([frame[14], frame[15]]));
            frame.drain(12..16);
        }
        let whole = frame.len() <= room;
        let kept = &frame[..frame.len().min(room)];
        if machine.write(address, kept).is_err() {
            self.complain(format!("a buffer at {address:#x} cannot be reached"));
            return false;
        }
        self.counts.received += 1;
        self.counts.steered += u64::from(n > 0);
        self.counts.received_bytes += frame.len() as u64;
        let index = u64::from(self.receive[n].advance());
        let length = |fault| match fault {
            Fault::Length(length) => Some(length),
            _ => None,
        };
        let skew = |fault| match fault {
            Fault::ReceivesAt(by) => Some(by),
            _ => None,
        };
        let len = self.once(length).map_or(kept.len() as u64, u64::from);
        let by = self.once(skew).map_or(0, u64::from);
        let mut once = |wanted| self.once(|fault| (fault == wanted).then_some(())).is_some();
        let damaged = once(Fault::Damaged) || !whole;
        let ends = u64::from(!once(Fault::NoEnd));
        let twice = once(Fault::ReceivesTwice);
        let stale = once(Fault::ReceiveColour);
        let index = (index + by) % u64::from(self.receive[n].size);
        // Start and end of packet; checksum not calculated.
        let lower = index | 1 << 15 | ends << 14 | (n as u64) << 16 | 1 << 30;
        let error = u64::from(damaged) << 14 | u64::from(stripped) << 15;
        // FCS is good; descriptor type 3.
        let upper = len & 0x3fff | error | tag << 16 | u64::from(!damaged) << 55 | 3 << 56;
        for _ in 0..=u32::from(twice) {
            let (queue, bytes) = (self.receive[n].completions, self.entry_size);
            self.complete(queue, [lower, upper], bytes, stale, machine);
        }
        true
    }
}

/// The Internet checksum.
fn ones_complement(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Fills `into` with the register at `offset` of a block.
pub fn fill(value: u32, into: &mut [u8]) {
    into.iter_mut().zip(0..).for_each(|(place, at)| *place = byte_of(value.into(), at));
}
