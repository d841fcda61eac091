//! The carrier writes through a bridge: by a channel of a DMA engine, or by the CPU without a channel or after its
//! failure.
//!
//! With a channel all writes go through it, short ones included. Otherwise writes of CPU and engine could pass each
//! other, and the driver would have to wait. Short writes are gathered in the carrier's own memory; writes to adjacent
//! addresses of the peer become one copy. A doorbell is a copy after all copies that it announces, so a batch costs one
//! write to the engine's registers and no wait.

use super::{Channel, ChannelCounters, CpuCopy, Dma, Health, LONGEST, Progress, Ticket};
use crate::hal::{Arena, Instant, Window};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Bytes of memory for gathered writes.
const GATHERED: usize = 256 << 10;
/// Most bytes of a short write, which is gathered: an estimate of the cost of a descriptor.
const SHORT: usize = 256;
/// Copies and bytes that must be free for a turn of writes.
const TURN_COPIES: usize = 512;
const TURN_BYTES: usize = GATHERED / 2;
/// Polls of a full channel before it is given up: some 100 ms.
const MOST_POLLS: u32 = 10_000_000;

/// Memory for short writes, allocated and freed in order.
struct Gathered {
    memory: Window,
    /// Bytes allocated and freed since the beginning.
    head: usize,
    tail: usize,
    /// Number of each copy, and the head to which memory can be freed when it is complete.
    out: VecDeque<(u64, usize)>,
    /// Gathered writes that were not given to the channel.
    open: Option<Open>,
    /// The window of the bridge.
    target: Window,
}

/// Gathered writes to adjacent addresses of the peer. They end at the head.
struct Open {
    /// The target from the first byte on.
    to: Window,
    /// Number of the first byte in the gather memory.
    start: usize,
    len: usize,
}

impl Gathered {
    fn place(&self, at: usize, len: usize) -> Option<Window> {
        self.memory.slice(at % GATHERED, len)
    }

    /// The rest of the target from the beginning of `part`.
    fn from(&self, part: &Window) -> Option<Window> {
        let offset = part.bus_address().checked_sub(self.target.bus_address())? as usize;
        self.target.slice(offset, self.target.len().checked_sub(offset)?)
    }

    /// Takes the gathered writes: target and source.
    fn take(&mut self) -> Option<(Window, Window)> {
        let open = self.open.take()?;
        Some((open.to.slice(0, open.len)?, self.place(open.start, open.len)?))
    }

    fn room(&self) -> usize {
        GATHERED - (self.head - self.tail)
    }
}

/// Current means of writing through the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The CPU.
    Cpu,
    /// A channel of an engine, by its number.
    Engine(u8),
}

/// Writes through a bridge.
pub struct Carrier {
    channel: Option<Box<dyn Channel>>,
    gathered: Gathered,
    cpu: CpuCopy,
    /// Number of the last copy pushed to the channel.
    pushed: u64,
    /// Number of the last copy of a payload.
    submitted: Ticket,
    /// Number of the last complete copy.
    done: Ticket,
    lost: bool,
    now: Instant,
    bytes_by_cpu: u64,
    /// Counters of channels that were given up.
    past: ChannelCounters,
}

impl Carrier {
    /// A carrier that writes by the CPU, until it gets a channel.
    pub fn new() -> Self {
        let (memory, target) = (Window::empty(), Window::empty());
        let out = VecDeque::new();
        Carrier {
            channel: None,
            gathered: Gathered { memory, head: 0, tail: 0, out, open: None, target },
            cpu: CpuCopy,
            pushed: 0,
            submitted: 0,
            done: 0,
            lost: false,
            now: Instant::ZERO,
            bytes_by_cpu: 0,
            past: ChannelCounters::default(),
        }
    }

