//! A RapidIO network: end points and switches, links, and packets on their way (RapidIO 2.2 parts 1 to 3). Everything
//! arrives at once and in order, or not at all; what links and switches do wrong is said from outside.
//!
//! Not modelled: priorities and flow control of links, ackIDs, multicast, packets damaged on their way.

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

/// The register that says whose a device is: free, it takes any value; the owner's own value frees it.
fn lock(register: u32, value: u32) -> u32 {
    const FREE: u32 = 0xffff;
    match register {
        FREE => value & 0xffff,
        owner if owner == value & 0xffff => FREE,
        owner => owner,
    }
}
