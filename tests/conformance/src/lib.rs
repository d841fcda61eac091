//! What every verbs provider has to do: a case for each promise of [`verbs`], which runs on any two
//! devices that reach each other ([`Fixture`]).
//!
//! A provider of hardware does late what software does at once: it is asked to change the state of a
//! queue pair, or a key, and says when it has; completions come in batches; what was destroyed is let go
//! of later. Cases therefore wait for what is promised, and rely on nothing that happens to be so at
//! once. [`late::Late`] makes any provider behave like that.
//!
//! [`wrong::Wrong`] breaks one promise of a provider. Each case has to fail with one of them
//! (`tests/wrong.rs`), so that a case which sees nothing is found.
//!
//! A new provider is a new fixture and a line in `tests/providers.rs`.

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
