//! The last write to a unit: the controller is reset and set up anew with a queue of its own, and polled.
//! Nothing here allocates, waits for a lock, or looks at what the driver of normal times has left behind.

use super::command::{self, Answer, Cdb};
use super::controller::{ANSWER, HEADER, REQUESTS};
use crate::hal::{Arena, CrashWriter, Window};
use crate::virtio::{
    Descriptor, Error, Ring, Taken, Transport, VERSION_1, go_live, negotiate, reset,
};
use alloc::boxed::Box;

/// Entries of the queue: header, data, answer, and the next power of two.
const ENTRIES: u16 = 4;
/// Looks at the queue after which the device counts as gone; one takes 0.1 us or more, and a busy host may
/// keep a device waiting for a second.
const LOOKS: u32 = 50_000_000;
/// Times that a command is sent. After its reset a unit says once that it was reset.
const TRIES: usize = 8;

// What lies in the memory, by offset in bytes.
const AT_ANSWER: usize = 64;
const AT_DATA: usize = 256;

/// A unit whose last write this is for.
pub struct VirtioScsiCrash {
    transport: Box<dyn Transport>,
    address: [u8; 8],
    /// Bytes of a logical block.
    block: u32,
    /// Once there is memory for it.
    queue: Option<(Ring, Window)>,
}

impl VirtioScsiCrash {
    /// Takes a transport that nobody else has, of a controller that somebody else drives.
    pub fn new(transport: Box<dyn Transport>, address: [u8; 8], block: u32) -> Self {
        VirtioScsiCrash { transport, address, block, queue: None }
    }

    fn start(&mut self, ring: &Ring) -> Result<(), Error> {
        let transport = &mut *self.transport;
        let agreed = negotiate(transport, VERSION_1)?;
        if transport.queue_capacity(REQUESTS) < ENTRIES {
            return Err(Error::NoQueue(REQUESTS));
        }
        transport.enable_queue(REQUESTS, ring, false)?;
        go_live(transport, agreed);
        Ok(())
    }

    /// Has a command done, with data that the device reads; true if it was.
    fn ask(&self, ring: &mut Ring, memory: &Window, cdb: &Cdb, data: Option<Window>) -> bool {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.address);
        header[19..19 + cdb.len()].copy_from_slice(cdb);
        let bus = memory.bus_address();
        let data = data.map(|data| (data.bus_address(), data.len() as u32, false));
        let answer = (bus + AT_ANSWER as u64, ANSWER as u32, true);
        let last = if data.is_some() { 2 } else { 1 };
        for _ in 0..TRIES {
            if memory.write(0, &header).is_err() {
                return false;
            }
            memory.store16(AT_ANSWER + 10, u16::from_le_bytes([0, command::RESPONSE_NONE]));
            let parts = [Some((bus, HEADER as u32, false)), data, Some(answer)];
            for (index, (address, len, device_writes)) in (0..).zip(parts.into_iter().flatten()) {
                let next = (index < last).then_some(index + 1);
                ring.describe(index, Descriptor { address, len, device_writes, next });
            }
            ring.offer(0);
            // It is told in any case.
            let _ = ring.publish();
            self.transport.notify(REQUESTS);
            let done = (0..LOOKS).any(|_| {
                core::hint::spin_loop();
                matches!(ring.take(), Taken::Chain { .. })
            });
            let [status, response] = memory.load16(AT_ANSWER + 10).to_le_bytes();
            let mut sense = [0; 18];
            let read = memory.read(AT_ANSWER + 12, &mut sense);
            match Answer::of(response, status, &sense) {
                _ if !done || read.is_err() => return false,
                Answer::Again { .. } => continue,
                answer => return answer == Answer::Done,
            }
        }
        false
    }
}

impl CrashWriter for VirtioScsiCrash {
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
        self.queue = ring.map(|ring| (ring, memory));
        self.queue.is_some()
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let Some((mut ring, memory)) = self.queue.take() else {
            return Err("there was a write already");
        };
        let into = memory.slice(AT_DATA, data.len()).ok_or("the write is too long")?;
        let (lba, block) = (sector * 512 / u64::from(self.block), self.block as usize);
        if !data.len().is_multiple_of(block) || !(sector * 512).is_multiple_of(block as u64) {
            return Err("the write is not in whole blocks of the disk");
        }
        self.start(&ring).map_err(|_| "the disk cannot be set up again")?;
        into.write(0, data).map_err(|_| "the write is too long")?;
        let cdb = command::write(lba, (data.len() / block) as u32);
        let written = self.ask(&mut ring, &memory, &cdb, Some(into));
        // A unit without a cache need not know the command: what it wrote is durable all the same.
        if written {
            self.ask(&mut ring, &memory, &command::synchronize_cache(), None);
        }
        // So that it writes to no memory of ours while the machine goes down.
        reset(&mut *self.transport).map_err(|_| "the disk does not come out of reset")?;
        if written { Ok(()) } else { Err("the disk did not do the write") }
    }
}
