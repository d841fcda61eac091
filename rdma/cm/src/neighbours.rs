//! The next hops to hosts, from the control plane's neighbour tables (ARP, neighbour discovery, the gateway's entry),
//! and the messages that wait for them. A frame proves neither its source address nor its source MAC address. So an
//! answer goes to the MAC address in the table, as with Linux (`ib_resolve_unicast_gid_dmac`), and a message that
//! another station sends in a host's name is dropped.

use super::receive::Arrival;
use super::table::Host;
use super::wire::mad;
use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::foreign::Reported;

/// Most hosts that are remembered.
const MAX_KNOWN: usize = 1024;
/// Age at which an answer expires: the table keeps its entries for a minute, and a host may move.
const FRESH: Duration = Duration::from_secs(20);
/// Age up to which an answer counts against a frame with another MAC address: later the host may have moved.
const RECENT: Duration = Duration::from_secs(1);
/// Most messages that wait for an answer, in total and from one MAC address. A router forwards for many hosts.
const MAX_HELD: usize = 256;
const MAX_HELD_PER_MAC: usize = 64;
/// Longest wait of a message: the table sends three requests, a second apart.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Most hosts that the control plane has not been asked to resolve yet.
const MAX_WANTED: usize = 256;
/// Most recent requests that are remembered, and time between two requests for a host.
const MAX_REQUESTED: usize = 256;
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// The next hop to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// Whether the next hop is a router. The host's packets may come through another router.
    pub routed: bool,
}

impl NextHop {
    /// Whether a frame from this source MAC address (if the device reports it) may be from the host.
    pub fn fits(&self, mac: Option<[u8; 6]>) -> bool {
        self.routed || mac.is_none_or(|mac| mac == self.mac)
    }
}

#[derive(Debug)]
struct Known {
    next_hop: NextHop,
    /// Time of its first use, from which its age counts.
    at: Option<Instant>,
    /// Whether the entry is permanent.
    pinned: bool,
    /// Number in the order of learning.
    number: u64,
}

#[derive(Debug)]
struct Held {
    arrival: Arrival,
    mad: [u8; mad::LEN],
    since: Instant,
}

/// Decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The message is from the host.
    Genuine(NextHop),
    /// The table has to be asked.
    Unknown,
    /// The table has another MAC address for the host.
    OtherStation(NextHop),
}

/// The known hosts, and the waiting messages.
#[derive(Debug, Default)]
pub struct Neighbours {
    known: BTreeMap<Host, Known>,
    order: BTreeMap<u64, Host>,
    number: u64,
    held: VecDeque<Held>,
    released: VecDeque<Held>,
    wanted: VecDeque<Host>,
    requested: VecDeque<(Host, Instant)>,
    /// Hosts that were reported recently.
    pub reported: Reported,
}

impl Neighbours {
    /// Enters an answer of the table; messages that waited for it are released.
    pub fn learn(&mut self, host: Host, next_hop: NextHop) {
        self.enter(host, next_hop, false);
    }

    /// Adds a permanent entry of a host.
    pub fn pin(&mut self, host: Host, next_hop: NextHop) {
        self.enter(host, next_hop, true);
    }

