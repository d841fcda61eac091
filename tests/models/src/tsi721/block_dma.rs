//! A block DMA channel: executes a chain of descriptors in order.

use super::registers::Kept;
use super::{Fault, Outgoing, Tsi721};
use crate::rapidio::{Kind, Status};
use crate::{Machine, Nanoseconds};

/// Response timeout.
const TIMEOUT: Nanoseconds = 2_000_000;

const WRITTEN: u64 = 0x00;
const DONE: u64 = 0x04;
const CONTROL: u64 = 0x08;
const INTERRUPT: u64 = 0x0c;
const STATUS: u64 = 0x14;
const FIFO_WRITE: u64 = 0x3c;

const ABORT: u32 = 0x40_0000;
pub const RUN: u32 = 0x20_0000;
/// CONTROL.
pub const INIT: u32 = 1;
pub const SUSPEND: u32 = 2;
/// Time to initialize a channel, in which it takes no descriptors (Linux waits as long), and to suspend it.
pub const INIT_TIME: Nanoseconds = 10_000;
pub const SUSPEND_TIME: Nanoseconds = 2_000;
pub const INT_SUSPENDED: u32 = 4;
/// Complaint about INIT of a channel whose status is RUN (Linux `tsi721_bdma_ch_free` refuses, `tsi721_dma_stop`
/// suspends the channel and waits).
pub const RUNS: &str = "INIT of a running channel is ignored";
const INT_DONE: u32 = 8;
const INT_ERROR: u32 = 2;
const INT_WANTED: u32 = 1;

/// The outstanding request of a channel.
#[derive(Debug)]
struct Waiting {
    tid: u16,
    since: Nanoseconds,
    descriptor: u64,
    wants_interrupt: bool,
    /// Address and length for the data of a read. A register's value goes into the descriptor.
    into: Option<(u64, usize)>,
}

#[derive(Debug, Default)]
pub struct Channel {
    pointer: u64,
    started: bool,
    waiting: Option<Waiting>,
    hangs: bool,
    /// End of the initialization.
    ready_at: Nanoseconds,
    suspends_at: Option<Nanoseconds>,
}

fn base(channel: usize) -> u64 {
    0x51000 + 0x1000 * channel as u64
}

/// Whether a register is a channel's descriptor write count, whose write starts descriptors.
pub fn is_write_count(offset: u64) -> bool {
    channel_of(offset).is_some() && offset & 0xffc == WRITTEN
}

/// The channel to whose registers the offset belongs.
pub fn channel_of(offset: u64) -> Option<usize> {
    (0x51000..0x59000).contains(&offset).then(|| ((offset - 0x51000) / 0x1000) as usize)
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
        let runs = kept.get(base + STATUS) & RUN != 0;
        match offset & 0xfff {
            CONTROL if value & SUSPEND != 0 => {
                self.suspends_at = Some(now + if runs { SUSPEND_TIME + late } else { 0 });
            }
            CONTROL if value & INIT != 0 && runs => return Some(RUNS),
            CONTROL if value & INIT != 0 => {
                *self =
                    Channel { pointer: kept.address(base + 0x24, base + 0x28), ..Self::default() };
                (self.started, self.ready_at) = (true, now + INIT_TIME);
                [WRITTEN, DONE, STATUS, FIFO_WRITE].iter().for_each(|at| kept.set(base + at, 0));
            }
            // Lost.
            WRITTEN if now < self.ready_at => {}
            INTERRUPT => kept.clear(offset, value),
            DONE | STATUS | FIFO_WRITE => {}
            _ => kept.set(offset, value),
        }
        None
    }

    /// Ends a suspension that is due.
    fn suspend(&mut self, kept: &mut Kept, base: u64, now: Nanoseconds) {
        if self.suspends_at.take_if(|at| *at <= now).is_some() {
            (self.waiting, self.hangs, self.started) = (None, false, false);
            kept.clear(base + STATUS, RUN);
            kept.raise(base + INTERRUPT, INT_SUSPENDED);
        }
    }
}

