//! What a provider is made with.

use super::layout::Layout;
use core::net::IpAddr;
use core::time::Duration;

/// The provider's identity, sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// EUI-64 of this machine.
    pub guid: u64,
    /// Addresses by which the connection manager names us and the peer. They are names only: there
    /// is one peer.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// How our exposed memory is divided.
    pub layout: Layout,
    /// Bytes of the ring for Ethernet frames from the peer, a power of two from 4 KiB to 16 MiB; 0
    /// for none.
    pub frames: u32,
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Memory regions (at most 65536).
    pub regions: usize,
    /// Keys of memory regions.
    pub keys: usize,
    /// Work requests in a send or receive queue.
    pub wr: u32,
    /// Connections, made and being made.
    pub connections: usize,
    /// How often the peer is shown that we are alive.
    pub beat: Duration,
    /// After so long without a sign of life the peer is gone.
    pub lost: Duration,
}

impl Config {
    /// Usual sizes and times, for these addresses.
    pub fn new(guid: u64, local: IpAddr, peer: IpAddr) -> Self {
        Config {
            guid,
            local,
            peer,
            layout: Layout::default(),
            frames: 0,
            pds: 256,
            cqs: 1024,
            regions: 1 << 16,
            keys: 1 << 16,
            wr: 4096,
            connections: 256,
            beat: Duration::from_millis(10),
            lost: Duration::from_millis(100),
        }
    }
}
