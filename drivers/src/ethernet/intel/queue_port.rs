//! A further pair of queues of a chip as a separate [`Port`], for another core: rings, interrupts, counters. The port
//! of the first pair controls the chip; this one follows its phases (see [`crate::ethernet::owners`]).

use super::chip::{Causes, Chip, Mode};
use super::receive::Receiver;
use super::signal::Signal;
use super::transmit::Transmitter;
use crate::ethernet::keeper::Stall;
use crate::ethernet::owners::Owners;
use crate::hal::{
    Frame, Instant, Interrupt, Packet, Port, PortCounters, Registers, TransmitError,
    TransmitProgress,
};
use crate::pci::Function;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The port of a further pair of queues.
pub struct QueuePort {
    pub function: Function<'static>,
    pub registers: Box<dyn Registers>,
    pub chip: Box<dyn Chip>,
    pub signal: Signal,
    pub receiver: Receiver,
    pub transmitter: Transmitter,
    pub owners: Arc<Owners>,
    /// Number of the pair: 1 or more.
    pub queue: usize,
    pub mac: [u8; 6],
    pub mtu: u16,
    /// Longest frame in bytes, with a tag, without FCS.
    pub longest: usize,
    pub state: State,
}

/// State of a port that follows the chip.
#[derive(Default)]
pub struct State {
    phase: u32,
    wants_interrupts: bool,
    /// The link was up at the last check.
    link: bool,
    transmit: Stall,
    receive: Stall,
}

impl QueuePort {
    /// Follows the chip's current phase.
    #[inline]
    fn follow(&mut self) {
        let phase = self.owners.phase();
        if phase != self.state.phase {
            self.follow_to(phase);
        }
    }

    #[cold]
    fn follow_to(&mut self, phase: u32) {
        self.receiver.stop();
        self.transmitter.stop();
        self.state.phase = phase;
        (self.state.transmit, self.state.receive) = (Stall::default(), Stall::default());
        if Owners::is_live(phase) {
            // The chip may have been away, and lost its vectors.
            self.signal.restore(&self.function);
            self.receiver.start(self.longest, &*self.registers);
            self.transmitter.start(self.longest);
            if self.state.wants_interrupts {
                self.apply_interrupts();
            }
        }
        self.owners.follow(self.queue - 1, phase);
    }

    fn is_live(&self) -> bool {
        Owners::is_live(self.state.phase)
    }

    fn apply_interrupts(&mut self) {
        let received = self.state.wants_interrupts;
        let causes = Causes { received, sent: received && self.transmitter.is_starved() };
        self.chip.set_interrupts(&*self.registers, Mode::Msix, self.queue, causes);
    }

    /// Whether a ring does not move.
    fn hangs(&mut self) -> bool {
        let link = self.owners.link();
        // As for the first queue: when the link comes up, the chip has one check interval to begin.
        let sends = link == self.state.link;
        self.state.link = link;
        self.transmitter.note_link(link);
        self.transmitter.reclaim();
        let waits = if sends { self.transmitter.stuck_at() } else { None };
        let hangs = self.state.transmit.check(waits);
        self.state.receive.check(self.receiver.stuck_at()) || hangs
    }
}

impl Port for QueuePort {
    fn route(&mut self, interrupt: &Interrupt) -> bool {
        self.signal.route(&self.function, interrupt)
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
        // Notes a link change at once: frames that are sent without a link are lost.
        let link = self.owners.link();
        if link != self.transmitter.has_link() && self.is_live() {
            self.transmitter.note_link(link);
        }
        self.transmitter.transmit(packet)
    }

    /// The chip may have been reset since the last poll of this owner. It then ignores the doorbells, and this owner
    /// clears its rings before the chip is set up again.
    #[inline]
    fn flush(&mut self) {
        self.transmitter.reclaim_some();
        self.transmitter.notify(&*self.registers);
        self.receiver.notify_batch(&*self.registers);
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted || self.state.wants_interrupts {
            self.state.wants_interrupts = wanted;
            if self.is_live() {
                self.apply_interrupts();
            }
        }
    }

    fn pending(&self) -> bool {
        self.owners.phase() != self.state.phase
            || self.receiver.pending()
            || self.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.transmitter.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.transmitter.progress()
    }

    /// False while the chip is stopped, because no interrupt reports that it is live again.
    fn wakes(&self) -> bool {
        self.signal.wakes() && self.is_live()
    }

    fn watch(&mut self, _: Instant) {
        self.follow();
        if self.is_live() && self.hangs() {
            self.owners.report_hang();
        }
    }

    fn counters(&self) -> PortCounters {
        PortCounters {
            rx_frames: self.receiver.frames,
            rx_bytes: self.receiver.bytes,
            rx_errors: self.receiver.errors,
            tx_frames: self.transmitter.frames,
            tx_bytes: self.transmitter.bytes,
            tx_full: self.transmitter.full,
            interrupts: self.signal.count(),
            // The first port reports those of the chip.
            ..PortCounters::default()
        }
    }
}
