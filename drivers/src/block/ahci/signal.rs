//! The interrupt of a controller, by MSI: one message for all ports. Each port enables its own causes before its loop
//! halts.

use crate::hal::{Interrupt, Platform};
use crate::pci::Function;
use core::sync::atomic::Ordering;

/// The interrupt that all ports of a controller share.
#[derive(Clone, Copy)]
pub struct Signal {
    function: Function<'static>,
    interrupt: Option<Interrupt>,
}

impl Signal {
    /// Allocates an interrupt of the platform, if one is left and the function has MSI.
    pub fn open(function: Function<'static>, platform: &mut dyn Platform) -> Signal {
        let interrupt = platform.allocate_interrupt();
        let interrupt = interrupt.filter(|interrupt| function.route_msi(interrupt));
        Signal { function, interrupt }
    }

    /// Routes the interrupt again, after the function has lost its configuration.
    pub fn restore(&self) {
        if let Some(interrupt) = &self.interrupt {
            self.function.route_msi(interrupt);
        }
    }

    /// Whether the controller can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Number of interrupts so far, of all ports.
    pub fn count(&self) -> u64 {
        self.interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
    }
}