    fn enter(&mut self, host: Host, next_hop: NextHop, pinned: bool) {
        self.number += 1;
        let number = self.number;
        if let Some(before) = self.known.insert(host, Known { next_hop, at: None, pinned, number })
        {
            self.order.remove(&before.number);
        } else if self.known.len() > MAX_KNOWN
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
        }
        self.order.insert(number, host);
        self.clear_requests(host);
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            let queue =
                if held.arrival.host() == host { &mut self.released } else { &mut self.held };
            queue.push_back(held);
        }
    }

    /// Removes an unreachable host and its waiting messages; returns how many messages are dropped.
    pub fn remove(&mut self, host: Host) -> usize {
        if let Some(before) = self.known.remove(&host) {
            self.order.remove(&before.number);
        }
        self.clear_requests(host);
        let before = self.held.len();
        self.held.retain(|held| held.arrival.host() != host);
        before - self.held.len()
    }

    fn clear_requests(&mut self, host: Host) {
        self.wanted.retain(|one| *one != host);
        self.requested.retain(|(one, _)| *one != host);
    }

    /// The next hop to a host, however old.
    pub fn get(&self, host: Host) -> Option<NextHop> {
        self.known.get(&host).map(|known| known.next_hop)
    }

    /// Decides about a message of a host, from this MAC address.
    pub fn check_sender(&mut self, host: Host, mac: Option<[u8; 6]>, now: Instant) -> Verdict {
        let Some(known) = self.known.get_mut(&host) else { return Verdict::Unknown };
        let (next_hop, age) = (known.next_hop, now.since(*known.at.get_or_insert(now)));
        match next_hop.fits(mac) {
            true if known.pinned || age < FRESH => Verdict::Genuine(next_hop),
            false if known.pinned || age < RECENT => Verdict::OtherStation(next_hop),
            _ => Verdict::Unknown,
        }
    }

    /// Requests the control plane to resolve a host, unless it was requested recently.
    pub fn request(&mut self, host: Host, now: Instant) {
        self.requested.retain(|&(_, at)| now.since(at) < REQUEST_INTERVAL);
        if self.wanted.len() == MAX_WANTED || self.requested.iter().any(|(one, _)| *one == host) {
            return;
        }
        if self.requested.len() == MAX_REQUESTED {
            self.requested.pop_front();
        }
        self.requested.push_back((host, now));
        self.wanted.push_back(host);
    }

    /// The next host that the control plane is to resolve.
    pub fn next_wanted(&mut self) -> Option<Host> {
        self.wanted.pop_front()
    }

    /// Whether any host is to be resolved.
    pub fn wants(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Keeps a message until the table has answered; returns how many messages are dropped for lack of room, or because
    /// they waited too long. If one MAC address has too many waiting messages, the new one is dropped; if there are too
    /// many in total, the oldest is.
    pub fn hold(&mut self, arrival: &Arrival, mad: &[u8], now: Instant) -> usize {
        let before = self.held.len();
        self.held.retain(|held| now.since(held.since) < MAX_WAIT);
        let mut dropped = before - self.held.len();
        let Some(&mad) = mad.first_chunk() else { return dropped + 1 };
        let of_one = self.held.iter().filter(|held| held.arrival.source_mac == arrival.source_mac);
        if of_one.count() >= MAX_HELD_PER_MAC {
            return dropped + 1;
        }
        if self.held.len() == MAX_HELD {
            self.held.pop_front();
            dropped += 1;
        }
        self.held.push_back(Held { arrival: *arrival, mad, since: now });
        self.request(arrival.host(), now);
        dropped
    }

    /// Whether any message is released.
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// The next released message, or an error if it has waited too long.
    pub fn next_released(&mut self, now: Instant) -> Option<Result<(Arrival, [u8; mad::LEN]), ()>> {
        let Held { arrival, mad, since } = self.released.pop_front()?;
        Some(if now.since(since) < MAX_WAIT { Ok((arrival, mad)) } else { Err(()) })
    }
}