    /// Uses a channel for all further writes, which go to `target`. Must be called before the first write. False, and
    /// the CPU is used on, if there is no memory for gathered writes.
    pub fn use_channel(
        &mut self,
        channel: Box<dyn Channel>,
        target: Window,
        arena: &mut Arena,
    ) -> bool {
        let Some(memory) = arena.alloc(GATHERED, 4096) else { return false };
        (self.gathered.memory, self.gathered.target) = (memory, target);
        self.gathered.out = VecDeque::with_capacity(GATHERED / 64);
        self.channel = Some(channel);
        true
    }

    /// Current means of writing.
    pub fn carried(&self) -> Carried {
        self.channel.as_ref().map_or(Carried::Cpu, |channel| Carried::Engine(channel.number()))
    }

    /// Bytes that the CPU has written through the bridge.
    pub fn bytes_by_cpu(&self) -> u64 {
        self.bytes_by_cpu
    }

    /// Sum of the counters of all channels so far.
    pub fn counters(&self) -> ChannelCounters {
        let now = self.channel.as_ref().map(|channel| channel.counters()).unwrap_or_default();
        ChannelCounters {
            copies: self.past.copies + now.copies,
            bytes: self.past.bytes + now.bytes,
            batches: self.past.batches + now.batches,
            resets: self.past.resets + now.resets,
            missed: self.past.missed + now.missed,
            nonsense: self.past.nonsense + now.nonsense,
        }
    }

    /// Whether all writes are complete.
    pub fn is_idle(&self) -> bool {
        self.done == self.pushed && self.gathered.open.is_none()
    }

    /// The number of the last write, and of the last complete write.
    pub fn reached(&self) -> (u64, u64) {
        (self.pushed + u64::from(self.gathered.open.is_some()), self.done)
    }

    /// Pushes a copy to the channel, and returns its number. Polls if the channel is full; a caller that has checked
    /// [`Dma::has_room`] does not wait.
    #[inline]
    fn push(&mut self, to: &Window, from: &Window) -> u64 {
        for _ in 0..MOST_POLLS {
            let Some(channel) = &mut self.channel else {
                self.cpu.submit(to, from);
                self.bytes_by_cpu += from.len() as u64;
                return self.pushed;
            };
            if let Some(number) = channel.push(to, from) {
                self.pushed = number;
                return number;
            }
            channel.start();
            self.poll_channel();
        }
        self.lose();
        self.pushed
    }

    /// Pushes the gathered writes to the channel.
    #[inline]
    fn close(&mut self) {
        if let Some((to, from)) = self.gathered.take() {
            let number = self.push(&to, &from);
            self.gathered.out.push_back((number, self.gathered.head));
        }
    }

    /// Allocates gather memory for `len` bytes that go to the beginning of `to`.
    #[inline]
    fn gather(&mut self, to: &Window, len: usize) -> Option<Window> {
        let (end, room) = (self.gathered.head, self.gathered.room());
        if let Some(open) = &mut self.gathered.open {
            let whole = open.len + len;
            // Adjacent at the peer and in the gather memory.
            if open.to.bus_address() + open.len as u64 == to.bus_address()
                && end.is_multiple_of(4)
                && open.start % GATHERED + whole <= GATHERED
                && room >= len
                && whole <= LONGEST.min(open.to.len())
            {
                open.len = whole;
                self.gathered.head += len;
                return self.gathered.place(end, len);
            }
            self.close();
        }
        // Each begins on a cache line of its own, and does not wrap.
        let mut start = self.gathered.head.next_multiple_of(64);
        if start % GATHERED + len > GATHERED {
            start = start.next_multiple_of(GATHERED);
        }
        for _ in 0..MOST_POLLS {
            if start + len - self.gathered.tail <= GATHERED || self.channel.is_none() {
                break;
            }
            self.start();
            self.poll_channel();
        }
        self.channel.as_ref()?;
        let to = self.gathered.from(to).filter(|to| to.len() >= len)?;
        self.gathered.head = start + len;
        self.gathered.open = Some(Open { to, start, len });
        self.gathered.place(start, len)
    }

