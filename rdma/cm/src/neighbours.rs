//! Where hosts are, as the control plane's neighbour tables (ARP, neighbour discovery, the gateway's entry) say, and the
//! messages that wait until it has said so. A frame proves neither its source address nor its source MAC address. So an
//! answer goes where the table says, as with Linux (`ib_resolve_unicast_gid_dmac`), and what another station sends in a
//! host's name is dropped.

use super::receive::Arrival;
use super::table::Host;
use super::wire::mad;
use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Hosts whose place is remembered.
const KNOWN: usize = 1024;
/// How long an answer is used until the table is asked again: it keeps its entries for a minute, and a host may move.
const FRESH: Duration = Duration::from_secs(20);
/// How long an answer stands against a frame with another MAC address: then the host may have moved.
const RECENT: Duration = Duration::from_secs(1);
/// Messages that wait for an answer, and those of them that came from one MAC address. A router forwards for many hosts.
const HELD: usize = 256;
const HELD_OF_ONE: usize = 64;
/// How long a message waits at most: three questions of the table, a second apart.
const PATIENCE: Duration = Duration::from_secs(3);
/// Hosts that the control plane has not been asked for yet.
const WANTED: usize = 256;
/// Questions that are remembered, and how long a host is not asked for again.
const ASKED: usize = 256;
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often a station that uses another host's address is reported; addresses for which that is remembered.
const REPORT: Duration = Duration::from_secs(60);
const REPORTED: usize = 64;

/// The way to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// The next hop is a router. What the host sends may come through another one.
    pub routed: bool,
}

impl Way {
    /// Whether a frame with that source MAC address (if the device reports it) came this way.
    pub fn fits(&self, mac: Option<[u8; 6]>) -> bool {
        self.routed || mac.is_none_or(|mac| mac == self.mac)
    }
}

#[derive(Debug)]
struct Known {
    way: Way,
    /// Since when it counts: its first use, if that has not come yet.
    at: Option<Instant>,
    /// It stays as it is.
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

/// What is to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The host is there, and the message came from there.
    From(Way),
    /// The table is to be asked.
    Unknown,
    /// The host is at another MAC address.
    Elsewhere(Way),
}

/// The hosts, and the messages that wait.
#[derive(Debug, Default)]
pub struct Neighbours {
    known: BTreeMap<Host, Known>,
    order: BTreeMap<u64, Host>,
    number: u64,
    held: VecDeque<Held>,
    released: VecDeque<Held>,
    wanted: VecDeque<Host>,
    asked: VecDeque<(Host, Instant)>,
    reported: VecDeque<(Host, Instant)>,
}

impl Neighbours {
    /// Takes an answer of the table; what waited for it may go on.
    pub fn learn(&mut self, host: Host, way: Way) {
        self.enter(host, way, false);
    }

    /// Enters a host that stays where it is, as a permanent entry of a neighbour table does.
    pub fn pin(&mut self, host: Host, way: Way) {
        self.enter(host, way, true);
    }

    fn enter(&mut self, host: Host, way: Way, pinned: bool) {
        self.number += 1;
        let number = self.number;
        if let Some(before) = self.known.insert(host, Known { way, at: None, pinned, number }) {
            self.order.remove(&before.number);
        } else if self.known.len() > KNOWN
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
        }
        self.order.insert(number, host);
        self.answered(host);
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            let queue =
                if held.arrival.host() == host { &mut self.released } else { &mut self.held };
            queue.push_back(held);
        }
    }

    /// The host cannot be reached: nothing waits for it any more. How many messages are dropped.
    pub fn lose(&mut self, host: Host) -> usize {
        if let Some(before) = self.known.remove(&host) {
            self.order.remove(&before.number);
        }
        self.answered(host);
        let before = self.held.len();
        self.held.retain(|held| held.arrival.host() != host);
        before - self.held.len()
    }

    fn answered(&mut self, host: Host) {
        self.wanted.retain(|one| *one != host);
        self.asked.retain(|(one, _)| *one != host);
    }

    /// The way to a host, of whatever age.
    pub fn get(&self, host: Host) -> Option<Way> {
        self.known.get(&host).map(|known| known.way)
    }

    /// What is to become of a message of a host that came from a MAC address.
    pub fn judge(&mut self, host: Host, mac: Option<[u8; 6]>, now: Instant) -> Verdict {
        let Some(known) = self.known.get_mut(&host) else { return Verdict::Unknown };
        let (way, age) = (known.way, now.since(*known.at.get_or_insert(now)));
        match way.fits(mac) {
            true if known.pinned || age < FRESH => Verdict::From(way),
            false if known.pinned || age < RECENT => Verdict::Elsewhere(way),
            _ => Verdict::Unknown,
        }
    }

    /// Has the control plane asked for a host, unless it was a moment ago.
    pub fn ask(&mut self, host: Host, now: Instant) {
        self.asked.retain(|&(_, at)| now.since(at) < ASK_AGAIN);
        if self.wanted.len() == WANTED || self.asked.iter().any(|(one, _)| *one == host) {
            return;
        }
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((host, now));
        self.wanted.push_back(host);
    }

    /// The next host that the control plane is to ask for.
    pub fn next_wanted(&mut self) -> Option<Host> {
        self.wanted.pop_front()
    }

    /// Whether there is any.
    pub fn wants(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Keeps a message until the table has answered; how many are dropped for want of room, or time. Those that wait
    /// have been asked for: of one station's messages the new one is dropped, of all stations' the oldest.
    pub fn hold(&mut self, arrival: &Arrival, mad: &[u8], now: Instant) -> usize {
        let before = self.held.len();
        self.held.retain(|held| now.since(held.since) < PATIENCE);
        let mut dropped = before - self.held.len();
        let Some(&mad) = mad.first_chunk() else { return dropped + 1 };
        let of_one = self.held.iter().filter(|held| held.arrival.source_mac == arrival.source_mac);
        if of_one.count() >= HELD_OF_ONE {
            return dropped + 1;
        }
        if self.held.len() == HELD {
            self.held.pop_front();
            dropped += 1;
        }
        self.held.push_back(Held { arrival: *arrival, mad, since: now });
        self.ask(arrival.host(), now);
        dropped
    }

    /// Whether messages may go on.
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// The next message that may go on, if it has not waited for too long: an error then.
    pub fn next_released(&mut self, now: Instant) -> Option<Result<(Arrival, [u8; mad::LEN]), ()>> {
        let Held { arrival, mad, since } = self.released.pop_front()?;
        Some(if now.since(since) < PATIENCE { Ok((arrival, mad)) } else { Err(()) })
    }

    /// Whether another station's use of a host's address is to be reported now.
    pub fn reports(&mut self, host: Host, now: Instant) -> bool {
        self.reported.retain(|&(_, at)| now.since(at) < REPORT);
        if self.reported.len() == REPORTED || self.reported.iter().any(|(one, _)| *one == host) {
            return false;
        }
        self.reported.push_back((host, now));
        true
    }
}

