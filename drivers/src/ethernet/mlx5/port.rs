//! A function as a [`Port`].

use super::VIRTUAL;
use super::card::{Card, Present, Queues};
use super::error::Error;
use super::events::{self, Events};
use super::firmware::Firmware;
use super::health::Health;
use super::receive::Receiver;
use super::start;
use super::transmit::Transmitter;
use crate::ethernet::keeper::{HUNG, Keeper, LOST_PLACE, Stall};
use crate::ethernet::{LEAST_MTU, MOST_MTU, WantedMtu};
use crate::hal::{
    Clock, Frame, HashKey, Instant, Interrupt, Notice, Packet, Platform, Port, PortCounters,
    Severity, TransmitError, TransmitProgress,
};
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};

/// The MSI-X entry of all events.
const VECTOR: u16 = 0;
/// Polls of what is under way, before somebody else has a turn.
const POLLS: usize = 64;
/// Least of BAR 0: the segment, and a doorbell page.
const LEAST_BAR: u64 = 0x10_0000;

const STOPPED: &str =
    "the network card has stopped a queue, because of a mistake that it found: it is reset";
const FAILED: &str =
    "the network card's firmware says that it has failed: it is reset; renew the firmware";
const STILL: &str =
    "the network card's firmware does not move any more: it is reset; renew the firmware";
const MEMORY: &str = "the network card's firmware wants memory that there is none of: it is reset; give the machine more memory";
const GONE: &str = "the network card does not answer any more: it was removed, or its firmware has stopped; it is reset";
pub(super) const NOT_BACK: &str = "the network card does not come back from a reset, and is not used any more: reset the card, and restart \
     the appliance";
const DISTRUSTED: &str = "the network card's function is not trusted: of multicast it receives what the host lets through; make it \
     so (ip link set PF vf N trust on)";

type Ended = (Box<Card>, Result<(), Error>);
type Steps = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// A port.
pub struct Mlx5Port {
    /// None while it comes up, and after it has not.
    pub(super) card: Option<Box<Card>>,
    /// How it comes up.
    pub(super) steps: Option<Steps>,
    pub(super) present: Present,
    pub(super) keeper: Keeper,
    transmit: Stall,
    receive: Stall,
    pub(super) msix: Option<Msix>,
    pub(super) routed: Option<Interrupt>,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    /// What was counted before the last reset.
    before: PortCounters,
}

