//! Tests of the provider as a whole.

mod arbitrary;
mod capture;
mod faults;
mod refusals;
mod transport;
mod wire;
