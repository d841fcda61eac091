//! What verbs providers share: protection domains and keys with their one check ([`memory`]), memory on demand
//! ([`pool`]), receive and completion queues, tables of objects, timers, scatter/gather lists, and listening ports.
//!
//! # Timers
//!
//! Deadlines of queue pairs and connections are in heaps ([`timers`]). Nearly every packet postpones one, and few expire.
//! So an object stays where it is, and is asked for its deadline when its old time has come: postponing costs a
//! comparison. Before a halt the first entry is moved to its present place, so that a postponed timer does not end the
//! halt.
//!
//! # Memory on demand
//!
//! A provider has a pool ([`pool`], a buddy allocator). A region of chunks gets memory with the WRITE that begins in a
//! chunk, until its owner returns it. A WRITE that finds none gets an RNR NAK. Only bytes that were written since are
//! returned.
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
