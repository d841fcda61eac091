//! The interface between a model and its harness: [`Function`] is the model, [`Machine`] is what it is plugged into.

use crate::{ConfigSpace, Lateness};
use std::collections::VecDeque;
use std::sync::Arc;

/// A moment, in nanoseconds since the model's machine was started.
pub type Nanoseconds = u64;

/// A memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Its number, 0 to 5. A 64-bit BAR has the number of its lower half.
    pub index: u8,
    /// Its size in bytes, a power of two.
    pub size: u64,
}

/// Number of interrupts of each kind that a function can raise.
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

/// The address is not memory, or a write goes to read-only memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable(
    /// The address.
    pub u64,
);

/// The memory of a machine, accessed by a function in another machine that is joined with a function in this one.
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

    /// Writes memory at the bus address. A naturally aligned write of 4 or 8 bytes is visible as a whole, and not
    /// before earlier writes.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable>;

    /// Raises an interrupt; false if the driver has not set it up.
    fn interrupt(&mut self, interrupt: Interrupt) -> bool;
}

/// The cable of an Ethernet port. The owner of the other end carries the frames.
#[derive(Debug, Default)]
pub struct Cable {
    /// Frames on their way to the port.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that the port has sent.
    pub sent: Vec<Vec<u8>>,
    /// The port has turned its transmitter off.
    pub sends_no_light: bool,
    /// The port at the other end has turned its transmitter off.
    pub gets_no_light: bool,
}

/// Carries out a function-level reset that the driver has started at `now` by a write to configuration space. Returns
/// whether there was one. To be called by the harness after each such write.
pub fn take_function_reset(function: &mut dyn Function, now: Nanoseconds) -> bool {
    let started = function.config().take_reset();
    if started {
        let end = now + function.reset_time();
        function.reset();
        function.config().power_on(end);
    }
    started
}

/// Resets a function at `now` as its machine does (hot reset, containment of a port, power): it answers no access for
/// `time`, and its registers are as after power-on.
pub fn reset_by_machine(function: &mut dyn Function, now: Nanoseconds, time: Nanoseconds) {
    function.reset();
    function.config().power_on(now + time);
}

/// A PCI function.
pub trait Function {
    /// Its configuration space.
    fn config(&mut self) -> &mut ConfigSpace;

    /// Its BARs.
    fn bars(&self) -> &[Bar];

    /// The interrupts that it can raise.
    fn interrupts(&self) -> Interrupts;

    /// The BAR, if any, that takes descriptors of 64 bytes, each in one write to an offset that is a multiple of 64.
    /// Reads have no meaning. The first 8 bytes of a valid descriptor are not all zero.
    fn portals(&self) -> Option<Bar> {
        None
    }

    /// Handles the driver's read of a BAR.
    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]);

    /// Handles the driver's write to a BAR at the time `now`.
    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    );

    /// Does the work that is due at `now`. Returns the time of the next work if no access comes before.
    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds>;

    /// Passes access to the memory of the function's machine, for functions that are joined with others. Called once,
    /// first.
    fn attach(&mut self, _memory: Arc<dyn Memory>) {}

    /// Restores the power-on state, except for counters.
    fn reset(&mut self);

    /// Time that a function-level reset takes. Meanwhile the function answers configuration requests with retries.
    fn reset_time(&self) -> Nanoseconds {
        0
    }

    /// Answers commands late from now on.
    fn be_late(&mut self, _lateness: Lateness) {}

    /// Executes a command of the harness while the model is in use, in the model's own syntax. An error lists the
    /// accepted commands.
    fn order(&mut self, words: &str) -> Result<(), String> {
        Err(format!("{words}: this model has no commands"))
    }

    /// Counters, for checks: name and number.
    fn counters(&self) -> Vec<(String, u64)>;
}
