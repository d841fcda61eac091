//! Queues of a device with disks for loops of other cores than the one that owns it.

use super::{Clock, Disk, Interrupt, Platform};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Has the loop that a queue is for look at it: called when it may halt while the owner has something to tell it.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// What a queue for the loop of another core is made from.
pub struct QueueSeat<'a> {
    /// Number of that core.
    pub core: u16,
    /// What ends its halt when something completes; asked for once, if the device has a queue left.
    pub interrupt: &'a mut dyn FnMut() -> Option<Interrupt>,
    /// What has it look for news of the owner.
    pub wake: Wake,
    /// The machine.
    pub platform: &'a mut dyn Platform,
    /// Its clock: the device is waited for.
    pub clock: &'a dyn Clock,
}

/// A device that may have queues beside that of its owner, with whom this stays.
pub trait MoreQueues {
    /// One more, if the device has one left, an interrupt of its own for it, and there is memory.
    fn open(&mut self, seat: QueueSeat<'_>) -> Option<Box<dyn CoreQueue>>;
}

/// A queue on its way to its core. What its user submits and polls there is seen by the device alone; whatever
/// concerns the whole device (its reset, its end) is up to the owner, who tells the user.
pub trait CoreQueue: Send {
    /// On that core: the disks of the device, in the order in which they were found. [`Disk::watch`] is to be
    /// called about once a second while requests are under way.
    fn disks(self: Box<Self>) -> Vec<Box<dyn Disk>>;
}

/// What a queue has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Number of the core that has it.
    pub core: u16,
    /// Requests that the device has completed there, of all disks that share it.
    pub requests: u64,
    /// Interrupts that it raised.
    pub interrupts: u64,
}
