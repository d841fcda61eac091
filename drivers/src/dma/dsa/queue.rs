//! A queue, and its batch in flight.
//!
//! The device executes descriptors of a queue, and of a batch between fences, in any order. So there is one batch at a
//! time; copies added meanwhile go into the next, and [`Channel::order`] is a fence within a batch.
//!
//! Each descriptor has its own completion record. It shows whether the descriptor failed, or was skipped because an
//! earlier one before a fence failed. Only those are submitted again: a doorbell that is written twice could go
//! backwards.

use super::Error;
use super::registers::{self, DESCRIPTOR, RECORD};
use crate::dma::backlog::Backlog;
use crate::dma::{Channel, ChannelCounters, Health};
use crate::hal::{Arena, Instant, Registers, Window};
use crate::pci::Function;
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Most descriptors of a batch.
pub const BATCH: usize = 64;
/// Time of a batch after which registers are read, and interval of these reads.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time for a batch before it is aborted, and for the abort.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Most times that failed or skipped copies are submitted again in a row.
const ATTEMPTS: u8 = 2;
/// Offset of the records in the queue's memory. The batch's own record follows those of its descriptors.
const RECORDS: usize = BATCH * DESCRIPTOR;
const MEMORY: usize = RECORDS + (BATCH + 1) * RECORD;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The batch is being aborted, since this time.
    Aborting(Instant),
    Failed,
    Lost,
}

/// Parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of the queue in the device.
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
    /// Incomplete copies, in order.
    backlog: Backlog,
    /// Index in `entries` of each descriptor of the batch in flight.
    slots: [u16; BATCH],
    /// Descriptors of the batch in flight.
    submitted: usize,
    /// Numbers of copies released by [`Channel::start`], and complete.
    started: u64,
    done: u64,
    state: State,
    /// When the batch in flight was first polled.
    busy_since: Option<Instant>,
    /// When registers were last read.
    checked: Instant,
    attempts: u8,
    counters: ChannelCounters,
}

impl Queue {
    /// Takes an enabled queue: the device's registers, and the queue's portal.
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
            backlog: Backlog::new(),
            slots: [0; BATCH],
            submitted: 0,
            started: 0,
            done: 0,
            state: State::Running,
            busy_since: None,
            checked: Instant::ZERO,
            attempts: 0,
            counters: ChannelCounters::default(),
        })
    }

    /// Frees the queue's memory. The device must not reach memory any more.
    pub fn free(self, arena: &mut Arena) {
        arena.free(self.memory);
    }

    fn record_address(&self, slot: usize) -> u64 {
        self.memory.bus_address() + (RECORDS + slot * RECORD) as u64
    }

    fn record(&self, slot: usize) -> u32 {
        self.memory.load32(RECORDS + slot * RECORD) & registers::STATUS
    }

    /// Index of the record that shows the end of the batch in flight.
    fn last_record(&self) -> usize {
        if self.submitted == 1 { 0 } else { BATCH }
    }

    /// Submits the next batch with one write, unless one is in flight.
    #[inline]
    fn submit(&mut self) {
        if self.submitted > 0 {
            return;
        }
        let started = (self.started - self.done) as usize;
        let (mut count, mut fence_next) = (0, false);
        let mut only = [0; DESCRIPTOR / 8];
        for (index, entry) in self.backlog.entries.iter().enumerate().take(started) {
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
        self.submitted = count;
        self.busy_since = None;
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
        // Descriptors are in memory, and records cleared, before the device is notified.
        fence(Ordering::SeqCst);
        self.portal.write_64_bytes(0, &words);
    }

    /// Handles the end of the batch: takes the completed copies, and submits the rest again, or gives up.
    fn collect(&mut self) {
        let mut all = true;
        for slot in 0..self.submitted {
            let succeeded = self.record(slot) == registers::SUCCESS;
            all &= succeeded;
            if let Some(entry) = self.backlog.entries.get_mut(usize::from(self.slots[slot])) {
                entry.is_done |= succeeded;
            }
        }
        self.submitted = 0;
        while let Some(&entry) = self.backlog.entries.front().filter(|entry| entry.is_done) {
            self.backlog.entries.pop_front();
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
        self.submit();
    }

    /// Reads the device's registers after some time without a completion.
    #[cold]
    fn check_registers(&mut self, now: Instant, since: Instant) {
        self.checked = now;
        let state = self.registers.read32(registers::STATE);
        if state == u32::MAX {
            return self.lose();
        }
        if state & registers::STATE_BITS == registers::HALTED {
            // A halted device executes no descriptors of any queue.
            self.attempts = ATTEMPTS;
            return self.collect();
        }
        let is_busy = self.registers.read32(registers::COMMAND_STATUS) & registers::ACTIVE != 0;
        if now.since(since) >= TIMEOUT && !is_busy {
            let number = u32::from(self.settings.number);
            let operand = 1 << (number % 16) | (number / 16) << 16;
            let command = registers::ABORT_QUEUE << registers::COMMAND_SHIFT | operand;
            self.registers.write32(registers::COMMAND, command);
            self.state = State::Aborting(now);
        } else if now.since(since) >= 2 * TIMEOUT {
            self.lose();
        }
    }

    /// Checks whether the abort has ended.
    #[cold]
    fn check_abort(&mut self, now: Instant, since: Instant) {
        let status = self.registers.read32(registers::COMMAND_STATUS);
        if status == u32::MAX {
            return self.lose();
        }
        if status & registers::ACTIVE == 0 {
            self.counters.missed += 1;
            return self.collect();
        }
        if now.since(since) >= TIMEOUT {
            self.lose();
        }
    }

    /// Gives up a device that does not answer, and revokes its access to memory.
    fn lose(&mut self) {
        self.function.disable();
        self.state = State::Lost;
        self.backlog.entries.clear();
        self.submitted = 0;
    }
}

impl Channel for Queue {
    #[inline]
    fn room(&self) -> usize {
        self.backlog.room()
    }

    #[inline]
    fn push(&mut self, to: &Window, from: &Window) -> Option<u64> {
        self.backlog.push(to, from)
    }

    #[inline]
    fn order(&mut self) {
        self.backlog.order();
    }

    #[inline]
    fn start(&mut self) {
        self.started = self.backlog.pushed;
        if self.state == State::Running {
            self.submit();
        }
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> (u64, Health) {
        match self.state {
            State::Running if self.submitted > 0 => {
                if self.record(self.last_record()) != 0 {
                    self.collect();
                } else {
                    let since = *self.busy_since.get_or_insert(now);
                    if now.since(since.max(self.checked)) >= CHECK_INTERVAL {
                        self.check_registers(now, since);
                    }
                }
            }
            State::Aborting(since) => self.check_abort(now, since),
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
            let entry = self.backlog.entries.pop_front()?;
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
