//! Configuration of a provider.

use alloc::vec::Vec;
use core::net::IpAddr;

/// A port that the provider sends and receives on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its IP addresses; each is a GID.
    pub addresses: Vec<IpAddr>,
    /// Largest layer 3 packet of the device in bytes. The network may allow less ([`Roce::set_mtus`](crate::Roce)).
    pub mtu: usize,
}

/// Limits of the provider. Its tables grow as objects are made, never beyond these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs (at most 2^20).
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory regions (at most 65536).
    pub regions: usize,
    /// Keys of memory regions. Their table is allocated at once, 16 bytes each.
    pub keys: usize,
    /// Work requests in a send or receive queue.
    pub wr: u32,
    /// Connections, established and being made.
    pub connections: usize,
    /// Of these, connections that one host requested; at most half of all. A host is an address at a port, or a /64 in
    /// IPv6.
    pub connections_per_host: usize,
    /// Of these, connections of peers that have not yet proved that they receive; the oldest is evicted. One host has
    /// at most half of them.
    pub half_open: usize,
    /// Unacknowledged packets of a queue pair.
    pub unacknowledged: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            qps: 4096,
            cqs: 1024,
            pds: 256,
            regions: 1 << 16,
            keys: 1 << 16,
            wr: 4096,
            connections: 4096,
            connections_per_host: 1024,
            half_open: 256,
            unacknowledged: 128,
        }
    }
}

impl Limits {
    /// The limits of the connection manager.
    pub(crate) fn cm(&self) -> cm::Limits {
        cm::Limits {
            connections: self.connections,
            connections_per_host: self.connections_per_host,
            half_open: self.half_open,
        }
    }
}
