//! Writes the crash record to a drive after a panic, when no state of the program can be trusted. The port is stopped,
//! its link is reset, and one command after the other is polled, in memory that is reserved for this.

use super::command::{self, Fis, Transfer};
use super::memory::{Direction, PortMemory};
use super::registers::{Link, PortRegisters};
use crate::hal::{Arena, CrashWriter, Window};
use crate::pci::Function;
use core::sync::atomic::{Ordering, fence};

/// Polls of a register before the drive counts as gone. There is no clock after a panic. A poll takes 0.1 us or more,
/// and a device model on a busy host may stall for a second.
const MOST_POLLS: u32 = 50_000_000;
/// Reads of a register that take a millisecond at least, even if each takes 50 ns.
const MILLISECOND: u32 = 20_000;

/// Writer of the crash record to a drive.
pub struct AhciCrash {
    registers: PortRegisters,
    function: Function<'static>,
    /// Bytes of a block.
    block: u32,
    /// Most bytes of a command.
    most: u32,
    /// Memory for the write, from `prepare` until `write` has used it.
    ready: Option<(PortMemory, Window)>,
}

impl AhciCrash {
    /// Takes an exclusive mapping of the registers of a port that the main driver owns.
    pub fn new(
        registers: PortRegisters,
        function: Function<'static>,
        block: u32,
        most: u32,
    ) -> Self {
        AhciCrash { registers, function, block, most, ready: None }
    }

    /// Polls until a condition holds. False if it never does.
    fn wait(&self, holds: impl Fn(&PortRegisters) -> bool) -> bool {
        (0..MOST_POLLS).any(|_| holds(&self.registers))
    }

    fn reset(&self, memory: PortMemory) -> Result<(), &'static str> {
        let registers = &self.registers;
        registers.stop();
        if !self.wait(PortRegisters::is_stopped) {
            return Err("the port does not stop");
        }
        registers.stop_receiving();
        if !self.wait(PortRegisters::is_quiet) {
            return Err("the port does not stop");
        }
        // The driver keeps a controller from memory that has no drive in use.
        self.function.enable_bus_master();
        let [list, received] = memory.addresses();
        registers.set_up(list, received);
        registers.begin_link_reset();
        (0..MILLISECOND).for_each(|_| _ = registers.link());
        registers.end_link_reset();
        if !self.wait(|registers| registers.link() == Link::Up) {
            return Err("the drive's link does not come up");
        }
        if !self.wait(PortRegisters::is_ready) {
            return Err("the drive does not become ready");
        }
        registers.clear();
        registers.start();
        Ok(())
    }

    /// Executes a command. True if it succeeded.
    fn execute(&self, memory: PortMemory, fis: Fis, data: Option<(u64, usize)>) -> bool {
        memory.put(0, fis, data);
        memory.refer(0, 0, data.map(|_| Direction::ToDrive));
        fence(Ordering::Release);
        self.registers.issue(0, 1);
        let ended =
            self.wait(|registers| registers.issued() & 1 == 0 || registers.causes().has_error());
        ended && !self.registers.causes().has_error() && self.registers.error().is_none()
    }

    fn write_all(
        &self,
        (memory, data): (PortMemory, Window),
        first: u64,
        bytes: usize,
    ) -> Result<(), &'static str> {
        self.reset(memory)?;
        let (block, mut at) = (u64::from(self.block), 0);
        while at < bytes {
            let len = (bytes - at).min(self.most as usize);
            let count = (len as u64 / block) as u16;
            let write = command::transfer(Transfer::Write, first + at as u64 / block, count);
            if !self.execute(memory, write, Some((data.bus_address() + at as u64, len))) {
                return Err("the drive did not complete the write");
            }
            at += len;
        }
        match self.execute(memory, command::flush(), None) {
            true => Ok(()),
            false => Err("the drive did not flush its cache"),
        }
    }
}

impl CrashWriter for AhciCrash {
    fn prepare(&mut self, bytes: usize, arena: &mut Arena) -> bool {
        let memory = PortMemory::alloc(arena).ok();
        self.ready = memory.zip(arena.alloc(bytes, 4096));
        self.ready.is_some()
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), &'static str> {
        let (block, bytes) = (u64::from(self.block), data.len());
        let first = sector * 512;
        if !first.is_multiple_of(block) || !(bytes as u64).is_multiple_of(block) {
            return Err("the write is not in whole blocks of the disk");
        }
        let ready = self.ready.take().ok_or("there was a write already")?;
        ready.1.write(0, data).map_err(|_| "the write is too long")?;
        let result = self.write_all(ready, first / block, bytes);
        // The controller must not write to memory while the machine goes down.
        self.registers.stop();
        result
    }
}
