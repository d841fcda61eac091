//! The control plane of a port: addresses, neighbours, ping, and the services that operators use.
//!
//! Everything here is an engine: frames and the time come in as arguments, frames go out of a
//! bounded queue ([`Interface::transmit`]); nothing reads a clock or waits. RDMA traffic never
//! passes through: the poll loop looks at each frame once ([`classify`]) and gives the interface
//! only what is neither RoCE nor answered on the spot.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod address_defense;
mod addressing;
pub mod capture;
mod checksum;
mod classify;
mod connections;
pub mod connector;
pub mod datagram;
mod delayed_replies;
mod dhcp;
pub mod echo;
mod filter;
pub mod hosts;
pub mod http;
mod interface;
mod isn;
mod link;
mod listen_table;
mod messages;
pub mod metrics;
mod mld;
mod neighbour;
mod neighbours;
mod outbox;
pub mod ping;
mod port_addresses;
pub mod refusal;
mod routes;
mod segment;
mod slaac;
pub mod smc_option;
mod spent_cookies;
pub mod syslog;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod tls;

pub use addressing::{Addressing, AddressingError};
pub use classify::{Class, classify};
pub use interface::{Counters, Interface};
pub use neighbour::Resolution;
pub use neighbours::Neighbours;
pub use port_addresses::{PortAddresses, is_host, link_local};
pub use smoltcp::wire::IpCidr as Cidr;
