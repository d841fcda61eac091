//! Inbound packets: messages, doorbells, port-writes, memory requests to inbound windows.

use super::{Fault, Tsi721};
use crate::Machine;
use crate::rapidio::{Kind, Packet, Status};

/// Registers of the first inbound window.
const WINDOW: u64 = 0x29000;

/// Result of a message.
enum Taken {
    Yes,
    Later,
    No,
}

impl Tsi721 {
    /// Handles a port-write.
    pub(super) fn take_port_write(&mut self, words: [u32; 4]) {
        if self.kept.get(0x10a10) & 1 != 0 {
            // The register holds one port-write: further ones are dropped.
            return self.kept.raise(0x10a10, 2);
        }
        for (n, word) in words.into_iter().enumerate() {
            self.kept.set(0x10a20 + 4 * n as u64, word);
        }
        self.kept.raise(0x10a10, 1);
        self.kept.raise(0x10910, 0x1_0000);
        self.counts.port_writes += 1;
    }

    /// Handles a doorbell.
    pub(super) fn take_doorbell(
        &mut self,
        packet: &Packet,
        info: u16,
        machine: &mut dyn Machine,
    ) -> Status {
        let kept = &mut self.kept;
        if kept.get(0x20014) == 0 && kept.get(0x20018) == 0 {
            return Status::Error;
        }
        let entries = 1u32 << (kept.get(0x2001c) + 4);
        let (read, write) = (kept.get(0x2000c) % entries, kept.get(0x20010) % entries);
        if (write + 1) % entries == read {
            return Status::Retry;
        }
        let [a, b] = info.to_be_bytes();
        let [c, d] = packet.from.to_be_bytes();
        let [e, f] = packet.to.to_be_bytes();
        let at = kept.address(0x20014, 0x20018) + 64 * u64::from(write);
        kept.set(0x20010, (write + 1) % entries);
        kept.raise(0x20040, 0x10);
        self.counts.doorbells += 1;
        if machine.write(at, &[a, b, c, d, e, f, 0, 0]).is_err() {
            self.complain("the doorbell queue is not in memory");
        }
        Status::Done
    }

    /// Handles a message.
    pub(super) fn take_message(
        &mut self,
        packet: &Packet,
        mailbox: u8,
        letter: u8,
        data: &[u8],
        machine: &mut dyn Machine,
    ) -> Status {
        match self.put_message(packet, mailbox.into(), letter, data, machine) {
            Taken::Yes => Status::Done,
            Taken::Later => Status::Retry,
            Taken::No => Status::Error,
        }
    }

    fn put_message(
        &mut self,
        packet: &Packet,
        mailbox: usize,
        letter: u8,
        data: &[u8],
        machine: &mut dyn Machine,
    ) -> Taken {
        let base = 0x61000 + 0x1000 * (mailbox as u64 + 4);
        let id = self.kept.get(0x60020) as u16;
        let is_open = self.inbound_started[mailbox] && (id == 0xffff || id == packet.to);
        if !is_open || self.kept.get(base + 0x244) & 0x40_0000 != 0 {
            return Taken::No;
        }
        let entries = 1u32 << (self.kept.get(base + 0x208) + 4);
        let (free, limit) = (self.kept.get(base + 0x20c), self.kept.get(base + 0x210));
        let (read, write) = (self.kept.get(base + 0x308), self.kept.get(base + 0x30c));
        if free % entries == limit % entries || (write + 1) % entries == read % entries {
            return Taken::Later;
        }
        let mut address = [0; 8];
        let place = self.kept.address(base + 0x200, base + 0x204) + 8 * u64::from(free % entries);
        let fetched = machine.read(place, &mut address);
        let mut buffer = u64::from_le_bytes(address);
        let is_bad = fetched.is_err() || buffer % 8 != 0 || !self.put(buffer, data, machine);
        if is_bad || self.once(Fault::MessageMemory(mailbox)) {
            if is_bad {
                self.complain("a message buffer is not in memory");
            }
            self.kept.raise(base + 0x244, 0x40_0000);
            self.kept.raise(base + 0x248, 4);
            return Taken::No;
        }
        self.kept.set(base + 0x20c, (free + 1) % entries);
        let used = buffer;
        if self.once(Fault::NamesNoBuffer(mailbox)) {
            buffer += 64;
        }
        if self.once(Fault::NamesBufferTwice(mailbox)) {
            buffer = self.last_buffer[mailbox];
        }
        self.last_buffer[mailbox] = used;
        let status = u32::from(self.once(Fault::MessageStatus(mailbox))) * 5;
        let tt = u32::from(packet.large);
        let second = 1 << 31
            | status << 27
            | (mailbox as u32) << 22
            | u32::from(letter) << 16
            | 0xe << 12
            | data.len() as u32 & 0xff8;
        let descriptor = self.kept.address(base + 0x300, base + 0x304) + 64 * u64::from(write);
        let first = 6 << 29 | tt << 19 | u32::from(packet.from);
        let rest = buffer.to_le_bytes();
        // The word with the valid bit is written last.
        let written = machine
            .write(descriptor + 8, &rest)
            .and_then(|()| machine.write(descriptor, &first.to_le_bytes()))
            .and_then(|()| machine.write(descriptor + 4, &second.to_le_bytes()));
        if written.is_err() {
            self.complain("a queue of message descriptors is not in memory");
        }
        self.kept.set(base + 0x30c, (write + 1) % entries);
        self.kept.raise(base + 0x248, 1);
        self.counts.messages_in += 1;
        Taken::Yes
    }

