//! The interface to the machine that the appliance runs on. The image implements it on Hermit, host tests on plain
//! memory.

use crate::console::Line;
use crate::crash::Header;
use drivers::hal::CrashWriter;
use drivers::hal::{Instant, Interrupt};

/// The core that a loop runs on.
pub trait Core {
    /// Monotonic time, the same on every core.
    fn now(&self) -> Instant;

    /// Halts until the next interrupt (of a device, an [`Ipi`], the serial port) or `deadline`, whichever is first, or
    /// less. An interrupt since the last halt ends this one at once, so no wake-up between the caller's last check for
    /// work and the halt is lost.
    fn halt_until(&mut self, deadline: Option<Instant>);
}

/// The machine, for the loop on its first core.
pub trait Machine: Core + Line {
    /// An IPI that ends a halt of this core.
    fn ipi(&self) -> Box<dyn Ipi>;

    /// Seconds since 1970-01-01 UTC by the machine's real-time clock, for log stamps.
    fn unix_seconds(&self) -> u64;

    /// Powers the machine off. Tests see `code`.
    fn power_off(&mut self, code: u8) -> !;

    /// Whether the power button was pressed since the last call.
    fn power_button(&mut self) -> bool {
        false
    }

    /// Sets the place on disk of the next panic's record, if there is one, and the header of the last record.
    fn keep_crashes(&mut self, last: Option<Header>, place: Option<CrashPlace>);

    /// Restarts the machine.
    fn reboot(&mut self) -> !;
}

/// Place of a panic's record on disk.
pub struct CrashPlace {
    /// The disk, ready for one write.
    pub disk: Box<dyn CrashWriter>,
    /// First sector of the record.
    pub sector: u64,
}

/// Interrupts a core, from another one.
pub trait Ipi: Send + Sync {
    /// Ends the present halt of the core, or the next one.
    fn ring(&self);
}

/// A device that resets the machine unless its timer is restarted.
pub trait Watchdog {
    /// Linux's name of its driver.
    fn name(&self) -> &'static str;

    /// Starts it. It resets the machine if its timer is not restarted for `seconds`, or up to twice as long.
    fn start(&mut self, seconds: u16);

    /// Restarts its timer.
    fn see_to(&mut self);

    /// Stops it.
    fn stop(&mut self);
}

/// Work that runs on a core.
pub type Work = Box<dyn FnOnce(Box<dyn Core>) + Send>;

/// A core without work yet.
pub trait SpareCore {
    /// Allocates an interrupt for a device of this core. None if none is left.
    fn interrupt(&mut self) -> Option<Interrupt>;

    /// An IPI that ends a halt of this core.
    fn ipi(&self) -> Box<dyn Ipi>;

    /// Runs `work` on the core. It never returns.
    fn start(self: Box<Self>, work: Work);
}
