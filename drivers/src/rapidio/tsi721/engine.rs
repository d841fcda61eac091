//! The engine of block DMA channels and outbound message channels: a ring of descriptors that ends in a link to its
//! beginning, counters of descriptors written and executed, and a FIFO in memory in which the device writes the
//! addresses of completed descriptors. After an error the channel is initialized, which makes it start at the ring's
//! beginning. The remaining descriptors are written there again.
//!
//! Interrupts stay enabled. A status bit that is still set raises no further interrupt, so a channel that has completed
//! descriptors is silent until it is armed again. Arming takes one write, and only after completions.

use super::Error;
use super::registers::{Tsi721Registers, halves, queue_size};
use crate::hal::{Arena, Cells, Instant, Window};
use crate::rapidio::Fault;
use alloc::collections::VecDeque;
use core::sync::atomic::AtomicU64;
use core::time::Duration;

/// A line of the FIFO in bytes: the device may fill several of its words at once.
const LINE: usize = 64;
const WORDS: usize = LINE / 8;
/// Minimum number of lines of a FIFO.
const MIN_LINES: usize = 32;
/// Maximum time that the device takes to initialize a channel.
const INITIALIZING: Duration = Duration::from_micros(10);
/// Time without completions after which the status of a busy channel is read. Doubles after each read without result.
const CHECK: Duration = Duration::from_micros(100);
/// The same for a loop that halts: completions and errors interrupt.
const CHECK_HALTED: Duration = Duration::from_millis(5);

/// Maximum time that the device takes to suspend a channel (Linux: `tsi721_dma_stop`).
const SUSPENDING: Duration = Duration::from_millis(100);

// Status register.
const ABORT: u32 = 1 << 22;

/// Interrupt bits of both kinds of channel: all descriptors are done. Never enabled.
const ALL_DONE: u32 = 8;
/// A descriptor with [`WANTS_INTERRUPT`] is done.
const DONE: u32 = 1;
/// FIFO full, suspended, error.
const ERRORS: u32 = 0x10 | 4 | 2;

/// Register offsets of a kind of channel, from the channel's base, and the format of its descriptors.
pub struct Layout {
    /// Size of a descriptor in bytes.
    pub descriptor: usize,
    /// First word of a link descriptor.
    pub link: u32,
    /// Control word that initializes the channel.
    pub start: u32,
    /// Address of the ring, lower half and upper.
    pub pointer: [usize; 2],
    /// Address of the FIFO, lower half and upper.
    pub fifo: [usize; 2],
    /// Size of the FIFO.
    pub fifo_size: usize,
    /// Read index of the FIFO, written by software.
    pub fifo_read: usize,
}

const WRITTEN: usize = 0x00;
pub const CONTROL: usize = 0x08;
const INTERRUPT: usize = 0x0c;
pub const STATUS: usize = 0x14;
/// Status: the channel runs.
pub const RUN: u32 = 1 << 21;
/// Control: suspends the channel.
pub const SUSPEND: u32 = 2;
const ENABLE: usize = 0x18;

/// First word of a descriptor: completion raises an interrupt.
pub const WANTS_INTERRUPT: u32 = 1 << 27;

/// A descriptor; the shorter kind uses the first half.
pub type Descriptor = [u32; 8];

struct Entry<T> {
    descriptor: Descriptor,
    slot: usize,
    tag: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// The channel is being suspended, because the initialization of a running channel is ignored. The next poll notes
    /// the time.
    Suspending(Option<Instant>),
    /// Initialization was started. The next poll notes the time.
    Started,
    Initializing(Instant),
}

