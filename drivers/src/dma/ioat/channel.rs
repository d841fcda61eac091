//! A channel: a ring of descriptors in memory, each linked to the next, of which the device is told how many there
//! are. It writes the address of the last one that it has completed to memory.
//!
//! Registers are read only when nothing was completed for [`LOOK`]. Then the status tells what memory may not have
//! been told. A channel that halts, or stands still, is reset and given the rest again; if the same copy
//! halts it again the channel is given up.

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
/// At most so many descriptors are completed without a word.
const TELL: usize = 16;
/// How long nothing is completed before the status is looked at, and how often then.
const LOOK: Duration = Duration::from_millis(1);
/// How long a copy may take.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long suspending and resetting may take (Linux: `ioat_reset_hw`).
const QUIET: Duration = Duration::from_millis(100);
const RESETTING: Duration = Duration::from_millis(200);
/// How often the oldest copy may have the channel reset.
const ATTEMPTS: u8 = 2;

/// First word of a descriptor that does nothing. It has a length: one of 0 is an error.
const NOTHING: u64 = 1 | NULL;

/// What a channel is to be.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its number in the engine.
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
    /// Number of the copy that it is, or is the last part of.
    copy: u64,
    fence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// It was told to suspend, since some moment.
    Suspending(Instant),
    /// It was told to reset, since some moment.
    Resetting(Instant),
    Failed,
    Lost,
}

/// A channel.
pub struct IoatChannel {
    /// From the channel's first on.
    registers: Box<dyn Registers>,
    function: Function<'static>,
    settings: Settings,
    ring: Window,
    completion: Window,
    under_way: VecDeque<Entry>,
    /// Slot of the oldest descriptor under way; slot of the next; descriptors that the device was told of since the
    /// chain's address was written, modulo 2^16, and those that were added.
    oldest: usize,
    next: usize,
    told: u16,
    added: u16,
    /// Descriptors since the last that has a completion written.
    untold: usize,
    /// Copies added, and complete.
    pushed: u64,
    done: u64,
    /// The completion as it was last seen.
    seen: u64,
    state: State,
    /// Since when nothing was completed, and when the status was last looked at.
    quiet: Option<Instant>,
    looked: Instant,
    attempts: u8,
    counters: ChannelCounters,
}

