//! The common parts of verbs providers: protection domains and keys with their one check ([`memory`]), memory on demand
//! ([`pool`]), receive and completion queues, tables of objects, timers, scatter/gather lists, and listening ports.
//!
//! # Timers
//!
//! Deadlines of queue pairs and connections are in heaps ([`timers`]). Nearly every packet postpones one, and few
//! expire. So a heap entry keeps its old time and is checked against the object's deadline when that time comes:
//! postponing costs a comparison. Before a halt the first entry is moved to its present place, so that a postponed
//! timer does not end the halt.
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
pub mod timers;