/// A channel. `T` is the user's cookie per descriptor.
pub struct Engine<T> {
    layout: &'static Layout,
    base: usize,
    ring: Window,
    fifo: Window,
    /// The words of the FIFO.
    words: Cells<AtomicU64>,
    entries: usize,
    lines: usize,
    in_flight: VecDeque<Entry<T>>,
    /// Number of entries at the front of `in_flight` that are done.
    done: usize,
    /// Slot of the next descriptor.
    next: usize,
    /// Descriptors written, with links.
    written: u32,
    /// `written` as last reported to the device.
    notified: u32,
    /// The next line of the FIFO to read.
    line: usize,
    /// Lines read since the device was last notified.
    unreported: usize,
    /// The status bit [`DONE`] may be set.
    is_raised: bool,
    state: State,
    /// When polls last saw a completion, or the first descriptor of an idle channel.
    progress: Option<Instant>,
    last_check: Instant,
    /// Timeout of the first descriptor.
    timeout: Duration,
    /// Restarts of the channel.
    pub restarts: u64,
    /// Entries of the FIFO that name no descriptor in flight.
    pub invalid_entries: u64,
}

impl<T> Engine<T> {
    /// A channel with room for `entries` descriptors, whose registers are at `base`. Started at once; the device gets
    /// descriptors from the second poll on.
    pub fn new(
        layout: &'static Layout,
        base: usize,
        entries: usize,
        timeout: Duration,
        arena: &mut Arena,
        registers: &Tsi721Registers,
    ) -> Result<Self, Error> {
        // Room for all descriptors and the link, and for lines that were read but not yet reported to the device.
        let lines = (2 * (entries + 1).next_power_of_two()).max(MIN_LINES);
        let (ring_bytes, fifo_bytes) = ((entries + 1) * layout.descriptor, lines * LINE);
        let ring = arena.alloc(ring_bytes, 64).ok_or(Error::NoMemory { bytes: ring_bytes })?;
        let Some(fifo) = arena.alloc(fifo_bytes, 64) else {
            arena.free(ring);
            return Err(Error::NoMemory { bytes: fifo_bytes });
        };
        let Some(words) = Cells::new(&fifo, 0, lines * WORDS) else {
            arena.free(ring);
            arena.free(fifo);
            return Err(Error::NoMemory { bytes: fifo_bytes });
        };
        let mut engine = Engine {
            layout,
            base,
            ring,
            fifo,
            words,
            entries,
            lines,
            in_flight: VecDeque::with_capacity(entries),
            done: 0,
            next: 0,
            written: 0,
            notified: 0,
            line: 0,
            unreported: 0,
            is_raised: false,
            state: State::Started,
            progress: None,
            last_check: Instant::ZERO,
            timeout,
            restarts: 0,
            invalid_entries: 0,
        };
        engine.start(registers);
        Ok(engine)
    }

    /// Frees the channel's memory. The device must not access memory any more.
    pub fn free(self, arena: &mut Arena) {
        arena.free(self.ring);
        arena.free(self.fifo);
    }

    fn start(&mut self, registers: &Tsi721Registers) {
        let Layout { descriptor, link, start, pointer, fifo, fifo_size, .. } = *self.layout;
        let at = |offset: usize| self.base + offset;
        registers.write_address(at(pointer[0]), at(pointer[1]), self.ring.bus_address());
        registers.write_address(at(fifo[0]), at(fifo[1]), self.fifo.bus_address());
        registers.write(at(fifo_size), queue_size(self.lines));
        registers.write(at(INTERRUPT), ALL_DONE | DONE | ERRORS);
        registers.write(at(ENABLE), DONE | ERRORS);
        registers.write(at(CONTROL), start);
        // Read back: the channel has stopped, and its earlier writes have arrived.
        registers.read(at(CONTROL));
        self.fifo.fill(0);
        self.ring.fill(0);
        let [low, high] = halves(self.ring.bus_address());
        let end = self.entries * descriptor;
        self.ring.store32(end, link);
        self.ring.store32(end + 8, low);
        self.ring.store32(end + 12, high);
        (self.next, self.written, self.notified) = (0, 0, 0);
        (self.line, self.unreported, self.is_raised) = (0, 0, false);
        self.state = State::Started;
        self.progress = None;
    }

    /// Restarts the channel, with all descriptors that are in flight and not done. A running channel is suspended first.
    fn restart(&mut self, registers: &Tsi721Registers) {
        self.restarts += 1;
        let status = registers.read(self.base + STATUS);
        if status == u32::MAX || status & RUN == 0 {
            return self.start_over(registers);
        }
        registers.write(self.base + CONTROL, SUSPEND);
        self.state = State::Suspending(None);
        self.progress = None;
    }

