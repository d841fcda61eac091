//! A second way to a device that somebody else drives, for its last requests, when nothing else of the
//! machine is to be trusted: the device is reset and set up anew with one queue of its own, and polled.
//! Nothing here allocates after [`PolledQueue::prepare`], waits for a lock, or looks at what the driver of
//! normal times has left behind.

use super::ring::{Descriptor, Ring, Taken};
use super::transport::{Transport, VERSION_1, go_live, negotiate, reset};
use crate::hal::{Arena, Window};
use alloc::boxed::Box;

/// Entries of the queue: three parts of a request, and the next power of two.
const ENTRIES: u16 = 4;
/// Looks at the queue after which the device counts as gone; one takes 0.1 us or more, and a busy host may
/// keep a device waiting for a second.
const LOOKS: u32 = 50_000_000;

/// A part of a request: bus address, length in bytes, and whether the device writes it.
pub type Part = (u64, u32, bool);

/// A device with one queue, for one request at a time.
pub struct PolledQueue {
    transport: Box<dyn Transport>,
    index: u16,
    /// Once there is memory for it; until the device was used.
    ready: Option<(Ring, Window)>,
}

impl PolledQueue {
    /// Takes a transport that nobody else has, of a device that somebody else drives, and its queue `index`.
    pub fn new(transport: Box<dyn Transport>, index: u16) -> Self {
        PolledQueue { transport, index, ready: None }
    }

    /// Sets memory aside, `bytes` of it for requests; false if there is none. While the machine starts.
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

    /// Takes the device over, has `work` done with it, and resets it, so that it writes to no memory of ours
    /// while the machine goes down. `work` gets the memory that was set aside, and asks by [`Asking::ask`].
    /// Works once.
    pub fn use_up(
        &mut self,
        work: impl FnOnce(&mut Asking<'_>, Window) -> Result<(), &'static str>,
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
        let result = work(&mut Asking { transport, index, ring: &mut ring }, memory);
        reset(transport).map_err(|_| "the disk does not come out of reset")?;
        result
    }
}

/// A device that was taken over.
pub struct Asking<'a> {
    transport: &'a dyn Transport,
    index: u16,
    ring: &'a mut Ring,
}

impl Asking<'_> {
    /// Has the device do a request of up to three parts, those that it reads first, and waits; false if it
    /// does not come back.
    pub fn ask(&mut self, parts: impl Iterator<Item = Part> + Clone) -> bool {
        let last = (parts.clone().count() as u16).saturating_sub(1);
        for (at, (address, len, device_writes)) in (0..ENTRIES).zip(parts) {
            let next = (at < last).then_some(at + 1);
            self.ring.describe(at, Descriptor { address, len, device_writes, next });
        }
        self.ring.offer(0);
        // It is told in any case.
        let _ = self.ring.publish();
        self.transport.notify(self.index);
        (0..LOOKS).any(|_| {
            core::hint::spin_loop();
            matches!(self.ring.take(), Taken::Chain { .. })
        })
    }
}
