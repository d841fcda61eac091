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

use super::hardware::{EXPOSED, Hardware};
use super::{NtbDevice, Side};
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::Platform;
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use chip::AmdChip;
pub use error::Error;

const AMD: u16 = 0x1022;
const HYGON: u16 = 0x1d94;

/// Devices.
pub static IDS: [Id; 6] = [
    Id::Pci(AMD, 0x145b),
    Id::Pci(AMD, 0x148b),
    Id::Pci(AMD, 0x14c0),
    Id::Pci(AMD, 0x14c3),
    Id::Pci(AMD, 0x155a),
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
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let opened = set_up(function, platform, side);
    if opened.is_err() {
        function.disable();
    }
    Ok(Box::new(opened?))
}

fn set_up(
    function: Function<'static>,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Hardware<AmdChip>, Error> {
    let bars = function.bars();
    let at = bars.get(0).and_then(|bar| bar.range(0, registers::SIZE as u64));
    let at = at.ok_or(Error::NoRegisters)?;
    function.enable();
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
    let interrupt = Msix::open(&function, &bars, platform).and_then(|mut msix| {
        let interrupt = platform.allocate_interrupt().filter(|one| msix.route(0, one))?;
        Some((interrupt, msix))
    });
    chip.enable();
    Ok(Hardware::new(chip, is, window, exposed, interrupt))
}
