//! Tests of the state that loops of several cores share, with several threads. The files of the appliance and of
//! drivers that implement it are compiled here a second time, on their own, with other atomics.
//!
//! * [`races`]: with the machine's atomics. `./isthmus test unit` runs it under ThreadSanitizer, which reports
//!   unsynchronized accesses.
//! * [`model`]: with loom's atomics, all orders of steps that the memory model allows. A lost wake-up is a deadlock
//!   there.
//! * [`queue_line`]: with loom's atomics, accesses to the rings of a drive's queue across resets of the drive.

extern crate alloc;

pub mod model;
pub mod queue_line;
pub mod races;

/// Stands in for the drivers' `hal`.
mod hal {
    use core::sync::atomic::AtomicU64;

    /// Wakes the loop of another core.
    pub type Wake = Box<dyn Fn() + Send + Sync>;

    static RAISED: AtomicU64 = AtomicU64::new(0);

    /// A counted interrupt.
    pub struct Interrupt;

    impl Interrupt {
        /// Number of times that it was raised.
        pub fn raised(&self) -> &'static AtomicU64 {
            &RAISED
        }
    }
}

/// Stands in for the appliance's `machine`.
mod machine {
    /// Interrupts a core from another one.
    pub trait Ipi: Send + Sync {
        /// Ends the current halt of the core, or its next one if it is about to halt.
        fn ring(&self);
    }
}