impl IoatChannel {
    /// Sets a channel up, and has it carry out a descriptor that does nothing.
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
            under_way: VecDeque::with_capacity(RING),
            oldest: 0,
            next: 0,
            told: 0,
            added: 0,
            untold: 0,
            pushed: 0,
            done: 0,
            seen: 0,
            state: State::Running,
            quiet: None,
            looked: Instant::ZERO,
            attempts: 0,
            counters: ChannelCounters::default(),
        };
        match channel.bring_up(clock) {
            Ok(()) => Ok(channel),
            Err(error) => {
                // Nothing may be written there any more.
                channel.function.disable();
                channel.free(arena);
                Err(error)
            }
        }
    }

    /// Gives its memory back; the device must not reach memory any more.
    pub fn free(self, arena: &mut Arena) {
        arena.free(self.ring);
        arena.free(self.completion);
    }

    fn bring_up(&mut self, clock: &dyn Clock) -> Result<(), Error> {
        let stuck = |channel: &Self| Error::Stuck {
            channel: channel.settings.number,
            status: channel.status(),
            errors: channel.registers.read32(ERRORS),
        };
        self.registers.write8(COMMAND, RESET);
        self.wait(clock, RESETTING, |channel| !channel.is_resetting()).map_err(|()| stuck(self))?;
        self.clear_errors();
        self.begin();
        self.start();
        // The first completion names the null descriptor.
        self.wait(clock, PATIENCE, |channel| {
            channel.completion.load64(0) & ADDRESS == channel.ring.bus_address()
        })
        .map_err(|()| stuck(self))?;
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

    /// After a reset: a chain that begins with a descriptor that does nothing, and goes on with what is under way.
    fn begin(&mut self) {
        let slot_address = |slot: usize| self.ring.bus_address() + (slot * DESCRIPTOR) as u64;
        for slot in 0..RING {
            self.ring.store64(slot * DESCRIPTOR + 24, slot_address((slot + 1) % RING));
        }
        self.completion.store64(0, 0);
        self.seen = 0;
        self.registers.write16(CONTROL, RUN);
        self.registers.write64(COMPLETION, self.completion.bus_address());
        self.registers.write64(CHAIN, self.ring.bus_address());
        self.ring.store64(0, NOTHING | WRITE_COMPLETION);
        (self.oldest, self.next, self.told, self.added, self.untold) = (1, 1, 0, 1, 0);
        for index in 0..self.under_way.len() {
            let entry = self.under_way[index];
            self.put(&entry);
        }
    }

    /// Writes a descriptor to the ring.
    #[inline]
    fn put(&mut self, entry: &Entry) {
        self.untold += 1;
        let mut word = match entry.from.len() {
            0 => NOTHING,
            len => len as u64,
        };
        if entry.fence {
            word |= FENCE;
        }
        if self.untold >= TELL {
            self.untold = 0;
            word |= WRITE_COMPLETION;
        }
        let words = [word, entry.from.bus_address(), entry.to.bus_address()];
        self.ring.store_words(self.next * DESCRIPTOR, &words);
        self.next = (self.next + 1) % RING;
        self.added = self.added.wrapping_add(1);
    }

    /// Sets bits in the descriptor that was added last, if the device has not been told of it.
    #[inline]
    fn amend(&mut self, bits: u64) -> bool {
        if self.told == self.added {
            return false;
        }
        let at = (self.next + RING - 1) % RING * DESCRIPTOR;
        self.ring.store64(at, self.ring.load64(at) | bits);
        true
    }

    /// The device says that the descriptor at this address is complete: whether it is one that is under way.
    fn is_complete(&mut self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.ring.bus_address());
        let slot = (offset / DESCRIPTOR as u64) as usize;
        if slot >= RING {
            return false;
        }
        let count = (slot + RING - self.oldest) % RING + 1;
        // It can only have completed what it was told of.
        let told = self.under_way.len().saturating_sub(self.added.wrapping_sub(self.told).into());
        if count > told {
            return false;
        }
        for entry in self.under_way.drain(..count) {
            self.done = self.done.max(entry.copy);
            self.counters.bytes += entry.from.len() as u64;
        }
        self.counters.copies += count as u64;
        self.oldest = (slot + 1) % RING;
        (self.quiet, self.attempts) = (None, 0);
        true
    }

    /// Looks at the status after nothing was completed for a while.
    #[cold]
    fn look(&mut self, now: Instant, since: Instant) {
        self.looked = now;
        let status = self.status();
        if status == u64::MAX {
            return self.lose();
        }
        // The null descriptor in front is none of ours.
        if self.is_complete(status & ADDRESS) {
            self.counters.missed += 1;
            if self.under_way.is_empty() && status & STATE != HALTED {
                return;
            }
        }
        match status & STATE {
            HALTED => self.recover(now),
            _ if now.since(since) < PATIENCE => {}
            ACTIVE | DONE => {
                self.registers.write8(COMMAND, SUSPEND);
                self.state = State::Suspending(now);
            }
            _ => self.recover(now),
        }
    }

    /// Has the channel reset, or gives it up.
    fn recover(&mut self, now: Instant) {
        self.clear_errors();
        self.attempts += 1;
        self.registers.write8(COMMAND, RESET);
        self.state = State::Resetting(now);
    }

    /// Goes on with a reset.
    #[cold]
    fn attend(&mut self, now: Instant) {
        match self.state {
            State::Suspending(since) => {
                let status = self.status();
                if status == u64::MAX {
                    return self.lose();
                }
                if !matches!(status & STATE, ACTIVE | DONE) || now.since(since) >= QUIET {
                    self.is_complete(status & ADDRESS);
                    self.recover(now);
                }
            }
            State::Resetting(since) => {
                if self.registers.read8(COMMAND) == u8::MAX {
                    return self.lose();
                }
                if self.is_resetting() {
                    if now.since(since) >= RESETTING {
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
                self.begin();
                (self.quiet, self.looked) = (None, now);
                self.start();
            }
            State::Running | State::Failed | State::Lost => {}
        }
    }

    /// It is gone: it must not reach memory any more.
    fn lose(&mut self) {
        self.function.disable();
        self.state = State::Lost;
        self.under_way.clear();
    }
}

impl Channel for IoatChannel {
    #[inline]
    fn room(&self) -> usize {
        // One is the last that was completed, whose link is still read; one the null descriptor; one for `order`.
        (RING - 3).saturating_sub(self.under_way.len())
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
            self.under_way.push_back(entry);
            if self.state == State::Running {
                self.put(&entry);
            }
        }
        Some(self.pushed)
    }

    #[inline]
    fn order(&mut self) {
        let Some(last) = self.under_way.back_mut() else { return };
        if core::mem::replace(&mut last.fence, true) {
            return;
        }
        if self.state == State::Running && !self.amend(FENCE) {
            // The device may have read it already: another one waits for it, and does nothing.
            let nothing = Window::empty();
            let entry = Entry { to: nothing, from: nothing, copy: self.pushed, fence: true };
            self.under_way.push_back(entry);
            self.put(&entry);
        }
    }

    #[inline]
    fn start(&mut self) {
        if self.state == State::Running && self.amend(WRITE_COMPLETION) {
            self.untold = 0;
            self.told = self.added;
            self.counters.batches += 1;
            // Descriptors are in memory before the device is told of them.
            core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
            self.registers.write16(COUNT, self.told);
        }
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> (u64, Health) {
        match self.state {
            State::Running => {}
            State::Failed => return (self.done, Health::Failed),
            State::Lost => return (self.done, Health::Lost),
            _ => {
                self.attend(now);
                return (self.done, Health::Good);
            }
        }
        if self.under_way.is_empty() {
            return (self.done, Health::Good);
        }
        let word = self.completion.load64(0);
        if word != self.seen {
            self.seen = word;
            let null = word & ADDRESS == self.ring.bus_address() && self.oldest == 1;
            if !self.is_complete(word & ADDRESS) && !null {
                self.counters.nonsense += 1;
            }
            if word & STATE == HALTED {
                self.look(now, now);
            }
        } else {
            let since = *self.quiet.get_or_insert(now);
            if now.since(since.max(self.looked)) >= LOOK {
                self.look(now, since);
            }
        }
        (self.done, Health::Good)
    }

    fn take_rest(&mut self) -> Option<(Window, Window)> {
        if self.state != State::Failed {
            return None;
        }
        self.under_way.pop_front().map(|entry| (entry.to, entry.from))
    }

    fn counters(&self) -> ChannelCounters {
        self.counters
    }

    fn number(&self) -> u8 {
        self.settings.number
    }
}
