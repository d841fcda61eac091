//! A further pair of queues of a card as a separate [`Port`], for another core: rings, doorbell page, events and
//! interrupts, counters. The port of the first pair controls the card; this one follows its phases (see
//! [`crate::ethernet::owners`]), and posts no commands.

use super::card::Queues;
use super::error::Error;
use super::events::{self, Event, Events};
use super::firmware::Doorbells;
use super::objects::PairObjects;
use super::pair::Rings;
use super::port::{Mlx5Port, STALLED};
use super::receive::Receiver;
use super::split::SharedState;
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
    /// The pair's MSI-X entry.
    msix: Msix,
    interrupt: Option<Interrupt>,
    events: Events,
    queues: Queues,
    shared: Arc<SharedState>,
    /// Index among the further pairs: number of the pair minus one.
    other: usize,
    objects: PairObjects,
    mac: [u8; 6],
    mtu: u16,
    phase: u32,
    transmit: Stall,
    receive: Stall,
    /// The link was up at the last check.
    link: bool,
    /// Memory of the rings.
    pub memory: Vec<Window>,
}

impl QueuePort {
    /// The port of pair number `pair`, from 1 on. None if there is no memory or interrupt for it.
    pub fn new(
        pair: usize,
        first: &Mlx5Port,
        function: &Function<'static>,
        shared: &Arc<SharedState>,
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
            shared: shared.clone(),
            other: pair - 1,
            objects: PairObjects::default(),
            mac: first.mac,
            mtu: first.mtu,
            phase: 0,
            transmit: Stall::after(STALLED),
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

    /// Clears the rings while the card accesses no memory.
    fn stop(&mut self) {
        self.events.clear();
        self.queues.receiver.lay_out(0);
        self.queues.transmitter.lay_out();
    }

    /// Follows the card's current phase.
    #[inline]
    fn follow(&mut self) {
        let phase = self.shared.owners.phase();
        if phase != self.phase {
            self.follow_to(phase);
        }
    }

    #[cold]
    fn follow_to(&mut self, phase: u32) {
        self.phase = phase;
        (self.transmit, self.receive) = (Stall::after(STALLED), Stall::default());
        if Owners::is_live(phase) {
            let (objects, key) = (self.shared.objects(self.other), self.shared.key());
            self.objects = objects;
            self.events.begin(objects.events, Doorbells::new(&*self.registers, objects.page));
            self.queues.transmitter.begin(&objects, key);
            // The device has the rings, but no buffers yet.
            self.queues.receiver.prepare(key);
            self.queues.receiver.begin(&objects);
            // A reset clears the MSI-X table.
            if let Some(interrupt) = &self.interrupt {
                self.msix.route(0, interrupt);
            }
        } else {
            self.stop();
        }
        self.shared.owners.follow(self.other, phase);
    }

    fn is_live(&self) -> bool {
        Owners::is_live(self.phase)
    }

    /// Whether the card is still in the phase that this owner follows, and no reset is in progress, as far as is known.
    /// If the card was reset meanwhile, it ignores doorbells, and this owner clears its rings before the card is set up
    /// again.
    fn may_ring(&self) -> bool {
        self.shared.owners.phase() == self.phase && !self.shared.is_quiesced()
    }

    /// Processes events of the pair's completion queues.
    fn take_events(&mut self) {
        for _ in 0..1 << events::LOG_COMPLETIONS {
            let Some(event) = self.events.poll() else { break };
            if let Event::Completion(number) = event {
                self.queues.has_told(number);
            }
        }
    }
}

/// Allocates the rings of a pair.
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
        self.is_live() && self.shared.owners.link()
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
        if !self.may_ring() {
            return;
        }
        let doorbells = Doorbells::new(&*self.registers, self.objects.page);
        self.queues.transmitter.reclaim_some();
        self.queues.transmitter.notify(doorbells);
        self.queues.receiver.notify_batch();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        // An armed queue interrupts only once, so nothing needs to be disabled.
        if !wanted || !self.is_live() || !self.may_ring() {
            return;
        }
        self.take_events();
        let doorbells = Doorbells::new(&*self.registers, self.objects.page);
        self.queues.receiver.queue.completions.arm(doorbells);
        if self.queues.transmitter.is_starved() {
            self.queues.transmitter.queue.completions.arm(doorbells);
        }
        self.events.arm(doorbells);
    }

    fn pending(&self) -> bool {
        self.shared.owners.phase() != self.phase
            || self.queues.receiver.pending()
            || self.queues.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.queues.transmitter.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.queues.transmitter.progress()
    }

    /// False while the card is stopped, because no interrupt reports that it is live again.
    fn wakes(&self) -> bool {
        self.interrupt.is_some() && self.is_live() && self.may_ring()
    }

    fn watch(&mut self, _: Instant) {
        self.follow();
        if !self.is_live() {
            return;
        }
        let link = self.shared.owners.link();
        let Queues { receiver, transmitter } = &mut self.queues;
        transmitter.reclaim();
        let waits = if link && self.link { transmitter.stuck_at() } else { None };
        self.link = link;
        let hangs = self.transmit.check(waits);
        if self.receive.check(receiver.stuck_at())
            || hangs
            || receiver.out_of_sync()
            || transmitter.out_of_sync()
        {
            self.shared.owners.report_hang();
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
            // The first port reports those of the card.
            ..PortCounters::default()
        }
    }
}
