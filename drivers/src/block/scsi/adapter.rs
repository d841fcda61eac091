//! The interface of a host adapter: slots for commands, which it carries to units and back.

use super::command::{Answer, Cdb};
use crate::hal::Window;

/// Bytes of sense data that are used.
pub const SENSE: usize = 18;
/// Bytes of parameters in a slot, for commands without the caller's data.
pub const PARAMETERS: usize = 32;
/// The largest block for which there is a buffer of zeroes.
pub const MOST_ZEROES: usize = 4096;

/// A unit behind an adapter: target and single-level LUN (SAM-5, 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub target: u8,
    pub lun: u16,
}

/// Limits of an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most sectors (of 512 bytes) in a request.
    pub most_sectors: u32,
    /// Most requests in flight to a unit.
    pub per_unit: u32,
    pub last_target: u16,
    pub last_lun: u32,
}

/// The next command that an adapter has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Nothing,
    /// The command of a slot, and the number of bytes that it did not transfer.
    Command {
        slot: u16,
        answer: Answer,
        residual: u32,
    },
    /// The adapter has written an invalid entry.
    Nonsense,
}

/// A host adapter. A slot holds one command at a time.
pub trait Adapter {
    /// Number of slots.
    fn slots(&self) -> u16;

    /// Puts a command into a slot, to be sent with [`Adapter::publish`]. `data`: the buffer, and whether the unit
    /// writes it.
    fn offer(&mut self, slot: u16, place: Place, cdb: &Cdb, data: Option<(Window, bool)>);

    /// Sends the command that a slot holds again, with [`Adapter::publish`].
    fn offer_again(&mut self, slot: u16);

    /// Notifies the adapter of commands that were offered.
    fn publish(&mut self);

    /// Takes the next completed command.
    fn take(&mut self) -> Taken;

    /// Whether a completed command may be waiting.
    fn pending(&self) -> bool;

    /// Memory for parameters of the command in a slot, [`PARAMETERS`] bytes.
    fn parameters(&self, slot: u16) -> Window;

    /// `len` bytes of zeroes, [`MOST_ZEROES`] at most.
    fn zeroes(&self, len: usize) -> Window;

    /// Memory for the data of commands at bring-up, when only slot 0 is in use.
    fn scratch(&self) -> Window;

    /// Calls `changed` for each unit whose parameters may have changed since the last call; None for any unit.
    fn changes(&mut self, changed: &mut dyn FnMut(Option<Place>));

    /// Whether the adapter has commands, and has completed none since the last call. Then it is notified again. To be
    /// called once a second.
    fn stands_still(&mut self) -> bool;

    /// Stops the adapter for good, so that it cannot reach the memory of commands.
    fn stop(&mut self);

    /// Whether it was removed from the machine.
    fn is_absent(&self) -> bool {
        false
    }

    /// Enables the interrupt for the next completion, or disables it.
    fn set_interrupts(&mut self, wanted: bool);

    /// Whether the adapter can wake a halted core.
    fn wakes(&self) -> bool;

    /// Number of interrupts so far.
    fn interrupts(&self) -> u64;
}
