//! Interrupts of a chip, which wake a halted core: MSI-X, MSI if the function has no MSI-X, or the legacy line if the
//! chip may have no other. They are enabled in the chip, and only before a halt; the table's entries are never masked.

use super::chip::Mode;
use crate::hal::{Interrupt, Platform};
use crate::pci::{Bars, Function, Msix};
use core::sync::atomic::Ordering;

/// Number of vectors of a pair of queues: receive, transmit.
const VECTORS: u16 = 2;

/// Source of interrupts.
enum Source {
    /// None: the loop has to poll.
    None,
    Msix(Msix),
    Msi,
    /// The legacy line. The chip asserts it as long as an enabled cause is pending; the machine sees the edge.
    Line,
}

/// The interrupt of a chip.
pub struct Signal {
    source: Source,
    interrupt: Option<Interrupt>,
    /// The pair's first vector.
    first: u16,
}

impl Signal {
    /// Allocates an interrupt of the platform and routes the function's to it. Without one, the chip raises none.
    pub fn open(
        function: &Function<'_>,
        bars: &Bars,
        may_need_line: bool,
        platform: &mut dyn Platform,
    ) -> Signal {
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
        if may_need_line && signal.interrupt.is_none() {
            signal.interrupt = function.allow_line().and_then(|line| platform.route_line(line));
            signal.source = if signal.wakes() { Source::Line } else { Source::None };
        }
        signal
    }

    /// Interrupts of a further pair of queues, not routed yet. None if the function has no vectors for it.
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

    /// Routes the interrupts to `interrupt`; false if that fails.
    pub fn route(&mut self, function: &Function<'_>, interrupt: &Interrupt) -> bool {
        let routed = match &mut self.source {
            // The machine has routed the line to the core of the set-up.
            Source::None | Source::Line => false,
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

    /// Routes the interrupts as before, after the function has lost its settings.
    pub fn restore(&mut self, function: &Function<'_>) {
        match (&self.source, self.interrupt) {
            (Source::Line, _) => _ = function.allow_line(),
            (_, Some(interrupt)) => _ = self.route(function, &interrupt),
            (_, None) => {}
        }
    }

    /// The mode for [`super::chip::Setup`].
    pub fn mode(&self) -> Mode {
        match self.source {
            Source::Msix(_) => Mode::Msix,
            Source::None | Source::Msi | Source::Line => Mode::Msi,
        }
    }

    /// Whether the chip can wake a halted core.
    pub fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    /// Number of interrupts raised.
    pub fn count(&self) -> u64 {
        self.interrupt.map_or(0, |interrupt| interrupt.raised().load(Ordering::Relaxed))
    }
}
