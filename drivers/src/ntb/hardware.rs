//! What bridges of different makers have in common above their registers: a window, memory that is exposed, who
//! carries, and signals that come behind what is carried.
//!
//! Registers are read while the link comes up, every [`LOOK`], and before a halt; not for what is carried.

use super::{Bridge, Ntb, NtbDevice, Side};
use crate::dma::{Carrier, Channel, Dma, Progress, Ticket};
use crate::hal::{Arena, Instant, Interrupt, Window};
use crate::pci::Msix;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Memory that is exposed, if the window has so much.
pub(super) const EXPOSED: u64 = 32 << 20;
/// How often the state of the link is read.
const LOOK: Duration = Duration::from_millis(5);
/// Signals that wait for the engine, at most.
const MOST_WAITING: usize = 32;

/// What is said to the peer beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// A scratchpad and its value.
    Scratchpad(usize, u32),
    /// The bell.
    Bell,
}

/// The registers of a bridge.
pub(super) trait Chip: Send {
    /// Whether the other side is there; asked every [`LOOK`].
    fn link(&mut self, now: Instant) -> bool;

    /// Generation of PCI Express and lanes.
    fn link_speed(&self) -> Option<(u8, u8)>;

    /// How many scratchpads each side has.
    fn scratchpads(&self) -> usize;

    /// Memory windows that Linux's driver offers.
    fn windows(&self) -> usize;

    /// Forgets what the peer has written to ours.
    fn clear_scratchpads(&mut self);

    /// Says again what this side says of itself where the peer can write over it.
    fn renew(&mut self) {}

    /// Reads one of ours.
    fn scratchpad(&self, n: usize) -> u32;

    /// Signals the peer.
    fn send(&mut self, signal: Signal);

    /// Whether our bell was rung, and not taken note of.
    fn is_rung(&self) -> bool;

    /// Clears our bell: whether it was rung.
    fn take_bell(&mut self) -> bool;

    /// Has our bell interrupt, or not.
    fn set_interrupts(&mut self, wanted: bool);

    /// Reads something of the peer's. What was written to it before is there when the answer is.
    fn push(&self);

    /// The peer finds the link down.
    fn shut(&mut self);
}

/// One side of a bridge.
pub(super) struct Hardware<C: Chip> {
    chip: C,
    side: Side,
    window: Window,
    exposed: Window,
    carrier: Carrier,
    /// Signals that are given when the write of that number is complete, in order.
    waiting: VecDeque<(u64, Signal)>,
    link: bool,
    looked: Option<Instant>,
    interrupt: Option<(Interrupt, Msix)>,
    /// Interrupts that were taken note of; and that a bell was rung without one.
    seen: u64,
    was_rung: bool,
}

impl<C: Chip> Hardware<C> {
    /// One that was set up.
    pub(super) fn new(
        chip: C,
        side: Side,
        window: Window,
        exposed: Window,
        interrupt: Option<(Interrupt, Msix)>,
    ) -> Self {
        Hardware {
            chip,
            side,
            window,
            exposed,
            carrier: Carrier::new(),
            waiting: VecDeque::with_capacity(MOST_WAITING),
            link: false,
            looked: None,
            interrupt,
            seen: 0,
            was_rung: false,
        }
    }

    fn raised(&self) -> u64 {
        self.interrupt.as_ref().map_or(0, |(one, _)| one.raised().load(Ordering::Relaxed))
    }

    /// Gives a signal behind all that was written so far.
    fn signal(&mut self, signal: Signal) {
        self.carrier.start();
        if self.carrier.is_idle() && self.waiting.is_empty() {
            // What the CPU has written leaves before it.
            self.carrier.order();
            return self.chip.send(signal);
        }
        // The same said twice is said once, later.
        self.waiting.retain(|(_, other)| match (other, signal) {
            (Signal::Scratchpad(n, _), Signal::Scratchpad(m, _)) => *n != m,
            (other, signal) => *other != signal,
        });
        self.waiting.push_back((self.carrier.reached().0, signal));
    }

