//! AMD's non-transparent bridge in EPYC: a primary and a secondary side (Linux, `drivers/ntb/hw/amd`).
//!
//! The window behind BAR 2 is used. Registers in the other side's bank, which both sides reach, translate it to memory
//! that may begin at any page. The first doorbell and eight scratchpads a side are used; doorbell 15 announces the end
//! of a driver. There is no link training: a side sets a ready bit, and an event reports a lost link.
//!
//! Doorbell n goes to vector n of MSI-X, and events go to vectors from 16. Only vector 0 is routed; events are polled.

mod chip;
mod error;
mod registers;

use super::hardware::{self, EXPOSED, Hardware, first_interrupt};
use super::{NtbDevice, Side};
use crate::driver::{Device, Id, OpenError};
use crate::hal::Platform;
use crate::pci::Function;
use alloc::boxed::Box;
use chip::AmdChip;
pub use error::Error;

const AMD: u16 = 0x1022;
const HYGON: u16 = 0x1d94;

/// Devices.
pub static IDS: [Id; 8] = [
    Id::Pci(AMD, 0x145b),
    Id::Pci(AMD, 0x148b),
    Id::Pci(AMD, 0x14c0),
    Id::Pci(AMD, 0x14c3),
    Id::Pci(AMD, 0x155a),
    Id::Pci(AMD, 0x17d4),
    // An endpoint, whose link status is in its own capability, as it is read for the others, too.
    Id::Pci(AMD, 0x17d7),
    Id::Pci(HYGON, 0x145b),
];

/// Alignment of a translation's target.
const PAGE: usize = 4096;

/// Sets this side of the bridge up. The link comes up when the other side is set up as well.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    hardware::open(device, Error::NoRegisters, |function| set_up(function, platform, side))
}

fn set_up(
    function: Function<'static>,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Hardware<AmdChip>, Error> {
    let bars = function.bars();
    let at = bars.get(0).and_then(|bar| bar.range(0, registers::SIZE as u64));
    let at = at.ok_or(Error::NoRegisters)?;
    function.prepare();
    let own = platform.map_registers(at, registers::SIZE).ok_or(Error::NoRegisters)?;
    let mut chip = AmdChip::new(own, function);
    let is = chip.side().ok_or(Error::Absent)?;
    if side.is_some_and(|wanted| wanted != is) {
        return Err(Error::WrongSide { is });
    }
    let bar = bars.get(2).ok_or(Error::NoWindow)?;
    chip.begin();
    let len = usize::try_from(bar.size).map_err(|_| Error::NotMapped { bytes: bar.size })?;
    let window = platform.map_window(bar.address, len);
    let window = window.ok_or(Error::NotMapped { bytes: bar.size })?;
    let bytes = bar.size.min(EXPOSED) as usize;
    let exposed = platform.arena().alloc(bytes, PAGE).ok_or(Error::NoMemory { bytes })?;
    exposed.fill(0);
    if let Err(error) = chip.translate(&exposed) {
        platform.arena().free(exposed);
        return Err(error);
    }
    chip.clear();
    let interrupt = first_interrupt(&function, &bars, platform);
    function.enable_bus_master();
    chip.enable();
    Ok(Hardware::new(chip, is, window, exposed, interrupt))
}
