//! Common part of the hardware bridges above their registers: the window, the exposed memory, the carrier, and signals,
//! which are sent after all earlier writes of the carrier.
//!
//! Registers are read while the link comes up, every [`LINK_INTERVAL`], and before a halt, but not for data.

use super::{Bridge, Ntb, NtbDevice, Side};
use crate::dma::{Carrier, Channel, Dma, Progress, Ticket};
use crate::driver::{Bus, Device, OpenError};
use crate::hal::{Arena, Instant, Interrupt, Platform, Window};
use crate::pci::{Bars, Function, Msix};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::Ordering;
use core::time::Duration;

/// Bytes of exposed memory, or of the window if that is smaller.
pub(super) const EXPOSED: u64 = 32 << 20;
/// Interval of reading the state of the link.
const LINK_INTERVAL: Duration = Duration::from_millis(5);
/// Most signals that wait for the engine.
const MOST_WAITING: usize = 32;

/// Opens a bridge on PCI by `set_up`. If that fails, the peer must not reach memory through an earlier translation.
pub(super) fn open<C: Chip + 'static, E: core::error::Error + 'static>(
    device: Device,
    no_registers: E,
    set_up: impl FnOnce(Function<'static>) -> Result<Hardware<C>, E>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(no_registers.into()) };
    let opened = set_up(function);
    if opened.is_err() {
        function.disable();
    }
    Ok(Box::new(opened?))
}

/// An interrupt by entry 0 of the function's MSI-X, if it has MSI-X and the platform has an interrupt.
pub(super) fn first_interrupt(
    function: &Function<'_>,
    bars: &Bars,
    platform: &mut dyn Platform,
) -> Option<(Interrupt, Msix)> {
    let mut msix = Msix::open(function, bars, platform)?;
    let interrupt = platform.allocate_interrupt().filter(|one| msix.route(0, one))?;
    Some((interrupt, msix))
}

/// Signal to the peer other than a memory write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// A scratchpad and its value.
    Scratchpad(usize, u32),
    /// The doorbell.
    Bell,
}

/// The registers of a bridge.
pub(super) trait Chip: Send {
    /// Whether the peer's side is up. Called every [`LINK_INTERVAL`].
    fn link(&mut self, now: Instant) -> bool;

    /// Generation of PCI Express and number of lanes.
    fn link_speed(&self) -> Option<(u8, u8)>;

    /// Number of scratchpads of each side.
    fn scratchpads(&self) -> usize;

    /// Number of memory windows that Linux's driver offers.
    fn windows(&self) -> usize;

    /// Clears this side's scratchpads, which the peer writes.
    fn clear_scratchpads(&mut self);

    /// Restores this side's description in memory that the peer can overwrite.
    fn renew(&mut self) {}

    /// Reads scratchpad `n` of this side.
    fn scratchpad(&self, n: usize) -> u32;

    /// Sends a signal to the peer.
    fn send(&mut self, signal: Signal);

    /// Whether this side's doorbell was rung and not cleared yet.
    fn is_rung(&self) -> bool;

    /// Clears this side's doorbell. True if it was rung.
    fn take_bell(&mut self) -> bool;

    /// Enables or disables interrupts of this side's doorbell.
    fn set_interrupts(&mut self, wanted: bool);

    /// Reads a register or memory of the peer. Earlier writes have arrived when the read completes.
    fn flush(&self);

    /// Takes the link down for the peer.
    fn disable_link(&mut self);
}

/// One side of a bridge.
pub(super) struct Hardware<C: Chip> {
    chip: C,
    side: Side,
    window: Window,
    exposed: Window,
    carrier: Carrier,
    /// Signals to send, in order, each when the write of that number is complete.
    waiting: VecDeque<(u64, Signal)>,
    link: bool,
    /// When the link was read last.
    link_read: Option<Instant>,
    interrupt: Option<(Interrupt, Msix)>,
    /// Number of interrupts that [`Ntb::rung`] has reported.
    seen: u64,
    /// The doorbell was rung without an interrupt.
    was_rung: bool,
}

impl<C: Chip> Hardware<C> {
    /// Takes a bridge after its setup.
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
            link_read: None,
            interrupt,
            seen: 0,
            was_rung: false,
        }
    }

    fn raised(&self) -> u64 {
        self.interrupt.as_ref().map_or(0, |(one, _)| one.raised().load(Ordering::Relaxed))
    }

    /// Sends a signal after all writes so far.
    fn signal(&mut self, signal: Signal) {
        self.carrier.start();
        if self.carrier.is_idle() && self.waiting.is_empty() {
            // The CPU's writes leave before the signal.
            self.carrier.order();
            return self.chip.send(signal);
        }
        // A waiting signal of the same kind is replaced by the later one.
        self.waiting.retain(|(_, other)| match (other, signal) {
            (Signal::Scratchpad(n, _), Signal::Scratchpad(m, _)) => *n != m,
            (other, signal) => *other != signal,
        });
        self.waiting.push_back((self.carrier.reached().0, signal));
    }

    /// Sends signals whose writes are complete.
    #[inline]
    fn signal_completed(&mut self) {
        while let Some(&(after, signal)) = self.waiting.front() {
            if self.carrier.reached().1 < after {
                return;
            }
            self.waiting.pop_front();
            if signal == Signal::Bell {
                // The engine is another requester than the CPU: its writes may be overtaken by the bell, but not by a
                // read (Linux 7.3: `ntb_transport`, before the bell).
                self.chip.flush();
            }
            self.chip.send(signal);
        }
    }
}

impl<C: Chip> Drop for Hardware<C> {
    fn drop(&mut self) {
        self.chip.disable_link();
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

    /// A load through the window costs a round trip.
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

    /// True with the CPU as carrier, too: the link and waiting signals need [`Dma::complete`].
    fn is_asynchronous(&self) -> bool {
        true
    }

    fn gathers(&self) -> bool {
        self.carrier.gathers()
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
        if self.link_read.is_none_or(|read| now.since(read) >= LINK_INTERVAL) {
            self.link_read = Some(now);
            self.link = self.chip.link(now);
        }
        let progress = self.carrier.complete(now);
        self.signal_completed();
        progress
    }

    fn settled(&mut self) -> bool {
        let settled = self.carrier.settled() && self.waiting.is_empty();
        if settled {
            self.chip.flush();
        }
        settled
    }

    fn has_room(&self) -> bool {
        self.carrier.has_room()
    }
}
