//! A queue, and the batch that is under way in it.
//!
//! Descriptors of a queue, and of a batch between fences, are carried out in any order. So there is one batch at a time;
//! what is added meanwhile goes into the next, and [`Channel::order`] is a fence within a batch.
//!
//! Each descriptor has a record of its own, so that what has failed, or was not carried out because something before a
//! fence has failed, is known, and that alone is given again: a bell that was written twice could go backwards.

use super::Error;
use super::registers::{self, DESCRIPTOR, RECORD};
use crate::dma::{Channel, ChannelCounters, Health, LONGEST};
use crate::hal::{Arena, Instant, Registers, Window};
use crate::pci::Function;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Descriptors of a batch at most.
pub const BATCH: usize = 64;
/// Copies that are kept, those of the batch included.
const KEPT: usize = 1024;
/// Nothing is read from registers before a batch has taken so long.
const LOOK: Duration = Duration::from_millis(1);
/// How long a batch may take before it is aborted, and how long that may.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often what was not carried out is given again.
const ATTEMPTS: u8 = 2;
/// Where records begin in the queue's memory, the batch's own behind those of its descriptors.
const RECORDS: usize = BATCH * DESCRIPTOR;
const MEMORY: usize = RECORDS + (BATCH + 1) * RECORD;

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: Window,
    from: Window,
    /// Nothing behind it may begin before it is complete.
    fence: bool,
    /// It was carried out, and something before it was not.
    is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Its batch is aborted, since some moment.
    Aborting(Instant),
    Failed,
    Lost,
}

/// Which it is.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its number at the device.
    pub number: u8,
    /// Descriptors of a batch: 2 to [`BATCH`].
    pub batch: usize,
}

/// The queue.
pub struct Queue {
    registers: Box<dyn Registers>,
    portal: Box<dyn Registers>,
    function: Function<'static>,
    settings: Settings,
    memory: Window,
    /// Copies that are not complete, in order.
    entries: VecDeque<Entry>,
    /// Of each descriptor of the batch under way, which of `entries` it is.
    slots: [u16; BATCH],
    given: usize,
    /// Copies added, told of by [`Channel::start`], and complete.
    pushed: u64,
    started: u64,
    done: u64,
    state: State,
    /// Since when the batch is under way, and when registers were looked at.
    quiet: Option<Instant>,
    looked: Instant,
    attempts: u8,
    counters: ChannelCounters,
}

impl Queue {
    /// One that was enabled: its registers are the device's and its portal.
    pub fn open(
        [registers, portal]: [Box<dyn Registers>; 2],
        function: Function<'static>,
        settings: Settings,
        arena: &mut Arena,
    ) -> Result<Self, Error> {
        let memory = arena.alloc(MEMORY, 4096).ok_or(Error::NoMemory)?;
        memory.fill(0);
        Ok(Queue {
            registers,
            portal,
            function,
            settings,
            memory,
            entries: VecDeque::with_capacity(KEPT),
            slots: [0; BATCH],
            given: 0,
            pushed: 0,
            started: 0,
            done: 0,
            state: State::Running,
            quiet: None,
            looked: Instant::ZERO,
            attempts: 0,
            counters: ChannelCounters::default(),
        })
    }

    /// Gives its memory back; the device must not reach any.
    pub fn free(self, arena: &mut Arena) {
        arena.free(self.memory);
    }

    fn record_address(&self, slot: usize) -> u64 {
        self.memory.bus_address() + (RECORDS + slot * RECORD) as u64
    }

    fn record(&self, slot: usize) -> u32 {
        self.memory.load32(RECORDS + slot * RECORD) & registers::STATUS
    }

    /// The record that tells of the end of what is under way.
    fn last_record(&self) -> usize {
        if self.given == 1 { 0 } else { BATCH }
    }

    /// Gives the device what it may begin, with one write, unless it is at something.
    #[inline]
    fn give(&mut self) {
        if self.given > 0 {
            return;
        }
        let told = (self.started - self.done) as usize;
        let (mut count, mut fence_next) = (0, false);
        let mut only = [0; DESCRIPTOR / 8];
        for (index, entry) in self.entries.iter().enumerate().take(told) {
            if count == self.settings.batch {
                break;
            }
            if entry.is_done {
                fence_next |= entry.fence;
                continue;
            }
            let waits = if fence_next && count > 0 { registers::FENCE } else { 0 };
            let flags = registers::RECORDED | registers::ORDERED | waits;
            only = [
                registers::operation(registers::COPY, flags),
                self.record_address(count),
                entry.from.bus_address(),
                entry.to.bus_address(),
                entry.from.len() as u64,
                0,
                0,
                0,
            ];
            self.memory.store_words(count * DESCRIPTOR, &only);
            self.memory.store64(RECORDS + count * RECORD, 0);
            self.slots[count] = index as u16;
            (count, fence_next) = (count + 1, entry.fence);
        }
        if count == 0 {
            return;
        }
        self.given = count;
        self.quiet = None;
        self.counters.batches += 1;
        let words = match count {
            1 => only,
            _ => [
                registers::operation(registers::BATCH, registers::RECORDED),
                self.record_address(BATCH),
                self.memory.bus_address(),
                0,
                count as u64,
                0,
                0,
                0,
            ],
        };
        self.memory.store64(RECORDS + BATCH * RECORD, 0);
        // Descriptors are in memory, and records cleared, before the device is told of them.
        fence(Ordering::SeqCst);
        self.portal.write_64_bytes(0, &words);
    }