    /// Starts the channel, which does not run, with all descriptors that are in flight and not done.
    pub fn start_over(&mut self, registers: &Tsi721Registers) {
        self.start(registers);
        for index in self.done..self.in_flight.len() {
            let slot = self.next_slot();
            let entry = &mut self.in_flight[index];
            entry.slot = slot;
            let descriptor = entry.descriptor;
            self.put(slot, &descriptor);
        }
    }

    /// Number of descriptors that can be added.
    pub fn room(&self) -> usize {
        self.entries - self.in_flight.len()
    }

    /// Whether no descriptor is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Allocates the slot of the next descriptor. Counts it, and the link behind the last slot.
    fn next_slot(&mut self) -> usize {
        let slot = self.next;
        self.written = self.written.wrapping_add(1);
        self.next += 1;
        if self.next == self.entries {
            self.next = 0;
            self.written = self.written.wrapping_add(1);
        }
        slot
    }

    fn put(&self, slot: usize, descriptor: &Descriptor) {
        let words =
            [0, 2, 4, 6].map(|n| u64::from(descriptor[n]) | u64::from(descriptor[n + 1]) << 32);
        let count = (self.layout.descriptor / 8).min(words.len());
        self.ring.store_words(slot * self.layout.descriptor, &words[..count]);
    }

    /// Adds a descriptor; false if there is no room. The next [`Engine::notify`] notifies the device.
    pub fn push(&mut self, descriptor: Descriptor, tag: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        let slot = self.next_slot();
        self.put(slot, &descriptor);
        self.in_flight.push_back(Entry { descriptor, slot, tag });
        true
    }

    /// Notifies the device of new descriptors.
    pub fn notify(&mut self, registers: &Tsi721Registers) {
        if self.notified != self.written && self.state == State::Running {
            self.notified = self.written;
            registers.write(self.base + WRITTEN, self.written);
        }
    }

    /// Reads a word of a slot, which the device may have written.
    pub fn word(&self, slot: usize, word: usize) -> u32 {
        self.ring.load32(slot * self.layout.descriptor + 4 * word)
    }

    /// Whether completions wait for [`Engine::take`].
    pub fn pending(&self) -> bool {
        self.done > 0 || !self.is_idle() && self.words.load(self.line * WORDS) != 0
    }

    /// Reads the lines of the FIFO that the device has written.
    fn read_fifo(&mut self, registers: &Tsi721Registers) {
        while self.words.load(self.line * WORDS) != 0 {
            for word in 0..WORDS {
                let at = self.line * WORDS + word;
                let address = self.words.load(at);
                if address == 0 {
                    break;
                }
                self.words.store(at, 0);
                self.complete(address);
            }
            self.line = (self.line + 1) % self.lines;
            self.unreported += 1;
        }
        if self.unreported >= self.lines / 4 {
            self.unreported = 0;
            registers.write(self.base + self.layout.fifo_read, self.line as u32);
        }
    }

    /// Records the completion of the descriptor at `address`, and of those ahead of it.
    fn complete(&mut self, address: u64) {
        let size = self.layout.descriptor as u64;
        let offset = address.wrapping_sub(self.ring.bus_address());
        let slot = (offset / size) as usize;
        if slot == self.entries && offset.is_multiple_of(size) {
            return; // the link
        }
        if let Some(entry) = self.in_flight.get(self.done)
            && entry.slot == slot
            && offset.is_multiple_of(size)
        {
            self.is_raised |= entry.descriptor[0] & WANTS_INTERRUPT != 0;
            self.done += 1;
            return;
        }
        let found = self.in_flight.iter().skip(self.done).position(|entry| entry.slot == slot);
        match found.filter(|_| offset.is_multiple_of(size)) {
            Some(ahead) => {
                let mut ended = self.in_flight.range(self.done..=self.done + ahead);
                self.is_raised |= ended.any(|entry| entry.descriptor[0] & WANTS_INTERRUPT != 0);
                self.done += ahead + 1;
            }
            None => self.invalid_entries += 1,
        }
    }

