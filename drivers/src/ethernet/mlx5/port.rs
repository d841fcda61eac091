//! A function as a [`Port`].

use super::VIRTUAL;
use super::card::{Card, Queues, SharedTime};
use super::error::Error;
use super::events::{self, Events};
use super::firmware::Firmware;
use super::health::Health;
use super::receive::Receiver;
use super::start;
use super::transmit::Transmitter;
use crate::ethernet::keeper::{HUNG, OUT_OF_ORDER, ResetLog, Stall};
use crate::ethernet::{LEAST_MTU, MOST_MTU, VerbsPort, WantedMtu};
use crate::hal::{
    Backoff, Clock, DeviceLife, DeviceState, Frame, HashKey, Instant, Interrupt, Notice, Packet,
    Platform, Port, PortCounters, Severity, TransmitError, TransmitProgress,
};
use crate::pci::reset::SavedConfig;
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};

/// MSI-X entry of the event queue.
const VECTOR: u16 = 0;
/// Number of polls of a start before the loop continues with other work.
const POLLS: usize = 64;
/// Minimum size of BAR 0: the segment, and a doorbell page.
const LEAST_BAR: u64 = 0x10_0000;

const STOPPED: &str = "the network card has stopped a queue because of an error: it is reset";
const FAILED: &str =
    "the network card's firmware reported a fatal error: it is reset; update the firmware";
const HUNG_FIRMWARE: &str = "the network card's firmware seems to hang (its health counter stopped): if traffic stops as well, reset the card \
     (mlxfwreset), or update the firmware";
const COLD: &str = "the network card's firmware reported a failure that only powering the machine off and on ends: do that; the card is \
     tried again until then";
const MEMORY: &str = "the network card's firmware requests more memory than is free: it is reset; give the machine more memory";
const GONE: &str = "the network card does not answer any more: it was removed, or its firmware has stopped; it is reset";
pub(super) const NOT_BACK: &str = "the network card does not come back from a reset: it is tried again, at least once a minute; check the card, its \
     firmware and its slot";
const ANOTHER: &str = "another network card has come back from a reset (its MAC address is another), and is not used: put the old \
     card back, or restart the appliance";
/// Checks without progress after which a queue hangs: 15 s, as in Linux (`watchdog_timeo`), because PFC may pause it.
pub(super) const STALLED: u8 = 15;
const DISTRUSTED: &str = "the network card's function is not trusted: it receives only multicast that the host lets through; trust \
     it on the host (ip link set PF vf N trust on)";

type Ended = (Box<Card>, Result<(), Error>);
type Steps = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// A port.
pub struct Mlx5Port {
    /// None during a start, and after a failed one.
    pub(super) card: Option<Box<Card>>,
    /// The start in progress.
    pub(super) steps: Option<Steps>,
    /// A card that did not come up, and the next try.
    pub(super) failed: Option<Box<Card>>,
    backoff: Backoff,
    /// The firmware's health counter stands still.
    is_hung: bool,
    /// Why the card is not ready.
    why: Option<&'static str>,
    clock: Option<Box<dyn Clock + Send>>,
    pub(super) time: SharedTime,
    pub(super) reset_log: ResetLog,
    transmit: Stall,
    receive: Stall,
    pub(super) msix: Option<Msix>,
    pub(super) routed: Option<Interrupt>,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    /// Counters up to the last reset.
    before: PortCounters,
}

impl VerbsPort for Mlx5Port {}

