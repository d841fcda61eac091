//! AMD's PTDMA, in EPYC (Linux, `drivers/dma/ptdma`): one queue for copies. The engine writes no completions to memory;
//! the driver reads a register while copies are in flight.

mod queue;
mod registers;

use super::Channel;
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use queue::Queue;

/// Devices.
pub static IDS: [Id; 1] = [Id::Pci(0x1022, 0x1498)];

/// Why an engine cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// There is no memory for descriptors.
    NoMemory,
    /// The queue's head register does not keep the written value.
    Locked {
        /// The value written.
        wrote: u32,
        /// The value read back.
        reads: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => {
                f.write_str("the DMA engine's registers (BAR 2) cannot be mapped")
            }
            Error::Absent => f.write_str("the DMA engine does not answer: check the machine"),
            Error::NoMemory => f.write_str(
                "there is no memory for the DMA engine's descriptors: give the machine more memory",
            ),
            Error::Locked { wrote, reads } => write!(
                f,
                "the DMA engine's queue reads back as {reads:#x} after {wrote:#x} was written: another system \
                 uses it; assign it to this machine alone in the BIOS"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Sets an engine up, and returns its queue.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    _: &dyn Clock,
) -> Result<Vec<Box<dyn Channel>>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let at = function.bars().get(2).and_then(|bar| bar.range(0, registers::SIZE as u64));
    let at = at.ok_or(Error::NoRegisters)?;
    function.prepare();
    let own = platform.map_registers(at, registers::SIZE).ok_or(Error::NoRegisters);
    match own.and_then(|own| Queue::open(own, function, platform.arena())) {
        Ok(queue) => Ok(alloc::vec![Box::new(queue) as Box<dyn Channel>]),
        Err(error) => {
            function.disable();
            Err(error.into())
        }
    }
}