impl Tsi721 {
    /// Ends suspensions of channels that are due, which need no bus mastering.
    pub(super) fn suspend_channels(&mut self, now: Nanoseconds) {
        for (number, channel) in self.dma.iter_mut().enumerate() {
            channel.suspend(&mut self.kept, base(number), now);
        }
        self.suspend_outbound(now);
    }

    /// Runs all channels.
    pub(super) fn run_dma(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        for number in 0..self.dma.len() {
            while self.step_dma(number, now, machine) {}
        }
    }

    /// When the first response times out.
    pub(super) fn dma_due(&self) -> Option<Nanoseconds> {
        let waiting = self.dma.iter().filter_map(|c| c.waiting.as_ref());
        let suspending = self.dma.iter().filter_map(|c| c.suspends_at);
        waiting.map(|w| w.since + TIMEOUT).chain(suspending).min()
    }

    fn step_dma(&mut self, number: usize, now: Nanoseconds, machine: &mut dyn Machine) -> bool {
        let base = base(number);
        let channel = &self.dma[number];
        if channel.hangs {
            return false;
        }
        if let Some(waiting) = &channel.waiting {
            if now >= waiting.since + TIMEOUT {
                self.abort_dma(number);
            }
            return false;
        }
        let is_idle = self.kept.get(base + WRITTEN) == self.kept.get(base + DONE);
        if is_idle || !channel.started || self.kept.get(base + STATUS) & ABORT != 0 {
            return false;
        }
        if self.once(Fault::HangsDma(number)) {
            self.dma[number].hangs = true;
            self.kept.raise(base + STATUS, RUN);
            return false;
        }
        if self.once(Fault::AbortsDma(number)) {
            self.abort_dma(number);
            return false;
        }
        let descriptor = self.dma[number].pointer;
        let mut words = [0; 8];
        if !self.fetch(descriptor, &mut words, machine) {
            self.complain("a DMA descriptor is not in memory");
            self.abort_dma(number);
            return false;
        }
        match words[0] >> 29 {
            3 => {
                self.dma[number].pointer = u64::from(words[2] & !0x1f) | u64::from(words[3]) << 32;
                self.finish_dma(number, descriptor, false, machine);
                true
            }
            2 => self.begin_maintenance(number, descriptor, words, now, machine),
            1 => self.begin_data(number, descriptor, words, now, machine),
            _ => {
                self.complain("a DMA descriptor has an unknown type");
                self.abort_dma(number);
                false
            }
        }
    }

    fn begin_maintenance(
        &mut self,
        number: usize,
        descriptor: u64,
        words: [u32; 8],
        now: Nanoseconds,
        _: &mut dyn Machine,
    ) -> bool {
        let write = match words[0] >> 19 & 0xf {
            4 => None,
            5 => Some(words[4].swap_bytes()),
            _ => {
                self.complain("an immediate DMA descriptor is not a maintenance request");
                self.abort_dma(number);
                return false;
            }
        };
        let tid = self.next_tid();
        let (hops, offset) = ((words[2] >> 24) as u8, words[2] & 0x00ff_fffc);
        let kind = Kind::Maintenance { hops, tid, offset, write };
        let into = write.is_none().then_some((descriptor + 16, 4));
        self.wait_dma(number, tid, now, descriptor, words[0], into);
        self.send(words[0] as u16, words[1] >> 26 & 3 == 1, kind);
        false
    }

