//! A further pair of queues of a card as a [`Port`] of its own, for another core: its rings, its doorbell page, its events and
//! interrupts, its counts. The card is looked after by the port of the first pair; this one follows (see
//! [`crate::ethernet::owners`]), and gives no commands.

use super::card::Queues;
use super::error::Error;
use super::events::{self, Event, Events};
use super::firmware::Doorbells;
use super::objects::Named;
use super::pair::Rings;
use super::port::Mlx5Port;
use super::receive::Receiver;
use super::split::Told;
use super::transmit::Transmitter;
use crate::ethernet::keeper::Stall;
use crate::ethernet::owners::Owners;
use crate::hal::{
    Arena, Frame, Instant, Interrupt, Packet, Platform, Port, PortCounters, Registers,
    TransmitError, TransmitProgress, Window,
};
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// The port of a further pair of queues.
pub struct QueuePort {
    registers: Box<dyn Registers>,
    /// Its one entry.
    msix: Msix,
    interrupt: Option<Interrupt>,
    events: Events,
    queues: Queues,
    told: Arc<Told>,
    /// Its number among those that are told: that of the pair less one.
    other: usize,
    named: Named,
    mac: [u8; 6],
    mtu: u16,
    phase: u32,
    transmit: Stall,
    receive: Stall,
    /// The link was up at the last look.
    link: bool,
    /// Memory of its rings.
    pub memory: Vec<Window>,
}

impl QueuePort {
    /// The port of the pair of that number, from 1 on, beside the first one. None if there is no memory for it.
    pub fn new(
        pair: usize,
        first: &Mlx5Port,
        function: &Function<'static>,
        told: &Arc<Told>,
        platform: &mut dyn Platform,
    ) -> Option<Self> {
        let bars = function.bars();
        let bar = bars.get(0)?;
        let registers = platform.map_registers(bar.address, bar.size as usize)?;
        let msix = Msix::one_entry(function, &bars, platform, pair as u16)?;
        let mut memory = Vec::new();
        let Ok((events, queues)) = rings(platform.arena(), first.mtu, &mut memory) else {
            memory.into_iter().for_each(|window| platform.arena().free(window));
            return None;
        };
        let mut port = QueuePort {
            registers,
            msix,
            interrupt: None,
            events,
            queues,
            told: told.clone(),
            other: pair - 1,
            named: Named::default(),
            mac: first.mac,
            mtu: first.mtu,
            phase: 0,
            transmit: Stall::default(),
            receive: Stall::default(),
            link: false,
            memory,
        };
        port.stop();
        Some(port)
    }

    pub fn rings(&self) -> Rings {
        Rings::of(&self.events, &self.queues.receiver, &self.queues.transmitter)
    }

    /// The card reaches no memory: the rings are made ready for when it does.
    fn stop(&mut self) {
        self.events.clear();
        self.queues.receiver.lay_out(0);
        self.queues.transmitter.lay_out();
    }

    /// Does what has become of the card asks for.
    #[inline(always)]
    fn follow(&mut self) {
        let phase = self.told.owners.phase();
        if phase != self.phase {
            self.follow_to(phase);
        }
    }

    #[cold]
    fn follow_to(&mut self, phase: u32) {
        self.phase = phase;
        (self.transmit, self.receive) = (Stall::default(), Stall::default());
        if Owners::is_live(phase) {
            let (named, key) = (self.told.named(self.other), self.told.key());
            self.named = named;
            self.events.begin(named.events, Doorbells::new(&*self.registers, named.page));
            self.queues.transmitter.begin(&named, key);
            // The device has the rings, and no buffer yet.
            self.queues.receiver.prepare(key);
            self.queues.receiver.begin(&named);
            // A reset forgets where its interrupts go.
            if let Some(interrupt) = &self.interrupt {
                self.msix.route(0, interrupt);
            }
        } else {
            self.stop();
        }
        self.told.owners.follow(self.other, phase);
    }

    fn is_live(&self) -> bool {
        Owners::is_live(self.phase)
    }

