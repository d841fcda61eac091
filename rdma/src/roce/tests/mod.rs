//! Tests of the provider as a whole.

mod arbitrary;
mod capture;
mod connections;
mod faults;
mod ports;
mod prediction;
mod refusals;
mod shared_acks;
mod transport;
mod wire;
mod wrap;