    /// Gives signals that have waited for the engine.
    #[inline]
    fn signal_completed(&mut self) {
        while let Some(&(after, signal)) = self.waiting.front() {
            if self.carrier.reached().1 < after {
                return;
            }
            self.waiting.pop_front();
            self.chip.send(signal);
        }
    }
}

impl<C: Chip> Drop for Hardware<C> {
    fn drop(&mut self) {
        self.chip.shut();
    }
}

impl<C: Chip> NtbDevice for Hardware<C> {
    fn bridge(&mut self) -> &mut dyn Bridge {
        self
    }

    fn side(&self) -> Side {
        self.side
    }

    fn is_taken(&self) -> bool {
        false
    }

    fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted {
            self.was_rung |= self.chip.take_bell();
        }
        self.chip.set_interrupts(wanted);
    }

    fn route(&mut self, interrupt: Interrupt) -> bool {
        let Some((_, msix)) = &mut self.interrupt else { return false };
        if !msix.route(0, &interrupt) {
            return false;
        }
        self.seen = interrupt.raised().load(Ordering::Relaxed);
        self.interrupt = self.interrupt.take().map(|(_, msix)| (interrupt, msix));
        true
    }

    fn interrupts(&self) -> u64 {
        self.raised()
    }

    fn pending(&self) -> bool {
        self.was_rung || self.chip.is_rung()
    }

    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.carrier.is_idle()
    }

    fn use_engine(&mut self, channel: Box<dyn Channel>, arena: &mut Arena) -> bool {
        self.carrier.use_channel(channel, self.window, arena)
    }

    fn carrier(&self) -> Option<&Carrier> {
        Some(&self.carrier)
    }

    fn link_speed(&self) -> Option<(u8, u8)> {
        self.chip.link_speed().filter(|_| self.link)
    }
}

impl<C: Chip> Ntb for Hardware<C> {
    #[inline]
    fn link(&self) -> bool {
        self.link
    }

    #[inline]
    fn window(&self) -> Window {
        self.window
    }

    #[inline]
    fn exposed(&self) -> Window {
        self.exposed
    }

    /// Each would cost a round trip.
    #[inline]
    fn loads(&self) -> bool {
        false
    }

    fn scratchpads(&self) -> usize {
        self.chip.scratchpads()
    }

    fn windows(&self) -> usize {
        self.chip.windows()
    }

    fn clear_scratchpads(&mut self) {
        self.chip.clear_scratchpads();
    }

    fn renew(&mut self) {
        self.chip.renew();
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.chip.scratchpad(n.min(self.chip.scratchpads() - 1))
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.signal(Signal::Scratchpad(n.min(self.chip.scratchpads() - 1), value));
    }

    fn ring(&mut self) {
        self.signal(Signal::Bell);
    }

    fn rung(&mut self) -> bool {
        let raised = self.raised();
        let interrupted = core::mem::replace(&mut self.seen, raised) != raised;
        core::mem::take(&mut self.was_rung) || interrupted
    }
}

impl<C: Chip> Dma for Hardware<C> {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        self.carrier.submit(to, from);
    }

    /// The link and signals want to be looked after, whoever carries.
    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submitted(&self) -> Ticket {
        self.carrier.submitted()
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        self.carrier.put(to, words);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        self.carrier.put32(to, value);
    }

    #[inline]
    fn order(&mut self) {
        self.carrier.order();
    }

    #[inline]
    fn start(&mut self) -> bool {
        self.carrier.start() || !self.waiting.is_empty()
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> Progress {
        if self.looked.is_none_or(|looked| now.since(looked) >= LOOK) {
            self.looked = Some(now);
            self.link = self.chip.link(now);
        }
        let progress = self.carrier.complete(now);
        self.signal_completed();
        progress
    }

    fn settled(&mut self) -> bool {
        let settled = self.carrier.settled() && self.waiting.is_empty();
        if settled {
            self.chip.push();
        }
        settled
    }

    fn has_room(&self) -> bool {
        self.carrier.has_room()
    }
}
