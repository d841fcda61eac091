//! Cache of next-hop MAC addresses for datagrams of the data plane. They come from the control plane's neighbour table,
//! which is queried when a datagram is sent to a peer whose address is unknown or stale.

use super::network::Network;
use core::net::Ipv4Addr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;
use net::foreign::{ForeignFrame, Reported};
use net::refusal::Refusals;

/// How long an address is used before the table is queried again. The table keeps its entries for a minute.
const FRESH: Duration = Duration::from_secs(20);
/// Wait before the next query after a host was not found.
const PATIENCE: Duration = Duration::from_secs(1);

/// Next hop to a peer.
#[derive(Clone, Copy, Debug)]
struct NextHop {
    /// Index of the port.
    port: usize,
    to: Ipv4Addr,
    mac: Option<[u8; 6]>,
    /// The address is a router's. The peer may send through another router.
    routed: bool,
    /// A query is due, or the table waits for an answer from the network.
    wanted: bool,
    /// When the next datagram causes a query.
    due: Instant,
    /// MAC address of a datagram with the peer's address that came from elsewhere since the last answer.
    foreign: Option<[u8; 6]>,
}

/// Next hops of all peers.
#[derive(Debug, Default)]
pub(super) struct NextHops {
    list: Vec<NextHop>,
    /// Index of the entry that was used last.
    last: usize,
    /// The control plane has new queries to do.
    has_queries: bool,
    /// Reports of stations that use the address of a peer.
    pub refusals: Refusals,
    reported: Reported,
}

impl NextHop {
    /// Takes an answer of the table. Returns the frame of another station, if there was one since the last answer.
    fn learn(&mut self, mac: [u8; 6], routed: bool, now: Instant) -> Option<ForeignFrame> {
        let foreign = self.foreign.take().filter(|is| !routed && *is != mac);
        *self = NextHop { mac: Some(mac), routed, wanted: false, due: now + FRESH, ..*self };
        let is = foreign?;
        let (host, asked) = ((self.port, self.to.into()), format!("port {}", self.port));
        Some(ForeignFrame { what: "udp_datagram", asked, host, is, says: mac })
    }
}

impl NextHops {
    /// Resolves all pending queries to `mac`.
    #[cfg(test)]
    pub fn learn_wanted(&mut self, mac: [u8; 6], now: Instant) {
        for hop in self.list.iter_mut().filter(|hop| hop.wanted) {
            if let Some(foreign) = hop.learn(mac, false, now) {
                foreign.note(&mut self.refusals, &mut self.reported, now);
            }
        }
    }

    /// Replaces the list of peers. Peers that stay keep their addresses.
    pub fn set(&mut self, peers: Vec<(usize, Ipv4Addr)>) {
        let mut list: Vec<NextHop> = Vec::with_capacity(peers.len());
        for (port, to) in peers {
            let is_it = |hop: &&NextHop| hop.port == port && hop.to == to;
            if list.iter().any(|hop| is_it(&hop)) {
                continue;
            }
            let new = NextHop {
                port,
                to,
                mac: None,
                routed: false,
                wanted: true,
                due: Instant::ZERO,
                foreign: None,
            };
            list.push(self.list.iter().find(is_it).copied().unwrap_or(new));
        }
        self.has_queries |= list.iter().any(|hop| hop.wanted);
        (self.list, self.last) = (list, 0);
    }

    /// The next-hop MAC address of a peer. Queries it if it is unknown or stale.
    #[inline]
    pub fn mac(&mut self, port: usize, to: Ipv4Addr, now: Instant) -> Option<[u8; 6]> {
        let is_it = |hop: &NextHop| hop.port == port && hop.to == to;
        if !self.list.get(self.last).is_some_and(is_it) {
            self.last = self.list.iter().position(is_it)?;
        }
        let hop = self.list.get_mut(self.last)?;
        if now >= hop.due && !hop.wanted {
            hop.wanted = true;
            self.has_queries = true;
        }
        hop.mac
    }

    /// Whether a datagram from a MAC address is accepted: a peer is accepted only at the MAC address of the table. If
    /// the address differs, the table is queried again. Hosts that are not peers are always accepted here.
    #[inline]
    pub fn admits(&mut self, port: usize, from: Ipv4Addr, mac: [u8; 6], now: Instant) -> bool {
        let is_it = |hop: &NextHop| hop.port == port && hop.to == from;
        if !self.list.get(self.last).is_some_and(is_it) {
            let Some(at) = self.list.iter().position(is_it) else { return true };
            self.last = at;
        }
        let Some(hop) = self.list.get_mut(self.last) else { return true };
        if hop.mac.is_some_and(|known| hop.routed || known == mac) {
            return true;
        }
        // The peer may have moved. Query at most once a second.
        hop.foreign = hop.mac.and(Some(mac));
        if !hop.wanted && now + FRESH >= hop.due + PATIENCE {
            hop.wanted = true;
            self.has_queries = true;
        }
        false
    }

    /// Whether the control plane has new queries to do. Resets that.
    pub fn take_queries(&mut self) -> bool {
        core::mem::take(&mut self.has_queries)
    }
}

impl NextHops {
    /// Queries the neighbour tables. `own_ports` has the interface number of each port.
    pub fn resolve(&mut self, own_ports: &[usize], networks: &mut [Network], now: Instant) {
        for hop in self.list.iter_mut().filter(|hop| hop.wanted) {
            let network = own_ports.get(hop.port).and_then(|&port| networks.get_mut(port));
            let Some(network) = network else { continue };
            match network.interface.resolve(hop.to.into(), now) {
                Resolution::Known(mac) => {
                    let routed = network.interface.is_routed(hop.to.into());
                    if let Some(foreign) = hop.learn(mac, routed, now) {
                        foreign.note(&mut self.refusals, &mut self.reported, now);
                    }
                }
                // The answer is a frame for the control plane, which then calls this again.
                Resolution::Pending => {}
                Resolution::Unreachable | Resolution::NoRoute => {
                    *hop = NextHop { mac: None, wanted: false, due: now + PATIENCE, ..*hop };
                }
            }
        }
    }
}
