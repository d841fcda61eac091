//! What the appliance needs of the machine that it runs on. The image implements it on Hermit;
//! host tests implement it on plain memory.

use crate::console::Line;
use crate::crash::Header;
use drivers::hal::CrashWriter;
use drivers::hal::{Instant, Interrupt};

/// A core of the machine, as the loop on it sees it.
pub trait Core {
    /// Monotonic time, the same on every core.
    fn now(&self) -> Instant;

    /// Sleeps until the next interrupt (of a device, of a [`Ipi`], of the serial port) or
    /// `deadline`, whichever comes first, and perhaps not even as long. An interrupt since the last
    /// halt ends this one at once, so that no wake-up is lost to whoever looks for work first.
    fn halt_until(&mut self, deadline: Option<Instant>);
}

/// The machine, as the loop on its first core sees it.
pub trait Machine: Core + Line {
    /// What ends a halt of this core.
    fn ipi(&self) -> Box<dyn Ipi>;

    /// Seconds since 1970-01-01 UTC by the machine's real-time clock, for log stamps.
    fn unix_seconds(&self) -> u64;

    /// Ends everything; tests see `code`.
    fn power_off(&mut self, code: u8) -> !;

    /// Has the next panic's record written to `place`, if there is one, as that after `last`.
    fn keep_crashes(&mut self, last: Option<Header>, place: Option<CrashPlace>);

    /// Starts the machine anew.
    fn reboot(&mut self) -> !;
}

/// Where the record of a panic goes.
pub struct CrashPlace {
    /// The disk, ready for one write.
    pub disk: Box<dyn CrashWriter>,
    /// First sector of the record.
    pub sector: u64,
}

/// Interrupts a core, from another one.
pub trait Ipi: Send + Sync {
    /// Ends the halt that the core is in, or the next one if it is about to halt.
    fn ring(&self);
}

/// A device that resets the machine when nobody sees to it.
pub trait Watchdog {
    /// What Linux calls its driver.
    fn name(&self) -> &'static str;

    /// It resets the machine when it was not seen to for so many seconds, or up to twice as many.
    fn start(&mut self, seconds: u16);

    /// Begins the time anew.
    fn see_to(&mut self);

    /// It resets nothing any more.
    fn stop(&mut self);
}

/// What runs on a core.
pub type Work = Box<dyn FnOnce(Box<dyn Core>) + Send>;

/// A core on which nothing runs yet.
pub trait SpareCore {
    /// An interrupt for a device that this core will own; None when there is none left.
    fn interrupt(&mut self) -> Option<Interrupt>;

    /// What ends a halt of this core.
    fn ipi(&self) -> Box<dyn Ipi>;

    /// Runs `work` there, which never returns.
    fn start(self: Box<Self>, work: Work);
}
