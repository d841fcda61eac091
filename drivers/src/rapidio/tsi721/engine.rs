//! What block DMA channels and outbound message channels have in common: a ring of descriptors that ends in a link
//! to its beginning, counters of descriptors written and carried out, and a FIFO in memory in which the device
//! writes addresses of descriptors that are done. After an error the channel is initialized, which makes it begin at
//! the ring's beginning again, and what is left is put there.
//!
//! Interrupts are enabled for good. A bit that stands raises none, so that a channel which nobody has armed again after
//! something was done is silent: that takes one write, and only where something was done.

use super::Error;
use super::registers::{Tsi721Registers, halves, queue_size};
use crate::hal::{Arena, Cells, Instant, Window};
use crate::rapidio::Fault;
use alloc::collections::VecDeque;
use core::sync::atomic::AtomicU64;
use core::time::Duration;

/// Words of the FIFO that the device may use at once: a line.
const LINE: usize = 64;
const WORDS: usize = LINE / 8;
/// Fewest lines of a FIFO.
const FEWEST_LINES: usize = 32;
/// How long the device takes to initialize a channel, at most.
const INITIALIZING: Duration = Duration::from_micros(10);
/// How long a busy channel completes nothing before its status is looked at. After each look in vain, twice as long.
const LOOK: Duration = Duration::from_micros(100);
/// How long a loop halts over a busy channel at most before it looks: what is done, and what fails, interrupts.
const REST: Duration = Duration::from_millis(5);

// Status register.
const ABORT: u32 = 1 << 22;

/// Interrupt bits of both kinds of channel: done with all that there is, which is never asked for.
const ALL_DONE: u32 = 8;
/// Done with a descriptor that wants it.
const DONE: u32 = 1;
/// FIFO full, suspended, error.
const TROUBLE: u32 = 0x10 | 4 | 2;

/// Where the registers of a kind of channel are, from the channel's base, and what its descriptors look like.
pub struct Layout {
    /// Bytes of a descriptor.
    pub descriptor: usize,
    /// First word of a descriptor that is a link.
    pub link: u32,
    /// Control word that initializes the channel.
    pub start: u32,
    /// Address of the ring, lower half and upper.
    pub pointer: [usize; 2],
    /// Address of the FIFO.
    pub fifo: [usize; 2],
    /// Its size, and how far software has read it.
    pub fifo_size: usize,
    pub fifo_read: usize,
}

const WRITTEN: usize = 0x00;
const CONTROL: usize = 0x08;
const INTERRUPT: usize = 0x0c;
const STATUS: usize = 0x14;
const ENABLE: usize = 0x18;

/// In the first word of a descriptor: it interrupts when it is done.
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
    /// Initialized at some moment, which is learnt at the next poll.
    Started,
    Initializing(Instant),
}

/// A channel. `T` is what its user remembers of a descriptor.
pub struct Engine<T> {
    layout: &'static Layout,
    base: usize,
    ring: Window,
    fifo: Window,
    /// The same, word by word.
    words: Cells<AtomicU64>,
    entries: usize,
    lines: usize,
    under_way: VecDeque<Entry<T>>,
    /// How many of those, from the front, are done.
    done: usize,
    /// Where the next descriptor goes, and how many were written, with links.
    next: usize,
    written: u32,
    told: u32,
    /// The next line of the FIFO, and how many were read since the device was told.
    line: usize,
    untold: usize,
    /// The bit of what is done may stand.
    is_raised: bool,
    state: State,
    /// When something was last completed, or began while nothing was under way, as far as polls have seen.
    progress: Option<Instant>,
    looked: Instant,
    /// How long the first descriptor may take.
    patience: Duration,
    /// Times that it was started anew.
    pub restarts: u64,
    /// Lines of the FIFO that name no descriptor under way.
    pub nonsense: u64,
}

