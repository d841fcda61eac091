//! Polled access to a device after a panic, for writing the crash record, when no state of the program can be trusted.
//! The device is reset and set up again with one queue reserved for this. No code here allocates after
//! [`PolledQueue::prepare`], waits for a lock, or uses state of the main driver.

use super::ring::{Descriptor, Ring, Taken};
use super::transport::{Transport, VERSION_1, go_live, negotiate, reset};
use crate::hal::{Arena, Window};
use alloc::boxed::Box;

/// Entries of the queue: three parts of a request, and the next power of two.
const ENTRIES: u16 = 4;
/// Polls of the queue before the device counts as gone. A poll takes 0.1 us or more, and a device model on a busy host
/// may stall for a second.
const MOST_POLLS: u32 = 50_000_000;

/// A part of a request: bus address, length in bytes, and whether the device writes it.
pub type Part = (u64, u32, bool);

/// A device with one queue, for one request at a time.
pub struct PolledQueue {
    transport: Box<dyn Transport>,
    index: u16,
    /// Memory for the requests, from `prepare` until `run_once` has used it.
    ready: Option<(Ring, Window)>,
}

impl PolledQueue {
    /// Takes an exclusive transport of a device that the main driver owns, and the number of the queue to use.
    pub fn new(transport: Box<dyn Transport>, index: u16) -> Self {
        PolledQueue { transport, index, ready: None }
    }

    /// Allocates memory while the machine starts, `bytes` of it for requests. False if the arena is too small.
    pub fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        let legacy = self.transport.legacy();
        let Some(queue) = arena.alloc(Ring::bytes(ENTRIES, legacy), Ring::ALIGN) else {
            return false;
        };
        let Some(memory) = arena.alloc(bytes, 64) else {
            arena.free(queue);
            return false;
        };
        queue.fill(0);
        self.ready = Ring::new(queue, ENTRIES, legacy, false).map(|ring| (ring, memory));
        self.ready.is_some()
    }

    /// Sets the device up, runs `work`, and resets the device, so that it does not write to memory while the machine
    /// goes down. `work` gets the allocated memory, and sends requests with [`PolledDevice::execute`]. Works once.
    pub fn run_once(
        &mut self,
        work: impl FnOnce(&mut PolledDevice<'_>, Window) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let (mut ring, memory) = self.ready.take().ok_or("there was a write already")?;
        let (transport, index) = (&mut *self.transport, self.index);
        let agreed =
            negotiate(transport, VERSION_1).map_err(|_| "the disk cannot be set up again")?;
        if transport.queue_capacity(index) < ENTRIES
            || transport.enable_queue(index, &ring, false).is_err()
        {
            return Err("the disk cannot be set up again");
        }
        go_live(transport, agreed);
        let result = work(&mut PolledDevice { transport, index, ring: &mut ring }, memory);
        reset(transport).map_err(|_| "the disk does not come out of reset")?;
        result
    }
}

/// A device that was set up for polled requests.
pub struct PolledDevice<'a> {
    transport: &'a dyn Transport,
    index: u16,
    ring: &'a mut Ring,
}

impl PolledDevice<'_> {
    /// Executes a request of up to three parts, those that the device reads first, and polls for its completion. False
    /// if it does not complete.
    pub fn execute(&mut self, parts: impl Iterator<Item = Part> + Clone) -> bool {
        let last = (parts.clone().count() as u16).saturating_sub(1);
        for (at, (address, len, device_writes)) in (0..ENTRIES).zip(parts) {
            let next = (at < last).then_some(at + 1);
            self.ring.describe(at, Descriptor { address, len, device_writes, next });
        }
        self.ring.offer(0);
        // The device is notified in any case.
        let _ = self.ring.publish();
        self.transport.notify(self.index);
        (0..MOST_POLLS).any(|_| {
            core::hint::spin_loop();
            matches!(self.ring.take(), Taken::Chain { .. })
        })
    }
}