    /// Whether the card is as this owner saw it, as far as it knows, and is not reset at present. If it was reset since, it
    /// hears nothing, and the rings are emptied before it is set up again.
    fn is_as_seen(&self) -> bool {
        self.told.owners.phase() == self.phase && !self.told.is_hushed()
    }

    /// Takes in what completions were told of.
    fn take_events(&mut self) {
        for _ in 0..1 << events::LOG_COMPLETIONS {
            let Some(event) = self.events.poll() else { break };
            if let Event::Completion(number) = event {
                self.queues.has_told(number);
            }
        }
    }
}

/// The rings of a pair.
fn rings(arena: &mut Arena, mtu: u16, memory: &mut Vec<Window>) -> Result<(Events, Queues), Error> {
    let log = events::LOG_COMPLETIONS;
    let bytes = Events::bytes(log);
    let ring = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
    memory.push(ring);
    let receiver = Receiver::new(arena, mtu, memory)?;
    let transmitter = Transmitter::new(arena, mtu, memory)?;
    Ok((Events::new(ring, log), Queues { receiver, transmitter }))
}

impl Port for QueuePort {
    fn route(&mut self, interrupt: &Interrupt) -> bool {
        let routed = self.msix.route(0, interrupt);
        self.interrupt = routed.then_some(*interrupt);
        routed
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        self.is_live() && self.told.owners.link()
    }

    #[inline]
    fn receive(&mut self) -> Option<Frame> {
        self.follow();
        self.queues.receiver.receive()
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.queues.receiver.bytes(frame)
    }

    #[inline]
    fn recycle(&mut self, frame: Frame) {
        self.queues.receiver.recycle(frame);
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.follow();
        self.queues.receiver.receive_each(most, take)
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.queues.transmitter.transmit(packet)
    }

    fn flush(&mut self) {
        if !self.is_as_seen() {
            return;
        }
        let doorbells = Doorbells::new(&*self.registers, self.named.page);
        self.queues.transmitter.reclaim_some();
        self.queues.transmitter.tell(doorbells);
        self.queues.receiver.tell_some();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        // What was armed is told once: nothing is to be taken back.
        if !wanted || !self.is_live() || !self.is_as_seen() {
            return;
        }
        self.take_events();
        let doorbells = Doorbells::new(&*self.registers, self.named.page);
        self.queues.receiver.completions.arm(doorbells);
        if self.queues.transmitter.is_starved() {
            self.queues.transmitter.completions.arm(doorbells);
        }
        self.events.arm(doorbells);
    }

    fn pending(&self) -> bool {
        self.told.owners.phase() != self.phase
            || self.queues.receiver.pending()
            || self.queues.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.queues.transmitter.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.queues.transmitter.progress()
    }

    /// While the card is reset, or stopped, no interrupt says that it is live again.
    fn wakes(&self) -> bool {
        self.interrupt.is_some() && self.is_live() && self.is_as_seen()
    }

    fn watch(&mut self, _: Instant) {
        self.follow();
        if !self.is_live() {
            return;
        }
        let link = self.told.owners.link();
        let Queues { receiver, transmitter } = &mut self.queues;
        transmitter.reclaim();
        let waits = if link && self.link { transmitter.waits_at() } else { None };
        self.link = link;
        let hangs = self.transmit.look(waits);
        if self.receive.look(receiver.waits_at())
            || hangs
            || receiver.is_lost
            || transmitter.is_lost
        {
            self.told.owners.report_hang();
        }
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        let Queues { receiver, transmitter } = &self.queues;
        PortCounters {
            rx_frames: receiver.frames,
            rx_bytes: receiver.bytes,
            rx_errors: receiver.errors + transmitter.errors,
            tx_frames: transmitter.frames,
            tx_bytes: transmitter.bytes,
            tx_full: transmitter.full,
            interrupts: self.interrupt.map_or(0, raised),
            // Those of the card are told by the first port.
            ..PortCounters::default()
        }
    }
}