    /// Polls the channel for completions and errors.
    #[inline]
    fn poll_channel(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        let (done, health) = channel.complete(self.now);
        if done != self.done {
            self.done = done;
            while let Some(&(_, end)) = self.gathered.out.front().filter(|out| out.0 <= done) {
                self.gathered.out.pop_front();
                self.gathered.tail = end;
            }
        }
        match health {
            Health::Good => {}
            Health::Failed => self.fail_over(),
            Health::Lost => self.lose(),
        }
    }

    /// Gives up a failed channel. The CPU copies the rest.
    #[cold]
    fn fail_over(&mut self) {
        let Some(mut channel) = self.channel.take() else { return };
        while let Some((to, from)) = channel.take_rest() {
            // A read through the window completes after the engine's earlier writes have arrived.
            let _ = to.read_array::<1>(0);
            self.cpu.submit(&to, &from);
            self.cpu.order();
            self.bytes_by_cpu += from.len() as u64;
        }
        self.retire(&*channel);
        if let Some((to, from)) = self.gathered.take() {
            self.cpu.submit(&to, &from);
            self.bytes_by_cpu += from.len() as u64;
        }
    }

    /// Gives up a lost channel, and drops its copies in flight.
    #[cold]
    fn lose(&mut self) {
        if let Some(channel) = self.channel.take() {
            self.retire(&*channel);
            self.gathered.open = None;
            self.lost = true;
        }
    }

    fn retire(&mut self, channel: &dyn Channel) {
        let ChannelCounters { copies, bytes, batches, resets, missed, nonsense } =
            channel.counters();
        self.past = ChannelCounters { copies, bytes, batches, resets, missed, nonsense };
        self.done = self.pushed;
        self.gathered.out.clear();
    }
}

impl Default for Carrier {
    fn default() -> Self {
        Self::new()
    }
}

impl Dma for Carrier {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        let len = from.len().min(to.len());
        let (Some(to), Some(from)) = (to.slice(0, len), from.slice(0, len)) else { return };
        if self.channel.is_none() {
            self.bytes_by_cpu += len as u64;
            return self.cpu.submit(&to, &from);
        }
        if len <= SHORT {
            match self.gather(&to, len) {
                Some(place) => self.cpu.submit(&place, &from),
                None => self.cpu.submit(&to, &from),
            }
            return;
        }
        let mut at = 0;
        while at < len {
            let part = LONGEST.min(len - at);
            if let (Some(to), Some(from)) = (to.slice(at, part), from.slice(at, part)) {
                self.submitted = self.push(&to, &from);
            }
            at += part;
        }
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn gathers(&self) -> bool {
        self.channel.is_some()
    }

    fn submitted(&self) -> Ticket {
        self.submitted
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        let words = &words[..words.len().min(to.len() / 8)];
        match self.channel.is_some().then(|| self.gather(to, 8 * words.len())).flatten() {
            Some(place) => self.cpu.put(&place, words),
            None => {
                self.bytes_by_cpu += 8 * words.len() as u64;
                self.cpu.put(to, words);
            }
        }
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        if to.len() < 4 {
            return;
        }
        match self.channel.is_some().then(|| self.gather(to, 4)).flatten() {
            Some(place) => place.store32(0, value),
            None => {
                self.bytes_by_cpu += 4;
                self.cpu.put32(to, value);
            }
        }
    }

    #[inline]
    fn order(&mut self) {
        self.close();
        match &mut self.channel {
            Some(channel) => channel.order(),
            None => self.cpu.order(),
        }
    }

    #[inline]
    fn start(&mut self) -> bool {
        self.close();
        if let Some(channel) = &mut self.channel {
            channel.start();
        }
        self.done != self.pushed
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> Progress {
        self.now = now;
        self.poll_channel();
        // The CPU's copies are complete at once.
        Progress { done: self.done, lost: core::mem::take(&mut self.lost) }
    }

    fn settled(&mut self) -> bool {
        self.start();
        self.cpu.order();
        self.done == self.pushed
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.channel.as_ref().is_none_or(|channel| {
            channel.room() >= TURN_COPIES && self.gathered.room() >= TURN_BYTES
        })
    }
}
