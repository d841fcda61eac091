//! Tests of the provider as a whole.

mod arbitrary;
mod capture;
mod connections;
mod expected;
mod faults;
mod ports;
mod refusals;
mod shared_acks;
mod transport;
mod wire;
mod wrap;
