//! Model of a RapidIO network: end points, switches and links (RapidIO 2.2 parts 1 to 3). Packets arrive at once and in
//! order, or not at all. Tests inject the faults of links and switches.
//!
//! Not modelled: priorities and flow control of links, ackIDs, multicast, corrupted packets.

mod board;
mod endpoint;
mod network;
mod packet;
mod switch;
mod topology;

pub use board::{Answer, Board};
pub use endpoint::Endpoint;
pub use network::{End, Network, Shared};
pub use packet::{Kind, Packet, Status};
pub use switch::{Family, Switch};
pub use topology::{BadTopology, Topology};

/// The host lock register: a free one takes any value, and the owner's value frees it.
fn lock(register: u32, value: u32) -> u32 {
    const FREE: u32 = 0xffff;
    match register {
        FREE => value & 0xffff,
        owner if owner == value & 0xffff => FREE,
        owner => owner,
    }
}
