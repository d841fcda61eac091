//! usNIC: reliable datagrams over UDP, as Open MPI's `btl/usnic` speaks them.
//!
//! [`Engine`] is all of it: interfaces, endpoints, messages and PUTs, without I/O. [`wire`] has the formats,
//! [`pairing`] says which interfaces of two hosts belong together, and [`Stripe`] uses several.
//!
//! A peer is what is configured: an address, three UDP ports, a first sequence number, and the name by which it
//! calls itself; all of this is in its modex, which goes another way. There is no opening and no end on the wire.
//!
//! Written from facts about Open MPI 4.1.4 and 5.0.8 and from what 4.1.4 does when it is spoken to. Not here: GET,
//! which Open MPI has not either, and MPI's own messages, which are payload.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod blocks;
mod delays;
mod engine;
mod id_map;
pub mod ob1;
pub mod pairing;
mod stripe;
mod table;
mod wheel;
pub mod wire;

pub use engine::*;
pub use stripe::Stripe;
