//! How the bridge wakes a halted core: MSI-X, whose vectors all go to one interrupt, or MSI. What may interrupt is
//! said channel by channel, in both cases.

use super::registers::{
    CHANNEL_ENABLE, DEVICE_ALL, DEVICE_ENABLE, DEVICE_ERRORS, EM_DEVICE_ENABLE, Tsi721Registers,
    vectors,
};
use super::{block_dma, registers};
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// Configuration space: unlocks the two after it, which say where table and pending bits of MSI-X are.
const UNLOCK: u16 = 0x400;
const TABLE: u16 = 0xa4;
const PENDING: u16 = 0xa8;
/// Where they are, in BAR 0 (Linux `tsi721.h`): chips come up with other numbers there.
const TABLE_AT: u32 = 0x2c000;
const PENDING_AT: u32 = 0x2a000;

/// The interrupt of a bridge.
pub struct Signal {
    interrupt: Option<Interrupt>,
    by_vectors: bool,
}

impl Signal {
    /// Takes one of the platform's interrupts, if there is one left and the function can raise it.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let Some(interrupt) = platform.allocate_interrupt() else {
            return Signal { interrupt: None, by_vectors: false };
        };
        let has_table = place_table(function);
        let msix = has_table.then(|| Msix::open(function, bars, platform)).flatten();
        if let Some(mut msix) = msix.filter(|msix| msix.entries() >= vectors::COUNT) {
            let mut routed = true;
            for vector in used_vectors() {
                routed &= msix.route(vector, &interrupt);
            }
            if routed {
                return Signal { interrupt: Some(interrupt), by_vectors: true };
            }
        }
        let interrupt = function.route_msi(&interrupt).then_some(interrupt);
        Signal { interrupt, by_vectors: false }
    }

    /// Tells the device how it may interrupt.
    pub fn apply(&self, registers: &Tsi721Registers) {
        let (device, channels) = match (&self.interrupt, self.by_vectors) {
            (None, _) => (0, 0),
            (Some(_), true) => (DEVICE_ERRORS, 0),
            (Some(_), false) => (DEVICE_ALL, u32::MAX),
        };
        registers.write(CHANNEL_ENABLE, channels);
        registers.write(EM_DEVICE_ENABLE, 1);
        registers.write(DEVICE_ENABLE, device);
    }

    /// Whether it can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Interrupts so far.
    pub fn count(&self) -> u64 {
        self.interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
    }
}

/// Sees to it that the capability says where the table is; false if it says something else.
fn place_table(function: &Function<'_>) -> bool {
    let is_placed = || function.read32(TABLE) == TABLE_AT && function.read32(PENDING) == PENDING_AT;
    if !function.capabilities().any(|c| c.id == 0x11 && c.offset == TABLE - 4) {
        return false;
    }
    if !is_placed() {
        function.write_own32(UNLOCK, 1);
        function.write_own32(TABLE, TABLE_AT);
        function.write_own32(PENDING, PENDING_AT);
        function.write_own32(UNLOCK, 0);
    }
    is_placed()
}

fn used_vectors() -> impl Iterator<Item = u16> {
    let mailboxes =
        (0..4).flat_map(|n| [vectors::outbound(n), vectors::inbound(n)].into_iter().flatten());
    let channels = [block_dma::MAINTENANCE_CHANNEL, block_dma::DATA_CHANNEL];
    let channels = channels.into_iter().flat_map(registers::vectors::block_dma);
    mailboxes.chain(channels).chain(vectors::DOORBELLS).chain([vectors::PORT])
}
