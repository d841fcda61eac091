//! The queues: selects a frame's queue, gathers sent packets from descriptors, and scatters received frames to them.

use super::{Fault, Kind, MPC, MRQC, Nic, RETA, RSSRK, RXCSUM};
use crate::Machine;
use crate::offload::{self, IPV4, IPV6, Layers};

/// Bytes of a descriptor, and of a receive buffer.
const DESCRIPTOR: u64 = 16;
const BUFFER: usize = 2048;

const DONE: u32 = 1;
const END: u32 = 1 << 1;

/// Registers of a queue, as offsets from its base.
const LENGTH: u64 = 8;
const HEAD: u64 = 0x10;
const TAIL: u64 = 0x18;

/// Hash input for RSS: both IP addresses of a frame.
const ADDRESSES: u32 = 3;

impl Nic {
    /// Bases of the registers of a queue pair: receive, transmit.
    pub fn queue(&self, number: usize) -> [u64; 2] {
        match number as u64 {
            n @ 0..4 => [0x2800 + 0x100 * n, 0x3800 + 0x100 * n],
            n => [0xc000 + 0x40 * n, 0xe000 + 0x40 * n],
        }
    }

    /// The receive queue of a frame.
    pub fn queue_of(&mut self, frame: &[u8]) -> usize {
        let wrong = |fault| match fault {
            Fault::WrongQueue(queue) => Some(queue),
            _ => None,
        };
        if let Some(queue) = self.once(wrong) {
            return queue;
        }
        let control = self.get(MRQC);
        let wanted = match self.kind {
            Kind::E1000e => 1,
            Kind::Igb => 2,
            Kind::E1000 | Kind::IgbVf => return 0,
        };
        if control & 7 != wanted || self.get(RXCSUM) & 1 << 13 == 0 {
            return 0;
        }
        let field = match Layers::of(frame).ethertype {
            IPV4 => 1 << 17,
            IPV6 => 1 << 20,
            _ => return 0,
        };
        if control & !(7 | 1 << 17 | 1 << 20) != 0 {
            self.complain("MRQC selects a hash of more than addresses");
        }
        if control & field == 0 {
            return 0;
        }
        let mut key = [0; 40];
        for (n, part) in (0..).zip(key.chunks_exact_mut(4)) {
            part.copy_from_slice(&self.get(RSSRK + 4 * n).to_le_bytes());
        }
        let index = u64::from(offload::toeplitz(&key, frame, ADDRESSES) & 0x7f);
        let entry = self.get(RETA + (index & !3)) >> (8 * (index & 3)) & 0xff;
        match self.kind {
            Kind::E1000e => (entry >> 7) as usize,
            _ => (entry & 0xf) as usize,
        }
    }

    fn ring(&self, base: u64) -> (u64, u32) {
        let address = u64::from(self.get(base + 4)) << 32 | u64::from(self.get(base));
        (address, self.get(base + LENGTH) / DESCRIPTOR as u32)
    }

    /// Advances the head of a ring. Returns the old head, or None if it has reached the tail.
    fn advance(&mut self, base: u64) -> Option<u32> {
        let (entries, head) = (self.ring(base).1, self.get(base + HEAD));
        if entries == 0 || head == self.get(base + TAIL) {
            return None;
        }
        if self.get(base + TAIL) >= entries {
            self.complain(format!("tail {} of {entries}", self.get(base + TAIL)));
            self.set(base + TAIL, head);
            return None;
        }
        self.set(base + HEAD, (head + 1) % entries);
        Some(head)
    }

