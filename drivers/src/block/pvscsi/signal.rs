//! Interrupt of an adapter, which wakes a halted core: MSI-X, or MSI without it. The adapter's mask enables it before a
//! halt only.

use super::registers::AdapterRegisters;
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// The interrupt of an adapter.
pub struct Signal {
    interrupt: Option<Interrupt>,
    /// The MSI-X table, whose first vector is used.
    _table: Option<Msix>,
    wanted: bool,
}

impl Signal {
    /// Allocates an interrupt of the platform, if one is left and the function can raise it.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let mut table = Msix::open(function, bars, platform);
        let interrupt = platform.allocate_interrupt();
        let interrupt = interrupt.filter(|interrupt| match &mut table {
            Some(table) => table.route(0, interrupt),
            None => function.route_msi(interrupt),
        });
        Signal { interrupt, _table: table, wanted: false }
    }

    /// Enables the interrupt, or disables it.
    pub fn set(&mut self, wanted: bool, registers: &AdapterRegisters) {
        if wanted != self.wanted {
            self.wanted = wanted;
            registers.set_interrupts(wanted);
        }
    }

    /// Whether the adapter can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Number of interrupts so far.
    pub fn count(&self) -> u64 {
        self.interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
    }
}
