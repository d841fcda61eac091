//! Outbound messages, with a channel for each mailbox and one message in flight per channel; and outbound doorbells.

use super::block_dma::{INIT, INIT_TIME, INT_SUSPENDED, RUN, RUNS, SUSPEND, SUSPEND_TIME};
use super::registers::Kept;
use super::{Outgoing, Tsi721};
use crate::rapidio::{Kind, Packet, Status};
use crate::{Machine, Nanoseconds};

/// Response timeout, and delay before a retry.
const TIMEOUT: Nanoseconds = 5_000_000;
const RETRY_DELAY: Nanoseconds = 20_000;

const WRITTEN: u64 = 0x00;
const DONE: u64 = 0x04;
const CONTROL: u64 = 0x08;
const INTERRUPT: u64 = 0x0c;
const STATUS: u64 = 0x14;
const FIFO_WRITE: u64 = 0x50;
const ABORT: u32 = 0x40_0000;
const INT_DONE: u32 = 8;
const INT_WANTED: u32 = 1;

#[derive(Debug)]
struct Waiting {
    since: Nanoseconds,
    tid: u16,
    descriptor: u64,
    wants_interrupt: bool,
    packet: Packet,
    /// When the message is retransmitted after a retry response.
    retry_at: Option<Nanoseconds>,
}

#[derive(Debug, Default)]
pub struct Channel {
    pointer: u64,
    started: bool,
    waiting: Option<Waiting>,
    /// End of the initialization.
    ready_at: Nanoseconds,
    suspends_at: Option<Nanoseconds>,
}

/// A doorbell without a response yet.
#[derive(Debug)]
pub struct OutboundDoorbell {
    tid: u16,
    since: Nanoseconds,
    retry_at: Option<Nanoseconds>,
    packet: Packet,
}

fn base(mailbox: usize) -> u64 {
    0x61000 + 0x1000 * mailbox as u64
}

impl Channel {
    /// Handles a write to a register. `late` delays a suspension. Returns a violation of the rules.
    pub fn write(
        &mut self,
        kept: &mut Kept,
        offset: u64,
        value: u32,
        now: Nanoseconds,
        late: Nanoseconds,
    ) -> Option<&'static str> {
        let base = offset & !0xfff;
        let ring = kept.address(base + 0x20, base + 0x24);
        let runs = kept.get(base + STATUS) & RUN != 0;
        match offset & 0xfff {
            CONTROL if value & SUSPEND != 0 => {
                self.suspends_at = Some(now + if runs { SUSPEND_TIME + late } else { 0 });
            }
            CONTROL if value & INIT != 0 && runs => return Some(RUNS),
            CONTROL if value & INIT != 0 => {
                let ready_at = now + INIT_TIME;
                *self = Channel { pointer: ring, started: true, ready_at, ..Channel::default() };
                [WRITTEN, DONE, STATUS, FIFO_WRITE].iter().for_each(|at| kept.set(base + at, 0));
            }
            // After an error, the driver writes here the slot at which it continues.
            DONE => {
                kept.set(offset, value);
                kept.set(base + WRITTEN, value);
                self.pointer = ring + 16 * u64::from(value);
            }
            // Lost.
            WRITTEN if now < self.ready_at => {}
            INTERRUPT => kept.clear(offset, value),
            STATUS | FIFO_WRITE => {}
            _ => kept.set(offset, value),
        }
        None
    }

    /// Ends a suspension that is due.
    fn suspend(&mut self, kept: &mut Kept, base: u64, now: Nanoseconds) {
        if self.suspends_at.take_if(|at| *at <= now).is_some() {
            (self.waiting, self.started) = (None, false);
            kept.clear(base + STATUS, RUN);
            kept.raise(base + INTERRUPT, INT_SUSPENDED);
        }
    }
}

impl Tsi721 {
    pub(super) fn suspend_outbound(&mut self, now: Nanoseconds) {
        for (mailbox, channel) in self.outbound.iter_mut().enumerate() {
            channel.suspend(&mut self.kept, base(mailbox), now);
        }
    }

    pub(super) fn run_outbound(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        for mailbox in 0..self.outbound.len() {
            while self.step_outbound(mailbox, now, machine) {}
        }
        self.run_doorbells(now);
    }

    pub(super) fn outbound_due(&self) -> Option<Nanoseconds> {
        let messages = self.outbound.iter().filter_map(|channel| channel.waiting.as_ref());
        let messages = messages.map(|one| one.retry_at.unwrap_or(one.since + TIMEOUT));
        let doorbells =
            self.doorbells.iter().map(|one| one.retry_at.unwrap_or(one.since + TIMEOUT));
        let suspending = self.outbound.iter().filter_map(|channel| channel.suspends_at);
        messages.chain(doorbells).chain(suspending).min()
    }

    fn step_outbound(
        &mut self,
        mailbox: usize,
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) -> bool {
        let base = base(mailbox);
        let channel = &mut self.outbound[mailbox];
        if let Some(waiting) = &mut channel.waiting {
            if let Some(at) = waiting.retry_at {
                if now >= at {
                    (waiting.retry_at, waiting.since) = (None, now);
                    let packet = waiting.packet.clone();
                    self.counts.retries += 1;
                    self.transmit(packet);
                }
            } else if now >= waiting.since + TIMEOUT {
                self.abort_outbound(mailbox);
            }
            return false;
        }
        let is_idle = self.kept.get(base + WRITTEN) == self.kept.get(base + DONE);
        if is_idle || !channel.started || self.kept.get(base + STATUS) & ABORT != 0 {
            return false;
        }
        let descriptor = channel.pointer;
        let mut words = [0; 4];
        if !self.fetch(descriptor, &mut words, machine) {
            self.complain("a message descriptor is not in memory");
            self.abort_outbound(mailbox);
            return false;
        }
        match words[0] >> 29 {
            5 => {
                self.outbound[mailbox].pointer =
                    u64::from(words[2] & !0xf) | u64::from(words[3]) << 32;
                self.finish_outbound(mailbox, descriptor, false, machine);
                true
            }
            4 => {
                self.begin_message(mailbox, descriptor, words, now, machine);
                false
            }
            _ => {
                self.complain("a message descriptor has an unknown type");
                self.abort_outbound(mailbox);
                false
            }
        }
    }

