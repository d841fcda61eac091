//! Conformance tests of verbs providers: a case for each promise of [`verbs`], which runs on any two connected devices
//! ([`Fixture`]).
//!
//! Hardware does later what software does at once: it executes commands and key changes with a delay, writes
//! completions in batches, and releases destroyed objects later. So cases wait for promised effects, and do not expect
//! them at once. [`late::Late`] makes any provider behave like that.
//!
//! [`wrong::Wrong`] breaks one promise of a provider. Each case must fail with one of its faults (`tests/wrong.rs`), so
//! a case that checks nothing is found.
//!
//! A new provider needs a fixture and a line in `tests/providers.rs`.

pub mod cases;
pub mod connectx;
pub mod fixture;
pub mod late;
pub mod ntrdma;
pub mod overlay;
pub mod roce;
pub mod world;
pub mod wrong;

pub use cases::{CASES, Case};
pub use fixture::{Fixture, Offers};
pub use world::World;
