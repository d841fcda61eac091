//! Who has which MAC address on a port's link, for all that is sent over it.
//!
//! Learnt from ARP (RFC 826) and neighbour discovery (RFC 4861 section 7.2); asked for by the same, as
//! many at a time as are wanted, each with retries of its own. Only whoever we asked, or who asks us,
//! gets an entry; what is claimed unasked changes entries that are there. Who asks us and was never
//! wanted by us gives way to those who were, however many ask.
//!
//! Whoever has an old entry in use goes on with its address while it is asked for anew (RFC 4861
//! section 7.3.3: PROBE). A queue pair keeps the address that it was connected with.

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

/// How long an answer is good for.
const LIFETIME: Duration = Duration::from_secs(60);
/// Between two questions (RFC 4861 section 10: RETRANS_TIMER).
const RETRY: Duration = Duration::from_secs(1);
/// Questions before giving up (RFC 4861 section 10: MAX_MULTICAST_SOLICIT).
const TRIES: u8 = 3;

/// The answer to [`crate::Interface::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The station (or the gateway on the way to it) has this MAC address.
    Known([u8; 6]),
    /// It was asked for; ask again later.
    Pending,
    /// Nobody answered lately.
    Unreachable,
    /// We have no address or gateway from which it could be reached.
    NoRoute,
}

/// What [`Table::hop`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Frames go to this MAC address, and it need not be asked for before then.
    At([u8; 6], Instant),
    /// It was asked for; whoever waits is told by [`Table::next_settled`].
    Asked,
    /// Nobody answered lately; to be asked for again then.
    Silent(Instant),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// `last`: the address that it had before.
    Asking {
        tries: u8,
        again: Instant,
        last: Option<[u8; 6]>,
    },
    Known {
        mac: [u8; 6],
        until: Instant,
    },
    Silent {
        until: Instant,
    },
}

impl State {
    /// When the state ends.
    fn ends(&self) -> Instant {
        match *self {
            State::Asking { again, .. } => again,
            State::Known { until, .. } | State::Silent { until } => until,
        }
    }
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Somebody here wants to reach it.
    wanted: bool,
    /// Who waits for it: names of the table's user.
    waiting: Vec<usize>,
}

/// The table: bounded, the entry that ends first makes room, those that nobody wanted before others.
#[derive(Debug)]
pub struct Table {
    entries: BTreeMap<IpAddr, Entry>,
    capacity: usize,
    /// The order in which entries make room.
    ends: BTreeSet<(bool, Instant, IpAddr)>,
    /// Those that are asked for, and when again.
    asking: BTreeSet<(Instant, IpAddr)>,
    /// Those about whom something became known, and who waited for that.
    settled: VecDeque<(IpAddr, Vec<usize>)>,
    changes: u64,
}

impl Table {
    /// A table for `capacity` neighbours; it takes memory as there are any.
    pub fn new(capacity: usize) -> Self {
        Table {
            entries: BTreeMap::new(),
            capacity,
            ends: BTreeSet::new(),
            asking: BTreeSet::new(),
            settled: VecDeque::new(),
            changes: 0,
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets everything (our addresses or the link changed). Whoever waits is told.
    pub fn clear(&mut self) {
        for (ip, entry) in core::mem::take(&mut self.entries) {
            self.settled.push_back((ip, entry.waiting));
        }
        self.ends.clear();
        self.asking.clear();
        self.changes += 1;
    }

    /// Changes whenever an address that [`Table::hop`] told is not right any more.
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

    /// Whether the neighbour `ip` did not answer lately.
    pub fn is_silent(&self, ip: IpAddr, now: Instant) -> bool {
        let state = self.entries.get(&ip).map(|entry| entry.state);
        matches!(state, Some(State::Silent { until }) if now < until)
    }

    /// What is known of the neighbour `ip`; has it asked for if nothing is.
    pub fn resolve(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        match self.want(ip, now) {
            Some(State::Known { mac, .. }) => Resolution::Known(mac),
            Some(State::Silent { .. }) => Resolution::Unreachable,
            Some(State::Asking { .. }) | None => Resolution::Pending,
        }
    }

    /// Where to send what is for the neighbour `ip`; has it asked for if that is not known, or was
    /// long ago.
    pub fn hop(&mut self, ip: IpAddr, now: Instant) -> Hop {
        match self.want(ip, now) {
            Some(State::Known { mac, until }) => Hop::At(mac, until),
            Some(State::Asking { last: Some(mac), again, .. }) => {
                Hop::At(mac, again.max(now + RETRY))
            }
            Some(State::Silent { until }) => Hop::Silent(until),
            Some(State::Asking { last: None, .. }) => Hop::Asked,
            // There is no room in the table.
            None => Hop::Silent(now + RETRY),
        }
    }

    /// Has [`Table::next_settled`] name `who` when something becomes known of the neighbour `ip`, which
    /// was asked for.
    pub fn wait(&mut self, ip: IpAddr, who: usize) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.waiting.push(who);
        }
    }

