//! The verbs vocabulary, the verbs providers, and the upper-layer protocols that stand on them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod messaging;
pub mod ntrdma;
pub mod perf_responders;
pub mod provider_set;
pub mod relay;
pub mod rnbd;
pub mod roce;
pub mod rtrs;
pub mod smcr;
mod softverbs;
pub mod verbs;
pub mod volume;
