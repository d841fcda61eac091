//! What verbs providers have in common: protection domains and keys with their one check, memory on
//! demand, receive queues, tables of objects, and scatter/gather lists.

pub mod memory;
pub mod pool;
pub mod receive_queue;
pub mod sges;
pub mod slots;