    /// A neighbour of whom something became known, be it that it is silent, and who waited for that.
    pub fn next_settled(&mut self) -> Option<(IpAddr, Vec<usize>)> {
        self.settled.pop_front()
    }

    /// The state of a neighbour that is to be reached, asked for where it has to be. None if there is
    /// no room for it.
    fn want(&mut self, ip: IpAddr, now: Instant) -> Option<State> {
        let state = self.entries.get(&ip).map(|entry| (entry.state, entry.wanted));
        let last = match state {
            Some((state @ State::Asking { .. }, true)) => return Some(state),
            Some((state, true)) if now < state.ends() => return Some(state),
            Some((state @ State::Known { .. }, false)) if now < state.ends() => {
                self.set(ip, state, true);
                return Some(state);
            }
            Some((State::Known { mac, .. }, _)) => Some(mac),
            _ => None,
        };
        let asking = State::Asking { tries: 0, again: now, last };
        self.set(ip, asking, true).then_some(asking)
    }

    /// Moves an entry on, or makes one. False if there is no room.
    fn set(&mut self, ip: IpAddr, state: State, wanted: bool) -> bool {
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.ends.remove(&(entry.wanted, entry.state.ends(), ip));
            self.asking.remove(&(entry.state.ends(), ip));
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
        if let State::Asking { again, .. } = state {
            self.asking.insert((again, ip));
        }
        true
    }

    /// Forgets one; whoever waits for it is told, and may ask again.
    fn forget(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.remove(&ip) else { return };
        self.ends.remove(&(entry.wanted, entry.state.ends(), ip));
        self.asking.remove(&(entry.state.ends(), ip));
        if !entry.waiting.is_empty() {
            self.settled.push_back((ip, entry.waiting));
        }
    }

    /// Tells those who wait for a neighbour.
    fn settle(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&ip) {
            self.settled.push_back((ip, core::mem::take(&mut entry.waiting)));
        }
    }

    /// Takes `ip` to be at `mac`. Without `new`, only if we know or look for `ip` already.
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
                    State::Asking { last, .. } => last.is_some_and(|last| last != mac),
                    State::Silent { .. } => false,
                };
                self.changes += u64::from(moved);
                self.set(ip, state, false);
                // Nobody waits for, and nothing was said to, who was never wanted.
                if wanted && !matches!(before, State::Known { .. }) {
                    self.settle(ip);
                }
            }
            None if new => drop(self.set(ip, state, false)),
            None => (),
        }
    }

    /// Learns from the ARP packet in `frame`. Whoever asks for us is going to talk to us.
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
                // An answer to a unicast question may leave its MAC address out.
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

    /// Asks the questions that are due, as far as the queue has room.
    pub fn poll(&mut self, now: Instant, local: &PortAddresses, queue: &mut Queue) {
        while let Some(&(again, ip)) = self.asking.first()
            && again <= now
        {
            let Some(State::Asking { tries, last, .. }) = self.entries.get(&ip).map(|e| e.state)
            else {
                self.asking.pop_first();
                continue;
            };
            if tries == TRIES {
                // What went to its last address goes there no more.
                self.changes += u64::from(last.is_some());
                self.set(ip, State::Silent { until: now + RETRY }, true);
                self.settle(ip);
            } else if queue.is_full() {
                return;
            } else {
                match ip {
                    IpAddr::V4(ip) => ask_v4(ip, local, queue),
                    IpAddr::V6(ip) => ask_v6(ip, local, queue),
                }
                self.set(ip, State::Asking { tries: tries + 1, again: now + RETRY, last }, true);
            }
        }
    }

    /// When [`Table::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.asking.first().map(|&(again, _)| again)
    }
}

fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.first_chunk().copied()
}

fn ask_v4(ip: Ipv4Addr, local: &PortAddresses, queue: &mut Queue) {
    // The address of ours that shares most leading bits is the one on the neighbour's network.
    let near = |ours: &&Ipv4Addr| (ours.to_bits() ^ ip.to_bits()).leading_zeros();
    let Some(&source) = local.v4.iter().max_by_key(near) else { return };
    messages::push_arp_request(queue, local.mac, source, ip);
}

fn ask_v6(ip: Ipv6Addr, local: &PortAddresses, queue: &mut Queue) {
    let near = |ours: &&Ipv6Addr| (ours.to_bits() ^ ip.to_bits()).leading_zeros();
    let Some(&source) = local.v6.iter().max_by_key(near) else { return };
    let question = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
        target_addr: ip,
        lladdr: Some(EthernetAddress(local.mac).into()),
    });
    messages::push_icmpv6(queue, local.mac, source, solicited_node(ip), &question);
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
    fn asks_three_times_then_says_so_then_asks_again() {
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
    fn only_who_was_asked_or_asks_gets_an_entry_and_it_expires() {
        let mut table = Table::new(2);
        table.learn(IP, MAC, false, at(0));
        assert_eq!(table.get(IP, at(0)), None);
        table.resolve(IP, at(0));
        table.learn(IP, MAC, false, at(0));
        assert_eq!(table.resolve(IP, at(59)), Resolution::Known(MAC));
        assert_eq!(table.get(IP, at(60)), None);
        table.learn(IP, [0xff; 6], true, at(60));
        assert_eq!(table.get(IP, at(60)), None, "a group is nobody's address");
    }

    #[test]
    fn is_bounded() {
        let mut table = Table::new(8);
        for n in 0..1000u32 {
            table.learn(Ipv4Addr::from(0x0a00_0000 + n + 1).into(), MAC, true, at(n as u64));
        }
        assert_eq!((table.entries.len(), table.ends.len()), (8, 8));
        assert_eq!(table.get(Ipv4Addr::from(0x0a00_0000 + 1000).into(), at(1000)), Some(MAC));
    }

    #[test]
    fn whoever_asks_us_does_not_push_out_whom_we_want() {
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
        // New ones that we want are asked for all the same.
        assert_eq!(table.resolve(ours(4), at(1)), Resolution::Pending);
        for n in 5..50 {
            table.resolve(ours(n), at(1));
        }
        assert_eq!((table.entries.len(), table.ends.len()), (8, 8));
        table.learn(ours(2000), MAC, true, at(1));
        assert_eq!(table.get(ours(2000), at(1)), None, "there is no room for who was not wanted");
    }

    #[test]
    fn an_old_address_is_used_until_nobody_answers_there() {
        let (mut table, mut queue) = (Table::new(4), Queue::new(8, 128));
        assert_eq!(table.hop(IP, at(0)), Hop::Asked);
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
        assert!(table.changes() > changes, "whoever noted the address is told");
        assert_eq!(table.hop(IP, at(63)), Hop::Silent(at(64)));
        assert_eq!(table.hop(IP, at(64)), Hop::Asked);
    }

    #[test]
    fn who_waits_is_told_of_silence_and_of_a_new_address() {
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
