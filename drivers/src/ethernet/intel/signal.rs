//! How a chip wakes a halted core: MSI-X, or MSI where that is all. The chip is told to raise interrupts only before a
//! halt; entries of the table are not masked then.

use super::chip::Mode;
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// Vectors that a pair of queues has: what was received, what was sent.
const VECTORS: u16 = 2;

/// Where interrupts come from.
enum Source {
    /// Nowhere: the loop has to look by itself.
    None,
    Msix(Msix),
    Msi,
}

/// The interrupt of a chip.
pub struct Signal {
    source: Source,
    interrupt: Option<Interrupt>,
    /// The pair's first vector.
    first: u16,
}

impl Signal {
    /// Takes one of the platform's interrupts, if there is one left and the function can raise it.
    pub fn open(function: &Function<'_>, bars: &Bars, platform: &mut dyn Platform) -> Signal {
        let msix = Msix::open(function, bars, platform);
        let interrupt = platform.allocate_interrupt();
        let source = match (msix, &interrupt) {
            (_, None) => Source::None,
            (Some(msix), _) => Source::Msix(msix),
            (None, Some(_)) => Source::Msi,
        };
        let mut signal = Signal { source, interrupt: None, first: 0 };
        if let Some(interrupt) = interrupt
            && !signal.route(function, &interrupt)
        {
            signal.source = Source::None;
        }
        signal
    }

    /// That of another pair of queues, which interrupts nobody yet. None if the function has no vectors for it.
    pub fn of_queue(
        &self,
        queue: usize,
        function: &Function<'_>,
        platform: &mut dyn Platform,
    ) -> Option<Signal> {
        let first = VECTORS * queue as u16;
        let Source::Msix(msix) = &self.source else { return None };
        if first + VECTORS > msix.entries() {
            return None;
        }
        let msix = Msix::find(function, &function.bars(), platform)?;
        Some(Signal { source: Source::Msix(msix), interrupt: None, first })
    }

    /// Sends interrupts to this one. False if it cannot.
    pub fn route(&mut self, function: &Function<'_>, interrupt: &Interrupt) -> bool {
        let routed = match &mut self.source {
            Source::None => false,
            Source::Msix(msix) => {
                let end = (self.first + VECTORS).min(msix.entries());
                (self.first..end).all(|vector| msix.route(vector, interrupt))
            }
            Source::Msi => function.route_msi(interrupt),
        };
        if routed {
            self.interrupt = Some(*interrupt);
        }
        routed
    }

    /// How the chip is to be set up.
    pub fn mode(&self) -> Mode {
        match self.source {
            Source::Msix(_) => Mode::Msix,
            Source::None | Source::Msi => Mode::Msi,
        }
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