impl Mlx5Port {
    /// Opens a device, and waits until it is up.
    pub fn open(
        function: Function<'static>,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        let bar = bars.get(0).filter(|bar| bar.size >= LEAST_BAR).ok_or(Error::NoRegisters)?;
        let registers = platform.map_registers(bar.address, bar.size as usize);
        let registers = registers.ok_or(Error::NoRegisters)?;
        let mut arena = platform.arena().share();
        function.prepare();
        let opened = Firmware::new(registers, &mut arena).and_then(|firmware| {
            let bytes = Events::bytes(events::LOG);
            match arena.alloc(bytes, 4096) {
                Some(ring) => Ok((firmware, ring)),
                None => {
                    arena.free(firmware.memory());
                    Err(Error::NoMemory { bytes })
                }
            }
        });
        let (firmware, ring) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                function.disable();
                return Err(error);
            }
        };
        let memory = alloc::vec![firmware.memory(), ring];
        let time = SharedTime::new(clock.now());
        let is_virtual = VIRTUAL.contains(&function.device());
        let events = Events::new(ring, events::LOG);
        let card = Card::new(function, firmware, time.clone(), arena, events, memory, is_virtual);
        let mut card = open(Box::pin(start::bring_up(Box::new(card))), &time, clock)?;
        let most = card.port_mtu.clamp(LEAST_MTU, MOST_MTU);
        card.mtu = wanted_mtu(card.mac).unwrap_or(1500.min(most)).clamp(LEAST_MTU, most);
        let Card { arena, memory, mtu, .. } = &mut *card;
        let receiver = Receiver::new(arena, *mtu, memory)?;
        let transmitter = Transmitter::new(arena, *mtu, memory)?;
        card.queues = Some(Queues { receiver, transmitter });
        let card = open(Box::pin(start::create_objects(card)), &time, clock)?;
        let mut msix = Msix::open(&function, &bars, platform);
        let interrupt = msix.as_ref().and_then(|_| platform.allocate_interrupt());
        let routed = interrupt.filter(|interrupt| route(&mut msix, interrupt));
        let mut card = card;
        // With MSI-X enabled.
        card.saved = SavedConfig::of(&function);
        let (mac, mtu, distrusted) = (card.mac, card.mtu, card.is_distrusted);
        let mut port = Mlx5Port {
            card: Some(card),
            steps: None,
            failed: None,
            backoff: Backoff::default(),
            is_hung: false,
            why: None,
            clock: platform.clock(),
            time,
            reset_log: ResetLog::new(),
            transmit: Stall::after(STALLED),
            receive: Stall::default(),
            msix,
            routed,
            mac,
            mtu,
            before: PortCounters::default(),
        };
        if distrusted {
            port.reset_log.note(Severity::Warning, DISTRUSTED);
        }
        Ok(port)
    }

    /// Resets the card. Later calls of the port's methods poll its start.
    pub(super) fn reset(&mut self, why: &'static str) {
        let Some(card) = self.card.take() else { return };
        self.before = count(self.before, &card);
        self.reset_log.reset(why);
        self.why = Some(why);
        (self.transmit, self.receive) = (Stall::after(STALLED), Stall::default());
        self.is_hung = false;
        self.steps = Some(Box::pin(start::restart(card)));
        self.come_up();
    }

    /// Starts a card again that did not come up, if the next try is due.
    fn try_again(&mut self) {
        if self.backoff.is_due(self.time.get())
            && let Some(card) = self.failed.take()
        {
            self.steps = Some(Box::pin(start::restart(card)));
            self.come_up();
        }
    }

    /// The time of the machine's clock, or of the last check without one.
    pub fn now(&self) -> Instant {
        self.clock.as_ref().map_or_else(|| self.time.get(), |clock| clock.now())
    }

    /// Whether the port has a clock of its own.
    pub fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Polls the start, if one is in progress.
    #[inline]
    fn poll_start(&mut self) {
        if self.steps.is_some() {
            self.come_up();
        }
    }

    #[cold]
    fn come_up(&mut self) {
        if let Some(clock) = &self.clock {
            self.time.set(clock.now());
        }
        let Some(steps) = &mut self.steps else { return };
        for _ in 0..POLLS {
            let Poll::Ready((card, end)) =
                steps.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            else {
                continue;
            };
            self.steps = None;
            match end {
                // With another MAC address, the card is not the one that the port's user has.
                Ok(()) if card.mac == self.mac => {
                    self.reset_log.note_up();
                    self.backoff.note_up();
                    self.why = None;
                    self.before = uncount(self.before, &card);
                    self.attach(card);
                }
                end => {
                    let why = if end.is_ok() { ANOTHER } else { NOT_BACK };
                    // Reported once, however often it is tried.
                    if self.why != Some(why) {
                        self.reset_log.note(Severity::Error, why);
                        self.why = Some(why);
                    }
                    // What it does meanwhile must not reach memory.
                    card.function.disable();
                    self.backoff.note_failed(self.time.get());
                    self.failed = Some(card);
                }
            }
            return;
        }
    }

    /// Takes a card that has come up, and routes its interrupts.
    pub(super) fn attach(&mut self, card: Box<Card>) {
        self.card = Some(card);
        if let (Some(msix), Some(interrupt)) = (&mut self.msix, &self.routed) {
            msix.route(VECTOR, interrupt);
        }
    }

    /// Checks the card. The reason for a reset, if it needs one.
    fn reset_reason(&mut self) -> Option<&'static str> {
        let card = self.card.as_mut()?;
        match card.health.check(&card.firmware) {
            Health::Absent => return Some(GONE),
            Health::Failed => return Some(FAILED),
            Health::NeedsColdReset => return Some(COLD),
            // Firmware that is busy recovers. Linux only reports this, too; fatal failures are found otherwise.
            Health::Hung if !core::mem::replace(&mut self.is_hung, true) => {
                self.reset_log.note(Severity::Warning, HUNG_FIRMWARE);
            }
            Health::Hung => {}
            Health::Good => self.is_hung = false,
        }
        for _ in 0..POLLS {
            match card.process_events() {
                Ok(()) => {}
                Err(Error::NoMemory { .. } | Error::TooManyPages(_)) => return Some(MEMORY),
                Err(_) => return Some(FAILED),
            }
        }
        if card.has_failed {
            return Some(STOPPED);
        }
        if card.other_queue_hangs() {
            return Some(HUNG);
        }
        let queues = card.queues.as_mut()?;
        queues.transmitter.reclaim();
        if queues.transmitter.out_of_sync() {
            return Some(STOPPED);
        }
        let at = queues.transmitter.stuck_at().filter(|_| card.link);
        if self.transmit.check(at) {
            return Some(HUNG);
        }
        let lost = queues.receiver.out_of_sync() || self.receive.check(queues.receiver.stuck_at());
        lost.then_some(OUT_OF_ORDER)
    }
}

