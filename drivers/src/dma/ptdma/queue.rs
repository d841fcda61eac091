//! The queue: a ring of descriptors between a head, which the device moves, and a tail.
//!
//! Nothing says that a descriptor begins when the one before it is complete, and there is no fence: what comes behind
//! [`Channel::order`] is given to the device when all before it is complete.
//!
//! At an error the queue stops. Whether its head stands at the descriptor that failed or behind it is not known: what is
//! not certain to be complete is given once more, the one before the head included; the bytes are the same.

use super::Error;
use super::registers::{self, DESCRIPTOR};
use crate::dma::{Channel, ChannelCounters, Health, LONGEST};
use crate::hal::{Arena, Instant, Registers, Window};
use crate::pci::Function;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Descriptors of the ring (Linux: CMD_Q_LEN); one slot is always free.
const RING: usize = 32;
/// Copies that are kept, those in the ring included.
const KEPT: usize = 1024;
/// How long nothing is completed before the queue is stopped, and how long it then has to end what it is at.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often the oldest copy may be given again.
const ATTEMPTS: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: Window,
    from: Window,
    /// Nothing behind it may begin before it is complete.
    fence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// It was stopped because it completes nothing, since some moment.
    Stopping(Instant),
    Failed,
    Lost,
}

/// The queue.
pub struct Queue {
    registers: Box<dyn Registers>,
    function: Function<'static>,
    ring: Window,
    /// Copies that are not complete, in order; the first `given` of them are in the ring.
    entries: VecDeque<Entry>,
    given: usize,
    /// Slot of the oldest descriptor in the ring.
    oldest: usize,
    /// Copies added, told of by [`Channel::start`], and complete.
    pushed: u64,
    started: u64,
    done: u64,
    state: State,
    /// Since when nothing was completed.
    quiet: Option<Instant>,
    attempts: u8,
    counters: ChannelCounters,
}

impl Queue {
    /// Sets the queue up.
    pub fn open(
        registers: Box<dyn Registers>,
        function: Function<'static>,
        arena: &mut Arena,
    ) -> Result<Self, Error> {
        if registers.read32(registers::CONTROL) == u32::MAX {
            return Err(Error::Absent);
        }
        let bytes = RING * DESCRIPTOR;
        let ring = arena.alloc(bytes, bytes).ok_or(Error::NoMemory)?;
        ring.fill(0);
        let queue = Queue {
            registers,
            function,
            ring,
            entries: VecDeque::with_capacity(KEPT),
            given: 0,
            oldest: 0,
            pushed: 0,
            started: 0,
            done: 0,
            state: State::Running,
            quiet: None,
            attempts: 0,
            counters: ChannelCounters::default(),
        };
        let own = &queue.registers;
        own.write32(registers::CONFIG, registers::CONFIG_ENABLE);
        own.write32(registers::PRIORITY, registers::PRIORITY_LOWEST);
        own.write32(registers::TIMEOUT, 0);
        own.write32(registers::CLOCKS, registers::CLOCKS_REST);
        own.write32(registers::REQUEST_IDS, 0);
        own.write32(registers::INTERRUPTS, 0);
        queue.begin();
        let (wrote, reads) = (queue.slot_address(0), queue.registers.read32(registers::HEAD));
        if wrote != reads {
            let Queue { ring, function, .. } = queue;
            // It is not known what the device does with its ring.
            function.disable();
            arena.free(ring);
            return Err(Error::Locked { wrote, reads });
        }
        Ok(queue)
    }

    /// Lower half of a slot's address.
    fn slot_address(&self, slot: usize) -> u32 {
        self.ring.bus_address() as u32 + (slot % RING * DESCRIPTOR) as u32
    }

    fn control(&self) -> u32 {
        let high = (self.ring.bus_address() >> 32) as u32;
        high << 16 | (RING.ilog2() - 1) << registers::SIZE_SHIFT
    }

    /// The queue is stopped and empty.
    fn begin(&self) {
        self.registers.write32(registers::CONTROL, self.control());
        self.registers.write32(registers::EVENTS, registers::ALL_EVENTS);
        self.registers.write32(registers::TAIL, self.slot_address(0));
        self.registers.write32(registers::HEAD, self.slot_address(0));
    }

