//! usNIC: reliable datagrams over UDP, as Open MPI's `btl/usnic` speaks them.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod blocks;
mod engine;
mod id_map;
mod wheel;
pub mod wire;

pub use engine::*;