    fn descriptor(&mut self, base: u64, at: u32, machine: &mut dyn Machine) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        let address = self.ring(base).0 + u64::from(at) * DESCRIPTOR;
        if machine.read(address, &mut bytes).is_err() {
            self.complain("a ring cannot be reached");
            return None;
        }
        Some(bytes)
    }

    /// Sends all posted packets of a queue.
    pub fn send(&mut self, queue: usize, machine: &mut dyn Machine) {
        if self.once(|fault| (fault == Fault::QueueHangs(queue)).then_some(())).is_some() {
            self.stuck = Some(queue);
        }
        if !self.sends(queue) {
            return;
        }
        let ring = self.queue(queue)[1];
        let mut sent = false;
        while let Some(at) = self.advance(ring) {
            let Some(bytes) = self.descriptor(ring, at, machine) else { return };
            let word =
                |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().unwrap_or_default());
            let address = u64::from(word(4)) << 32 | u64::from(word(0));
            let (command, upper) = (word(8), word(12));
            let kind = command >> 20 & 0xf;
            let (extended, wanted) = match self.kind {
                Kind::E1000 => (0, 0),
                Kind::E1000e => (1 << 29, 1),
                Kind::Igb | Kind::IgbVf => (1 << 29, 3),
            };
            if command & 1 << 29 != extended || kind != wanted {
                self.complain(format!("descriptor {at} has the command {command:#x}"));
            }
            let mut piece = vec![0; (command & 0xffff) as usize];
            if machine.read(address, &mut piece).is_err() {
                self.complain(format!("a packet at {address:#x} cannot be reached"));
            }
            self.partial[queue].extend_from_slice(&piece);
            if command & 1 << 24 == 0 {
                continue;
            }
            let packet = core::mem::take(&mut self.partial[queue]);
            if !matches!(self.kind, Kind::E1000 | Kind::E1000e)
                && upper >> 14 != packet.len() as u32
            {
                self.complain(format!("PAYLEN {} of {} bytes", upper >> 14, packet.len()));
            }
            if packet.len() < 60 {
                self.complain("a frame is shorter than 60 bytes");
            }
            self.sent.push(packet);
            self.sent_by[queue] += 1;
            if command & 1 << 27 != 0 {
                sent |= self.report(queue, at, machine);
            }
        }
        if sent {
            self.raise(queue, 2, machine);
        }
    }

    /// Writes a transmit descriptor back as done.
    fn report(&mut self, queue: usize, at: u32, machine: &mut dyn Machine) -> bool {
        if self.faults.contains(&Fault::NeverReportsAgain) {
            return false;
        }
        if self.once(|fault| (fault == Fault::NeverReports).then_some(())).is_some() {
            self.hung = true;
            return false;
        }
        let another = |fault| match fault {
            Fault::ReportsAnother(by) => Some(by),
            _ => None,
        };
        let by = self.once(another).unwrap_or(0);
        let (ring, entries) = self.ring(self.queue(queue)[1]);
        let mut write = |at: u32| {
            let address = ring + u64::from(at % entries) * DESCRIPTOR;
            _ = machine.write(address + 12, &DONE.to_le_bytes());
        };
        write(at + by);
        if self.once(|fault| (fault == Fault::ReportsTwice).then_some(())).is_some() {
            write(at);
            write(at + 1);
        }
        true
    }

    /// Receives arrived frames while queues have room.
    pub fn receive(&mut self, machine: &mut dyn Machine) {
        let mut received = 0u32;
        while self.receives(0)
            && let Some(frame) = self.arriving.pop_front()
        {
            let queue = self.queue_of(&frame);
            let base = self.queue(queue)[0];
            let (entries, head) = (self.ring(base).1, self.get(base + HEAD));
            let room = (self.get(base + TAIL) + entries - head) % entries.max(1);
            if !self.receives(queue) || (room as usize) * BUFFER < frame.len() {
                self.set(MPC, self.get(MPC) + 1);
                continue;
            }
            self.scatter(base, &frame, machine);
            received |= 1 << queue;
        }
        for queue in (0..self.of_queues()).filter(|queue| received >> queue & 1 == 1) {
            self.raise(queue, 1, machine);
        }
    }

    fn scatter(&mut self, base: u64, frame: &[u8], machine: &mut dyn Machine) {
        let skew = |fault| match fault {
            Fault::ReceivesAt(by) => Some(by),
            _ => None,
        };
        if let Some(by) = self.once(skew) {
            self.skewed = by;
        }
        let length = |fault| match fault {
            Fault::Length(length) => Some(length),
            _ => None,
        };
        let lies = self.once(length);
        let no_end = self.once(|fault| (fault == Fault::NoEnd).then_some(())).is_some();
        let damaged = self.once(|fault| (fault == Fault::Damaged).then_some(())).is_some();
        let twice = self.once(|fault| (fault == Fault::ReceivesTwice).then_some(())).is_some();
        let pieces = frame.chunks(BUFFER).count();
        for (n, piece) in frame.chunks(BUFFER).enumerate() {
            let Some(at) = self.advance(base) else { return };
            let Some(bytes) = self.descriptor(base, at, machine) else { return };
            let address = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
            if machine.write(address, piece).is_err() {
                self.complain(format!("a buffer at {address:#x} cannot be reached"));
            }
            let last = n + 1 == pieces;
            let mut status = DONE;
            if last && !no_end {
                status |= END;
            }
            if last && damaged {
                status |= 1 << 31;
            }
            let written = lies.filter(|_| last).unwrap_or(piece.len() as u16);
            let (ring, entries) = self.ring(base);
            let place = ring + u64::from((at + self.skewed) % entries) * DESCRIPTOR;
            let legacy = self.kind == Kind::E1000;
            let word = match legacy {
                true => u64::from(written) | u64::from(status & 0xff | status >> 24 << 8) << 32,
                false => u64::from(status) | u64::from(written) << 32,
            };
            for _ in 0..=u32::from(twice) {
                if !legacy {
                    _ = machine.write(place, &[0; 8]);
                }
                _ = machine.write(place + 8, &word.to_le_bytes());
            }
        }
    }
}