/// The MAC address in a link-local GID of RoCEv1. Linux uses no neighbour table there (`rdma_get_ll_mac`), and the host
/// may not have that address.
pub fn mac_of_gid(gid: IpAddr) -> Option<[u8; 6]> {
    let IpAddr::V6(gid) = gid else { return None };
    net::mac_of_link_local(gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::GidType;

    fn host(n: usize) -> Host {
        (0, IpAddr::from([10, 0, (n >> 8) as u8, n as u8]))
    }

    fn next_hop(n: u8) -> NextHop {
        NextHop { mac: [2, 0, 0, 0, 0, n], routed: false }
    }

    fn arrival(n: usize, mac: u8) -> Arrival {
        Arrival {
            place: 0,
            source: host(n).1,
            destination: [10, 1, 0, 1].into(),
            is_mapped: false,
            source_mac: Some(next_hop(mac).mac),
            gid_type: GidType::RoceV2,
            traffic_class: 0,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    const MAD: [u8; mad::LEN] = [0; mad::LEN];

    #[test]
    fn known_hosts_are_bounded_and_the_oldest_is_evicted() {
        let mut neighbours = Neighbours::default();
        (0..MAX_KNOWN).for_each(|n| neighbours.learn(host(n), next_hop(1)));
        neighbours.learn(host(0), next_hop(9));
        neighbours.learn(host(MAX_KNOWN), next_hop(1));
        assert_eq!(neighbours.get(host(0)), Some(next_hop(9)));
        assert_eq!((neighbours.get(host(1)), neighbours.known.len()), (None, MAX_KNOWN));
        assert_eq!(neighbours.order.len(), MAX_KNOWN);
    }

    #[test]
    fn frame_of_another_station_is_refused_while_the_answer_is_recent() {
        let mut neighbours = Neighbours::default();
        assert_eq!(
            neighbours.check_sender(host(1), Some(next_hop(1).mac), at(0)),
            Verdict::Unknown
        );
        neighbours.learn(host(1), next_hop(1));
        let mut check_sender =
            |mac: u8, millis| neighbours.check_sender(host(1), Some(next_hop(mac).mac), at(millis));
        assert_eq!(check_sender(1, 50_000), Verdict::Genuine(next_hop(1)));
        assert_eq!(check_sender(2, 50_500), Verdict::OtherStation(next_hop(1)));
        assert_eq!(check_sender(2, 51_000), Verdict::Unknown, "the host may have moved");
        assert_eq!(check_sender(1, 69_000), Verdict::Genuine(next_hop(1)));
        assert_eq!(check_sender(1, 70_000), Verdict::Unknown);
        let routed = NextHop { routed: true, ..next_hop(1) };
        neighbours.learn(host(1), routed);
        let verdict = neighbours.check_sender(host(1), Some(next_hop(2).mac), at(0));
        assert_eq!(verdict, Verdict::Genuine(routed), "two routers");
    }

    /// A card does not report the MAC address of a message: the table alone decides where the answer goes.
    #[test]
    fn message_without_a_mac_address_waits_for_the_table() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.check_sender(host(1), None, at(0)), Verdict::Unknown);
        neighbours.learn(host(1), next_hop(1));
        assert_eq!(neighbours.check_sender(host(1), None, at(0)), Verdict::Genuine(next_hop(1)));
        assert_eq!(neighbours.check_sender(host(1), None, at(20_000)), Verdict::Unknown, "too old");
        assert_eq!(neighbours.check_sender(host(2), None, at(0)), Verdict::Unknown);
    }

    #[test]
    fn held_messages_are_bounded_in_number_source_and_time() {
        let mut neighbours = Neighbours::default();
        let dropped: usize =
            (0..MAX_HELD_PER_MAC + 5).map(|n| neighbours.hold(&arrival(n, 1), &MAD, at(0))).sum();
        assert_eq!((dropped, neighbours.held.len()), (5, MAX_HELD_PER_MAC));
        assert_eq!(neighbours.wanted.len(), MAX_HELD_PER_MAC);
        for mac in 2..50 {
            (0..20).for_each(|n| _ = neighbours.hold(&arrival(n, mac), &MAD, at(1)));
        }
        assert_eq!(neighbours.held.len(), MAX_HELD);
        assert_eq!(neighbours.hold(&arrival(3, 77), &MAD, at(4000)), MAX_HELD);
        neighbours.learn(host(3), next_hop(77));
        assert!(neighbours.has_released());
        assert_eq!(
            neighbours.next_released(at(8000)),
            Some(Err(())),
            "the message has waited too long"
        );
        assert_eq!(neighbours.next_released(at(8000)), None);
    }

    #[test]
    fn host_is_requested_once_a_second() {
        let mut neighbours = Neighbours::default();
        for (millis, requested) in [(0, 1), (999, 0), (1000, 1), (1500, 0)] {
            neighbours.request(host(1), at(millis));
            let wanted = core::iter::from_fn(|| neighbours.next_wanted());
            assert_eq!(wanted.count(), requested, "{millis} ms");
        }
    }
}
