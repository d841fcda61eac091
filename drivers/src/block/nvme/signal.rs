//! How a controller wakes a halted core: MSI-X, or MSI where that is all. It is kept from doing so while the
//! loop runs.

use super::registers::ControllerRegisters;
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// Where interrupts come from.
enum Source {
    /// Nowhere: the loop has to look by itself.
    None,
    /// A vector of MSI-X, which is masked in its table.
    Msix(Msix, u16),
    /// The one vector of MSI, which is masked by the controller (INTMS, INTMC).
    Msi,
}

/// The interrupt of a controller.
pub struct Signal {
    source: Source,
    interrupt: Option<Interrupt>,
    wanted: bool,
}

impl Signal {
    /// Takes one of the platform's interrupts, if there is one left and the function can raise it.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let msix = Msix::open(function, bars, platform);
        let interrupt = platform.allocate_interrupt();
        let mut source = Source::None;
        if let Some(interrupt) = &interrupt {
            source = match msix {
                Some(mut msix) => {
                    // Vector 0 is the admin queue's, which is not waited for, if there is another.
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

    /// The interrupt of another core's queue, by vector `index` of MSI-X; None if the function has no such one.
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

    /// The vector that a completion queue is to raise.
    pub fn vector(&self) -> Option<u16> {
        match self.source {
            Source::None => None,
            Source::Msix(_, vector) => Some(vector),
            Source::Msi => Some(0),
        }
    }

    /// Asks for interrupts, or for none.
    pub fn set(&mut self, wanted: bool, registers: &ControllerRegisters) {
        if wanted != self.wanted {
            self.wanted = wanted;
            self.apply(registers);
        }
    }

    /// Tells the device again, which may have forgotten.
    pub fn apply(&mut self, registers: &ControllerRegisters) {
        match &mut self.source {
            Source::None => {}
            Source::Msix(msix, vector) => msix.set_masked(*vector, !self.wanted),
            Source::Msi => registers.set_interrupts(self.wanted),
        }
    }

    /// What is raised.
    pub fn interrupt(&self) -> Option<Interrupt> {
        self.interrupt
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
