//! Simulations: nodes with the real engines on a simulated network ([`netsim`]), in virtual time and
//! from one seed, and checkers that know what must come out.

pub mod mirror;
pub mod roce;
pub mod storage;
