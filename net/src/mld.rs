//! Tells switches that listen in on multicast (MLD snooping) which groups we want: those in which
//! our IPv6 addresses are asked for. Without this, behind such a switch nobody finds us.
//!
//! Multicast Listener Discovery, the host's part: version 2 (RFC 3810 sections 5 and 6), and
//! version 1 (RFC 2710 section 3) towards those who ask in it, as Linux's bridge does unless told
//! otherwise. One simplification: a query is answered at once and about all groups.

use crate::link::Queue;
use crate::messages::{self, solicited_node};
use crate::port_addresses::PortAddresses;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use smoltcp::wire::{EthernetFrame, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv6Packet, Ipv6Repr};

/// Where reports of version 2 go: all routers that speak it.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options: ICMPv6 follows, 8 bytes in all; Router Alert of MLD (RFC 2711), padding.
const HOP_BY_HOP: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// A message of version 1: type, code, checksum, delay, reserved, group.
const VERSION1: usize = 24;
const VERSION1_REPORT: u8 = 131;
/// The shortest query of version 2 (RFC 3810 section 8.1).
const VERSION2_QUERY: usize = 28;
/// A report of version 2: type, code, checksum, reserved, number of records; then these.
const HEADER: usize = 8;
/// Type, auxiliary length, number of sources, group.
const RECORD: usize = 20;

/// Why there is something to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// We listen from now on.
    Joined,
    /// We were asked in version 1.
    Query1,
    /// We were asked in version 2.
    Query2,
}

/// Queues a report about the groups of all these addresses.
pub fn report(local: &PortAddresses, source: Ipv6Addr, occasion: Occasion, queue: &mut Queue) {
    /// Record types: we listen to all sources, and we begin to.
    const MODE_IS_EXCLUDE: u8 = 2;
    const CHANGE_TO_EXCLUDE: u8 = 4;
    // There are a few. Sorting them would be 11 KB of image.
    let mut groups: Vec<Ipv6Addr> = Vec::new();
    for group in local.v6.iter().map(|&ip| solicited_node(ip)) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let record = match occasion {
        Occasion::Query1 => {
            for group in groups {
                push((local.mac, source), group, VERSION1, queue, |icmp| {
                    icmp[0] = VERSION1_REPORT;
                    icmp[8..].copy_from_slice(&group.octets());
                });
            }
            return;
        }
        Occasion::Query2 => MODE_IS_EXCLUDE,
        Occasion::Joined => CHANGE_TO_EXCLUDE,
    };
    push((local.mac, source), ROUTERS, HEADER + groups.len() * RECORD, queue, |icmp| {
        icmp[0] = Icmpv6Message::MldReport.into();
        icmp[7] = groups.len() as u8;
        for (to, group) in icmp[HEADER..].chunks_exact_mut(RECORD).zip(&groups) {
            to[0] = record;
            to[4..].copy_from_slice(&group.octets());
        }
    });
}

/// Queues a message of `length` bytes to `group`; `fill` writes it, less the checksum.
fn push(
    (mac, source): ([u8; 6], Ipv6Addr),
    group: Ipv6Addr,
    length: usize,
    queue: &mut Queue,
    fill: impl FnOnce(&mut [u8]),
) {
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: group,
        next_header: IpProtocol::HopByHop,
        payload_len: HOP_BY_HOP.len() + length,
        hop_limit: 1,
    };
    messages::push_to_group(queue, mac, group, ip.buffer_len() + ip.payload_len, |packet| {
        let mut packet = Ipv6Packet::new_unchecked(packet);
        ip.emit(&mut packet);
        let (options, icmp) = packet.payload_mut().split_at_mut(HOP_BY_HOP.len());
        options.copy_from_slice(&HOP_BY_HOP);
        fill(icmp);
        Icmpv6Packet::new_unchecked(icmp).fill_checksum(&source, &group);
    });
}

