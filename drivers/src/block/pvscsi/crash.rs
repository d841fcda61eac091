//! Writes the crash record to a unit after a panic: resets the adapter, and polls one command after the other in memory
//! that is reserved for this. No state of the main driver is used.

use super::adapter::{answer_of, describe};
use super::registers::AdapterRegisters;
use super::rings::Rings;
use crate::block::scsi::command::{self, Answer, Cdb};
use crate::block::scsi::{Place, SENSE};
use crate::hal::{Arena, CrashWriter, Window};
use crate::pci::Function;

/// Most times that a command is sent. After a reset a unit answers the first command with a unit attention.
const TRIES: usize = 8;
/// Polls of a ring before the adapter counts as gone. A poll takes some nanoseconds, and a host may stall for a second.
const MOST_POLLS: u32 = 500_000_000;
/// Bytes for sense data, before the data.
const AT_DATA: usize = 64;

/// Writer of the crash record to a unit.
pub struct PvscsiCrash {
    registers: AdapterRegisters,
    function: Function<'static>,
    place: Place,
    /// Bytes of a logical block.
    block: u32,
    /// Memory for the write, from `prepare` until `write` has used it.
    ready: Option<(Rings, Window)>,
}

impl PvscsiCrash {
    /// Takes an exclusive mapping of the registers of an adapter that the main driver owns.
    pub fn new(
        registers: AdapterRegisters,
        function: Function<'static>,
        place: Place,
        block: u32,
    ) -> Self {
        PvscsiCrash { registers, function, place, block, ready: None }
    }

    /// Executes a command, with data that the unit reads.
    fn execute(
        &self,
        rings: &mut Rings,
        memory: Window,
        cdb: &Cdb,
        data: Option<Window>,
    ) -> Answer {
        let data = data.map(|data| (data.bus_address(), data.len(), false));
        let mut descriptor = describe(memory.bus_address(), self.place, cdb, data);
        descriptor[0] = 1;
        for _ in 0..TRIES {
            rings.put(&descriptor);
            rings.announce();
            self.registers.kick_other();
            let done = (0..MOST_POLLS).find_map(|_| {
                core::hint::spin_loop();
                rings.take().ok()?
            });
            let Some(done) = done else { return Answer::Failed };
            let mut sense = [0; SENSE];
            if memory.read(0, &mut sense).is_err() {
                return Answer::Failed;
            }
            match answer_of(&done, descriptor[2], || sense) {
                (Answer::Again { .. } | Answer::Lost, _) => {}
                (Answer::Done, missing) if missing > 0 => return Answer::Failed,
                (answer, _) => return answer,
            }
        }
        Answer::Failed
    }
}

impl CrashWriter for PvscsiCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        let rings = Rings::alloc(1, arena).ok();
        self.ready = rings.zip(arena.alloc(AT_DATA + bytes, 4096));
        self.ready.is_some()
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let block = u64::from(self.block);
        let first = sector * 512;
        if !first.is_multiple_of(block) || !(data.len() as u64).is_multiple_of(block) {
            return Err("the write is not in whole blocks of the disk");
        }
        let (mut rings, memory) = self.ready.take().ok_or("there was a write already")?;
        let into = memory.slice(AT_DATA, data.len()).ok_or("the write is too long")?;
        into.write(0, data).map_err(|_| "the write is too long")?;
        self.registers.reset();
        // The driver keeps an adapter from memory that has no disk in use.
        self.function.enable_bus_master();
        if !self.registers.set_rings(&rings) {
            return Err("the adapter refused its rings");
        }
        let write = command::write(first / block, (data.len() as u64 / block) as u32);
        let result = match self.execute(&mut rings, memory, &write, Some(into)) {
            Answer::Done => {
                let flush = command::synchronize_cache();
                match self.execute(&mut rings, memory, &flush, None) {
                    // A unit without a cache may refuse the command: its writes are durable without it.
                    Answer::Done | Answer::Illegal => Ok(()),
                    _ => Err("the disk did not flush its cache"),
                }
            }
            _ => Err("the disk did not complete the write"),
        };
        self.registers.reset();
        result
    }
}