    fn begin_message(
        &mut self,
        mailbox: usize,
        descriptor: u64,
        words: [u32; 4],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let len = match words[1] & 0xff8 {
            0 => 4096,
            len => len as usize,
        };
        let mut data = vec![0; len];
        let address = u64::from(words[2]) | u64::from(words[3]) << 32;
        if machine.read(address, &mut data).is_err() {
            self.complain("a message is not in memory");
            return self.abort_outbound(mailbox);
        }
        if words[1] >> 12 & 0xf != 0xe {
            self.complain("the segment size of a message is not 256 bytes");
        }
        let tid = self.next_tid();
        let (number, letter) = ((words[1] >> 22 & 3) as u8, (words[1] >> 16 & 3) as u8);
        let kind = Kind::Message { tid, mailbox: number, letter, data };
        let packet = self.packet(words[0] as u16, words[1] >> 26 & 3 == 1, kind);
        let wants_interrupt = words[0] >> 27 & 1 == 1;
        self.outbound[mailbox].waiting = Some(Waiting {
            since: now,
            tid,
            descriptor,
            wants_interrupt,
            packet: packet.clone(),
            retry_at: None,
        });
        self.kept.raise(base(mailbox) + STATUS, RUN);
        self.outgoing.push(Outgoing::Message { tid, mailbox });
        self.transmit(packet);
    }

    /// Handles the response to a message.
    pub(super) fn answer_message(
        &mut self,
        mailbox: usize,
        tid: u16,
        status: Status,
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let channel = &mut self.outbound[mailbox];
        let Some(waiting) = channel.waiting.as_mut().filter(|waiting| waiting.tid == tid) else {
            return;
        };
        match status {
            Status::Retry => {
                waiting.retry_at = Some(now + RETRY_DELAY);
                self.outgoing.push(Outgoing::Message { tid, mailbox });
            }
            Status::Error => self.abort_outbound(mailbox),
            Status::Done => {
                let (descriptor, wants) = (waiting.descriptor, waiting.wants_interrupt);
                channel.waiting = None;
                channel.pointer = descriptor + 16;
                self.counts.messages_out += 1;
                self.finish_outbound(mailbox, descriptor, wants, machine);
            }
        }
    }

    fn finish_outbound(
        &mut self,
        mailbox: usize,
        descriptor: u64,
        wants_interrupt: bool,
        machine: &mut dyn Machine,
    ) {
        let base = base(mailbox);
        self.kept.clear(base + STATUS, RUN);
        let done = self.kept.get(base + DONE).wrapping_add(1);
        self.kept.set(base + DONE, done);
        let fifo = [0x40, 0x44, 0x48, FIFO_WRITE].map(|at| base + at);
        self.complete(fifo, descriptor, machine);
        let wanted = if wants_interrupt { INT_WANTED } else { 0 };
        let is_last = done == self.kept.get(base + WRITTEN);
        self.kept.raise(base + INTERRUPT, if is_last { INT_DONE | wanted } else { wanted });
    }

    fn abort_outbound(&mut self, mailbox: usize) {
        let base = base(mailbox);
        self.outbound[mailbox].waiting = None;
        self.kept.clear(base + STATUS, RUN);
        self.kept.raise(base + STATUS, ABORT);
        self.kept.raise(base + INTERRUPT, 2);
        self.counts.aborts += 1;
    }

    /// Sends an outbound doorbell.
    pub(super) fn ring(&mut self, offset: u64, info: u16, now: Nanoseconds) {
        let (to, large) = ((offset >> 2) as u16, offset >> 18 & 3 == 1);
        let tid = self.next_tid();
        let packet = self.packet(to, large, Kind::Doorbell { tid, info });
        self.doorbells.push_back(OutboundDoorbell {
            tid,
            since: now,
            retry_at: None,
            packet: packet.clone(),
        });
        self.transmit(packet);
    }

    fn run_doorbells(&mut self, now: Nanoseconds) {
        let before = self.doorbells.len();
        self.doorbells.retain(|one| one.retry_at.is_some() || now < one.since + TIMEOUT);
        if self.doorbells.len() < before {
            self.kept.raise(0x20040, 4);
        }
        let mut retries = Vec::new();
        for one in self.doorbells.iter_mut().filter(|one| one.retry_at.is_some_and(|at| at <= now))
        {
            (one.retry_at, one.since) = (None, now);
            retries.push(one.packet.clone());
        }
        retries.into_iter().for_each(|packet| self.transmit(packet));
    }

    /// Handles the response to a doorbell.
    pub(super) fn answer_doorbell(&mut self, tid: u16, status: Status, now: Nanoseconds) {
        let Some(at) = self.doorbells.iter().position(|one| one.tid == tid) else { return };
        match status {
            Status::Done => self.kept.raise(0x20040, 0x20),
            Status::Error => self.kept.raise(0x20040, 1),
            Status::Retry => {
                self.doorbells[at].retry_at = Some(now + RETRY_DELAY);
                return;
            }
        }
        self.doorbells.remove(at);
    }
}
