//! What verbs providers have in common: protection domains and keys with their one check, memory on
//! demand, receive and completion queues, tables of objects, timers, scatter/gather lists, and ports that are listened on.
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
