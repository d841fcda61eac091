//! The neighbour table of a port: MAC addresses of the hosts on its link, by IP address.
//!
//! Entries are resolved by ARP (RFC 826) and neighbour discovery (RFC 4861 section 7.2), any number at a time, each
//! with its own retries. Only neighbours that we request and neighbours that request us get an entry. Unsolicited
//! claims update existing entries. Entries that only the neighbour requested are evicted before those that we wanted,
//! and never replace one of them.
//!
//! Users of an expired entry continue with its address while it is verified (RFC 4861 section 7.3.3: PROBE). A queue
//! pair keeps the MAC address of its connection setup.

use crate::link::Queue;
use crate::messages::{self, solicited_node};
use crate::port_addresses::{self, PortAddresses};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, Icmpv6Packet, Icmpv6Repr, Ipv6Packet,
    NdiscRepr,
};

/// How long a resolved entry is valid.
const LIFETIME: Duration = Duration::from_secs(60);
/// Interval between two requests (RFC 4861 section 10: RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);
/// Requests before the resolution fails (RFC 4861 section 10: MAX_MULTICAST_SOLICIT).
const TRIES: u8 = 3;

/// Result of [`crate::Interface::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// MAC address of the station, or of the gateway to it.
    Known([u8; 6]),
    /// Resolution is in progress; try again later.
    Pending,
    /// The station has recently not answered.
    Unreachable,
    /// No address or gateway of ours leads to it.
    NoRoute,
}

/// Result of [`Table::hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// MAC address for frames, valid until this time.
    At([u8; 6], Instant),
    /// Resolution is in progress; [`Table::next_settled`] notifies waiters.
    Pending,
    /// The neighbour has recently not answered; it can be requested again at this time.
    Unreachable(Instant),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// `last` is its previous MAC address.
    Resolving {
        tries: u8,
        again: Instant,
        last: Option<[u8; 6]>,
    },
    Known {
        mac: [u8; 6],
        until: Instant,
    },
    Failed {
        until: Instant,
    },
}

impl State {
    /// Expiry of the state.
    fn ends(&self) -> Instant {
        match *self {
            State::Resolving { again, .. } => again,
            State::Known { until, .. } | State::Failed { until } => until,
        }
    }
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// A user of the table wants to reach it.
    wanted: bool,
    /// Waiters: names given by the table's user.
    waiting: Vec<usize>,
}

/// The table. It is bounded: the entry that expires first is evicted, unwanted entries before wanted ones.
#[derive(Debug)]
pub struct Table {
    entries: BTreeMap<IpAddr, Entry>,
    capacity: usize,
    /// Eviction order.
    ends: BTreeSet<(bool, Instant, IpAddr)>,
    /// Entries in resolution, by the time of the next request.
    resolving: BTreeSet<(Instant, IpAddr)>,
    /// Neighbours whose resolution has succeeded or failed, and their waiters.
    settled: VecDeque<(IpAddr, Vec<usize>)>,
    changes: u64,
}

impl Table {
    /// A table for `capacity` neighbours. Memory is allocated per entry.
    pub fn new(capacity: usize) -> Self {
        Table {
            entries: BTreeMap::new(),
            capacity,
            ends: BTreeSet::new(),
            resolving: BTreeSet::new(),
            settled: VecDeque::new(),
            changes: 0,
        }
    }

    /// Number of entries.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all entries, because our addresses or the link changed. Waiters are notified.
    pub fn clear(&mut self) {
        for (ip, entry) in core::mem::take(&mut self.entries) {
            self.settled.push_back((ip, entry.waiting));
        }
        self.ends.clear();
        self.resolving.clear();
        self.changes += 1;
    }

    /// A counter that changes whenever an address returned by [`Table::hop`] becomes invalid.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// MAC address of the neighbour `ip`, if it is known at `now`.
    pub fn get(&self, ip: IpAddr, now: Instant) -> Option<[u8; 6]> {
        match self.entries.get(&ip)?.state {
            State::Known { mac, until } if now < until => Some(mac),
            _ => None,
        }
    }

    /// Whether the neighbour `ip` has recently not answered.
    pub fn is_unreachable(&self, ip: IpAddr, now: Instant) -> bool {
        let state = self.entries.get(&ip).map(|entry| entry.state);
        matches!(state, Some(State::Failed { until }) if now < until)
    }

