//! Simulations: nodes with the real engines on a simulated network ([`netsim`]), in virtual time and from one seed,
//! with checkers of the results.

pub mod mirror;
pub mod roce;
pub mod storage;