/// What the frame asks, if it is a query of this link with a checksum that is right.
pub fn query(frame: &[u8]) -> Option<Occasion> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let from_link = ip.hop_limit() == 1 && source.is_unicast_link_local();
    if ip.next_header() != IpProtocol::HopByHop || !from_link {
        return None;
    }
    let options = ip.payload().first_chunk::<2>()?;
    let length = (usize::from(options[1]) + 1) * 8;
    let icmp = ip.payload().get(length..)?;
    let occasion = match icmp.len() {
        VERSION1 => Occasion::Query1,
        VERSION2_QUERY.. => Occasion::Query2,
        _ => return None,
    };
    // Long enough for what is read here; smoltcp's own check knows version 2 only.
    let icmp = Icmpv6Packet::new_unchecked(icmp);
    let good = options[0] == u8::from(IpProtocol::Icmpv6)
        && icmp.msg_type() == Icmpv6Message::MldQuery
        && icmp.verify_checksum(&source, &destination);
    good.then_some(occasion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port_addresses;
    use crate::testing::{OUR_MAC, PEER_MAC};

    #[test]
    fn a_report_names_each_group_once() {
        let (one, two) = ("fe80::1:2:3".parse().unwrap(), "2001:db8::2:3".parse().unwrap());
        let local = PortAddresses { mac: OUR_MAC, v4: [].into(), v6: [one, two].into() };
        let mut queue = Queue::new(1, 200);
        report(&local, one, Occasion::Joined, &mut queue);
        let frame = queue.front().unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!((ip.hop_limit(), ip.dst_addr()), (1, ROUTERS));
        let icmp = Icmpv6Packet::new_checked(&ip.payload()[8..]).unwrap();
        assert!(icmp.verify_checksum(&ip.src_addr(), &ROUTERS));
        let group: Ipv6Addr = "ff02::1:ff02:3".parse().unwrap();
        let expected = [&[0, 0, 0, 1, 4, 0, 0, 0][..], &group.octets()].concat();
        assert_eq!(ip.payload()[12..], expected, "one record");
    }

    #[test]
    fn whoever_asks_in_version_1_is_answered_in_it() {
        let local = PortAddresses {
            mac: OUR_MAC,
            v4: [].into(),
            v6: [port_addresses::link_local(OUR_MAC)].into(),
        };
        let mut queue = Queue::new(2, 200);
        report(&local, local.v6[0], Occasion::Query1, &mut queue);
        let group = solicited_node(local.v6[0]);
        let frame = queue.front().unwrap();
        let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
        assert_eq!(ip.dst_addr(), group);
        assert_eq!((ip.payload()[8], &ip.payload()[16..]), (131, &group.octets()[..]));
    }

    /// A general query to all nodes, of `length` bytes.
    fn general_query(hop_limit: u8, length: usize) -> Vec<u8> {
        let mut queue = Queue::new(1, 200);
        let querier = (PEER_MAC, port_addresses::link_local(PEER_MAC));
        push(querier, messages::ALL_NODES, length, &mut queue, |icmp| {
            icmp[0] = 130;
            icmp[4..6].copy_from_slice(&10_000u16.to_be_bytes());
        });
        let mut frame: Vec<u8> = queue.front().unwrap().into();
        frame[21] = hop_limit;
        frame
    }

    #[test]
    fn queries_are_told_from_what_only_looks_like_one() {
        assert_eq!(query(&general_query(1, 24)), Some(Occasion::Query1));
        let good = general_query(1, 28);
        assert_eq!(query(&good), Some(Occasion::Query2));
        assert_eq!(query(&general_query(64, 28)), None, "from another link");
        assert_eq!(query(&general_query(1, 26)), None, "of no version");
        for at in [20, 54, 55, 62, 64, 70] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(query(&bad), None, "byte {at}");
        }
        for length in 0..good.len() {
            assert_eq!(query(&good[..length]), None);
        }
    }

    /// What a Linux 6 bridge with `mcast_querier 1` sends.
    #[test]
    fn the_query_of_a_linux_bridge_is_one() {
        let mut frame = std::vec![0; 86];
        let head = [0x33, 0x33, 0, 0, 0, 1, 0x0e, 0xcc, 0x45, 0x46, 0x8a, 0x2e, 0x86, 0xdd];
        frame[..14].copy_from_slice(&head);
        frame[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 0x20, 0, 1]);
        let source: Ipv6Addr = "fe80::4802:c3ff:fe98:44e3".parse().unwrap();
        frame[22..38].copy_from_slice(&source.octets());
        frame[38..54].copy_from_slice(&messages::ALL_NODES.octets());
        frame[54..62].copy_from_slice(&[0x3a, 0, 5, 2, 0, 0, 0, 0]);
        frame[62..68].copy_from_slice(&[0x82, 0, 0x09, 0x9a, 0x27, 0x10]);
        assert_eq!(query(&frame), Some(Occasion::Query1));
    }
}
