//! Writes the crash record to a namespace after a panic, when no state of the program can be trusted. The controller is
//! stopped and set up again with polled queues reserved for this. No allocation happens after
//! [`CrashWriter::prepare`](crate::hal::CrashWriter::prepare), and no state of the main driver is used.

use super::command::{self, Transfer, with_identifier};
use super::prp::{LIST_BYTES, Lists};
use super::queue::{Command, Queue};
use super::registers::{ControllerRegisters, Status};
use crate::hal::{Arena, CrashWriter, Window};

/// Number of the pair of queues for the write.
const IO: u16 = 1;
/// Entries of each queue: one command at a time.
const ENTRIES: u16 = 2;
/// Polls of a register or a queue before the controller counts as gone. A poll takes 0.1 us or more, and a device model
/// on a busy host may stall for a second.
const MOST_POLLS: u32 = 50_000_000;

/// Writer of the crash record to a namespace.
pub struct NvmeCrash {
    registers: ControllerRegisters,
    nsid: u32,
    /// Bytes of a block.
    block: u32,
    /// Most bytes of a command.
    most: u32,
    /// Memory for the write, from `prepare` until `write` has used it.
    ready: Option<Memory>,
}

/// Memory reserved for the write.
struct Memory {
    admin: Queue,
    io: Queue,
    lists: Lists,
    data: Window,
}

impl NvmeCrash {
    /// Takes an exclusive mapping of the registers of a controller that the main driver owns.
    pub fn new(registers: ControllerRegisters, nsid: u32, block: u32, most: u32) -> Self {
        NvmeCrash { registers, nsid, block, most, ready: None }
    }

    /// Allocates memory. If the arena runs out, the part allocated so far is not freed.
    fn allocate(&self, bytes: usize, arena: &mut Arena) -> Option<Memory> {
        let page = 1usize << self.registers.capabilities().page_shift;
        let mut queue = |id| {
            let memory = arena.alloc(Queue::bytes(ENTRIES, page), page)?;
            Queue::new(id, ENTRIES, page, memory, &self.registers)
        };
        let (admin, io) = (queue(0)?, queue(IO)?);
        let lists = Lists::new(&arena.alloc(LIST_BYTES, page)?, 1, page as u64)?;
        Some(Memory { admin, io, lists, data: arena.alloc(bytes, page)? })
    }

    /// Polls the status until it is as wanted. False if it never is.
    fn wait(&self, wanted: impl Fn(Status) -> bool) -> bool {
        (0..MOST_POLLS).any(|_| {
            let status = self.registers.status();
            !status.is_absent() && wanted(status)
        })
    }

    fn write_all(&self, memory: &mut Memory, first: u64, bytes: usize) -> Result<(), &'static str> {
        let Memory { admin, io, lists, data } = memory;
        let registers = &self.registers;
        registers.disable();
        if !self.wait(|status| !status.is_ready()) {
            return Err("the drive does not come out of reset");
        }
        admin.restart();
        io.restart();
        let [submissions, completions] = admin.addresses();
        registers.enable(submissions, completions, ENTRIES);
        if !self.wait(|status| status.is_ready() && !status.is_fatal()) {
            return Err("the drive does not become ready");
        }
        let [submissions, completions] = io.addresses();
        let made =
            execute(admin, command::create_completions(IO, ENTRIES, completions, None), registers)
                && execute(admin, command::create_submissions(IO, ENTRIES, submissions), registers);
        if !made {
            return Err("the drive refused to create queues");
        }
        let (block, mut at) = (u64::from(self.block), 0);
        while at < bytes {
            let len = (bytes - at).min(self.most as usize);
            let prps = lists.describe(0, data.bus_address() + at as u64, len);
            let prps = prps.ok_or("the write is too long")?;
            let (start, count) = (first + at as u64 / block, (len as u64 / block) as u32);
            let write = command::transfer(Transfer::WriteThrough, self.nsid, start, count, prps);
            if !execute(io, write, registers) {
                return Err("the drive did not complete the write");
            }
            at += len;
        }
        Ok(())
    }
}

/// Executes a command and polls for its completion. True if the command succeeded.
fn execute(queue: &mut Queue, command: Command, registers: &ControllerRegisters) -> bool {
    queue.push(&with_identifier(command, 0));
    queue.ring_doorbell(registers);
    let entry = (0..MOST_POLLS).find_map(|_| {
        core::hint::spin_loop();
        queue.take()
    });
    queue.give_back(1, registers);
    entry.is_some_and(|entry| entry.status & 0x7ff == 0)
}

impl CrashWriter for NvmeCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        self.ready = self.allocate(bytes, arena);
        self.ready.is_some()
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let (block, bytes) = (u64::from(self.block), data.len());
        let first = sector * 512;
        if !first.is_multiple_of(block) || !(bytes as u64).is_multiple_of(block) {
            return Err("the write is not in whole blocks of the disk");
        }
        let mut memory = self.ready.take().ok_or("there was a write already")?;
        memory.data.write(0, data).map_err(|_| "the write is too long")?;
        let result = self.write_all(&mut memory, first / block, bytes);
        // The controller must not write to memory while the machine goes down.
        self.registers.disable();
        result
    }
}
