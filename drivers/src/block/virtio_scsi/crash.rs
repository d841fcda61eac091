//! Writes the crash record to a unit (see [`PolledQueue`]).

use super::queues::{
    ANSWER, ANSWER_STATUS, HEADER, HEADER_CDB, REQUESTS, RESPONSE_NONE, answer_of, sense_of,
};
use crate::block::scsi::command::{self, Answer, Cdb};
use crate::hal::{Arena, CrashWriter, Window};
use crate::virtio::{PolledDevice, PolledQueue, Transport};
use alloc::boxed::Box;

/// Most times that a command is sent. After a reset a unit answers the first command with a unit attention.
const TRIES: usize = 8;

// Layout of the memory: offsets in bytes.
const AT_ANSWER: usize = 64;
const AT_DATA: usize = 256;

/// Writer of the crash record to a unit.
pub struct VirtioScsiCrash {
    queue: PolledQueue,
    address: [u8; 8],
    /// Bytes of a logical block.
    block: u32,
}

impl VirtioScsiCrash {
    /// Takes an exclusive transport of a controller that the main driver owns.
    pub fn new(transport: Box<dyn Transport>, address: [u8; 8], block: u32) -> Self {
        VirtioScsiCrash { queue: PolledQueue::new(transport, REQUESTS), address, block }
    }
}

/// Executes a command, with data that the device reads.
fn execute(
    controller: &mut PolledDevice<'_>,
    memory: Window,
    address: [u8; 8],
    cdb: &Cdb,
    data: Option<Window>,
) -> Answer {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&address);
    header[HEADER_CDB..HEADER_CDB + cdb.len()].copy_from_slice(cdb);
    let bus = memory.bus_address();
    let data = data.map(|data| (data.bus_address(), data.len() as u32, false));
    let answer = (bus + AT_ANSWER as u64, ANSWER as u32, true);
    let parts = [Some((bus, HEADER as u32, false)), data, Some(answer)];
    for _ in 0..TRIES {
        let none = u16::from_le_bytes([0, RESPONSE_NONE]);
        memory.store16(AT_ANSWER + ANSWER_STATUS, none);
        if memory.write(0, &header).is_err() || !controller.execute(parts.into_iter().flatten()) {
            return Answer::Failed;
        }
        let [status, response] = memory.load16(AT_ANSWER + ANSWER_STATUS).to_le_bytes();
        match answer_of(response, status, &sense_of(memory, AT_ANSWER)) {
            Answer::Again { .. } | Answer::Lost => {}
            answer => return answer,
        }
    }
    Answer::Failed
}

impl CrashWriter for VirtioScsiCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        self.queue.prepare(AT_DATA + bytes, arena)
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let (address, block) = (self.address, u64::from(self.block));
        let first = sector * 512;
        if !first.is_multiple_of(block) || !(data.len() as u64).is_multiple_of(block) {
            return Err("the write is not in whole blocks of the disk");
        }
        self.queue.run_once(|controller, memory| {
            let into = memory.slice(AT_DATA, data.len()).ok_or("the write is too long")?;
            into.write(0, data).map_err(|_| "the write is too long")?;
            let write = command::write(first / block, (data.len() as u64 / block) as u32);
            if execute(controller, memory, address, &write, Some(into)) != Answer::Done {
                return Err("the disk did not complete the write");
            }
            match execute(controller, memory, address, &command::synchronize_cache(), None) {
                // A unit without a cache may refuse the command: its writes are durable without it.
                Answer::Done | Answer::Illegal => Ok(()),
                _ => Err("the disk did not flush its cache"),
            }
        })
    }
}