    /// What is under way has ended: takes what was carried out, and gives the rest again, or gives up.
    fn collect(&mut self) {
        let mut all = true;
        for slot in 0..self.given {
            let succeeded = self.record(slot) == registers::SUCCESS;
            all &= succeeded;
            if let Some(entry) = self.entries.get_mut(usize::from(self.slots[slot])) {
                entry.is_done |= succeeded;
            }
        }
        self.given = 0;
        while let Some(&entry) = self.entries.front().filter(|entry| entry.is_done) {
            self.entries.pop_front();
            self.done += 1;
            self.counters.copies += 1;
            self.counters.bytes += entry.from.len() as u64;
        }
        if all {
            self.attempts = 0;
        } else {
            self.attempts += 1;
            self.counters.resets += 1;
        }
        if self.attempts > ATTEMPTS {
            self.state = State::Failed;
            return;
        }
        self.state = State::Running;
        self.give();
    }

    /// Looks at the device after it told nothing for a while.
    #[cold]
    fn look(&mut self, now: Instant, since: Instant) {
        self.looked = now;
        let state = self.registers.read32(registers::STATE);
        if state == u32::MAX {
            return self.lose();
        }
        if state & registers::STATE_BITS == registers::HALTED {
            // It carries out nothing any more, for any queue.
            self.attempts = ATTEMPTS;
            return self.collect();
        }
        let is_busy = self.registers.read32(registers::COMMAND_STATUS) & registers::ACTIVE != 0;
        if now.since(since) >= PATIENCE && !is_busy {
            let number = u32::from(self.settings.number);
            let operand = 1 << (number % 16) | (number / 16) << 16;
            let command = registers::ABORT_QUEUE << registers::COMMAND_SHIFT | operand;
            self.registers.write32(registers::COMMAND, command);
            self.state = State::Aborting(now);
        } else if now.since(since) >= 2 * PATIENCE {
            self.lose();
        }
    }

    /// Goes on with what is aborted.
    #[cold]
    fn attend(&mut self, now: Instant, since: Instant) {
        let status = self.registers.read32(registers::COMMAND_STATUS);
        if status == u32::MAX {
            return self.lose();
        }
        if status & registers::ACTIVE == 0 {
            self.counters.missed += 1;
            return self.collect();
        }
        if now.since(since) >= PATIENCE {
            self.lose();
        }
    }

    /// It is gone: it must not reach memory any more.
    fn lose(&mut self) {
        self.function.disable();
        self.state = State::Lost;
        self.entries.clear();
        self.given = 0;
    }
}

impl Channel for Queue {
    #[inline]
    fn room(&self) -> usize {
        KEPT - self.entries.len()
    }

    #[inline]
    fn push(&mut self, to: &Window, from: &Window) -> Option<u64> {
        if from.is_empty() || from.len() != to.len() || from.len() > LONGEST {
            return Some(self.pushed);
        }
        if self.room() == 0 {
            return None;
        }
        self.entries.push_back(Entry { to: *to, from: *from, fence: false, is_done: false });
        self.pushed += 1;
        Some(self.pushed)
    }

    #[inline]
    fn order(&mut self) {
        if let Some(last) = self.entries.back_mut() {
            last.fence = true;
        }
    }

    #[inline]
    fn start(&mut self) {
        self.started = self.pushed;
        if self.state == State::Running {
            self.give();
        }
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> (u64, Health) {
        match self.state {
            State::Running if self.given > 0 => {
                if self.record(self.last_record()) != 0 {
                    self.collect();
                } else {
                    let since = *self.quiet.get_or_insert(now);
                    if now.since(since.max(self.looked)) >= LOOK {
                        self.look(now, since);
                    }
                }
            }
            State::Aborting(since) => self.attend(now, since),
            _ => {}
        }
        let health = match self.state {
            State::Running | State::Aborting(_) => Health::Good,
            State::Failed => Health::Failed,
            State::Lost => Health::Lost,
        };
        (self.done, health)
    }

    fn take_rest(&mut self) -> Option<(Window, Window)> {
        if self.state != State::Failed {
            return None;
        }
        loop {
            let entry = self.entries.pop_front()?;
            if !entry.is_done {
                return Some((entry.to, entry.from));
            }
        }
    }

    fn counters(&self) -> ChannelCounters {
        self.counters
    }

    fn number(&self) -> u8 {
        self.settings.number
    }
}
