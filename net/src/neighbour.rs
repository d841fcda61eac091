//! Who has which MAC address on a port's link, for the RDMA side (smoltcp keeps its own cache for
//! its sockets, and does not show it).
//!
//! Learnt from ARP (RFC 826) and neighbour discovery (RFC 4861 section 7.2); asked for by the same.
//! Only whoever we asked, or who asks us, gets an entry. No entry is confirmed by traffic: a
//! queue pair keeps the address that it was connected with.

use crate::link::Queue;
use crate::local::{self, Local};
use crate::messages::{self, solicited_node};
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

#[derive(Clone, Copy, Debug)]
enum State {
    Asking { tries: u8, again: Instant },
    Known { mac: [u8; 6], until: Instant },
    Silent { until: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    state: State,
}

impl Entry {
    /// When the entry's state ends.
    fn ends(&self) -> Instant {
        match self.state {
            State::Asking { again, .. } => again,
            State::Known { until, .. } | State::Silent { until } => until,
        }
    }
}

/// The table: bounded, the entry that ends first makes room.
#[derive(Debug)]
pub struct Table {
    entries: Vec<Entry>,
    capacity: usize,
}

impl Table {
    /// A table for `capacity` neighbours.
    pub fn new(capacity: usize) -> Self {
        Table { entries: Vec::with_capacity(capacity), capacity }
    }

    /// Forgets everything (our addresses or the link changed).
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// MAC address of the neighbour `ip`, if it is known at `now`.
    pub fn get(&self, ip: IpAddr, now: Instant) -> Option<[u8; 6]> {
        match self.entries.iter().find(|e| e.ip == ip)?.state {
            State::Known { mac, until } if now < until => Some(mac),
            _ => None,
        }
    }

    /// What is known of the neighbour `ip`; has it asked for if nothing is.
    pub fn resolve(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        let asking = State::Asking { tries: 0, again: now };
        let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) else {
            self.insert(Entry { ip, state: asking });
            return Resolution::Pending;
        };
        match entry.state {
            State::Known { mac, until } if now < until => Resolution::Known(mac),
            State::Silent { until } if now < until => Resolution::Unreachable,
            State::Asking { .. } => Resolution::Pending,
            _ => {
                entry.state = asking;
                Resolution::Pending
            }
        }
    }

    fn insert(&mut self, entry: Entry) {
        if self.entries.len() < self.capacity {
            self.entries.push(entry);
        } else if let Some(oldest) = self.entries.iter_mut().min_by_key(|e| e.ends()) {
            *oldest = entry;
        }
    }

    /// Takes `ip` to be at `mac`. Without `new`, only if we know or look for `ip` already.
    fn learn(&mut self, ip: IpAddr, mac: [u8; 6], new: bool, now: Instant) {
        if local::unicast_mac(mac).is_none() || !local::is_host(ip) {
            return;
        }
        let state = State::Known { mac, until: now + LIFETIME };
        match self.entries.iter_mut().find(|e| e.ip == ip) {
            Some(entry) => entry.state = state,
            None if new => self.insert(Entry { ip, state }),
            None => (),
        }
    }

    /// Learns from the ARP packet in `frame`. Whoever asks for us is going to talk to us.
    pub fn handle_arp(&mut self, frame: &[u8], local: &Local, now: Instant) {
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
    pub fn handle_discovery(&mut self, frame: &[u8], local: &Local, now: Instant) {
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
    pub fn poll(&mut self, now: Instant, local: &Local, queue: &mut Queue) {
        for entry in &mut self.entries {
            let State::Asking { tries, again } = entry.state else { continue };
            if now < again {
                continue;
            }
            if tries == TRIES {
                entry.state = State::Silent { until: now + RETRY };
            } else if queue.is_full() {
                return;
            } else {
                match entry.ip {
                    IpAddr::V4(ip) => ask_v4(ip, local, queue),
                    IpAddr::V6(ip) => ask_v6(ip, local, queue),
                }
                entry.state = State::Asking { tries: tries + 1, again: now + RETRY };
            }
        }
    }

    /// When [`Table::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let asking = |e: &&Entry| matches!(e.state, State::Asking { .. });
        self.entries.iter().filter(asking).map(Entry::ends).min()
    }
}

fn mac_of(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.first_chunk().copied()
}

fn ask_v4(ip: Ipv4Addr, local: &Local, queue: &mut Queue) {
    // The address of ours that shares most leading bits is the one on the neighbour's network.
    let near = |ours: &&Ipv4Addr| (ours.to_bits() ^ ip.to_bits()).leading_zeros();
    let Some(&source) = local.v4.iter().max_by_key(near) else { return };
    messages::push_arp_request(queue, local.mac, source, ip);
}

fn ask_v6(ip: Ipv6Addr, local: &Local, queue: &mut Queue) {
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

    fn local() -> Local {
        Local { mac: [2, 0, 0, 0, 0, 1], v4: [Ipv4Addr::new(10, 0, 0, 1)].into(), v6: [].into() }
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
        assert_eq!(table.entries.len(), 8);
        assert_eq!(table.get(Ipv4Addr::from(0x0a00_0000 + 1000).into(), at(1000)), Some(MAC));
    }
}
