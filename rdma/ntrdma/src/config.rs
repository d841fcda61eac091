//! Configuration of a provider.

use super::layout::Layout;
use core::net::IpAddr;
use core::time::Duration;

/// The provider's identity, sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// EUI-64 of this machine.
    pub guid: u64,
    /// Local address for the connection manager. It is only a name, because there is one peer.
    pub local: IpAddr,
    /// Address of the peer for the connection manager.
    pub peer: IpAddr,
    /// Layout of the local exposed memory.
    pub layout: Layout,
    /// Bytes of the ring for Ethernet frames from the peer, a power of two from 4 KiB to 16 MiB; 0
    /// for none.
    pub frames: u32,
    /// Most protection domains.
    pub pds: usize,
    /// Most completion queues.
    pub cqs: usize,
    /// Most memory regions (up to 65536).
    pub regions: usize,
    /// Most keys of memory regions.
    pub keys: usize,
    /// Most work requests in a send or receive queue.
    pub wr: u32,
    /// Most connections, established and pending.
    pub connections: usize,
    /// Interval of heartbeats.
    pub beat: Duration,
    /// Time without a heartbeat of the peer until the link goes down.
    pub lost: Duration,
}

impl Config {
    /// Default sizes and times, for these addresses.
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