/// The MAC address that a link-local GID of RoCEv1 is made of. Linux uses no neighbour table there (`rdma_get_ll_mac`), and
/// the host may lack the address.
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

    fn way(n: u8) -> Way {
        Way { mac: [2, 0, 0, 0, 0, n], routed: false }
    }

    fn arrival(n: usize, mac: u8) -> Arrival {
        Arrival {
            place: 0,
            source: host(n).1,
            destination: [10, 1, 0, 1].into(),
            is_mapped: false,
            source_mac: Some(way(mac).mac),
            gid_type: GidType::RoceV2,
            traffic_class: 0,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    const MAD: [u8; mad::LEN] = [0; mad::LEN];

    #[test]
    fn known_hosts_are_bounded_and_the_oldest_answer_is_forgotten() {
        let mut neighbours = Neighbours::default();
        (0..KNOWN).for_each(|n| neighbours.learn(host(n), way(1)));
        neighbours.learn(host(0), way(9));
        neighbours.learn(host(KNOWN), way(1));
        assert_eq!(neighbours.get(host(0)), Some(way(9)));
        assert_eq!((neighbours.get(host(1)), neighbours.known.len()), (None, KNOWN));
        assert_eq!(neighbours.order.len(), KNOWN);
    }

    #[test]
    fn frame_of_another_station_is_refused_by_a_recent_answer_and_asked_about_after_an_old_one() {
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.judge(host(1), Some(way(1).mac), at(0)), Verdict::Unknown);
        neighbours.learn(host(1), way(1));
        let mut judge = |mac: u8, millis| neighbours.judge(host(1), Some(way(mac).mac), at(millis));
        assert_eq!(judge(1, 50_000), Verdict::From(way(1)));
        assert_eq!(judge(2, 50_500), Verdict::Elsewhere(way(1)));
        assert_eq!(judge(2, 51_000), Verdict::Unknown, "it may have moved");
        assert_eq!(judge(1, 69_000), Verdict::From(way(1)));
        assert_eq!(judge(1, 70_000), Verdict::Unknown);
        let routed = Way { routed: true, ..way(1) };
        neighbours.learn(host(1), routed);
        let verdict = neighbours.judge(host(1), Some(way(2).mac), at(0));
        assert_eq!(verdict, Verdict::From(routed), "two routers");
    }

    #[test]
    fn held_messages_are_bounded_in_number_source_and_time() {
        let mut neighbours = Neighbours::default();
        let dropped: usize =
            (0..HELD_OF_ONE + 5).map(|n| neighbours.hold(&arrival(n, 1), &MAD, at(0))).sum();
        assert_eq!((dropped, neighbours.held.len()), (5, HELD_OF_ONE));
        assert_eq!(neighbours.wanted.len(), HELD_OF_ONE);
        for mac in 2..50 {
            (0..20).for_each(|n| _ = neighbours.hold(&arrival(n, mac), &MAD, at(1)));
        }
        assert_eq!(neighbours.held.len(), HELD);
        assert_eq!(neighbours.hold(&arrival(3, 77), &MAD, at(4000)), HELD);
        neighbours.learn(host(3), way(77));
        assert!(neighbours.has_released());
        assert_eq!(neighbours.next_released(at(8000)), Some(Err(())), "it waited for too long");
        assert_eq!(neighbours.next_released(at(8000)), None);
    }

    #[test]
    fn host_is_asked_for_once_a_second() {
        let mut neighbours = Neighbours::default();
        for (millis, asked) in [(0, 1), (999, 0), (1000, 1), (1500, 0)] {
            neighbours.ask(host(1), at(millis));
            let wanted = core::iter::from_fn(|| neighbours.next_wanted());
            assert_eq!(wanted.count(), asked, "{millis} ms");
        }
    }

    #[test]
    fn foreign_station_is_reported_once_a_minute() {
        let mut neighbours = Neighbours::default();
        let reports = [0, 1, 59_999, 60_000].map(|millis| neighbours.reports(host(1), at(millis)));
        assert_eq!(reports, [true, false, false, true]);
    }
}
