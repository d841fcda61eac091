//! Multicast Listener Discovery, host side: reports the solicited-node groups of our IPv6 addresses. Without reports,
//! switches with MLD snooping do not forward neighbour solicitations to us.
//!
//! Version 2 (RFC 3810 sections 5 and 6), and version 1 (RFC 2710 section 3) for queriers of that version, such as
//! Linux's bridge by default. One simplification: a query is answered at once, for all groups.

use crate::link::Queue;
use crate::messages::{self, solicited_node};
use crate::port_addresses::PortAddresses;
use alloc::collections::BTreeSet;
use core::net::Ipv6Addr;
use smoltcp::wire::{EthernetFrame, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv6Packet, Ipv6Repr};

/// Destination of reports of version 2: all MLDv2 routers.
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

/// Reason for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// We have joined groups.
    Joined,
    /// A query of version 1.
    Query1,
    /// A query of version 2.
    Query2,
}

/// Queues a report about the groups of all these addresses.
pub fn report(local: &PortAddresses, source: Ipv6Addr, occasion: Occasion, queue: &mut Queue) {
    /// Record types: we listen to all sources, or we begin to.
    const MODE_IS_EXCLUDE: u8 = 2;
    const CHANGE_TO_EXCLUDE: u8 = 4;
    let groups: BTreeSet<Ipv6Addr> = local.v6.iter().map(|&ip| solicited_node(ip)).collect();
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

/// Queues a message of `length` bytes to `group`. `fill` writes it without the checksum.
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

/// The version of a query from this link. None if the frame is no query or has a wrong checksum.
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
    // Long enough for the fields read here. smoltcp's length check supports version 2 only.
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
    use std::vec::Vec;

    #[test]
    fn report_has_each_group_once() {
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
    fn version_1_query_gets_a_version_1_report() {
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
    fn malformed_query_is_ignored() {
        assert_eq!(query(&general_query(1, 24)), Some(Occasion::Query1));
        let good = general_query(1, 28);
        assert_eq!(query(&good), Some(Occasion::Query2));
        assert_eq!(query(&general_query(64, 28)), None, "from another link");
        assert_eq!(query(&general_query(1, 26)), None, "length of neither version");
        for at in [20, 54, 55, 62, 64, 70] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(query(&bad), None, "byte {at}");
        }
        for length in 0..good.len() {
            assert_eq!(query(&good[..length]), None);
        }
    }

    /// The query of a Linux 6 bridge with `mcast_querier 1`.
    #[test]
    fn query_of_a_linux_bridge_is_recognised() {
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
