//! Interrupts of the bridge, which wake a halted core.
//!
//! With MSI-X one interrupt reports arrivals and completions, which memory shows, and another one reports errors and
//! port-writes, which need register reads. With MSI one interrupt reports all. It is enabled and disabled as in Linux:
//! a status bit that is set when it is enabled interrupts.

use super::registers::{
    CHANNEL_ENABLE, DEVICE_ALL, DEVICE_ENABLE, DEVICE_ERRORS, DEVICE_STATUS, EM_DEVICE_ENABLE,
    Tsi721Registers, vectors,
};
use super::{block_dma, registers};
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix, OwnRegister};
use core::sync::atomic::Ordering;

/// Configuration registers that locate the MSI-X table and pending bits.
const TABLE: u16 = OwnRegister::TSI721_TABLE.offset();
const PENDING: u16 = OwnRegister::TSI721_PENDING.offset();
/// Their locations in BAR 0 (Linux `tsi721.h`). The registers have other values after power-up.
const TABLE_AT: u32 = 0x2c000;
const PENDING_AT: u32 = 0x2a000;

/// The interrupts of a bridge.
pub struct Signal {
    interrupt: Option<Interrupt>,
    /// Separate interrupt of errors and port-writes, if there is one.
    errors: Option<Interrupt>,
    /// The table of MSI-X; None with MSI.
    msix: Option<Msix>,
    /// MSI is enabled.
    is_on: bool,
}

impl Signal {
    /// Allocates interrupts of the platform and routes the function's to them. Without any left, the bridge raises
    /// none.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let none = Signal { interrupt: None, errors: None, msix: None, is_on: false };
        let Some(interrupt) = platform.allocate_interrupt() else {
            return none;
        };
        let has_table = place_table(function);
        let msix = has_table.then(|| Msix::open(function, bars, platform)).flatten();
        if let Some(mut msix) = msix.filter(|msix| msix.entries() >= vectors::COUNT) {
            let errors = platform.allocate_interrupt();
            if route_all(&mut msix, interrupt, errors) {
                return Signal { interrupt: Some(interrupt), errors, msix: Some(msix), ..none };
            }
        }
        let interrupt = function.route_msi(&interrupt).then_some(interrupt);
        Signal { interrupt, ..none }
    }

    /// Routes the interrupts again after a reset of the bridge.
    pub fn route_again(&mut self, function: &Function<'_>) {
        let Some(interrupt) = self.interrupt else { return };
        self.is_on = false;
        match &mut self.msix {
            Some(msix) => {
                place_table(function);
                route_all(msix, interrupt, self.errors);
            }
            None => _ = function.route_msi(&interrupt),
        }
    }

    /// Programs the device's interrupt enables.
    pub fn apply(&self, registers: &Tsi721Registers) {
        let (device, channels) = match (&self.interrupt, self.msix.is_some()) {
            (None, _) => (0, 0),
            (Some(_), true) => (DEVICE_ERRORS, 0),
            (Some(_), false) => (0, u32::MAX),
        };
        registers.write(CHANNEL_ENABLE, channels);
        registers.write(EM_DEVICE_ENABLE, 1);
        registers.write(DEVICE_ENABLE, device);
    }

    fn is_msi(&self) -> bool {
        self.interrupt.is_some() && self.msix.is_none()
    }

    /// Enables interrupts before a halt, after the channels were armed; `armed` if that took a register write.
    /// Afterwards all writes have arrived at the device, so that every event which memory does not show yet interrupts.
    pub fn arm(&mut self, armed: bool, registers: &Tsi721Registers) {
        if self.is_msi() {
            self.is_on = true;
            registers.write(DEVICE_ENABLE, DEVICE_ALL);
        }
        if armed || self.is_on {
            registers.read(DEVICE_STATUS);
        }
    }

    /// Disables MSI after a halt.
    pub fn disarm(&mut self, registers: &Tsi721Registers) {
        if core::mem::take(&mut self.is_on) {
            registers.write(DEVICE_ENABLE, 0);
        }
    }

    /// Whether the bridge can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Number of interrupts raised.
    pub fn count(&self) -> u64 {
        raised(&self.interrupt) + raised(&self.errors)
    }

    /// Number of interrupts of errors and port-writes, if these have a separate one.
    pub fn error_count(&self) -> Option<u64> {
        self.errors.as_ref().map(|_| raised(&self.errors))
    }
}

/// Routes all vectors in use; false if that fails.
fn route_all(msix: &mut Msix, interrupt: Interrupt, errors: Option<Interrupt>) -> bool {
    let errors = errors.unwrap_or(interrupt);
    let mut routed = msix.route(vectors::PORT, &errors);
    for [done, error] in used_vectors() {
        routed &= msix.route(done, &interrupt);
        routed &= msix.route(error, &errors);
    }
    routed
}

fn raised(interrupt: &Option<Interrupt>) -> u64 {
    interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
}

/// Programs the location of the MSI-X table into the capability; false if the bridge does not accept it.
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

/// MSI-X vectors of the channels in use: done or received, and errors.
fn used_vectors() -> impl Iterator<Item = [u16; 2]> {
    let mailboxes = (0..4).flat_map(|n| [vectors::outbound(n), vectors::inbound(n)]);
    let channels = [block_dma::MAINTENANCE_CHANNEL, block_dma::DATA_CHANNEL];
    let channels = channels.into_iter().map(registers::vectors::block_dma);
    mailboxes.chain(channels).chain([vectors::DOORBELLS])
}
