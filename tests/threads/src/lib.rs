//! What the loops of several cores have in common, with several threads: the files of the appliance that it is made
//! of are compiled here a second time, alone, so that they can be looked at closely.
//!
//! * [`races`]: with the machine's atomics. `./isthmus test unit` runs it under ThreadSanitizer, which sees
//!   accesses that nothing orders.
//! * [`model`]: with loom's atomics, every order of steps that the memory model allows. A wake-up that is lost is
//!   a deadlock there.

pub mod model;
pub mod races;

/// As the appliance's.
mod machine {
    /// Interrupts a core, from another one.
    pub trait Ipi: Send + Sync {
        /// Ends the halt that the core is in, or the next one if it is about to halt.
        fn ring(&self);
    }
}
