//! The common parts of verbs providers: protection domains and keys with their one check ([`memory`]), memory on demand
//! ([`pool`]), receive and completion queues, tables of objects, scatter/gather lists, and listening ports.
//!
//! ```text
//!    roce   connectx   ntrdma   cm
//!      └───────┴───┬──────┴──────┘
//!                  ▼
//!    memory (keys, the one check) · pool · completion · receive_queue · handle_table · listening
//! ```
//!
//! Invariants:
//!
//! * Only `memory`'s check turns a peer's key, address and length into a window.
//! * An owner sees only bytes that were written since its memory was lent.
//!
//! Tests: `memory/tests.rs`, unit tests beside the parts, `tests/conformance`, mutants (`tests/mutants`).
//!
//! # Memory on demand
//!
//! A provider has a pool ([`pool`], a buddy allocator). A chunk gets memory with the first packet of a WRITE and keeps
//! it until its owner releases it. A WRITE that finds no free memory gets an RNR NAK. Owners see only the bytes that
//! were written since then.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod completion;
pub mod handle_table;
pub mod listening;
pub mod memory;
pub mod pool;
pub mod receive_queue;
pub mod sges;