    /// Gives the device what it may begin, with two writes to its registers.
    #[inline]
    fn give(&mut self) {
        let before = self.given;
        let told = (self.started - self.done) as usize;
        while self.given < told.min(RING - 1) {
            // What is behind a fence waits until the ring is empty.
            if self.given > 0 && self.entries[self.given - 1].fence {
                break;
            }
            let Entry { to, from, .. } = self.entries[self.given];
            let at = (self.oldest + self.given) % RING * DESCRIPTOR;
            let words = [
                u64::from(registers::COPY) | (from.len() as u64) << 32,
                from.bus_address(),
                to.bus_address(),
                0,
            ];
            self.ring.store_words(at, &words);
            self.given += 1;
        }
        if self.given == before {
            return;
        }
        self.counters.batches += 1;
        // Descriptors are in memory before the device is told of them.
        fence(Ordering::SeqCst);
        self.registers.write32(registers::TAIL, self.slot_address(self.oldest + self.given));
        self.registers.write32(registers::CONTROL, self.control() | registers::RUN);
    }

    /// The first so many in the ring are complete.
    fn take(&mut self, count: usize) {
        for entry in self.entries.drain(..count) {
            self.counters.bytes += entry.from.len() as u64;
        }
        self.given -= count;
        self.done += count as u64;
        self.counters.copies += count as u64;
        self.oldest = (self.oldest + count) % RING;
        (self.quiet, self.attempts) = (None, 0);
    }

    /// Descriptors in front of the device's head; None if it points to none of those under way.
    fn in_front_of(&self, head: u32) -> Option<usize> {
        let offset = head.wrapping_sub(self.ring.bus_address() as u32) as usize;
        if offset >= RING * DESCRIPTOR || !offset.is_multiple_of(DESCRIPTOR) {
            return None;
        }
        let count = (offset / DESCRIPTOR + RING - self.oldest) % RING;
        (count <= self.given).then_some(count)
    }

    /// Looks how far the device is.
    fn look(&mut self, now: Instant) {
        // An error that comes between the two is seen.
        let head = self.registers.read32(registers::HEAD);
        let events = self.registers.read32(registers::EVENTS);
        if head == u32::MAX && events == u32::MAX {
            return self.lose();
        }
        let failed = events & registers::ERROR != 0;
        match self.in_front_of(head) {
            Some(count) if failed => {
                self.take_certain(count);
                return self.again();
            }
            Some(0) => {}
            Some(count) => self.take(count),
            None => {
                self.counters.nonsense += 1;
                self.counters.missed += 1;
                return self.again();
            }
        }
        let since = *self.quiet.get_or_insert(now);
        if self.given > 0 && now.since(since) >= PATIENCE {
            self.registers.write32(registers::CONTROL, self.control());
            self.state = State::Stopping(now);
        }
    }

    /// At an error: the one before the head may be the one that has failed.
    fn take_certain(&mut self, count: usize) {
        let attempts = self.attempts;
        if count > 1 {
            self.take(count - 1);
        } else {
            self.attempts = attempts;
        }
    }

    /// Begins anew with what is not complete, or gives it up.
    fn again(&mut self) {
        self.attempts += 1;
        self.counters.resets += 1;
        self.begin();
        if self.registers.read32(registers::HEAD) == u32::MAX {
            return self.lose();
        }
        (self.given, self.oldest, self.quiet) = (0, 0, None);
        if self.attempts > ATTEMPTS {
            self.state = State::Failed;
            return;
        }
        self.state = State::Running;
        self.give();
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
        self.entries.push_back(Entry { to: *to, from: *from, fence: false });
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
                self.look(now);
                if self.state == State::Running {
                    self.give();
                }
            }
            State::Running => {}
            State::Stopping(since) if now.since(since) >= PATIENCE => self.again(),
            State::Stopping(_) => {}
            State::Failed => return (self.done, Health::Failed),
            State::Lost => return (self.done, Health::Lost),
        }
        let health = match self.state {
            State::Running | State::Stopping(_) => Health::Good,
            State::Failed => Health::Failed,
            State::Lost => Health::Lost,
        };
        (self.done, health)
    }

    fn take_rest(&mut self) -> Option<(Window, Window)> {
        if self.state != State::Failed {
            return None;
        }
        self.entries.pop_front().map(|entry| (entry.to, entry.from))
    }

    fn counters(&self) -> ChannelCounters {
        self.counters
    }

    fn number(&self) -> u8 {
        0
    }
}
