//! The verbs vocabulary, the verbs providers, and the upper-layer protocols that stand on them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod devices;
pub mod messaging;
pub mod ntrdma;
mod parts;
pub mod relay;
pub mod rnbd;
pub mod roce;
pub mod rtrs;
pub mod services;
pub mod smcr;
pub mod verbs;
pub mod volume;