    fn begin_data(
        &mut self,
        number: usize,
        descriptor: u64,
        words: [u32; 8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) -> bool {
        let remote = u64::from(words[2]) | u64::from(words[3]) << 32;
        let address = remote << 2 | u64::from(words[1] >> 30);
        let len = (words[1] & 0x03ff_ffff) as usize;
        let memory = u64::from(words[4]) | u64::from(words[5]) << 32;
        let (to, large) = (words[0] as u16, words[1] >> 26 & 3 == 1);
        let tid = self.next_tid();
        match words[0] >> 19 & 0xf {
            0 => {
                let kind = Kind::Read { tid, address, len };
                self.wait_dma(number, tid, now, descriptor, words[0], Some((memory, len)));
                self.send(to, large, kind);
                false
            }
            kind @ 1..=3 => {
                let mut data = vec![0; len];
                if machine.read(memory, &mut data).is_err() {
                    self.complain("a DMA descriptor names an address that is not memory");
                    self.abort_dma(number);
                    return false;
                }
                let is_answered = kind != 2;
                let tid_wanted = is_answered.then_some(tid);
                if is_answered {
                    self.wait_dma(number, tid, now, descriptor, words[0], None);
                }
                self.send(to, large, Kind::Write { tid: tid_wanted, address, data });
                if !is_answered {
                    self.dma[number].pointer = descriptor + 32;
                    self.finish_dma(number, descriptor, words[0] >> 27 & 1 == 1, machine);
                }
                !is_answered
            }
            _ => {
                self.complain("a data DMA descriptor is neither a read nor a write");
                self.abort_dma(number);
                false
            }
        }
    }

    fn wait_dma(
        &mut self,
        number: usize,
        tid: u16,
        since: Nanoseconds,
        descriptor: u64,
        first: u32,
        into: Option<(u64, usize)>,
    ) {
        let wants_interrupt = first >> 27 & 1 == 1;
        self.dma[number].waiting = Some(Waiting { tid, since, descriptor, wants_interrupt, into });
        self.kept.raise(base(number) + STATUS, RUN);
        self.outgoing.push(Outgoing::Dma { tid, channel: number });
    }

    /// Handles a response for a channel.
    pub(super) fn answer_dma(&mut self, number: usize, kind: Kind, machine: &mut dyn Machine) {
        let tid = match &kind {
            Kind::Maintained { tid, .. } | Kind::Data { tid, .. } | Kind::Written { tid, .. } => {
                *tid
            }
            _ => return,
        };
        let is_outstanding = |waiting: &mut Waiting| waiting.tid == tid;
        let Some(waiting) = self.dma[number].waiting.take_if(is_outstanding) else { return };
        let data = match kind {
            Kind::Maintained { value: Some(value), .. } => Some(value.to_be_bytes().to_vec()),
            Kind::Data { data: Some(data), .. } => Some(data),
            Kind::Written { status: Status::Done, .. } => Some(Vec::new()),
            _ => None,
        };
        let Some(data) = data else { return self.abort_dma(number) };
        if let Some((address, len)) = waiting.into {
            let written = self.put(address, &data[..len.min(data.len())], machine);
            if data.len() < len || !written {
                return self.abort_dma(number);
            }
        }
        self.dma[number].pointer = waiting.descriptor + 32;
        self.finish_dma(number, waiting.descriptor, waiting.wants_interrupt, machine);
    }

    fn finish_dma(
        &mut self,
        number: usize,
        descriptor: u64,
        wants_interrupt: bool,
        machine: &mut dyn Machine,
    ) {
        let base = base(number);
        self.kept.clear(base + STATUS, RUN);
        let done = self.kept.get(base + DONE).wrapping_add(1);
        self.kept.set(base + DONE, done);
        let named = match self.once(Fault::NamesNoDescriptor(number)) {
            true => descriptor + 7,
            false => descriptor,
        };
        let fifo = [0x2c, 0x30, 0x34, FIFO_WRITE].map(|at| base + at);
        self.complete(fifo, named, machine);
        let wanted = if wants_interrupt { INT_WANTED } else { 0 };
        let is_last = done == self.kept.get(base + WRITTEN);
        self.kept.raise(base + INTERRUPT, if is_last { INT_DONE | wanted } else { wanted });
    }

    fn abort_dma(&mut self, number: usize) {
        let base = base(number);
        self.dma[number].waiting = None;
        self.kept.clear(base + STATUS, RUN);
        self.kept.raise(base + STATUS, ABORT);
        self.kept.raise(base + INTERRUPT, INT_ERROR);
        self.counts.aborts += 1;
    }
}
