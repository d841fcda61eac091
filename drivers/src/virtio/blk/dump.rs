//! The last write to a disk, when nothing else of the machine is to be trusted: the device is reset and
//! set up anew with a queue of its own, and polled. Nothing here allocates, waits for a lock, or looks at
//! what the driver of normal times has left behind.

use super::super::transport::{Transport, VERSION_1, go_live, negotiate, reset};
use super::super::{Error, Ring};
use super::{OUT, QUEUE, STATUS_NONE, STATUS_OK};
use crate::hal::{Arena, Window};
use crate::virtio::ring::{Descriptor, Taken};
use alloc::boxed::Box;

/// Entries of the queue: header, data, status, and the next power of two.
const ENTRIES: u16 = 4;
/// Looks at the queue after which the device counts as gone; one takes 0.1 us or more, and a busy host may
/// keep a device waiting for a second.
const LOOKS: u32 = 50_000_000;

// What lies in the memory, by offset in bytes.
const AT_STATUS: usize = 16;
const AT_DATA: usize = 64;

/// A second way to the registers of a disk, for [`DumpDisk`].
pub struct DumpTransport(Box<dyn Transport>);

impl DumpTransport {
    /// Takes a transport that nobody else has, of a device that somebody else drives.
    pub(in super::super) fn new(transport: Box<dyn Transport>) -> Self {
        DumpTransport(transport)
    }

    /// Sets memory aside for one write of up to `bytes` bytes.
    pub fn prepare(self, bytes: usize, arena: &mut Arena) -> Result<DumpDisk, Error> {
        let transport = self.0;
        let legacy = transport.legacy();
        let short = |bytes| Error::NoMemory { bytes };
        let len = Ring::bytes(ENTRIES, legacy);
        let queue = arena.alloc(len, Ring::ALIGN).ok_or(short(len))?;
        let len = AT_DATA + bytes;
        let memory = arena.alloc(len, 64).ok_or(short(len))?;
        queue.fill(0);
        let ring = Ring::new(queue, ENTRIES, legacy, false).ok_or(short(queue.len()))?;
        Ok(DumpDisk { transport, ring, memory, used: false })
    }
}

/// A disk that is ready for one write whatever state its driver is in.
pub struct DumpDisk {
    transport: Box<dyn Transport>,
    ring: Ring,
    memory: Window,
    used: bool,
}

impl DumpDisk {
    /// Writes `data` (a multiple of the disk's block) from `sector` on (of 512 bytes). When it returns Ok,
    /// the data is durable: without the feature FLUSH a device completes a write when it is (virtio 1.2,
    /// 5.2.5). Whatever its driver had under way is over, done or not done. Works once.
    pub fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), Error> {
        let memory = self.memory.slice(AT_DATA, data.len()).ok_or(Error::Config("length"))?;
        if core::mem::replace(&mut self.used, true) {
            return Err(Error::Config("second write"));
        }
        let transport = &mut *self.transport;
        let agreed = negotiate(transport, VERSION_1)?;
        if transport.queue_capacity(QUEUE) < ENTRIES {
            return Err(Error::NoQueue(QUEUE));
        }
        transport.enable_queue(QUEUE, &self.ring, false)?;
        go_live(transport, agreed);
        memory.write(0, data).map_err(|_| Error::Config("length"))?;
        self.memory.store64(0, OUT.into());
        self.memory.store64(8, sector);
        self.memory.store16(AT_STATUS, STATUS_NONE.into());
        let bus = self.memory.bus_address();
        let parts = [(bus, 16, false), (memory.bus_address(), data.len() as u32, false)];
        let parts = parts.into_iter().chain([(bus + AT_STATUS as u64, 1, true)]);
        for (index, (address, len, device_writes)) in (0..).zip(parts) {
            let next = (index < 2).then_some(index + 1);
            self.ring.describe(index, Descriptor { address, len, device_writes, next });
        }
        self.ring.offer(0);
        // It is told in any case.
        let _ = self.ring.publish();
        self.transport.notify(QUEUE);
        let done = (0..LOOKS).any(|_| {
            core::hint::spin_loop();
            matches!(self.ring.take(), Taken::Chain { .. })
        });
        let status = self.memory.load16(AT_STATUS) as u8;
        // So that it writes to no memory of ours while the machine goes down.
        reset(&mut *self.transport)?;
        if done && status == STATUS_OK { Ok(()) } else { Err(Error::Config("answer to a write")) }
    }
}
