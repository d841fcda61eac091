//! Peers that the appliance offers for measurement: the tools with which operators prove a network.
//!
//! [`rping`] stands alone, and so does [`measure`], by which two appliances measure their bridge.
//! `ibv_rc_pingpong`, perftest and qperf are [`tools::Server`]: each client is a session with memory of
//! its own, and a conversation in which both sides tell their queue pairs, over TCP ([`front`] has the
//! listeners) or over a queue pair. What the tools exchange is in [`pingpong`], [`perftest`] and [`qperf`];
//! what then goes to and fro, in `endpoint`.

mod channel;
mod endpoint;
mod gid;
pub mod ntb_perf;
pub mod perftest;
pub mod pingpong;
pub mod qperf;
pub mod rping;
mod session;
pub mod tcp_control;

#[cfg(test)]
mod tests;
pub mod tools;
mod write_latency;

use core::net::IpAddr;
use drivers::hal::Instant;
use net::{Interface, Resolution};

/// What conversations have to know of the IP interface.
pub trait Neighbours {
    /// The address of ours that a peer at `remote` is to send to: `preferred` if it is of the same
    /// kind (IPv4, IPv6, link-local).
    fn address_towards(&self, remote: IpAddr, preferred: IpAddr) -> Option<IpAddr>;
    /// The next hop to `remote`.
    fn resolve(&mut self, remote: IpAddr, now: Instant) -> Resolution;
}

impl Neighbours for Interface {
    fn address_towards(&self, remote: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        let local = self.local();
        let v4 = local.v4.iter().map(|&ip| IpAddr::V4(ip));
        let v6 = local.v6.iter().map(|&ip| IpAddr::V6(ip));
        let mut fitting = v4.chain(v6).filter(|&ip| kind(ip) == kind(remote));
        if kind(preferred) == kind(remote) { Some(preferred) } else { fitting.next() }
    }

    fn resolve(&mut self, remote: IpAddr, now: Instant) -> Resolution {
        Interface::resolve(self, remote, now)
    }
}

/// Which addresses can talk to each other: IPv4, IPv6, IPv6 link-local.
fn kind(ip: IpAddr) -> (bool, bool) {
    match ip {
        IpAddr::V4(_) => (true, false),
        IpAddr::V6(ip) => (false, ip.is_unicast_link_local()),
    }
}
