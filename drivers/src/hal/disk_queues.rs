//! Queues of a disk controller for loops on cores other than its owner's.

use super::{Clock, Disk, Interrupt, Platform};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Wakes the loop that uses a queue. The owner calls it when it has news for a loop that may be halted.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// Parameters of a queue for another core.
pub struct QueueSeat<'a> {
    /// Number of the core.
    pub core: u16,
    /// Allocates the core's completion interrupt. Called once, if the device has a queue left.
    pub interrupt: &'a mut dyn FnMut() -> Option<Interrupt>,
    /// Wakes the core's loop when the owner has news for it.
    pub wake: Wake,
    /// The machine.
    pub platform: &'a mut dyn Platform,
    /// Clock for waiting until the device has created the queue.
    pub clock: &'a dyn Clock,
}

/// A device that can create queues for other cores. The object stays with the device's owner.
pub trait MoreQueues {
    /// Creates a queue. None if the device has no queue or interrupt left, or there is no memory.
    fn open(&mut self, seat: QueueSeat<'_>) -> Option<Box<dyn CoreQueue>>;
}

/// A queue that is handed to its core. Submitting and polling there involve the device alone. The owner handles the
/// device as a whole (reset, shutdown), and notifies the user of the queue.
pub trait CoreQueue: Send {
    /// Called on the queue's core: the disks of the device, in the order in which they were found. Call [`Disk::watch`]
    /// about once a second while requests are in flight.
    fn disks(self: Box<Self>) -> Vec<Box<dyn Disk>>;
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Number of the core that uses the queue.
    pub core: u16,
    /// Requests that the device has completed in the queue, for all disks that share it.
    pub requests: u64,
    /// Interrupts that the queue raised.
    pub interrupts: u64,
}
