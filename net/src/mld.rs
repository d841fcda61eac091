//! Tells switches that listen in on multicast (MLD snooping) which groups we want: those in which
//! our IPv6 addresses are asked for. Without this, behind such a switch nobody finds us.
//!
//! Multicast Listener Discovery version 2, the host's part (RFC 3810 sections 5 and 6), with
//! one simplification: a query is answered at once and about all groups. Does not speak version 1.

use crate::link::Queue;
use crate::local::{self, Local};
use crate::messages::{self, solicited_node};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use smoltcp::wire::{EthernetFrame, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv6Packet, Ipv6Repr};

/// Where reports go: all routers that speak version 2.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options: ICMPv6 follows, 8 bytes in all; Router Alert of MLD (RFC 2711), padding.
const HOP_BY_HOP: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// Type, code, checksum, reserved, number of records.
const HEADER: usize = 8;
/// Type, auxiliary length, number of sources, group.
const RECORD: usize = 20;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// We listen (all sources): the answer to a query.
    ModeIsExclude = 2,
    /// We listen from now on.
    ChangeToExclude = 4,
}

/// Queues a report about the groups of all our addresses.
pub fn report(local: &Local, record: Record, queue: &mut Queue) {
    let mut groups: Vec<Ipv6Addr> = local.v6.iter().map(|&ip| solicited_node(ip)).collect();
    groups.sort_unstable();
    groups.dedup();
    let source = local::link_local(local.mac);
    let icmp_length = HEADER + groups.len() * RECORD;
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: ROUTERS,
        next_header: IpProtocol::HopByHop,
        payload_len: HOP_BY_HOP.len() + icmp_length,
        hop_limit: 1,
    };
    let length = ip.buffer_len() + ip.payload_len;
    messages::push_to_group(queue, local.mac, ROUTERS, length, |packet| {
        let mut packet = Ipv6Packet::new_unchecked(packet);
        ip.emit(&mut packet);
        let (options, icmp) = packet.payload_mut().split_at_mut(HOP_BY_HOP.len());
        options.copy_from_slice(&HOP_BY_HOP);
        icmp[0] = Icmpv6Message::MldReport.into();
        icmp[7] = groups.len() as u8;
        for (to, group) in icmp[HEADER..].chunks_exact_mut(RECORD).zip(&groups) {
            to[0] = record as u8;
            to[4..].copy_from_slice(&group.octets());
        }
        Icmpv6Packet::new_unchecked(icmp).fill_checksum(&source, &ROUTERS);
    });
}

/// Whether the frame is a query of this link, with a checksum that is right.
pub fn is_query(frame: &[u8]) -> bool {
    query(frame).is_some()
}

fn query(frame: &[u8]) -> Option<()> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let from_link = ip.hop_limit() == 1 && source.is_unicast_link_local();
    if ip.next_header() != IpProtocol::HopByHop || !from_link {
        return None;
    }
    let options = ip.payload().first_chunk::<2>()?;
    let length = (usize::from(options[1]) + 1) * 8;
    let icmp = Icmpv6Packet::new_checked(ip.payload().get(length..)?).ok()?;
    let query = options[0] == u8::from(IpProtocol::Icmpv6)
        && icmp.msg_type() == Icmpv6Message::MldQuery
        && icmp.verify_checksum(&source, &destination);
    query.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{OUR_MAC, PEER_MAC};

    #[test]
    fn a_report_names_each_group_once() {
        let (one, two) = ("fe80::1:2:3".parse().unwrap(), "2001:db8::2:3".parse().unwrap());
        let local = Local { mac: OUR_MAC, v4: [].into(), v6: [one, two].into() };
        let mut queue = Queue::new(1, 200);
        report(&local, Record::ChangeToExclude, &mut queue);
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

    /// A general query as Linux's bridge sends it.
    fn general_query(hop_limit: u8) -> Vec<u8> {
        let source = local::link_local(PEER_MAC);
        let ip = Ipv6Repr {
            src_addr: source,
            dst_addr: messages::ALL_NODES,
            next_header: IpProtocol::HopByHop,
            payload_len: 8 + 28,
            hop_limit,
        };
        let mut queue = Queue::new(1, 200);
        messages::push_to_group(&mut queue, PEER_MAC, ip.dst_addr, 40 + 36, |packet| {
            let mut packet = Ipv6Packet::new_unchecked(packet);
            ip.emit(&mut packet);
            let (options, icmp) = packet.payload_mut().split_at_mut(8);
            options.copy_from_slice(&HOP_BY_HOP);
            icmp[0] = 130;
            icmp[4..6].copy_from_slice(&10_000u16.to_be_bytes());
            Icmpv6Packet::new_unchecked(icmp).fill_checksum(&source, &messages::ALL_NODES);
        });
        queue.front().unwrap().into()
    }

    #[test]
    fn queries_are_told_from_what_only_looks_like_one() {
        let good = general_query(1);
        assert!(is_query(&good));
        assert!(!is_query(&general_query(64)), "from another link");
        for at in [20, 54, 55, 62, 64, 70] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(!is_query(&bad), "byte {at}");
        }
        for length in 0..good.len() {
            assert!(!is_query(&good[..length]));
        }
        assert!(!is_query(&[0; 100]));
    }
}
