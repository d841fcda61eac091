//! The last write to a disk, when nothing else of the machine is to be trusted: the device is reset and
//! set up anew with a queue of its own, and polled. Nothing here allocates, waits for a lock, or looks at
//! what the driver of normal times has left behind.

use super::{OUT, QUEUE, STATUS_NONE, STATUS_OK};
use crate::hal::{Arena, CrashWriter, Window};
use crate::virtio::{
    Descriptor, Error, Ring, Taken, Transport, VERSION_1, go_live, negotiate, reset,
};
use alloc::boxed::Box;

/// Entries of the queue: header, data, status, and the next power of two.
const ENTRIES: u16 = 4;
/// Looks at the queue after which the device counts as gone; one takes 0.1 us or more, and a busy host may
/// keep a device waiting for a second.
const LOOKS: u32 = 50_000_000;

// What lies in the memory, by offset in bytes.
const AT_STATUS: usize = 16;
const AT_DATA: usize = 64;

/// A disk whose last write this is for.
pub struct VirtioBlkCrash {
    transport: Box<dyn Transport>,
    /// Once there is memory for it.
    queue: Option<Queue>,
}

struct Queue {
    ring: Ring,
    memory: Window,
}

impl VirtioBlkCrash {
    /// Takes a transport that nobody else has, of a device that somebody else drives.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        VirtioBlkCrash { transport, queue: None }
    }

    fn start(&mut self, ring: &Ring) -> Result<(), Error> {
        let transport = &mut *self.transport;
        let agreed = negotiate(transport, VERSION_1)?;
        if transport.queue_capacity(QUEUE) < ENTRIES {
            return Err(Error::NoQueue(QUEUE));
        }
        transport.enable_queue(QUEUE, ring, false)?;
        go_live(transport, agreed);
        Ok(())
    }
}

impl CrashWriter for VirtioBlkCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        let legacy = self.transport.legacy();
        let Some(queue) = arena.alloc(Ring::bytes(ENTRIES, legacy), Ring::ALIGN) else {
            return false;
        };
        let Some(memory) = arena.alloc(AT_DATA + bytes, 64) else {
            arena.free(queue);
            return false;
        };
        queue.fill(0);
        let ring = Ring::new(queue, ENTRIES, legacy, false);
        self.queue = ring.map(|ring| Queue { ring, memory });
        self.queue.is_some()
    }

    // Without the feature FLUSH a device completes a write when it is durable (virtio 1.2, 5.2.5).
    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let Some(mut queue) = self.queue.take() else { return Err("there was a write already") };
        let (ring, memory) = (&mut queue.ring, queue.memory);
        let data_window = memory.slice(AT_DATA, data.len()).ok_or("the write is too long")?;
        self.start(ring).map_err(|_| "the disk cannot be set up again")?;
        data_window.write(0, data).map_err(|_| "the write is too long")?;
        memory.store64(0, OUT.into());
        memory.store64(8, sector);
        memory.store16(AT_STATUS, STATUS_NONE.into());
        let bus = memory.bus_address();
        let parts = [(bus, 16, false), (data_window.bus_address(), data.len() as u32, false)];
        let parts = parts.into_iter().chain([(bus + AT_STATUS as u64, 1, true)]);
        for (index, (address, len, device_writes)) in (0..).zip(parts) {
            let next = (index < 2).then_some(index + 1);
            ring.describe(index, Descriptor { address, len, device_writes, next });
        }
        ring.offer(0);
        // It is told in any case.
        let _ = ring.publish();
        self.transport.notify(QUEUE);
        let done = (0..LOOKS).any(|_| {
            core::hint::spin_loop();
            matches!(ring.take(), Taken::Chain { .. })
        });
        let status = memory.load16(AT_STATUS) as u8;
        // So that it writes to no memory of ours while the machine goes down.
        reset(&mut *self.transport).map_err(|_| "the disk does not come out of reset")?;
        if done && status == STATUS_OK { Ok(()) } else { Err("the disk did not do the write") }
    }
}