/// Polls a start to its end.
pub(super) fn finish(mut steps: Steps, time: &SharedTime, clock: &dyn Clock) -> Ended {
    loop {
        time.set(clock.now());
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(ended) = steps.as_mut().poll(context) {
            return ended;
        }
    }
}

/// Polls the first start of a card to its end.
fn open(steps: Steps, time: &SharedTime, clock: &dyn Clock) -> Result<Box<Card>, Error> {
    let (card, end) = finish(steps, time, clock);
    end.map(|()| card)
}

/// Routes the function's interrupts to `interrupt`; false if that fails.
fn route(msix: &mut Option<Msix>, interrupt: &Interrupt) -> bool {
    msix.as_mut().is_some_and(|msix| msix.route(VECTOR, interrupt))
}

/// Adds the counters of a card's queues to `counters`.
fn count(mut counters: PortCounters, card: &Card) -> PortCounters {
    if let Some(Queues { receiver, transmitter }) = &card.queues {
        counters.tx_frames += transmitter.frames;
        counters.tx_bytes += transmitter.bytes;
        counters.tx_full += transmitter.full;
        counters.rx_frames += receiver.frames;
        counters.rx_bytes += receiver.bytes;
        counters.rx_errors += receiver.errors + transmitter.errors;
    }
    counters
}

/// Subtracts the counters of a card's queues, which continue after a reset.
fn uncount(mut counters: PortCounters, card: &Card) -> PortCounters {
    let own = count(PortCounters::default(), card);
    counters.tx_frames -= own.tx_frames;
    counters.tx_bytes -= own.tx_bytes;
    counters.tx_full -= own.tx_full;
    counters.rx_frames -= own.rx_frames;
    counters.rx_bytes -= own.rx_bytes;
    counters.rx_errors -= own.rx_errors;
    counters
}

