//! What a model is to whoever drives it, and the other way round.

use crate::ConfigSpace;
use std::collections::VecDeque;
use std::sync::Arc;

/// A moment, in nanoseconds since the model's machine was started.
pub type Nanoseconds = u64;

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number, 0 to 5; of a 64-bit BAR that of its lower half.
    pub index: u8,
    /// Its size in bytes, a power of two.
    pub size: u64,
}

/// Interrupts that a function can raise: how many of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Pins: 0 or 1.
    pub intx: u16,
    /// Vectors of MSI.
    pub msi: u16,
    /// Vectors of MSI-X.
    pub msix: u16,
}

/// One interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The pin is asserted.
    Intx,
    /// A vector of MSI.
    Msi(u16),
    /// A vector of MSI-X.
    Msix(u16),
}

/// An address that belongs to nothing, or to memory that may not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable(
    /// The address.
    pub u64,
);

/// The memory of a machine, for a function in another one that is joined with one in this.
pub trait Memory: Send + Sync {
    /// As [`Machine::read`].
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreachable>;

    /// As [`Machine::write`].
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unreachable>;
}

/// The machine that a function is in.
pub trait Machine {
    /// Reads memory at the bus address.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable>;

    /// Writes memory at the bus address. A naturally aligned write of 4 or 8 bytes is seen as a whole, and
    /// not before any write ahead of it.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable>;

    /// Raises an interrupt; false if the driver has not set it up.
    fn interrupt(&mut self, interrupt: Interrupt) -> bool;
}

/// The cable of an Ethernet port whose other end somebody else sees.
#[derive(Debug, Default)]
pub struct Cable {
    /// Frames on their way to the port.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that it sent.
    pub sent: Vec<Vec<u8>>,
    /// The port has switched its transmitter off, and the one at the other end has.
    pub sends_no_light: bool,
    /// See [`Cable::sends_no_light`].
    pub gets_no_light: bool,
}

/// A PCI function.
pub trait Function {
    /// Its configuration space.
    fn config(&mut self) -> &mut ConfigSpace;

    /// Its BARs.
    fn bars(&self) -> &[Bar];

    /// The interrupts that it can raise.
    fn interrupts(&self) -> Interrupts;

    /// The BAR, if any, that takes descriptors of 64 bytes, each written at once to a multiple of 64 in it. Reading it
    /// tells nothing, and no descriptor that asks for anything has zeroes in its first 8 bytes.
    fn portals(&self) -> Option<Bar> {
        None
    }

    /// The driver reads from a BAR.
    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]);

    /// The driver writes to a BAR, at the time `now`.
    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    );

    /// Does what is due at `now`, and says when it has something to do again though nobody accesses it.
    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds>;

    /// What reaches the memory of the machine that it is in, for functions that are joined with others; said once,
    /// before anything else.
    fn attach(&mut self, _memory: Arc<dyn Memory>) {}

    /// Everything is as after power-on, but for what was counted.
    fn reset(&mut self);

    /// Whoever drives the model wants it to do something while it is used, in words of the model's own. An error says
    /// which words there are.
    fn order(&mut self, words: &str) -> Result<(), String> {
        Err(format!("{words}: no orders are known"))
    }

    /// What was counted, for checks: name and number.
    fn counters(&self) -> Vec<(String, u64)>;
}
