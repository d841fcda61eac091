//! What the loops of several cores have in common, with several threads: the files of the appliance and of drivers that it
//! is made of are compiled here a second time, alone, so that they can be looked at closely.
//!
//! * [`races`]: with the machine's atomics. `./isthmus test unit` runs it under ThreadSanitizer, which sees
//!   accesses that nothing orders.
//! * [`model`]: with loom's atomics, every order of steps that the memory model allows. A wake-up that is lost is
//!   a deadlock there.
//! * [`queue_line`]: likewise, who touches the rings of a drive's queue when the drive is reset.

extern crate alloc;

pub mod model;
pub mod queue_line;
pub mod races;

/// As the drivers'.
mod hal {
    use core::sync::atomic::AtomicU64;

    /// Has the loop of another core look.
    pub type Wake = Box<dyn Fn() + Send + Sync>;

    static RAISED: AtomicU64 = AtomicU64::new(0);

    /// An interrupt, which is counted.
    pub struct Interrupt;

    impl Interrupt {
        /// How often it was raised.
        pub fn raised(&self) -> &'static AtomicU64 {
            &RAISED
        }
    }
}

/// As the appliance's.
mod machine {
    /// Interrupts a core, from another one.
    pub trait Ipi: Send + Sync {
        /// Ends the halt that the core is in, or the next one if it is about to halt.
        fn ring(&self);
    }
}