    /// Translates a RapidIO address to a bus address, if a window contains the whole range.
    fn translate(&self, address: u64, len: usize) -> Option<u64> {
        (0..8).find_map(|number| {
            let at = WINDOW + 0x20 * number;
            let low = self.kept.get(at);
            let start = u64::from(low & !0xfff) | u64::from(self.kept.get(at + 4)) << 32;
            let size = 1u64 << ((self.kept.get(at + 8) >> 8 & 0x1f) + 12);
            let offset = address.checked_sub(start)?;
            let end = offset.checked_add(len as u64)?;
            (low & 1 == 1 && end <= size).then(|| self.kept.address(at + 0xc, at + 0x10) + offset)
        })
    }

    /// Handles a peer's memory read.
    pub(super) fn serve_read(
        &mut self,
        address: u64,
        len: usize,
        machine: &mut dyn Machine,
    ) -> Option<Vec<u8>> {
        let mut data = vec![0; len];
        machine.read(self.translate(address, len)?, &mut data).ok()?;
        Some(data)
    }

    /// Handles a peer's memory write.
    pub(super) fn serve_write(
        &mut self,
        address: u64,
        data: &[u8],
        machine: &mut dyn Machine,
    ) -> Status {
        let place = self.translate(address, data.len());
        match place.map(|place| machine.write(place, data)) {
            Some(Ok(())) => Status::Done,
            _ => Status::Error,
        }
    }

    /// Handles all received packets.
    pub(super) fn run_inbox(&mut self, now: u64, machine: &mut dyn Machine) {
        let inbox = self.network().take_inbox(self.me);
        for packet in inbox {
            self.take(packet, now, machine);
        }
    }

    fn take(&mut self, packet: Packet, now: u64, machine: &mut dyn Machine) {
        let answer = match &packet.kind {
            Kind::PortWrite { words } => return self.take_port_write(*words),
            Kind::Doorbell { tid, info } => {
                let status = self.take_doorbell(&packet, *info, machine);
                Kind::Rung { tid: *tid, status }
            }
            Kind::Message { tid, mailbox, letter, data } => {
                let status = self.take_message(&packet, *mailbox, *letter, data, machine);
                Kind::Received { tid: *tid, mailbox: *mailbox, status }
            }
            Kind::Read { tid, address, len } => {
                Kind::Data { tid: *tid, data: self.serve_read(*address, *len, machine) }
            }
            Kind::Write { tid, address, data } => {
                let status = self.serve_write(*address, data, machine);
                let Some(tid) = *tid else { return };
                Kind::Written { tid, status }
            }
            Kind::Rung { tid, status } => return self.answer_doorbell(*tid, *status, now),
            Kind::Received { tid, status, .. } => {
                let (tid, status) = (*tid, *status);
                if let Some(mailbox) = self.sent_message(tid) {
                    self.answer_message(mailbox, tid, status, now, machine);
                }
                return;
            }
            Kind::Maintained { tid, .. } | Kind::Data { tid, .. } | Kind::Written { tid, .. } => {
                if let Some(channel) = self.sent_dma(*tid) {
                    self.answer_dma(channel, packet.kind, machine);
                }
                return;
            }
            // The network answers maintenance requests.
            Kind::Maintenance { .. } => return,
        };
        self.transmit(packet.answer(answer));
    }
}
