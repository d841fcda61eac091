//! Registers of an adapter (`enum PVSCSIRegOffset`): little-endian, 32 bits. A command is written first, then its
//! descriptor, word by word; the adapter executes it with the last word.

use super::Error;
use super::rings::Rings;
use crate::hal::{Platform, Registers};
use crate::pci::Bars;
use alloc::boxed::Box;

const COMMAND: usize = 0x0000;
const COMMAND_DATA: usize = 0x0004;
const COMMAND_STATUS: usize = 0x0008;
const INTERRUPT_STATUS: usize = 0x100c;
const INTERRUPT_MASK: usize = 0x2010;
/// Notifies the adapter of commands that are neither reads nor writes.
const KICK_OTHER: usize = 0x3014;
/// Notifies the adapter of reads and writes.
const KICK_TRANSFERS: usize = 0x4018;
/// Bytes of the registers (`PVSCSI_MEM_SPACE_SIZE`).
const BYTES: usize = 0x8000;

// Commands (`enum PVSCSICommands`).
const ADAPTER_RESET: u32 = 1;
const SETUP_RINGS: u32 = 3;
const SETUP_REQUEST_CALL: u32 = 10;
/// Status of a command that failed, or that is not known.
const FAILED: u32 = u32::MAX;

/// Pages in each list of [`SETUP_RINGS`].
const LISTED_PAGES: usize = 32;
/// Interrupts: a completion.
const COMPLETIONS: u32 = 1;
const ALL_CAUSES: u32 = 0xf;
const ALL_ONES: u32 = u32::MAX;

/// The registers of an adapter, mapped.
pub struct AdapterRegisters(Box<dyn Registers>);

impl AdapterRegisters {
    /// Maps the registers, which are in the first memory BAR that is large enough.
    pub fn map(bars: &Bars, platform: &mut dyn Platform) -> Result<Self, Error> {
        let range = (0..6).find_map(|n| bars.get(n)?.range(0, BYTES as u64));
        let registers = platform.map_registers(range.ok_or(Error::NoRegisters)?, BYTES);
        let registers = AdapterRegisters(registers.ok_or(Error::NoRegisters)?);
        match registers.is_absent() {
            true => Err(Error::Absent),
            false => Ok(registers),
        }
    }

    /// Whether the adapter was removed. Its mask of interrupts has four bits.
    pub fn is_absent(&self) -> bool {
        self.0.read32(INTERRUPT_MASK) == ALL_ONES
    }

    /// Resets the adapter: it drops its rings, and reaches no memory any more.
    pub fn reset(&self) {
        self.0.write32(INTERRUPT_MASK, 0);
        self.0.write32(COMMAND, ADAPTER_RESET);
        // The reset is over when a read returns.
        _ = self.0.read32(INTERRUPT_STATUS);
        self.0.write32(INTERRUPT_STATUS, ALL_CAUSES);
    }

    /// Sets the rings up. False if the adapter refuses them.
    pub fn set_rings(&self, rings: &Rings) -> bool {
        self.0.write32(COMMAND, SETUP_RINGS);
        let data = |value: u32| self.0.write32(COMMAND_DATA, value);
        let number = |value: u64| {
            data(value as u32);
            data((value >> 32) as u32);
        };
        let lists = [rings.requests(), rings.completions()];
        lists.iter().for_each(|(_, pages)| data(*pages as u32));
        number(rings.state_page());
        for (first, pages) in lists {
            (0..LISTED_PAGES).for_each(|n| number(if n < pages { first + n as u64 } else { 0 }));
        }
        self.0.read32(COMMAND_STATUS) != FAILED
    }

    /// Asks the adapter to fetch requests without a notification for each (`reqCallThreshold`). False if it cannot.
    pub fn set_request_call(&self) -> bool {
        self.0.write32(COMMAND, SETUP_REQUEST_CALL);
        if self.0.read32(COMMAND_STATUS) == FAILED {
            return false;
        }
        self.0.write32(COMMAND_DATA, 1);
        self.0.read32(COMMAND_STATUS) != 0
    }

    /// Notifies the adapter of reads and writes.
    #[inline]
    pub fn kick_transfers(&self) {
        self.0.write32(KICK_TRANSFERS, 0);
    }

    /// Notifies the adapter of other commands.
    pub fn kick_other(&self) {
        self.0.write32(KICK_OTHER, 0);
    }

    /// Enables the interrupt of completions, or disables it. Earlier causes are cleared.
    pub fn set_interrupts(&self, wanted: bool) {
        if wanted {
            self.0.write32(INTERRUPT_STATUS, ALL_CAUSES);
        }
        self.0.write32(INTERRUPT_MASK, if wanted { COMPLETIONS } else { 0 });
    }
}
