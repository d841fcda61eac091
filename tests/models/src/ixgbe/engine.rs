//! The queues of a function and their shared state. Physical and virtual functions use the same engine.

use super::causes::{Causes, Of};
use super::fault::{Fault, Faults};
use super::ring::{Kind, Ring};
use super::statistics::Statistics;
use crate::Machine;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Most complaints that are kept.
const MOST_COMPLAINTS: usize = 1000;

/// The queues and their shared state.
pub struct Engine {
    pub receive: Vec<Ring>,
    pub transmit: Vec<Ring>,
    pub causes: Causes,
    pub faults: Faults,
    pub statistics: Statistics,
    /// The driver's violations of the datasheet.
    pub complaints: Vec<String>,
    pub sent: Vec<Vec<u8>>,
    /// Bytes of the longest frame, without FCS.
    pub longest: usize,
    /// Short frames are padded.
    pub pads: bool,
    /// A virtual function. Its descriptors need Check Context, because its packets pass the internal switch.
    pub is_virtual: bool,
    pub hung: bool,
    pub skewed: u32,
}

impl Engine {
    /// Creates an engine with this number of queues of each kind.
    pub fn new(queues: usize, is_virtual: bool) -> Self {
        let rings = |kind| (0..queues).map(|_| Ring::new(kind)).collect();
        let mut engine = Engine {
            receive: rings(Kind::Receive),
            transmit: rings(Kind::Transmit),
            causes: Causes::default(),
            faults: Faults::default(),
            statistics: Statistics::default(),
            complaints: Vec::new(),
            sent: Vec::new(),
            longest: 0,
            pads: is_virtual,
            is_virtual,
            hung: false,
            skewed: 0,
        };
        engine.reset();
        engine
    }

    pub fn complain(&mut self, what: impl Into<String>) {
        if self.complaints.len() < MOST_COMPLAINTS {
            self.complaints.push(what.into());
        }
    }

    /// Sets all state to its reset value.
    pub fn reset(&mut self) {
        let never = self.faults.has(Fault::NeverEnabled);
        for ring in self.receive.iter_mut().chain(&mut self.transmit) {
            ring.never = never;
            ring.reset();
        }
        let raised = self.causes.raised;
        self.causes = Causes { raised, ..Causes::default() };
        (self.hung, self.skewed) = (false, 0);
    }

    /// Handles the driver's write to a queue register.
    pub fn write_ring(&mut self, kind: Kind, queue: usize, at: u64, value: u32) {
        let never = self.faults.has(Fault::NeverEnabled);
        let ring = match kind {
            Kind::Receive => &mut self.receive[queue],
            Kind::Transmit => &mut self.transmit[queue],
        };
        ring.never = never;
        if let Err(why) = ring.write(at, value) {
            self.complain(format!("{kind:?} {queue}: {why}"));
        }
    }

    /// Sends all posted packets.
    pub fn send_all(&mut self, machine: &mut dyn Machine) {
        let mut causes = 0;
        for queue in 0..self.transmit.len() {
            if self.transmit[queue].works()
                && self.transmit[queue].available() > 0
                && self.send(queue, machine)
            {
                causes |= self.causes.of(queue, Of::Transmit);
            }
        }
        self.raise(causes, 0, machine);
    }

    /// Records causes, as [`Causes::raise`] does, unless [`Fault::NoInterrupts`] suppresses interrupts.
    pub fn raise(&mut self, causes: u32, unmasked: u32, machine: &mut dyn Machine) {
        let silent = self.faults.has(Fault::NoInterrupts);
        self.causes.raise(causes, unmasked, silent, machine);
    }
}
