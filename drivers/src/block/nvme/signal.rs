//! Interrupts of a controller, which wake a halted core: MSI-X, or MSI without it. Masked while the loop runs.

use super::registers::ControllerRegisters;
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// Source of interrupts.
enum Source {
    /// No interrupts: the loop has to poll.
    None,
    /// A vector of MSI-X, masked in the MSI-X table.
    Msix(Msix, u16),
    /// The only vector of MSI, masked in the controller's registers (INTMS, INTMC).
    Msi,
}

/// The interrupt of a controller.
pub struct Signal {
    source: Source,
    interrupt: Option<Interrupt>,
    wanted: bool,
}

impl Signal {
    /// Allocates an interrupt of the platform, if one is left and the function can raise it.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let msix = Msix::open(function, bars, platform);
        let interrupt = platform.allocate_interrupt();
        let mut source = Source::None;
        if let Some(interrupt) = &interrupt {
            source = match msix {
                Some(mut msix) => {
                    // Vector 0 is the admin queue's, which is polled. It is used only if there is no other.
                    let vector = u16::from(msix.entries() > 1);
                    let routed = msix.route(vector, interrupt);
                    msix.set_masked(vector, true);
                    if routed { Source::Msix(msix, vector) } else { Source::None }
                }
                None if function.route_msi(interrupt) => Source::Msi,
                None => Source::None,
            };
        }
        let interrupt = interrupt.filter(|_| !matches!(source, Source::None));
        Signal { source, interrupt, wanted: false }
    }

    /// The interrupt of another core's queue, by vector `index` of MSI-X. None if the function has no such vector.
    pub fn of_vector(
        function: &Function<'_>,
        bars: &Bars,
        platform: &mut dyn Platform,
        index: u16,
        interrupt: &mut dyn FnMut() -> Option<Interrupt>,
    ) -> Option<Signal> {
        let mut msix = Msix::one_entry(function, bars, platform, index)?;
        let interrupt = interrupt()?;
        let routed = msix.route(0, &interrupt);
        msix.set_masked(0, true);
        let source = Source::Msix(msix, 0);
        routed.then_some(Signal { source, interrupt: Some(interrupt), wanted: false })
    }

    /// The vector for the completion queue.
    pub fn vector(&self) -> Option<u16> {
        match self.source {
            Source::None => None,
            Source::Msix(_, vector) => Some(vector),
            Source::Msi => Some(0),
        }
    }

    /// Unmasks or masks the interrupt.
    pub fn set(&mut self, wanted: bool, registers: &ControllerRegisters) {
        if wanted != self.wanted {
            self.wanted = wanted;
            self.apply(registers);
        }
    }

    /// Sets the mask again, which the device may have lost in a reset.
    pub fn apply(&mut self, registers: &ControllerRegisters) {
        match &mut self.source {
            Source::None => {}
            Source::Msix(msix, vector) => msix.set_masked(*vector, !self.wanted),
            Source::Msi => registers.set_interrupts(self.wanted),
        }
    }

    /// The platform's interrupt.
    pub fn interrupt(&self) -> Option<Interrupt> {
        self.interrupt
    }

    /// Whether the controller can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Number of interrupts so far.
    pub fn count(&self) -> u64 {
        self.interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
    }
}