impl Port for Mlx5Port {
    fn split(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        self.add_queues(more, key, platform, clock)
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        self.poll_start();
        self.card.as_ref().is_some_and(|card| card.link)
    }

    fn receive(&mut self) -> Option<Frame> {
        self.poll_start();
        self.card.as_mut()?.queues.as_mut()?.receiver.receive()
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        let queues = self.card.as_ref().and_then(|card| card.queues.as_ref());
        queues.map_or(&[], |queues| queues.receiver.bytes(frame))
    }

    fn recycle(&mut self, frame: Frame) {
        if let Some(queues) = self.card.as_mut().and_then(|card| card.queues.as_mut()) {
            queues.receiver.recycle(frame);
        }
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.poll_start();
        match self.card.as_mut().and_then(|card| card.queues.as_mut()) {
            Some(queues) => queues.receiver.receive_each(most, take),
            None => 0,
        }
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        match self.card.as_mut().and_then(|card| card.queues.as_mut()) {
            Some(queues) => queues.transmitter.transmit(packet),
            None => Err(TransmitError::Full),
        }
    }

    fn flush(&mut self) {
        let Some(card) = &mut self.card else { return };
        let doorbells = card.firmware.doorbells(card.objects.pair.page);
        if let Some(queues) = &mut card.queues {
            queues.transmitter.reclaim_some();
            queues.transmitter.notify(doorbells);
            queues.receiver.notify_batch();
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        // An armed queue interrupts only once, so nothing needs to be disabled.
        if !wanted || self.routed.is_none() {
            return;
        }
        if let Some(card) = &mut self.card {
            // The next check finds an error.
            let _ = card.process_events();
            card.arm();
        }
    }

    fn pending(&self) -> bool {
        let Some(card) = &self.card else { return self.steps.is_some() };
        card.queues
            .as_ref()
            .is_some_and(|queues| queues.receiver.pending() || queues.transmitter.pending())
    }

    fn has_room(&self) -> bool {
        let queues = self.card.as_ref().and_then(|card| card.queues.as_ref());
        queues.is_some_and(|queues| queues.transmitter.has_room())
    }

    fn progress(&mut self) -> TransmitProgress {
        let queues = self.card.as_mut().and_then(|card| card.queues.as_mut());
        queues.map_or(TransmitProgress::NOTHING_HELD, |queues| queues.transmitter.progress())
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        let routed = self.wakes() && route(&mut self.msix, interrupt);
        if routed {
            self.routed = Some(*interrupt);
        }
        routed
    }

    fn wakes(&self) -> bool {
        self.routed.is_some()
    }

    fn watch(&mut self, now: Instant) {
        self.time.set(now);
        self.poll_start();
        self.try_again();
        match self.reset_reason() {
            Some(why) => self.reset(why),
            None => {
                if let Some(card) = &self.card {
                    card.publish_link();
                    self.reset_log.passed_check();
                }
            }
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.reset_log.notice()
    }

    fn life(&self) -> DeviceLife {
        let reason = self.why.unwrap_or("");
        match (&self.card, &self.steps) {
            (Some(_), _) if self.is_hung => DeviceLife::new(DeviceState::Degraded, HUNG_FIRMWARE),
            (Some(_), _) => DeviceLife::default(),
            (None, Some(_)) => DeviceLife::new(DeviceState::Resetting, reason),
            (None, None) => {
                let state =
                    if reason == ANOTHER { DeviceState::Absent } else { DeviceState::Failed };
                DeviceLife { state, reason, next_try: self.backoff.next_try() }
            }
        }
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        let counters = match &self.card {
            Some(card) => count(self.before, card),
            None => self.before,
        };
        let interrupts = self.routed.map_or(0, raised);
        PortCounters { interrupts, resets: self.reset_log.resets, ..counters }
    }
}