    /// Resolution state of the neighbour `ip`. Starts its resolution if there is none.
    pub fn resolve(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        match self.want(ip, now) {
            Some(State::Known { mac, .. }) => Resolution::Known(mac),
            Some(State::Failed { .. }) => Resolution::Unreachable,
            Some(State::Resolving { .. }) | None => Resolution::Pending,
        }
    }

    /// MAC address for frames to the neighbour `ip`. Starts its resolution if it is unknown or has expired.
    pub fn hop(&mut self, ip: IpAddr, now: Instant) -> Hop {
        match self.want(ip, now) {
            Some(State::Known { mac, until }) => Hop::At(mac, until),
            Some(State::Resolving { last: Some(mac), again, .. }) => {
                Hop::At(mac, again.max(now + RETRY))
            }
            Some(State::Failed { until }) => Hop::Unreachable(until),
            Some(State::Resolving { last: None, .. }) => Hop::Pending,
            // There is no room in the table.
            None => Hop::Unreachable(now + RETRY),
        }
    }

    /// Registers `who` as waiter: [`Table::next_settled`] returns it when the resolution of `ip` succeeds or fails.
    pub fn wait(&mut self, ip: IpAddr, who: usize) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.waiting.push(who);
        }
    }

    /// The next neighbour whose resolution has succeeded or failed, with its waiters.
    pub fn next_settled(&mut self) -> Option<(IpAddr, Vec<usize>)> {
        self.settled.pop_front()
    }

    /// State of a wanted neighbour. Starts its resolution where necessary. None if there is no room for it.
    fn want(&mut self, ip: IpAddr, now: Instant) -> Option<State> {
        let state = self.entries.get(&ip).map(|entry| (entry.state, entry.wanted));
        let last = match state {
            Some((state @ State::Resolving { .. }, true)) => return Some(state),
            Some((state, true)) if now < state.ends() => return Some(state),
            Some((state @ State::Known { .. }, false)) if now < state.ends() => {
                self.set(ip, state, true);
                return Some(state);
            }
            Some((State::Known { mac, .. }, _)) => Some(mac),
            _ => None,
        };
        let resolving = State::Resolving { tries: 0, again: now, last };
        self.set(ip, resolving, true).then_some(resolving)
    }

    /// Changes the state of an entry, or makes one. False if there is no room.
    fn set(&mut self, ip: IpAddr, state: State, wanted: bool) -> bool {
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.ends.remove(&(entry.wanted, entry.state.ends(), ip));
            self.resolving.remove(&(entry.state.ends(), ip));
            entry.state = state;
            entry.wanted |= wanted;
        } else {
            if self.entries.len() >= self.capacity {
                match self.ends.first().copied() {
                    Some((first, _, oldest)) if wanted || !first => self.forget(oldest),
                    _ => return false,
                }
            }
            self.entries.insert(ip, Entry { state, wanted, waiting: Vec::new() });
        }
        let wanted = self.entries.get(&ip).is_some_and(|entry| entry.wanted);
        self.ends.insert((wanted, state.ends(), ip));
        if let State::Resolving { again, .. } = state {
            self.resolving.insert((again, ip));
        }
        true
    }

    /// Removes an entry. Waiters are notified, and may request it again.
    fn forget(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.remove(&ip) else { return };
        self.ends.remove(&(entry.wanted, entry.state.ends(), ip));
        self.resolving.remove(&(entry.state.ends(), ip));
        if !entry.waiting.is_empty() {
            self.settled.push_back((ip, entry.waiting));
        }
    }

    /// Notifies the waiters of a neighbour.
    fn settle(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.settled.push_back((ip, core::mem::take(&mut entry.waiting)));
        }
    }

    /// Learns that `ip` is at `mac`. Without `new`, only if there is an entry for `ip`.
    fn learn(&mut self, ip: IpAddr, mac: [u8; 6], new: bool, now: Instant) {
        if port_addresses::unicast_mac(mac).is_none() || !port_addresses::is_host(ip) {
            return;
        }
        let before = self.entries.get(&ip).map(|entry| (entry.state, entry.wanted));
        let state = State::Known { mac, until: now + LIFETIME };
        match before {
            Some((before, wanted)) => {
                let moved = match before {
                    State::Known { mac: last, .. } => last != mac,
                    State::Resolving { last, .. } => last.is_some_and(|last| last != mac),
                    State::Failed { .. } => false,
                };
                self.changes += u64::from(moved);
                self.set(ip, state, false);
                // Only wanted neighbours have waiters.
                if wanted && !matches!(before, State::Known { .. }) {
                    self.settle(ip);
                }
            }
            None if new => drop(self.set(ip, state, false)),
            None => (),
        }
    }

    /// Learns from the ARP packet in `frame`. A station that requests our address is going to send to us.
    pub fn handle_arp(&mut self, frame: &[u8], local: &PortAddresses, now: Instant) {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return };
        let Ok(packet) = ArpPacket::new_checked(ethernet.payload()) else { return };
        let Ok(ArpRepr::EthernetIpv4 {
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = ArpRepr::parse(&packet)
        else {
            return;
        };
        if !local.has_v4(source_protocol_addr) {
            let for_us = local.has_v4(target_protocol_addr);
            self.learn(source_protocol_addr.into(), source_hardware_addr.0, for_us, now);
        }
    }

    /// Learns from the neighbour solicitation or advertisement in `frame`.
    pub fn handle_discovery(&mut self, frame: &[u8], local: &PortAddresses, now: Instant) {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return };
        let Ok(ip) = Ipv6Packet::new_checked(ethernet.payload()) else { return };
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let Ok(icmp) = Icmpv6Packet::new_checked(ip.payload()) else { return };
        let checksums = ChecksumCapabilities::default();
        match Icmpv6Repr::parse(&source, &destination, &icmp, &checksums) {
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                target_addr,
                lladdr: Some(mac),
            })) => {
                if let Some(mac) = mac_of(mac.as_bytes()) {
                    self.learn(source.into(), mac, local.has_v6(target_addr), now);
                }
            }
            Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { target_addr, lladdr, .. })) => {
                // The answer to a unicast solicitation may omit the MAC address.
                let mac = match lladdr {
                    Some(mac) => mac_of(mac.as_bytes()),
                    None => Some(ethernet.src_addr().0),
                };
                if let Some(mac) = mac.filter(|_| !local.has_v6(target_addr)) {
                    self.learn(target_addr.into(), mac, false, now);
                }
            }
            _ => (),
        }
    }

    /// Sends requests that are due, while the queue has room.
    pub fn poll(&mut self, now: Instant, local: &PortAddresses, queue: &mut Queue) {
        while let Some(&(again, ip)) = self.resolving.first()
            && again <= now
        {
            let Some(State::Resolving { tries, last, .. }) = self.entries.get(&ip).map(|e| e.state)
            else {
                self.resolving.pop_first();
                continue;
            };
            if tries == TRIES {
                // Its last address becomes invalid.
                self.changes += u64::from(last.is_some());
                self.set(ip, State::Failed { until: now + RETRY }, true);
                self.settle(ip);
            } else if queue.is_full() {
                return;
            } else {
                match ip {
                    IpAddr::V4(ip) => request_v4(ip, local, queue),
                    IpAddr::V6(ip) => solicit_v6(ip, local, queue),
                }
                self.set(ip, State::Resolving { tries: tries + 1, again: now + RETRY, last }, true);
            }
        }
    }

    /// When [`Table::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.resolving.first().map(|&(again, _)| again)
    }
}

fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.first_chunk().copied()
}

fn request_v4(ip: Ipv4Addr, local: &PortAddresses, queue: &mut Queue) {
    // Our address with the longest common prefix is the one on the neighbour's network.
    let near = |ours: &&Ipv4Addr| (ours.to_bits() ^ ip.to_bits()).leading_zeros();
    let Some(&source) = local.v4.iter().max_by_key(near) else { return };
    messages::push_arp_request(queue, local.mac, source, ip);
}

fn solicit_v6(ip: Ipv6Addr, local: &PortAddresses, queue: &mut Queue) {
    let near = |ours: &&Ipv6Addr| (ours.to_bits() ^ ip.to_bits()).leading_zeros();
    let Some(&source) = local.v6.iter().max_by_key(near) else { return };
    let solicitation = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
        target_addr: ip,
        lladdr: Some(EthernetAddress(local.mac).into()),
    });
    messages::push_icmpv6(queue, local.mac, source, solicited_node(ip), &solicitation);
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn local() -> PortAddresses {
        PortAddresses {
            mac: [2, 0, 0, 0, 0, 1],
            v4: [Ipv4Addr::new(10, 0, 0, 1)].into(),
            v6: [].into(),
        }
    }

    #[test]
    fn resolution_fails_after_three_requests_and_can_be_repeated() {
        let (mut table, mut queue) = (Table::new(4), Queue::new(8, 128));
        assert_eq!(table.resolve(IP, at(0)), Resolution::Pending);
        for second in 0..3 {
            assert_eq!(table.poll_timeout(), Some(at(second)));
            table.poll(at(second), &local(), &mut queue);
            assert!(queue.front().is_some_and(|f| f.len() == 42 && f[..6] == [0xff; 6]));
            queue.pop();
        }
        table.poll(at(3), &local(), &mut queue);
        assert!(queue.is_empty());
        assert_eq!(table.resolve(IP, at(3)), Resolution::Unreachable);
        assert_eq!(table.poll_timeout(), None);
        assert_eq!(table.resolve(IP, at(4)), Resolution::Pending);
    }

    #[test]
    fn unsolicited_claim_creates_no_entry_and_entries_expire() {
        let mut table = Table::new(2);
        table.learn(IP, MAC, false, at(0));
        assert_eq!(table.get(IP, at(0)), None);
        table.resolve(IP, at(0));
        table.learn(IP, MAC, false, at(0));
        assert_eq!(table.resolve(IP, at(59)), Resolution::Known(MAC));
        assert_eq!(table.get(IP, at(60)), None);
        table.learn(IP, [0xff; 6], true, at(60));
        assert_eq!(table.get(IP, at(60)), None, "a group address is not learnt");
    }

    #[test]
    fn table_is_bounded() {
        let mut table = Table::new(8);
        for n in 0..1000u32 {
            table.learn(Ipv4Addr::from(0x0a00_0000 + n + 1).into(), MAC, true, at(n as u64));
        }
        assert_eq!((table.entries.len(), table.ends.len()), (8, 8));
        assert_eq!(table.get(Ipv4Addr::from(0x0a00_0000 + 1000).into(), at(1000)), Some(MAC));
    }

    #[test]
    fn requesting_hosts_do_not_evict_wanted_neighbours() {
        let mut table = Table::new(8);
        let ours = |n: u32| IpAddr::from(Ipv4Addr::from(0x0a00_0001 + n));
        for n in 0..4 {
            table.resolve(ours(n), at(0));
            table.learn(ours(n), MAC, false, at(0));
        }
        for n in 1000..100_000 {
            table.learn(ours(n), MAC, true, at(1));
        }
        assert!((0..4).all(|n| table.get(ours(n), at(1)) == Some(MAC)));
        // New wanted neighbours are still requested.
        assert_eq!(table.resolve(ours(4), at(1)), Resolution::Pending);
        for n in 5..50 {
            table.resolve(ours(n), at(1));
        }
        assert_eq!((table.entries.len(), table.ends.len()), (8, 8));
        table.learn(ours(2000), MAC, true, at(1));
        assert_eq!(table.get(ours(2000), at(1)), None, "no room for an unwanted neighbour");
    }

    #[test]
    fn expired_address_is_used_until_its_probes_fail() {
        let (mut table, mut queue) = (Table::new(4), Queue::new(8, 128));
        assert_eq!(table.hop(IP, at(0)), Hop::Pending);
        table.wait(IP, 7);
        table.learn(IP, MAC, false, at(0));
        assert_eq!(table.next_settled(), Some((IP, Vec::from([7]))));
        assert_eq!(table.hop(IP, at(0)), Hop::At(MAC, at(60)));
        assert!(matches!(table.hop(IP, at(60)), Hop::At(MAC, _)));
        let changes = table.changes();
        for second in 60..64 {
            table.poll(at(second), &local(), &mut queue);
        }
        assert_eq!(queue.len(), 3);
        assert!(table.changes() > changes, "users of the address are notified");
        assert_eq!(table.hop(IP, at(63)), Hop::Unreachable(at(64)));
        assert_eq!(table.hop(IP, at(64)), Hop::Pending);
    }

    #[test]
    fn waiters_are_notified_of_failure_and_of_a_new_address() {
        let (mut table, mut queue) = (Table::new(4), Queue::new(8, 128));
        table.hop(IP, at(0));
        table.wait(IP, 1);
        table.wait(IP, 2);
        for second in 0..4 {
            table.poll(at(second), &local(), &mut queue);
        }
        assert_eq!(table.next_settled(), Some((IP, Vec::from([1, 2]))));
        table.hop(IP, at(5));
        table.learn(IP, MAC, false, at(5));
        let changes = table.changes();
        table.learn(IP, [2, 0, 0, 0, 0, 9], false, at(6));
        assert_eq!(table.changes(), changes + 1);
        table.clear();
        assert!(table.changes() > changes + 1 && table.poll_timeout().is_none());
    }
}
