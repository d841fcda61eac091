//! A channel: a ring of linked descriptors in memory, and a register with the number of descriptors. The device writes
//! the address of the last completed descriptor to memory.
//!
//! Registers are read only if nothing was completed for [`CHECK_INTERVAL`]; the status then shows completions that were
//! not written to memory. A channel that halts or stalls is reset, and its incomplete copies are submitted again. If
//! the same copy halts it again, the channel is given up.

use super::Error;
use super::registers::{
    ACTIVE, ADDRESS, CHAIN, COMMAND, COMPLETION, CONTROL, COUNT, DESCRIPTOR, DONE, ERRORS, FENCE,
    HALTED, NULL, RESET, RUN, STATE, STATUS, SUSPEND, WRITE_COMPLETION,
};
use crate::dma::{Channel, ChannelCounters, Health, LONGEST};
use crate::hal::{Arena, Clock, Instant, Registers, Window};
use crate::pci::{Function, OwnRegister};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;

/// Descriptors of a ring, a power of two below 2^16.
const RING: usize = 1024;
/// One of so many descriptors requests that its completion is written to memory.
const COMPLETION_EVERY: usize = 16;
/// Time without a completion after which the status is read, and interval of these reads.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time for a copy.
const COPY_TIMEOUT: Duration = Duration::from_millis(100);
/// Longest times for suspending and for resetting (Linux: `ioat_reset_hw`).
const SUSPEND_TIMEOUT: Duration = Duration::from_millis(100);
const RESET_TIMEOUT: Duration = Duration::from_millis(200);
/// Most resets because of the same oldest copy.
const ATTEMPTS: u8 = 2;

/// First word of a null descriptor. Its length must not be 0.
const NOTHING: u64 = 1 | NULL;

/// Parameters of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of the channel in the engine.
    pub number: u8,
    /// The engine's version.
    pub version: u8,
    /// Most bytes of a descriptor.
    pub longest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: Window,
    from: Window,
    /// Number of the copy that is complete with this descriptor.
    copy: u64,
    fence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Suspending since this time.
    Suspending(Instant),
    /// Resetting since this time.
    Resetting(Instant),
    Failed,
    Lost,
}

/// A channel.
pub struct IoatChannel {
    /// The channel's own registers.
    registers: Box<dyn Registers>,
    function: Function<'static>,
    settings: Settings,
    ring: Window,
    completion: Window,
    in_flight: VecDeque<Entry>,
    /// Slot of the oldest descriptor in flight.
    oldest: usize,
    /// Slot of the next descriptor.
    next: usize,
    /// Descriptors submitted to the device since the chain's address was written, modulo 2^16.
    submitted: u16,
    /// Descriptors added since the chain's address was written, modulo 2^16.
    added: u16,
    /// Descriptors since the last with a completion in memory.
    since_completion: usize,
    /// Number of the last copy added, and of the last one complete.
    pushed: u64,
    done: u64,
    /// The completion in memory as it was last read.
    seen: u64,
    state: State,
    /// Since when nothing was completed, as of the first poll after that.
    quiet: Option<Instant>,
    /// When the status was last read.
    checked: Instant,
    attempts: u8,
    counters: ChannelCounters,
}

impl IoatChannel {
    /// Stops and resets a channel. It accesses no memory until [`IoatChannel::bring_up`].
    pub fn open(
        registers: Box<dyn Registers>,
        function: Function<'static>,
        settings: Settings,
        arena: &mut Arena,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let ring = arena.alloc(RING * DESCRIPTOR, DESCRIPTOR).ok_or(Error::NoMemory)?;
        let Some(completion) = arena.alloc(DESCRIPTOR, DESCRIPTOR) else {
            arena.free(ring);
            return Err(Error::NoMemory);
        };
        let mut channel = IoatChannel {
            registers,
            function,
            settings,
            ring,
            completion,
            in_flight: VecDeque::with_capacity(RING),
            oldest: 0,
            next: 0,
            submitted: 0,
            added: 0,
            since_completion: 0,
            pushed: 0,
            done: 0,
            seen: 0,
            state: State::Running,
            quiet: None,
            checked: Instant::ZERO,
            attempts: 0,
            counters: ChannelCounters::default(),
        };
        match channel.stop(clock) {
            Ok(()) => Ok(channel),
            Err(error) => {
                channel.free(arena);
                Err(error)
            }
        }
    }