impl Mlx5Port {
    /// Sets a device up, and waits for it.
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
        function.enable();
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
        let present = Present::new(clock.now());
        let is_virtual = VIRTUAL.contains(&function.device());
        let events = Events::new(ring, events::LOG);
        let card =
            Card::new(function, firmware, present.clone(), arena, events, memory, is_virtual);
        let mut card = open(Box::pin(start::reach(Box::new(card))), &present, clock)?;
        let most = card.port_mtu.clamp(LEAST_MTU, MOST_MTU);
        card.mtu = wanted_mtu(card.mac).unwrap_or(1500.min(most)).clamp(LEAST_MTU, most);
        let Card { arena, memory, mtu, .. } = &mut *card;
        let receiver = Receiver::new(arena, *mtu, memory)?;
        let transmitter = Transmitter::new(arena, *mtu, memory)?;
        card.queues = Some(Queues { receiver, transmitter });
        let card = open(Box::pin(start::make(card)), &present, clock)?;
        let mut msix = Msix::open(&function, &bars, platform);
        let interrupt = msix.as_ref().and_then(|_| platform.allocate_interrupt());
        let routed = interrupt.filter(|interrupt| route(&mut msix, interrupt));
        let (mac, mtu, distrusted) = (card.mac, card.mtu, card.is_distrusted);
        let mut port = Mlx5Port {
            card: Some(card),
            steps: None,
            present,
            keeper: Keeper::new(),
            transmit: Stall::default(),
            receive: Stall::default(),
            msix,
            routed,
            mac,
            mtu,
            before: PortCounters::default(),
        };
        if distrusted {
            port.keeper.note(Severity::Warning, DISTRUSTED);
        }
        Ok(port)
    }

    /// Resets the card. Whoever asks the port for something afterwards helps it to come up.
    pub(super) fn reset(&mut self, why: &'static str) {
        let Some(card) = self.card.take() else { return };
        self.before = count(self.before, &card);
        self.keeper.reset(why);
        (self.transmit, self.receive) = (Stall::default(), Stall::default());
        self.steps = Some(Box::pin(start::again(card)));
        self.come_up();
    }

    /// Polls what is under way, if there is something.
    #[inline(always)]
    fn help(&mut self) {
        if self.steps.is_some() {
            self.come_up();
        }
    }

    #[cold]
    fn come_up(&mut self) {
        let Some(steps) = &mut self.steps else { return };
        for _ in 0..POLLS {
            let Poll::Ready((card, end)) =
                steps.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            else {
                continue;
            };
            self.steps = None;
            match end {
                // A card that comes back as another is not the one that its user knows.
                Ok(()) if card.mac == self.mac => {
                    self.keeper.works();
                    self.before = uncount(self.before, &card);
                    self.is_back(card);
                }
                _ => self.keeper.note(Severity::Error, NOT_BACK),
            }
            return;
        }
    }

    /// A card has come up, perhaps again.
    pub(super) fn is_back(&mut self, card: Box<Card>) {
        self.card = Some(card);
        if let (Some(msix), Some(interrupt)) = (&mut self.msix, &self.routed) {
            msix.route(VECTOR, interrupt);
        }
    }

    /// Looks after the card: why it has to be reset, if it has to.
    fn ails(&mut self) -> Option<&'static str> {
        let card = self.card.as_mut()?;
        match card.health.look(&card.firmware) {
            Health::Absent => return Some(GONE),
            Health::Failed => return Some(FAILED),
            Health::Still => return Some(STILL),
            Health::Good => {}
        }
        for _ in 0..POLLS {
            match card.mind() {
                Ok(()) => {}
                Err(Error::NoMemory { .. } | Error::TooManyPages(_)) => return Some(MEMORY),
                Err(_) => return Some(FAILED),
            }
        }
        if card.has_failed {
            return Some(STOPPED);
        }
        if card.others_hang() {
            return Some(HUNG);
        }
        let queues = card.queues.as_mut()?;
        queues.transmitter.reclaim();
        if queues.transmitter.is_lost {
            return Some(STOPPED);
        }
        let at = queues.transmitter.waits_at().filter(|_| card.link);
        if self.transmit.look(at) {
            return Some(HUNG);
        }
        let lost = queues.receiver.is_lost || self.receive.look(queues.receiver.waits_at());
        lost.then_some(LOST_PLACE)
    }
}

/// Polls steps until they have ended.
pub(super) fn finish(mut steps: Steps, present: &Present, clock: &dyn Clock) -> Ended {
    loop {
        present.set(clock.now());
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(ended) = steps.as_mut().poll(context) {
            return ended;
        }
    }
}

/// The same, for a card that comes up for the first time.
fn open(steps: Steps, present: &Present, clock: &dyn Clock) -> Result<Box<Card>, Error> {
    let (card, end) = finish(steps, present, clock);
    end.map(|()| card)
}

/// Sends the function's interrupts to this one. False if it cannot.
fn route(msix: &mut Option<Msix>, interrupt: &Interrupt) -> bool {
    msix.as_mut().is_some_and(|msix| msix.route(VECTOR, interrupt))
}

/// What a card's queues have counted, on top of `counters`.
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

/// The same taken off: queues go on to count when their card is back.
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
        self.help();
        self.card.as_ref().is_some_and(|card| card.link)
    }

    fn receive(&mut self) -> Option<Frame> {
        self.help();
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
        self.help();
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
            queues.transmitter.tell(doorbells);
            queues.receiver.tell_some();
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        // What was armed is told once: nothing is to be taken back.
        if !wanted || self.routed.is_none() {
            return;
        }
        if let Some(card) = &mut self.card {
            // An error is found by the next look.
            let _ = card.mind();
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
        self.present.set(now);
        self.help();
        match self.ails() {
            Some(why) => self.reset(why),
            None => {
                if let Some(card) = &self.card {
                    card.tell_link();
                    self.keeper.look();
                }
            }
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.keeper.notice()
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        let counters = match &self.card {
            Some(card) => count(self.before, card),
            None => self.before,
        };
        let interrupts = self.routed.map_or(0, raised);
        PortCounters { interrupts, resets: self.keeper.resets, ..counters }
    }
}