impl<T> Engine<T> {
    /// A channel with room for `entries` descriptors, whose registers are at `base`. Started at once; takes what it
    /// is given from the second poll on.
    pub fn new(
        layout: &'static Layout,
        base: usize,
        entries: usize,
        patience: Duration,
        arena: &mut Arena,
        registers: &Tsi721Registers,
    ) -> Result<Self, Error> {
        // For all descriptors and the link, beside lines of which the device was not told that they were read.
        let lines = (2 * (entries + 1).next_power_of_two()).max(FEWEST_LINES);
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
            under_way: VecDeque::with_capacity(entries),
            done: 0,
            next: 0,
            written: 0,
            told: 0,
            line: 0,
            untold: 0,
            is_raised: false,
            state: State::Started,
            progress: None,
            looked: Instant::ZERO,
            patience,
            restarts: 0,
            nonsense: 0,
        };
        engine.start(registers);
        Ok(engine)
    }

    /// Gives its memory back; the device must not reach memory any more.
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
        registers.write(at(INTERRUPT), ALL_DONE | DONE | TROUBLE);
        registers.write(at(ENABLE), DONE | TROUBLE);
        registers.write(at(CONTROL), start);
        // Read back: it has stopped, and what it wrote before has arrived.
        registers.read(at(CONTROL));
        self.fifo.fill(0);
        self.ring.fill(0);
        let [low, high] = halves(self.ring.bus_address());
        let end = self.entries * descriptor;
        self.ring.store32(end, link);
        self.ring.store32(end + 8, low);
        self.ring.store32(end + 12, high);
        (self.next, self.written, self.told) = (0, 0, 0);
        (self.line, self.untold, self.is_raised) = (0, 0, false);
        self.state = State::Started;
        self.progress = None;
    }

    /// Starts the channel anew: everything that is under way and not done is carried out again.
    fn restart(&mut self, registers: &Tsi721Registers) {
        self.restarts += 1;
        self.start(registers);
        for index in self.done..self.under_way.len() {
            let slot = self.place();
            let entry = &mut self.under_way[index];
            entry.slot = slot;
            let descriptor = entry.descriptor;
            self.put(slot, &descriptor);
        }
    }

    /// How many descriptors can be added.
    pub fn room(&self) -> usize {
        self.entries - self.under_way.len()
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The slot of the next descriptor; counts it, and the link behind the last.
    fn place(&mut self) -> usize {
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

    /// Adds a descriptor, if there is room. The device hears of it with the next [`Engine::tell`].
    pub fn push(&mut self, descriptor: Descriptor, tag: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        let slot = self.place();
        self.put(slot, &descriptor);
        self.under_way.push_back(Entry { descriptor, slot, tag });
        true
    }

    /// Tells the device of new descriptors.
    pub fn tell(&mut self, registers: &Tsi721Registers) {
        if self.told != self.written && self.state == State::Running {
            self.told = self.written;
            registers.write(self.base + WRITTEN, self.written);
        }
    }

    /// A word of a descriptor's slot, as the device may have written it.
    pub fn word(&self, slot: usize, word: usize) -> u32 {
        self.ring.load32(slot * self.layout.descriptor + 4 * word)
    }

    /// Whether the device says that something is done, or it was said and not taken.
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
                self.is_done(address);
            }
            self.line = (self.line + 1) % self.lines;
            self.untold += 1;
        }
        if self.untold >= self.lines / 4 {
            self.untold = 0;
            registers.write(self.base + self.layout.fifo_read, self.line as u32);
        }
    }

    /// The device says that the descriptor at this address is done, and so are those ahead of it.
    fn is_done(&mut self, address: u64) {
        let size = self.layout.descriptor as u64;
        let offset = address.wrapping_sub(self.ring.bus_address());
        let slot = (offset / size) as usize;
        if slot == self.entries && offset.is_multiple_of(size) {
            return; // the link
        }
        if let Some(entry) = self.under_way.get(self.done)
            && entry.slot == slot
            && offset.is_multiple_of(size)
        {
            self.is_raised |= entry.descriptor[0] & WANTS_INTERRUPT != 0;
            self.done += 1;
            return;
        }
        let found = self.under_way.iter().skip(self.done).position(|entry| entry.slot == slot);
        match found.filter(|_| offset.is_multiple_of(size)) {
            Some(ahead) => {
                let mut ended = self.under_way.range(self.done..=self.done + ahead);
                self.is_raised |= ended.any(|entry| entry.descriptor[0] & WANTS_INTERRUPT != 0);
                self.done += ahead + 1;
            }
            None => self.nonsense += 1,
        }
    }

    /// The slot and the tag of the next descriptor that is done.
    pub fn take(&mut self, registers: &Tsi721Registers) -> Option<(usize, T)> {
        if self.is_idle() {
            return None;
        }
        if self.done == 0 {
            self.read_fifo(registers);
        }
        self.done = self.done.checked_sub(1)?;
        self.progress = None;
        self.under_way.pop_front().map(|entry| (entry.slot, entry.tag))
    }

    /// Since when the first descriptor is under way, and when its status is to be looked at next.
    fn next_look(&self, now: Instant, first: Duration) -> (Instant, Instant) {
        let since = self.progress.unwrap_or(now);
        let last = since.max(self.looked);
        (since, last + last.since(since).max(first))
    }

    /// Looks after it: lets it go on after it was initialized, and starts it anew after an error or when its first
    /// descriptor takes too long, or longer than `shorter` has it for its tag. `failed` hears of that one. With
    /// `trouble`, an interrupt says that something is wrong somewhere.
    pub fn watch(
        &mut self,
        now: Instant,
        trouble: bool,
        registers: &Tsi721Registers,
        shorter: impl Fn(&T) -> Option<Duration>,
        mut failed: impl FnMut(T, Fault),
    ) {
        if trouble {
            // Before the status is read: what comes after that interrupts again.
            registers.write(self.base + INTERRUPT, TROUBLE);
            self.is_raised = true;
        }
        match self.state {
            State::Started => self.state = State::Initializing(now),
            State::Initializing(since) if now.since(since) >= INITIALIZING => {
                self.state = State::Running;
                self.tell(registers);
            }
            State::Initializing(_) => {}
            State::Running if self.under_way.len() > self.done => {
                self.progress.get_or_insert(now);
                let (since, due) = self.next_look(now, LOOK);
                let first = self.under_way.front().and_then(|entry| shorter(&entry.tag));
                let patience = first.unwrap_or(self.patience);
                if !trouble && now < due.min(since + patience) {
                    return;
                }
                self.looked = now;
                let status = registers.read(self.base + STATUS);
                // What was done before the error has been written to the FIFO before the status.
                self.read_fifo(registers);
                if self.done > 0 || status == u32::MAX {
                    return;
                }
                let fault = match status & ABORT != 0 {
                    true => Fault::Refused,
                    false if now.since(since) >= patience => Fault::Stalled,
                    false => return,
                };
                if let Some(entry) = self.under_way.pop_front() {
                    failed(entry.tag, fault);
                }
                self.restart(registers);
            }
            State::Running => {}
        }
    }

    /// When [`Engine::watch`] wants to be called again, though no interrupt comes.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Running if self.is_idle() => None,
            State::Running => Some(self.next_look(now, REST).1),
            _ => Some(now + INITIALIZING),
        }
    }

    /// Everything that is under way and not done fails; the channel is started anew.
    pub fn fail_all(&mut self, registers: &Tsi721Registers, mut failed: impl FnMut(T)) {
        self.read_fifo(registers);
        self.under_way.drain(self.done..).for_each(|entry| failed(entry.tag));
        self.restart(registers);
    }

    /// Has it interrupt when the next is done; whether that took a write. Look at [`Engine::pending`] after the write has
    /// arrived.
    pub fn arm(&mut self, registers: &Tsi721Registers) -> bool {
        let was_raised = core::mem::take(&mut self.is_raised);
        if was_raised {
            registers.write(self.base + INTERRUPT, ALL_DONE | DONE);
        }
        was_raised
    }
}
