//! The queue: a ring of descriptors between a head, which the device moves, and a tail.
//!
//! The device does not guarantee that a descriptor begins after the previous one is complete, and has no fence. So
//! copies after [`Channel::order`] are submitted only when all earlier ones are complete.
//!
//! At an error the queue stops. It is unknown whether its head points to the failed descriptor or to the one after it.
//! So all copies that are not certainly complete are submitted again, including the one before the head; they write the
//! same bytes.

use super::Error;
use super::registers::{self, DESCRIPTOR};
use crate::dma::backlog::{Backlog, Entry};
use crate::dma::{Channel, ChannelCounters, Health};
use crate::hal::{Arena, Instant, Registers, Window};
use crate::pci::Function;
use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Descriptors of the ring (Linux: CMD_Q_LEN); one slot is always free.
const RING: usize = 32;
/// Time without a completion after which the queue is stopped, and time for it to stop.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Most times that the oldest copy is submitted again.
const ATTEMPTS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Being stopped since this time, because it completed nothing.
    Stopping(Instant),
    Failed,
    Lost,
}

/// The queue.
pub struct Queue {
    registers: Box<dyn Registers>,
    function: Function<'static>,
    ring: Window,
    /// Incomplete copies, in order; the first `submitted` of them are in the ring.
    backlog: Backlog,
    submitted: usize,
    /// Slot of the oldest descriptor in the ring.
    oldest: usize,
    /// Numbers of copies released by [`Channel::start`], and complete.
    started: u64,
    done: u64,
    state: State,
    /// Since when nothing was completed, as of the first poll after that.
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
            backlog: Backlog::new(),
            submitted: 0,
            oldest: 0,
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
        queue.clear();
        queue.function.enable_bus_master();
        let (wrote, reads) = (queue.slot_address(0), queue.registers.read32(registers::HEAD));
        if wrote != reads {
            let Queue { ring, function, .. } = queue;
            // The device may use the ring, so its access to memory is revoked first.
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

    /// Stops and empties the queue.
    fn clear(&self) {
        self.registers.write32(registers::CONTROL, self.control());
        self.registers.write32(registers::EVENTS, registers::ALL_EVENTS);
        self.registers.write32(registers::TAIL, self.slot_address(0));
        self.registers.write32(registers::HEAD, self.slot_address(0));
    }

    /// Submits the copies that may begin, with two writes to registers.
    #[inline]
    fn submit(&mut self) {
        let before = self.submitted;
        let started = (self.started - self.done) as usize;
        while self.submitted < started.min(RING - 1) {
            // Copies after a fence wait until the ring is empty.
            if self.submitted > 0 && self.backlog.entries[self.submitted - 1].fence {
                break;
            }
            let Entry { to, from, .. } = self.backlog.entries[self.submitted];
            let at = (self.oldest + self.submitted) % RING * DESCRIPTOR;
            let words = [
                u64::from(registers::COPY) | (from.len() as u64) << 32,
                from.bus_address(),
                to.bus_address(),
                0,
            ];
            self.ring.store_words(at, &words);
            self.submitted += 1;
        }
        if self.submitted == before {
            return;
        }
        self.counters.batches += 1;
        // Descriptors are in memory before the device is notified.
        fence(Ordering::SeqCst);
        self.registers.write32(registers::TAIL, self.slot_address(self.oldest + self.submitted));
        self.registers.write32(registers::CONTROL, self.control() | registers::RUN);
    }

    /// Takes the first `count` copies of the ring, which are complete.
    fn take(&mut self, count: usize) {
        for entry in self.backlog.entries.drain(..count) {
            self.counters.bytes += entry.from.len() as u64;
        }
        self.submitted -= count;
        self.done += count as u64;
        self.counters.copies += count as u64;
        self.oldest = (self.oldest + count) % RING;
        (self.quiet, self.attempts) = (None, 0);
    }

    /// Number of descriptors before the device's head. None if the head is outside of the descriptors in flight.
    fn in_front_of(&self, head: u32) -> Option<usize> {
        let offset = head.wrapping_sub(self.ring.bus_address() as u32) as usize;
        if offset >= RING * DESCRIPTOR || !offset.is_multiple_of(DESCRIPTOR) {
            return None;
        }
        let count = (offset / DESCRIPTOR + RING - self.oldest) % RING;
        (count <= self.submitted).then_some(count)
    }

    /// Reads the device's progress.
    fn poll(&mut self, now: Instant) {
        // Events are read after the head, so that the head is not trusted after an error.
        let head = self.registers.read32(registers::HEAD);
        let events = self.registers.read32(registers::EVENTS);
        if head == u32::MAX && events == u32::MAX {
            return self.lose();
        }
        let failed = events & registers::ERROR != 0;
        match self.in_front_of(head) {
            Some(count) if failed => {
                self.take_certain(count);
                return self.restart();
            }
            Some(0) => {}
            Some(count) => self.take(count),
            None => {
                self.counters.nonsense += 1;
                self.counters.missed += 1;
                return self.restart();
            }
        }
        let since = *self.quiet.get_or_insert(now);
        if self.submitted > 0 && now.since(since) >= TIMEOUT {
            self.registers.write32(registers::CONTROL, self.control());
            self.state = State::Stopping(now);
        }
    }

    /// Takes the copies that are certainly complete at an error: the one before the head may have failed.
    fn take_certain(&mut self, count: usize) {
        let attempts = self.attempts;
        if count > 1 {
            self.take(count - 1);
        } else {
            self.attempts = attempts;
        }
    }

    /// Restarts the queue with the incomplete copies, or gives it up.
    fn restart(&mut self) {
        self.attempts += 1;
        self.counters.resets += 1;
        self.clear();
        if self.registers.read32(registers::HEAD) == u32::MAX {
            return self.lose();
        }
        (self.submitted, self.oldest, self.quiet) = (0, 0, None);
        if self.attempts > ATTEMPTS {
            self.state = State::Failed;
            return;
        }
        self.state = State::Running;
        self.submit();
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
                self.poll(now);
                if self.state == State::Running {
                    self.submit();
                }
            }
            State::Running => {}
            State::Stopping(since) if now.since(since) >= TIMEOUT => self.restart(),
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
        self.backlog.entries.pop_front().map(|entry| (entry.to, entry.from))
    }

    fn counters(&self) -> ChannelCounters {
        self.counters
    }

    fn number(&self) -> u8 {
        0
    }
}
