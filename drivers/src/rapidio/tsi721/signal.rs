//! How the bridge wakes a halted core: by MSI-X, with an interrupt for what memory shows and another for what registers
//! have to be read for; or by MSI, one interrupt for all, which is switched on and off as Linux does it: what stands when
//! it is switched on interrupts.

use super::registers::{
    CHANNEL_ENABLE, DEVICE_ALL, DEVICE_ENABLE, DEVICE_ERRORS, DEVICE_STATUS, EM_DEVICE_ENABLE,
    Tsi721Registers, vectors,
};
use super::{block_dma, registers};
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix, OwnRegister};
use core::sync::atomic::Ordering;

/// Configuration space: where table and pending bits of MSI-X are.
const TABLE: u16 = OwnRegister::TSI721_TABLE.offset();
const PENDING: u16 = OwnRegister::TSI721_PENDING.offset();
/// Where they are, in BAR 0 (Linux `tsi721.h`): chips come up with other numbers there.
const TABLE_AT: u32 = 0x2c000;
const PENDING_AT: u32 = 0x2a000;

/// The interrupts of a bridge.
pub struct Signal {
    interrupt: Option<Interrupt>,
    /// That of errors and port-writes, if they have their own.
    trouble: Option<Interrupt>,
    by_vectors: bool,
    /// MSI is switched on.
    is_on: bool,
}

impl Signal {
    /// Takes interrupts of the platform, if there are some left and the function can raise them.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let none = Signal { interrupt: None, trouble: None, by_vectors: false, is_on: false };
        let Some(interrupt) = platform.allocate_interrupt() else {
            return none;
        };
        let has_table = place_table(function);
        let msix = has_table.then(|| Msix::open(function, bars, platform)).flatten();
        if let Some(mut msix) = msix.filter(|msix| msix.entries() >= vectors::COUNT) {
            let trouble = platform.allocate_interrupt();
            let routes = used_vectors().flat_map(|[shown, wrong]| {
                let of_trouble = trouble.unwrap_or(interrupt);
                [(shown, interrupt), (wrong, of_trouble)]
            });
            let mut routed = msix.route(vectors::PORT, &trouble.unwrap_or(interrupt));
            for (vector, interrupt) in routes {
                routed &= msix.route(vector, &interrupt);
            }
            if routed {
                return Signal { interrupt: Some(interrupt), trouble, by_vectors: true, ..none };
            }
        }
        let interrupt = function.route_msi(&interrupt).then_some(interrupt);
        Signal { interrupt, ..none }
    }

    /// Tells the device how it may interrupt.
    pub fn apply(&self, registers: &Tsi721Registers) {
        let (device, channels) = match (&self.interrupt, self.by_vectors) {
            (None, _) => (0, 0),
            (Some(_), true) => (DEVICE_ERRORS, 0),
            (Some(_), false) => (0, u32::MAX),
        };
        registers.write(CHANNEL_ENABLE, channels);
        registers.write(EM_DEVICE_ENABLE, 1);
        registers.write(DEVICE_ENABLE, device);
    }

    fn is_switched(&self) -> bool {
        self.interrupt.is_some() && !self.by_vectors
    }

    /// Before a halt, when channels are armed; `armed` if that took a write. All writes have arrived at the device then,
    /// so that what memory does not show from now on interrupts.
    pub fn arm(&mut self, armed: bool, registers: &Tsi721Registers) {
        if self.is_switched() {
            self.is_on = true;
            registers.write(DEVICE_ENABLE, DEVICE_ALL);
        }
        if armed || self.is_on {
            registers.read(DEVICE_STATUS);
        }
    }

    /// After a halt.
    pub fn disarm(&mut self, registers: &Tsi721Registers) {
        if core::mem::take(&mut self.is_on) {
            registers.write(DEVICE_ENABLE, 0);
        }
    }

    /// Whether it can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Interrupts so far.
    pub fn count(&self) -> u64 {
        raised(&self.interrupt) + raised(&self.trouble)
    }

    /// Those of errors and port-writes, where they have their own.
    pub fn troubles(&self) -> Option<u64> {
        self.trouble.as_ref().map(|_| raised(&self.trouble))
    }
}

fn raised(interrupt: &Option<Interrupt>) -> u64 {
    interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
}

/// Sees to it that the capability says where the table is; false if it says something else.
fn place_table(function: &Function<'_>) -> bool {
    let is_placed = || function.read32(TABLE) == TABLE_AT && function.read32(PENDING) == PENDING_AT;
    if !function.capabilities().any(|c| c.id == 0x11 && c.offset == TABLE - 4) {
        return false;
    }
    if !is_placed() {
        function.write_own32(OwnRegister::TSI721_UNLOCK, 1);
        function.write_own32(OwnRegister::TSI721_TABLE, TABLE_AT);
        function.write_own32(OwnRegister::TSI721_PENDING, PENDING_AT);
        function.write_own32(OwnRegister::TSI721_UNLOCK, 0);
    }
    is_placed()
}

/// Vectors of channels: of what memory shows, and of errors.
fn used_vectors() -> impl Iterator<Item = [u16; 2]> {
    let mailboxes = (0..4).flat_map(|n| [vectors::outbound(n), vectors::inbound(n)]);
    let channels = [block_dma::MAINTENANCE_CHANNEL, block_dma::DATA_CHANNEL];
    let channels = channels.into_iter().map(registers::vectors::block_dma);
    mailboxes.chain(channels).chain([vectors::DOORBELLS])
}
