//! What writes through a bridge: a channel of an engine, or the CPU where there is none or it is lost.
//!
//! With a channel everything goes through it, also what is short: writes of CPU and engine that pass each other on
//! their way would have to be waited for. Short ones are gathered in memory of our own, those that are neighbours at
//! the peer as one copy. Bells are copies behind all that they announce, so that a batch costs one write to the
//! engine's registers, and nobody waits for it.

use super::{Channel, ChannelCounters, CpuCopy, Dma, Health, LONGEST, Progress, Ticket};
use crate::hal::{Arena, Instant, Window};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Bytes of memory for what is gathered.
const GATHERED: usize = 256 << 10;
/// Copies of at most so many bytes are made by the CPU, into what is gathered: an estimate of
/// what a descriptor costs.
const SHORT: usize = 256;
/// Copies and bytes that a turn is sure of.
const TURN_COPIES: usize = 512;
const TURN_BYTES: usize = GATHERED / 2;
/// Looks at a channel without room before it is given up: some 100 ms.
const LOOKS: u32 = 10_000_000;

/// Short writes in memory of our own, given out and taken back in order.
struct Gathered {
    memory: Window,
    /// Bytes given out and taken back since the beginning.
    head: usize,
    tail: usize,
    /// By number of the copy: how far it may be taken back when that is complete.
    out: VecDeque<(u64, usize)>,
    /// What is gathered and not given to the channel.
    open: Option<Open>,
    /// Where everything goes.
    target: Window,
}

/// Neighbours at the peer that end at the head of what is gathered.
struct Open {
    /// The target, from where it goes on.
    to: Window,
    /// Where it begins here.
    start: usize,
    len: usize,
}

impl Gathered {
    fn place(&self, at: usize, len: usize) -> Option<Window> {
        self.memory.slice(at % GATHERED, len)
    }

    /// The target from the beginning of `part` on.
    fn from(&self, part: &Window) -> Option<Window> {
        let offset = part.bus_address().checked_sub(self.target.bus_address())? as usize;
        self.target.slice(offset, self.target.len().checked_sub(offset)?)
    }

    /// Where what is gathered goes, and lies.
    fn take(&mut self) -> Option<(Window, Window)> {
        let open = self.open.take()?;
        Some((open.to.slice(0, open.len)?, self.place(open.start, open.len)?))
    }

    fn room(&self) -> usize {
        GATHERED - (self.head - self.tail)
    }
}

/// Who carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The CPU.
    Cpu,
    /// A channel of an engine, by its number.
    Engine(u8),
}

/// What writes through a bridge.
pub struct Carrier {
    channel: Option<Box<dyn Channel>>,
    gathered: Gathered,
    cpu: CpuCopy,
    /// The last number that the channel gave out, the last of a payload, and the last that is complete.
    pushed: u64,
    submitted: Ticket,
    done: Ticket,
    lost: bool,
    now: Instant,
    bytes_by_cpu: u64,
    /// Of channels that were given up.
    past: ChannelCounters,
}

impl Carrier {
    /// By the CPU, until there is a channel.
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

    /// Has a channel carry everything, which all goes to `target`, from now on. False, and it does not, without memory
    /// for what is gathered. Nothing may have been written yet.
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

    /// Who carries now.
    pub fn carried(&self) -> Carried {
        self.channel.as_ref().map_or(Carried::Cpu, |channel| Carried::Engine(channel.number()))
    }

    /// Bytes that the CPU has written through the bridge.
    pub fn bytes_by_cpu(&self) -> u64 {
        self.bytes_by_cpu
    }

    /// What channels have counted.
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

    /// Whether everything that was written is complete.
    pub fn is_idle(&self) -> bool {
        self.done == self.pushed && self.gathered.open.is_none()
    }

    /// The number of the last write, and of the last that is complete.
    pub fn reached(&self) -> (u64, u64) {
        (self.pushed + u64::from(self.gathered.open.is_some()), self.done)
    }

    /// Gives a copy to the channel; its number. Waits for room, which nobody needs who asks for it before.
    #[inline]
    fn push(&mut self, to: &Window, from: &Window) -> u64 {
        for _ in 0..LOOKS {
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
            self.look();
        }
        self.lose();
        self.pushed
    }

    /// Gives what is gathered to the channel.
    #[inline]
    fn close(&mut self) {
        if let Some((to, from)) = self.gathered.take() {
            let number = self.push(&to, &from);
            self.gathered.out.push_back((number, self.gathered.head));
        }
    }

    /// Memory of our own for `len` bytes that go to the beginning of `to`.
    #[inline]
    fn gather(&mut self, to: &Window, len: usize) -> Option<Window> {
        let (end, room) = (self.gathered.head, self.gathered.room());
        if let Some(open) = &mut self.gathered.open {
            let whole = open.len + len;
            // Neighbours at the peer, and here.
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
        // Each begins on a line of its own, and none wraps.
        let mut start = self.gathered.head.next_multiple_of(64);
        if start % GATHERED + len > GATHERED {
            start = start.next_multiple_of(GATHERED);
        }
        for _ in 0..LOOKS {
            if start + len - self.gathered.tail <= GATHERED || self.channel.is_none() {
                break;
            }
            self.start();
            self.look();
        }
        self.channel.as_ref()?;
        let to = self.gathered.from(to).filter(|to| to.len() >= len)?;
        self.gathered.head = start + len;
        self.gathered.open = Some(Open { to, start, len });
        self.gathered.place(start, len)
    }

    /// Looks how far the channel is.
    #[inline]
    fn look(&mut self) {
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
            Health::Failed => self.take_over(),
            Health::Lost => self.lose(),
        }
    }

    /// The channel is given up, and the CPU carries what it has not.
    #[cold]
    fn take_over(&mut self) {
        let Some(mut channel) = self.channel.take() else { return };
        while let Some((to, from)) = channel.take_rest() {
            // What the engine wrote before has arrived when something was read from behind it.
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

    /// The channel is gone, and with it what was under way.
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
        self.look();
        // Of what the CPU carries nothing is read later.
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