    /// The slot and the tag of the next completed descriptor.
    pub fn take(&mut self, registers: &Tsi721Registers) -> Option<(usize, T)> {
        if self.is_idle() {
            return None;
        }
        if self.done == 0 {
            self.read_fifo(registers);
        }
        self.done = self.done.checked_sub(1)?;
        self.progress = None;
        self.in_flight.pop_front().map(|entry| (entry.slot, entry.tag))
    }

    /// Since when the first descriptor is in flight, and when the status is due to be read.
    fn next_check(&self, now: Instant, first: Duration) -> (Instant, Instant) {
        let since = self.progress.unwrap_or(now);
        let last = since.max(self.last_check);
        (since, last + last.since(since).max(first))
    }

    /// Runs the channel after its initialization. Restarts it after an error, or when its first descriptor times out;
    /// `shorter` may return a shorter timeout for the descriptor's tag. Reports the failed descriptor to `failed`.
    /// `has_error`: an interrupt has reported an error of some channel.
    pub fn watch(
        &mut self,
        now: Instant,
        has_error: bool,
        registers: &Tsi721Registers,
        shorter: impl Fn(&T) -> Option<Duration>,
        mut failed: impl FnMut(T, Fault),
    ) {
        if has_error {
            // Cleared before the status is read, so that a later error interrupts again.
            registers.write(self.base + INTERRUPT, ERRORS);
            self.is_raised = true;
        }
        match self.state {
            State::Suspending(None) => self.state = State::Suspending(Some(now)),
            State::Suspending(Some(since)) => {
                let status = registers.read(self.base + STATUS);
                // The device has written earlier completions to the FIFO before it stops.
                self.read_fifo(registers);
                if status & RUN == 0 || status == u32::MAX || now.since(since) >= SUSPENDING {
                    self.start_over(registers);
                }
            }
            State::Started => self.state = State::Initializing(now),
            State::Initializing(since) if now.since(since) >= INITIALIZING => {
                self.state = State::Running;
                self.notify(registers);
            }
            State::Initializing(_) => {}
            State::Running if self.in_flight.len() > self.done => {
                self.progress.get_or_insert(now);
                let (since, due) = self.next_check(now, CHECK);
                let first = self.in_flight.front().and_then(|entry| shorter(&entry.tag));
                let timeout = first.unwrap_or(self.timeout);
                if !has_error && now < due.min(since + timeout) {
                    return;
                }
                self.last_check = now;
                let status = registers.read(self.base + STATUS);
                // The device has written completions from before the error to the FIFO before it set the status.
                self.read_fifo(registers);
                if self.done > 0 || status == u32::MAX {
                    return;
                }
                let fault = match status & ABORT != 0 {
                    true => Fault::Refused,
                    false if now.since(since) >= timeout => Fault::Stalled,
                    false => return,
                };
                if let Some(entry) = self.in_flight.pop_front() {
                    failed(entry.tag, fault);
                }
                self.restart(registers);
            }
            State::Running => {}
        }
    }

    /// When [`Engine::watch`] must be called again, even without an interrupt.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Running if self.is_idle() => None,
            State::Running => Some(self.next_check(now, CHECK_HALTED).1),
            _ => Some(now + INITIALIZING),
        }
    }

    /// Fails all descriptors that are in flight and not done, and restarts the channel.
    pub fn fail_all(&mut self, registers: &Tsi721Registers, mut failed: impl FnMut(T)) {
        self.read_fifo(registers);
        self.in_flight.drain(self.done..).for_each(|entry| failed(entry.tag));
        self.restart(registers);
    }

    /// Enables the interrupt for the next completion; true if that took a register write. Check [`Engine::pending`]
    /// after the write has arrived.
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        let was_raised = core::mem::take(&mut self.is_raised);
        if was_raised {
            registers.write(self.base + INTERRUPT, ALL_DONE | DONE);
        }
        was_raised
    }
}
