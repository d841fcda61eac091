//! A further pair of queues of a device as a separate [`Port`], for another core: rings, interrupts, counters. The port
//! of the first pair controls the device; this one follows its phases (see [`crate::ethernet::owners`]).

use super::receive::Receiver;
use super::registers::DeviceRegisters;
use super::shared::{self, Shared};
use super::transmit::Transmitter;
use super::{RECEIVED, SENT, Vmxnet3};
use crate::ethernet::OVERHEAD;
use crate::ethernet::keeper::Stall;
use crate::ethernet::owners::Owners;
use crate::hal::{
    Frame, HashKey, Instant, Interrupt, Packet, Platform, Port, PortCounters, TransmitError,
    TransmitProgress, Window,
};
use crate::pci::Msix;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Maximum number of pairs. The device takes powers of two (Linux: `vmxnet3_probe_device`).
const MOST: usize = 8;

/// The port of a further pair of queues.
struct QueuePort {
    registers: DeviceRegisters,
    msix: Msix,
    interrupt: Option<Interrupt>,
    shared: Shared,
    receiver: Receiver,
    transmitter: Transmitter,
    owners: Arc<Owners>,
    /// Number of the pair: 1 or more.
    pair: usize,
    mac: [u8; 6],
    mtu: u16,
    phase: u32,
    sending: Stall,
    link: bool,
    armed: bool,
}

impl Vmxnet3 {
    /// See [`Port::split`].
    pub fn add_queues(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
    ) -> Vec<Box<dyn Port + Send>> {
        let vectors = self.msix.as_ref().map_or(0, |msix| usize::from(msix.entries()));
        let most = (more + 1).min(MOST).min(vectors / 2);
        // The device uses all pairs that it gets: frames of a pair without an owner would be lost.
        let pairs = if most < 2 { return Vec::new() } else { 1 << most.ilog2() };
        let Some(window) = platform.arena().alloc(shared::bytes(pairs), 4096) else {
            return Vec::new();
        };
        let owners = Arc::new(Owners::new(pairs - 1));
        let mut memory: Vec<Window> = alloc::vec![window];
        let mut ports = Vec::new();
        for pair in 1..pairs {
            let shared = Shared::new(window, pairs);
            let Some(port) = self.open_pair(pair, shared, &owners, platform, &mut memory) else {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                self.rings.truncate(1);
                return Vec::new();
            };
            ports.push(port);
        }
        self.registers.reset();
        let former = core::mem::replace(&mut self.shared, Shared::new(window, pairs)).memory();
        platform.arena().free(former);
        (self.key, self.owners) = (*key, Some(owners));
        self.activate();
        ports
    }

    /// Opens the port of pair number `pair`, with a full receive ring. None if there is no memory for it.
    #[inline(never)]
    fn open_pair(
        &mut self,
        pair: usize,
        shared: Shared,
        owners: &Arc<Owners>,
        platform: &mut dyn Platform,
        memory: &mut Vec<Window>,
    ) -> Option<Box<dyn Port + Send>> {
        let bars = self.function.bars();
        let registers = DeviceRegisters::map(&bars, platform).ok()?;
        let msix = Msix::find(&self.function, &bars, platform)?;
        let arena = platform.arena();
        let mut receiver = Receiver::new(arena, self.mtu, memory).ok()?;
        let longest = OVERHEAD + usize::from(self.mtu);
        let transmitter = Transmitter::new(arena, longest, memory).ok()?;
        receiver.start();
        self.rings.push([receiver.rings(), transmitter.rings()]);
        Some(Box::new(QueuePort {
            registers,
            msix,
            interrupt: None,
            shared,
            receiver,
            transmitter,
            owners: owners.clone(),
            pair,
            mac: self.mac,
            mtu: self.mtu,
            phase: 0,
            sending: Stall::default(),
            link: false,
            armed: false,
        }))
    }
}

impl QueuePort {
    /// Follows the device's current phase.
    #[inline]
    fn follow(&mut self) {
        let phase = self.owners.phase();
        if phase != self.phase {
            self.follow_to(phase);
        }
    }

    #[cold]
    fn follow_to(&mut self, phase: u32) {
        self.phase = phase;
        self.sending = Stall::default();
        if Owners::is_live(phase) {
            // The device may have been away, and lost its vectors.
            if let Some(interrupt) = self.interrupt {
                self.route(&interrupt);
            }
            self.transmitter.start();
            self.apply_interrupts();
        } else {
            // The device reads the ring when it is activated.
            self.receiver.start();
            self.transmitter.stop();
        }
        self.owners.follow(self.pair - 1, phase);
    }

    fn is_live(&self) -> bool {
        Owners::is_live(self.phase)
    }

    fn vector(&self, which: u8) -> u8 {
        2 * self.pair as u8 + which
    }

    fn apply_interrupts(&self) {
        let sent = self.armed && self.transmitter.is_starved();
        self.registers.set_masked(self.vector(RECEIVED), !self.armed);
        self.registers.set_masked(self.vector(SENT), !sent);
    }
}

impl Port for QueuePort {
    fn route(&mut self, interrupt: &Interrupt) -> bool {
        let vectors = [RECEIVED, SENT].map(|which| self.vector(which).into());
        let routed = vectors.into_iter().all(|vector| self.msix.route(vector, interrupt));
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
        self.is_live() && self.owners.link()
    }

    #[inline]
    fn receive(&mut self) -> Option<Frame> {
        self.follow();
        self.receiver.receive()
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.receiver.bytes(frame)
    }

    #[inline]
    fn recycle(&mut self, frame: Frame) {
        self.receiver.recycle(frame);
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.follow();
        self.receiver.receive_each(most, take)
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.transmitter.transmit(packet)
    }

    #[inline]
    fn flush(&mut self) {
        self.transmitter.reclaim_some();
        if let Some(producer) = self.transmitter.producer_update() {
            self.registers.ring_transmit(self.pair, producer);
        }
        if let Some(producer) = self.receiver.producer_update()
            && self.shared.wants_producer(self.pair)
        {
            self.registers.ring_receive(self.pair, producer);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted || self.armed {
            self.armed = wanted;
            if self.is_live() {
                self.apply_interrupts();
            }
        }
    }

    fn pending(&self) -> bool {
        self.owners.phase() != self.phase || self.receiver.pending() || self.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.transmitter.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.transmitter.progress()
    }

    /// False while the device is stopped, because no interrupt reports that it is live again.
    fn wakes(&self) -> bool {
        self.interrupt.is_some() && self.is_live()
    }

    fn watch(&mut self, _: Instant) {
        self.follow();
        if !self.is_live() {
            return;
        }
        let link = self.owners.link();
        self.transmitter.reclaim();
        let waits = if link && self.link { self.transmitter.stuck_at() } else { None };
        self.link = link;
        let hangs = self.sending.check(waits);
        if hangs || self.receiver.out_of_sync() || self.transmitter.out_of_sync() {
            self.owners.report_hang();
        }
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        PortCounters {
            rx_frames: self.receiver.frames,
            rx_bytes: self.receiver.bytes,
            rx_errors: self.receiver.errors + self.transmitter.errors,
            tx_frames: self.transmitter.frames,
            tx_bytes: self.transmitter.bytes,
            tx_full: self.transmitter.full,
            interrupts: self.interrupt.map_or(0, raised),
            // The first port reports those of the device.
            ..PortCounters::default()
        }
    }
}
