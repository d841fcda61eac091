//! Intel's non-transparent bridges in Xeons, back to back with another: those of the Skylake family (the third
//! generation) and of Ice Lake to Granite Rapids (the fourth). Linux,
//! `drivers/ntb/hw/intel/ntb_hw_gen{3,4}.c`.
//!
//! The first window is used: the peer's memory behind BAR 2. Its target begins at a multiple of the BAR's size, as
//! these devices require (later ones accept any page), and may be shorter: the limit register ends it. The first
//! doorbell is used.
//!
//! Vector 32 of MSI-X does not work in devices of the third generation, and after a reset the link's doorbell comes
//! before the others. So all doorbells are sent to vector 0, the only one that is routed.

mod chip;
mod error;
mod registers;

use super::hardware::{self, EXPOSED, Hardware, first_interrupt};
use super::{NtbDevice, Side};
use crate::driver::{Device, Id, OpenError};
use crate::hal::{Platform, Window};
use crate::pci::{Bar, Function};
use alloc::boxed::Box;
use chip::IntelChip;
pub use error::Error;
use registers::Generation;

const INTEL: u16 = 0x8086;
const GEN3: u16 = 0x201c;

const fn pci(device: u16) -> Id {
    Id::Pci(INTEL, device)
}

/// Devices: the third generation, and those before and after it. Unsupported ones are refused with the generation's
/// name.
pub static IDS: [Id; 19] = [
    pci(GEN3),
    pci(0x7868),
    pci(0x3725),
    pci(0x3726),
    pci(0x3727),
    pci(0x3c0d),
    pci(0x3c0e),
    pci(0x3c0f),
    pci(0x0e0d),
    pci(0x0e0e),
    pci(0x0e0f),
    pci(0x2f0d),
    pci(0x2f0e),
    pci(0x2f0f),
    pci(0x6f0d),
    pci(0x6f0e),
    pci(0x6f0f),
    pci(0x347e),
    pci(0x0db4),
];

/// Sets this side of the bridge up. The link comes up when the other side is set up as well.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    hardware::open(device, Error::NoRegisters, |function| set_up(function, platform, side))
}

/// Generation of a device, or why it is not supported.
fn generation(function: &Function<'_>) -> Result<Generation, Error> {
    let device = function.device();
    let name = match device {
        GEN3 => return Ok(Generation::Third),
        u16::MAX => return Err(Error::Absent),
        0x347e => match function.read32(registers::REVISION) as u8 {
            // Engineering samples, which Linux refuses as well.
            revision @ 0..=1 => return Err(Error::Revision { revision }),
            2..=0xf => return Ok(Generation::IceLake),
            _ => return Ok(Generation::SapphireRapids),
        },
        0x0db4 => return Ok(Generation::SapphireRapids),
        0x7868 => return Ok(Generation::DiamondRapids),
        _ => {
            "Xeon E5 and E7 v1 to v4 (the first), where access to the peer's registers may hang the \
             machine"
        }
    };
    Err(Error::Generation { name, device })
}

/// Refuses a port that is not back to back, or on the other side.
fn check(chip: &IntelChip, side: Option<Side>) -> Result<Side, Error> {
    let (connection, downstream) = chip.port();
    if connection != registers::BACK_TO_BACK {
        return Err(Error::NotBackToBack { connection });
    }
    let is = if downstream { Side::B } else { Side::A };
    match side {
        Some(wanted) if wanted != is => Err(Error::WrongSide { is: downstream.into() }),
        _ => Ok(is),
    }
}

fn set_up(
    function: Function<'static>,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Hardware<IntelChip>, Error> {
    let generation = generation(&function)?;
    let bars = function.bars();
    let map = |platform: &mut dyn Platform| {
        let size = generation.registers();
        let at = bars.get(0).and_then(|bar| bar.range(0, size as u64));
        at.and_then(|at| platform.map_registers(at, size)).ok_or(Error::NoRegisters)
    };
    // The port definition is in configuration space for the third generation, otherwise in the registers.
    function.prepare();
    let mut chip = IntelChip::new(map(platform)?, function, generation);
    let side = check(&chip, side)?;
    let bar = bars.get(2).ok_or(Error::NoWindow)?;
    chip.begin()?;
    let len = usize::try_from(bar.size).map_err(|_| Error::NotMapped { bytes: bar.size })?;
    let window = platform.map_window(bar.address, len);
    let window = window.ok_or(Error::NotMapped { bytes: bar.size })?;
    let exposed = expose(platform, &bar, len)?;
    if let Err(error) = chip.translate(&bar, &exposed) {
        platform.arena().free(exposed);
        return Err(error);
    }
    chip.clear();
    let interrupt = first_interrupt(&function, &bars, platform);
    function.enable_bus_master();
    if let Err(error) = chip.enable() {
        platform.arena().free(exposed);
        return Err(error);
    }
    Ok(Hardware::new(chip, side, window, exposed, interrupt))
}

/// Allocates the exposed memory, aligned to the size of the window.
fn expose(platform: &mut dyn Platform, bar: &Bar, align: usize) -> Result<Window, Error> {
    let bytes = bar.size.min(EXPOSED) as usize;
    let exposed = platform.arena().alloc(bytes, align);
    let exposed = exposed.ok_or(Error::NoMemory { window: bar.size, bytes })?;
    exposed.fill(0);
    Ok(exposed)
}
