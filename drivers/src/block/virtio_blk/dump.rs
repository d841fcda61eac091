//! Writes the crash record to a disk (see [`PolledQueue`]).

use super::{OUT, QUEUE, STATUS_NONE, STATUS_OK};
use crate::hal::{Arena, CrashWriter};
use crate::virtio::{PolledQueue, Transport};
use alloc::boxed::Box;

// Layout of the memory: offsets in bytes.
const AT_STATUS: usize = 16;
const AT_DATA: usize = 64;

/// Writer of the crash record to a disk.
pub struct VirtioBlkCrash(PolledQueue);

impl VirtioBlkCrash {
    /// Takes an exclusive transport of a device that the main driver owns.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        VirtioBlkCrash(PolledQueue::new(transport, QUEUE))
    }
}

impl CrashWriter for VirtioBlkCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        self.0.prepare(AT_DATA + bytes, arena)
    }

    // Without the feature FLUSH a device completes a write when it is durable (virtio 1.2, 5.2.5).
    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        self.0.run_once(|disk, memory| {
            let into = memory.slice(AT_DATA, data.len()).ok_or("the write is too long")?;
            into.write(0, data).map_err(|_| "the write is too long")?;
            memory.store64(0, OUT.into());
            memory.store64(8, sector);
            memory.store16(AT_STATUS, STATUS_NONE.into());
            let bus = memory.bus_address();
            let parts = [
                (bus, 16, false),
                (into.bus_address(), data.len() as u32, false),
                (bus + AT_STATUS as u64, 1, true),
            ];
            let done = disk.execute(parts.into_iter());
            match memory.load16(AT_STATUS) as u8 {
                STATUS_OK if done => Ok(()),
                _ => Err("the disk did not complete the write"),
            }
        })
    }
}