    /// Frees the channel's memory. The device must not reach memory any more.
    pub fn free(self, arena: &mut Arena) {
        arena.free(self.ring);
        arena.free(self.completion);
    }

    fn stuck(&self) -> Error {
        Error::Stuck {
            channel: self.settings.number,
            status: self.status(),
            errors: self.registers.read32(ERRORS),
        }
    }

    /// Suspends the channel if it runs, and resets it (Linux: `ioat_reset_hw`): a reset of a running channel is not
    /// obeyed.
    fn stop(&mut self, clock: &dyn Clock) -> Result<(), Error> {
        if self.is_running() {
            self.registers.write8(COMMAND, SUSPEND);
            // Linux resets a channel that does not suspend all the same.
            let _ = self.wait(clock, SUSPEND_TIMEOUT, |channel| !channel.is_running());
        }
        self.clear_errors();
        self.registers.write8(COMMAND, RESET);
        self.wait(clock, RESET_TIMEOUT, |channel| !channel.is_resetting())
            .map_err(|()| self.stuck())
    }

    /// Starts a channel that was reset, and checks that it executes a null descriptor.
    pub fn bring_up(&mut self, clock: &dyn Clock) -> Result<(), Error> {
        self.clear_errors();
        self.restart();
        self.start();
        // The first completion names the null descriptor.
        self.wait(clock, COPY_TIMEOUT, |channel| {
            channel.completion.load64(0) & ADDRESS == channel.ring.bus_address()
        })
        .map_err(|()| self.stuck())?;
        self.counters = ChannelCounters::default();
        Ok(())
    }

