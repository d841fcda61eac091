//! Hardware addresses that datagrams of the data plane go to. The control plane's table of neighbours knows them;
//! it is asked when somebody sends to a peer whose address is not known, or was learnt a while ago.

use super::network::Network;
use core::net::Ipv4Addr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Resolution;

/// How long an address is used until the table is asked again: it keeps its entries for a minute.
const FRESH: Duration = Duration::from_secs(20);
/// How long nobody is asked after a host was not found.
const PATIENCE: Duration = Duration::from_secs(1);

/// The way to one peer.
#[derive(Clone, Copy, Debug)]
struct NextHop {
    /// Place of the port.
    port: usize,
    to: Ipv4Addr,
    mac: Option<[u8; 6]>,
    /// It is a router's: the peer may send through another one.
    routed: bool,
    /// The table is to be asked, or has asked the link and has no answer yet.
    wanted: bool,
    /// When to ask again, if somebody sends.
    due: Instant,
}

/// The ways to all peers.
#[derive(Debug, Default)]
pub(super) struct NextHops {
    list: Vec<NextHop>,
    /// Which was used last.
    last: usize,
    /// Some are wanted that the control plane has not heard of.
    is_news: bool,
}

impl NextHop {
    fn learn(&mut self, mac: [u8; 6], routed: bool, now: Instant) {
        *self = NextHop { mac: Some(mac), routed, wanted: false, due: now + FRESH, ..*self };
    }
}

impl NextHops {
    /// All that are wanted lead there.
    #[cfg(test)]
    pub fn learn_wanted(&mut self, mac: [u8; 6], now: Instant) {
        self.list.iter_mut().filter(|hop| hop.wanted).for_each(|hop| hop.learn(mac, false, now));
    }

    /// Takes the list of those that are sent to. What is known of them stays known.
    pub fn set(&mut self, peers: Vec<(usize, Ipv4Addr)>) {
        let mut list: Vec<NextHop> = Vec::with_capacity(peers.len());
        for (port, to) in peers {
            let is_it = |hop: &&NextHop| hop.port == port && hop.to == to;
            if list.iter().any(|hop| is_it(&hop)) {
                continue;
            }
            let new =
                NextHop { port, to, mac: None, routed: false, wanted: true, due: Instant::ZERO };
            list.push(self.list.iter().find(is_it).copied().unwrap_or(new));
        }
        self.is_news |= list.iter().any(|hop| hop.wanted);
        *self = NextHops { list, last: 0, is_news: self.is_news };
    }

    /// The hardware address that leads to a peer; it is asked for if it is not known, or old.
    #[inline]
    pub fn mac(&mut self, port: usize, to: Ipv4Addr, now: Instant) -> Option<[u8; 6]> {
        let is_it = |hop: &NextHop| hop.port == port && hop.to == to;
        if !self.list.get(self.last).is_some_and(is_it) {
            self.last = self.list.iter().position(is_it)?;
        }
        let hop = self.list.get_mut(self.last)?;
        if now >= hop.due && !hop.wanted {
            hop.wanted = true;
            self.is_news = true;
        }
        hop.mac
    }

    /// Whether what came from a MAC address is from the host that it says: a peer counts only by the address that the
    /// table gives, which is asked again where that is another one. Who is no peer is not known here.
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
        // It may have moved. Once a second is often enough.
        if !hop.wanted && now + FRESH >= hop.due + PATIENCE {
            hop.wanted = true;
            self.is_news = true;
        }
        false
    }

    /// Whether the control plane is to look.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }
}

impl NextHops {
    /// Asks the tables of neighbours for those that are wanted; `own_ports` says which interface is at a place.
    pub fn find(&mut self, own_ports: &[usize], networks: &mut [Network], now: Instant) {
        for hop in self.list.iter_mut().filter(|hop| hop.wanted) {
            let network = own_ports.get(hop.port).and_then(|&port| networks.get_mut(port));
            let Some(network) = network else { continue };
            match network.interface.resolve(hop.to.into(), now) {
                Resolution::Known(mac) => {
                    hop.learn(mac, network.interface.is_routed(hop.to.into()), now);
                }
                // The answer is a frame for the control plane, which looks here again.
                Resolution::Pending => {}
                Resolution::Unreachable | Resolution::NoRoute => {
                    *hop = NextHop { mac: None, wanted: false, due: now + PATIENCE, ..*hop };
                }
            }
        }
    }
}
