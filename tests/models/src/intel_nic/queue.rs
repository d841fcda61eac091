//! The two queues: what is sent is gathered from descriptors, what is received is scattered to them.

use super::{Fault, Kind, MPC, Nic, RECEIVE, TRANSMIT};
use crate::Machine;

/// Bytes of a descriptor, and of a receive buffer.
const DESCRIPTOR: u64 = 16;
const BUFFER: usize = 2048;

const DONE: u32 = 1;
const END: u32 = 1 << 1;

/// Registers of a queue, from its base on.
const LENGTH: u64 = 8;
const HEAD: u64 = 0x10;
const TAIL: u64 = 0x18;

impl Nic {
    fn ring(&self, base: u64) -> (u64, u32) {
        let address = u64::from(self.get(base + 4)) << 32 | u64::from(self.get(base));
        (address, self.get(base + LENGTH) / DESCRIPTOR as u32)
    }

    /// Moves the head of a ring on; where it was, unless it has met the tail.
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

    /// Sends all that there is.
    pub fn send(&mut self, machine: &mut dyn Machine) {
        if !self.sends() {
            return;
        }
        let mut sent = false;
        while let Some(at) = self.advance(TRANSMIT) {
            let Some(bytes) = self.descriptor(TRANSMIT, at, machine) else { return };
            let word =
                |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().unwrap_or_default());
            let address = u64::from(word(4)) << 32 | u64::from(word(0));
            let (command, upper) = (word(8), word(12));
            let kind = command >> 20 & 0xf;
            let wanted = if self.kind == Kind::E1000e { 1 } else { 3 };
            if command & 1 << 29 == 0 || kind != wanted {
                self.complain(format!("descriptor {at} has the command {command:#x}"));
            }
            let mut piece = vec![0; (command & 0xffff) as usize];
            if machine.read(address, &mut piece).is_err() {
                self.complain(format!("a packet at {address:#x} cannot be reached"));
            }
            self.partial.extend_from_slice(&piece);
            if command & 1 << 24 == 0 {
                continue;
            }
            let packet = core::mem::take(&mut self.partial);
            if self.kind != Kind::E1000e && upper >> 14 != packet.len() as u32 {
                self.complain(format!("PAYLEN {} of {} bytes", upper >> 14, packet.len()));
            }
            if packet.len() < 60 {
                self.complain("a frame is shorter than 60 bytes");
            }
            self.sent.push(packet);
            if command & 1 << 27 != 0 {
                sent |= self.report(at, machine);
            }
        }
        if sent {
            self.raise(2, machine);
        }
    }

    /// Writes back that a packet was sent.
    fn report(&mut self, at: u32, machine: &mut dyn Machine) -> bool {
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
        let (ring, entries) = self.ring(TRANSMIT);
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

    /// Receives all that there is room for.
    pub fn receive(&mut self, machine: &mut dyn Machine) {
        let mut received = false;
        while self.receives()
            && let Some(frame) = self.arriving.pop_front()
        {
            let (entries, head) = (self.ring(RECEIVE).1, self.get(RECEIVE + HEAD));
            let room = (self.get(RECEIVE + TAIL) + entries - head) % entries.max(1);
            if (room as usize) * BUFFER < frame.len() {
                self.set(MPC, self.get(MPC) + 1);
                continue;
            }
            self.scatter(&frame, machine);
            received = true;
        }
        if received {
            self.raise(1, machine);
        }
    }

    fn scatter(&mut self, frame: &[u8], machine: &mut dyn Machine) {
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
            let Some(at) = self.advance(RECEIVE) else { return };
            let Some(bytes) = self.descriptor(RECEIVE, at, machine) else { return };
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
            let (ring, entries) = self.ring(RECEIVE);
            let place = ring + u64::from((at + self.skewed) % entries) * DESCRIPTOR;
            let word = u64::from(status) | u64::from(written) << 32;
            for _ in 0..=u32::from(twice) {
                _ = machine.write(place, &[0; 8]);
                _ = machine.write(place + 8, &word.to_le_bytes());
            }
        }
    }
}