    fn wait(
        &mut self,
        clock: &dyn Clock,
        most: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ()> {
        let since = clock.now();
        while !done(self) {
            if clock.now().since(since) > most {
                return Err(());
            }
            crate::hal::relax();
        }
        Ok(())
    }

    fn status(&self) -> u64 {
        self.registers.read64(STATUS)
    }

    fn is_running(&self) -> bool {
        matches!(self.status() & STATE, ACTIVE | DONE)
    }

    /// Writes an address in two halves: a store of 64 bits does not work (Linux: `ioat/init.c`).
    fn write_address(&self, offset: usize, address: u64) {
        self.registers.write32(offset, address as u32);
        self.registers.write32(offset + 4, (address >> 32) as u32);
    }

    fn is_resetting(&self) -> bool {
        self.registers.read8(COMMAND) & RESET != 0
    }

    fn clear_errors(&self) -> u32 {
        let errors = self.registers.read32(ERRORS);
        self.registers.write32(ERRORS, errors);
        if self.settings.version < 0x33 {
            let errors = self.function.read32(OwnRegister::IOAT_ERRORS.offset());
            self.function.write_own32(OwnRegister::IOAT_ERRORS, errors);
        }
        errors
    }

    /// Sets the ring up after a reset: a null descriptor, followed by the copies in flight.
    fn restart(&mut self) {
        let slot_address = |slot: usize| self.ring.bus_address() + (slot * DESCRIPTOR) as u64;
        for slot in 0..RING {
            self.ring.store64(slot * DESCRIPTOR + 24, slot_address((slot + 1) % RING));
        }
        self.completion.store64(0, 0);
        self.seen = 0;
        self.registers.write16(CONTROL, RUN);
        self.write_address(COMPLETION, self.completion.bus_address());
        self.write_address(CHAIN, self.ring.bus_address());
        self.ring.store64(0, NOTHING | WRITE_COMPLETION);
        (self.oldest, self.next, self.submitted, self.added, self.since_completion) =
            (1, 1, 0, 1, 0);
        for index in 0..self.in_flight.len() {
            let entry = self.in_flight[index];
            self.put(&entry);
        }
    }

    /// Writes a descriptor to the ring.
    #[inline]
    fn put(&mut self, entry: &Entry) {
        self.since_completion += 1;
        let mut word = match entry.from.len() {
            0 => NOTHING,
            len => len as u64,
        };
        if entry.fence {
            word |= FENCE;
        }
        if self.since_completion >= COMPLETION_EVERY {
            self.since_completion = 0;
            word |= WRITE_COMPLETION;
        }
        let words = [word, entry.from.bus_address(), entry.to.bus_address()];
        self.ring.store_words(self.next * DESCRIPTOR, &words);
        self.next = (self.next + 1) % RING;
        self.added = self.added.wrapping_add(1);
    }

    /// Sets bits in the last descriptor, if it was not submitted to the device yet.
    #[inline]
    fn amend(&mut self, bits: u64) -> bool {
        if self.submitted == self.added {
            return false;
        }
        let at = (self.next + RING - 1) % RING * DESCRIPTOR;
        self.ring.store64(at, self.ring.load64(at) | bits);
        true
    }

    /// Takes the descriptors up to the one at `address`, which the device reports as complete. False if it is not in
    /// flight.
    fn take_completed(&mut self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.ring.bus_address());
        let slot = (offset / DESCRIPTOR as u64) as usize;
        if slot >= RING {
            return false;
        }
        let count = (slot + RING - self.oldest) % RING + 1;
        // Only submitted descriptors can be complete.
        let submitted =
            self.in_flight.len().saturating_sub(self.added.wrapping_sub(self.submitted).into());
        if count > submitted {
            return false;
        }
        for entry in self.in_flight.drain(..count) {
            self.done = self.done.max(entry.copy);
            self.counters.bytes += entry.from.len() as u64;
        }
        self.counters.copies += count as u64;
        self.oldest = (slot + 1) % RING;
        (self.quiet, self.attempts) = (None, 0);
        true
    }

    /// Reads the status after some time without a completion.
    #[cold]
    fn check_status(&mut self, now: Instant, since: Instant) {
        self.checked = now;
        let status = self.status();
        if status == u64::MAX {
            return self.lose();
        }
        // The address may be that of the null descriptor, which is not in flight.
        if self.take_completed(status & ADDRESS) {
            self.counters.missed += 1;
            if self.in_flight.is_empty() && status & STATE != HALTED {
                return;
            }
        }
        match status & STATE {
            // A halted channel does not run: it is reset at once.
            HALTED => self.recover(now),
            _ if now.since(since) < COPY_TIMEOUT => {}
            ACTIVE | DONE => {
                self.registers.write8(COMMAND, SUSPEND);
                self.state = State::Suspending(now);
            }
            _ => self.recover(now),
        }
    }

    /// Starts a reset of the channel.
    fn recover(&mut self, now: Instant) {
        self.clear_errors();
        self.attempts += 1;
        self.registers.write8(COMMAND, RESET);
        self.state = State::Resetting(now);
    }

    /// Takes the next step of a reset.
    #[cold]
    fn continue_reset(&mut self, now: Instant) {
        match self.state {
            State::Suspending(since) => {
                let status = self.status();
                if status == u64::MAX {
                    return self.lose();
                }
                if !matches!(status & STATE, ACTIVE | DONE) || now.since(since) >= SUSPEND_TIMEOUT {
                    self.take_completed(status & ADDRESS);
                    self.recover(now);
                }
            }
            State::Resetting(since) => {
                if self.registers.read8(COMMAND) == u8::MAX {
                    return self.lose();
                }
                if self.is_resetting() {
                    if now.since(since) >= RESET_TIMEOUT {
                        self.lose();
                    }
                    return;
                }
                self.counters.resets += 1;
                if self.attempts > ATTEMPTS {
                    self.state = State::Failed;
                    return;
                }
                self.state = State::Running;
                self.restart();
                (self.quiet, self.checked) = (None, now);
                self.start();
            }
            State::Running | State::Failed | State::Lost => {}
        }
    }

