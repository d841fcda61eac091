//! Tests of the provider as a whole.

mod arbitrary;
mod asking;
mod capture;
mod claims;
mod claims_of_peers;
mod connections;
mod faults;
mod header_prediction;
mod identity;
mod memory_under_way;
mod ports;
mod refusals;
mod room;
mod scale;
mod shared_acks;
mod small_paths;
mod stations;
mod transport;
mod wire;
mod wrap;
