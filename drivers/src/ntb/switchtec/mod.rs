//! The non-transparent bridge between two partitions of a Switchtec PFX or PSX switch of the third generation, used as
//! by Linux (`drivers/ntb/hw/mscc/ntb_hw_switchtec.c`), so that Linux can be the peer.
//!
//! BAR 2 has lookup windows of 64 KiB each, followed by a direct window. The first lookup window leads to a page of the
//! peer with its scratchpads; the direct window leads to the peer's exposed memory. Doorbells are registers; messages
//! report link changes.

mod chip;
mod error;
mod registers;
mod setup;
mod shared;

use super::hardware::{self, EXPOSED, Hardware, first_interrupt};
use super::{NtbDevice, Side};
use crate::driver::{Device, Id, OpenError};
use crate::hal::{Platform, Registers};
use crate::pci::{Bar, Function};
use alloc::boxed::Box;
use chip::{Parts, SwitchtecChip};
pub use error::Error;

const VENDOR: u16 = 0x11f8;
/// Class of a function that is a bridge: "other bridge device".
const BRIDGE: u32 = 0x06_80_00;

/// Devices: PFX, PSX, PFXL and PFXI of 24 to 96 lanes.
pub static IDS: [Id; 24] = ids();

const fn ids() -> [Id; 24] {
    let mut all = [Id::Pci(VENDOR, 0); 24];
    let mut at = 0;
    while at < 6 {
        all[at] = Id::Pci(VENDOR, 0x8531 + at as u16);
        all[6 + at] = Id::Pci(VENDOR, 0x8541 + at as u16);
        all[12 + at] = Id::Pci(VENDOR, 0x8561 + at as u16);
        all[18 + at] = Id::Pci(VENDOR, 0x8571 + at as u16);
        at += 1;
    }
    all
}

/// Sets the bridge up at this host's partition. The link comes up when the peer's partition is set up as well.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    hardware::open(device, Error::NoRegisters, |function| set_up(function, platform, side))
}

/// The partition that is joined with `partition` (Linux, `switchtec_ntb_init_sndev`).
fn peer(own: &dyn Registers, partition: u8) -> Result<u8, Error> {
    let at = registers::TARGETS + registers::TARGETS_SIZE * usize::from(partition);
    let half = |offset| u64::from(own.read32(offset));
    let bridge = half(registers::BRIDGE_PARTITIONS) | half(registers::BRIDGE_PARTITIONS + 4) << 32;
    let others = bridge & !(1 << partition);
    let mut targets = half(at + registers::TARGETS_LOW) | half(at + registers::TARGETS_HIGH) << 32;
    targets &= others;
    if targets == 0 && own.read8(registers::PARTITION_COUNT) == 2 {
        targets = others;
    }
    if targets.count_ones() != 1 || targets.trailing_zeros() as usize >= registers::MOST_PARTITIONS
    {
        return Err(Error::NoPeer { partition, targets });
    }
    let peer = targets.trailing_zeros() as u8;
    let at = registers::TARGETS + registers::TARGETS_SIZE * usize::from(peer);
    if own.read8(at) & registers::CROSSLINK != 0 {
        return Err(Error::Crosslink);
    }
    Ok(peer)
}

/// Layout of BAR 2: bytes of the lookup windows, and of the direct window after them (Linux,
/// `switchtec_ntb_direct_get_addr`).
fn windows(bar: &Bar, entries: u16) -> Option<(u64, u64)> {
    let before = registers::LOOKED_UP as u64 * u64::from(entries);
    let direct = bar.size.checked_sub(before)?.min(before).min(EXPOSED);
    // A power of two, because the switch translates the upper bits of an address.
    let direct = 1u64.checked_shl(direct.checked_ilog2()?)?;
    (direct >= 4096).then_some((before, direct))
}

fn set_up(
    function: Function<'static>,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Hardware<SwitchtecChip>, Error> {
    if function.device() == u16::MAX {
        return Err(Error::Absent);
    }
    if function.class() != BRIDGE {
        return Err(Error::NotBridge);
    }
    let bars = function.bars();
    let at = bars.get(0).and_then(|bar| bar.range(0, registers::SIZE as u64));
    let at = at.ok_or(Error::NoRegisters)?;
    function.prepare();
    let own = platform.map_registers(at, registers::SIZE).ok_or(Error::NoRegisters)?;
    let partition = own.read8(registers::PARTITION);
    if usize::from(partition) >= registers::MOST_PARTITIONS {
        return Err(Error::Absent);
    }
    let peer = peer(&*own, partition)?;
    let is = if partition < peer { Side::A } else { Side::B };
    if side.is_some_and(|wanted| wanted != is) {
        return Err(Error::WrongSide { is });
    }
    let control =
        |partition: u8| registers::CONTROL + registers::CONTROL_SIZE * usize::from(partition);
    let entries = |partition: u8| match own.read16(control(partition) + registers::ENTRY_COUNT) {
        0 => 0,
        // Rounded down to a power of two, as Linux does.
        entries => 1 << entries.min(512).ilog2(),
    };
    let valid = |partition: u8| {
        own.read32(control(partition) + registers::WINDOW) & registers::WINDOW_VALID != 0
    };
    let (entries, peer_entries) = (entries(partition), entries(peer));
    let bar = bars.get(2).filter(|_| valid(partition) && valid(peer) && peer_entries > 0);
    let divided = bar.and_then(|bar| Some((bar, windows(&bar, entries)?)));
    let (bar, (before, direct)) = divided.ok_or(Error::NoWindow { entries })?;
    if own.read16(control(partition) + registers::REQUESTER_COUNT) < 2 {
        return Err(Error::NoRequesters);
    }
    let host = own.read16(registers::REQUESTER);
    let page = platform.map_registers(bar.address, registers::LOOKED_UP);
    let page = page.ok_or(Error::NotMapped { bytes: bar.size })?;
    let window = platform.map_window(bar.address + before, direct as usize);
    let window = window.ok_or(Error::NotMapped { bytes: direct })?;
    let arena = platform.arena();
    let bytes = direct as usize;
    let exposed = arena.alloc(bytes, bytes).ok_or(Error::NoMemory { bytes })?;
    let Some(shared) = arena.alloc(registers::LOOKED_UP, registers::LOOKED_UP) else {
        arena.free(exposed);
        return Err(Error::NoMemory { bytes: registers::LOOKED_UP });
    };
    exposed.fill(0);
    let interrupt = first_interrupt(&function, &bars, platform);
    function.enable_bus_master();
    let entries = peer_entries;
    let parts =
        Parts { registers: own, page, own: shared, exposed, partition, peer, host, entries };
    Ok(Hardware::new(SwitchtecChip::new(parts), is, window, exposed, interrupt))
}