    /// Gives up a device that does not answer, and revokes its access to memory.
    fn lose(&mut self) {
        self.function.disable();
        self.state = State::Lost;
        self.in_flight.clear();
    }
}

impl Channel for IoatChannel {
    #[inline]
    fn room(&self) -> usize {
        // Reserved: the last completed descriptor, whose link is still read; the null descriptor; one for `order`.
        (RING - 3).saturating_sub(self.in_flight.len())
    }

    #[inline]
    fn push(&mut self, to: &Window, from: &Window) -> Option<u64> {
        let longest = self.settings.longest.min(LONGEST);
        if from.is_empty() || from.len() != to.len() {
            return Some(self.pushed);
        }
        if from.len().div_ceil(longest) > self.room() {
            return None;
        }
        self.pushed += 1;
        let mut at = 0;
        while at < from.len() {
            let len = longest.min(from.len() - at);
            let (to, from) = (to.slice(at, len)?, from.slice(at, len)?);
            at += len;
            let entry =
                Entry { to, from, copy: self.pushed - u64::from(at < from.len()), fence: false };
            self.in_flight.push_back(entry);
            if self.state == State::Running {
                self.put(&entry);
            }
        }
        Some(self.pushed)
    }

    #[inline]
    fn order(&mut self) {
        let Some(last) = self.in_flight.back_mut() else { return };
        if core::mem::replace(&mut last.fence, true) {
            return;
        }
        if self.state == State::Running && !self.amend(FENCE) {
            // The device may have read the last descriptor already, so a null descriptor carries the fence.
            let nothing = Window::empty();
            let entry = Entry { to: nothing, from: nothing, copy: self.pushed, fence: true };
            self.in_flight.push_back(entry);
            self.put(&entry);
        }
    }

    #[inline]
    fn start(&mut self) {
        if self.state == State::Running && self.amend(WRITE_COMPLETION) {
            self.since_completion = 0;
            self.submitted = self.added;
            self.counters.batches += 1;
            // Descriptors are in memory before the device is notified.
            core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
            self.registers.write16(COUNT, self.submitted);
        }
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> (u64, Health) {
        match self.state {
            State::Running => {}
            State::Failed => return (self.done, Health::Failed),
            State::Lost => return (self.done, Health::Lost),
            _ => {
                self.continue_reset(now);
                return (self.done, Health::Good);
            }
        }
        if self.in_flight.is_empty() {
            return (self.done, Health::Good);
        }
        let word = self.completion.load64(0);
        if word != self.seen {
            self.seen = word;
            let null = word & ADDRESS == self.ring.bus_address() && self.oldest == 1;
            if !self.take_completed(word & ADDRESS) && !null {
                self.counters.nonsense += 1;
            }
            if word & STATE == HALTED {
                self.check_status(now, now);
            }
        } else {
            let since = *self.quiet.get_or_insert(now);
            if now.since(since.max(self.checked)) >= CHECK_INTERVAL {
                self.check_status(now, since);
            }
        }
        (self.done, Health::Good)
    }

    fn take_rest(&mut self) -> Option<(Window, Window)> {
        if self.state != State::Failed {
            return None;
        }
        self.in_flight.pop_front().map(|entry| (entry.to, entry.from))
    }

    fn counters(&self) -> ChannelCounters {
        self.counters
    }

    fn number(&self) -> u8 {
        self.settings.number
    }
}
