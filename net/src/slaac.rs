//! Stateless address autoconfiguration: router discovery (RFC 4861 section 6.3), addresses from advertised prefixes
//! (RFC 4862 section 5.5), and advertised name servers (RFC 8106). smoltcp's implementation is not used: it panics on impossible prefixes, and its timer does
//! not let a loop halt (see the head of the crate).
//!
//! Not supported: privacy addresses, more specific routes (RFC 4191 section 2.3), the hop limit of a router.
//! [`crate::probes`] detects duplicate addresses.

mod name_servers;
mod prefixes;
mod routers;

use crate::link::Queue;
use crate::messages::push_icmpv6;
use crate::notices::{Notices, Topic};
use crate::port_addresses;
use alloc::format;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::{Instant, Severity};
use name_servers::NameServers;
use prefixes::{Advertised, Prefixes};
use routers::{Preference, Routers};
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, Ipv6Cidr, Ipv6Packet,
    NdiscRepr,
};

/// RFC 4861 section 10.
const MAX_RTR_SOLICITATIONS: u8 = 3;
const RTR_SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Maximum number of addresses from prefixes.
pub const MAX_ADDRESSES: usize = 2;
/// Smallest MTU of an IPv6 link (RFC 8200 section 5).
const SMALLEST_MTU: u32 = 1280;
/// Option types of an advertisement.
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
/// RFC 8106.
const RECURSIVE_DNS_SERVER: u8 = 25;
/// Offset of the flags in an advertisement.
const FLAGS: usize = 5;

/// SLAAC state of a port.
#[derive(Debug)]
pub struct Slaac {
    mac: [u8; 6],
    /// MTU of the card.
    card_mtu: usize,
    solicitations: u8,
    next_solicitation: Instant,
    prefixes: Prefixes,
    routers: Routers,
    name_servers: NameServers,
    /// The announced MTU, and its router.
    mtu: Option<(Ipv6Addr, u32)>,
}

impl Slaac {
    /// Starts to solicit routers at `now`, over a card with this MTU.
    pub fn new(mac: [u8; 6], card_mtu: usize, now: Instant) -> Self {
        Slaac {
            mac,
            card_mtu,
            solicitations: 0,
            next_solicitation: now,
            prefixes: Prefixes::default(),
            routers: Routers::default(),
            name_servers: NameServers::default(),
            mtu: None,
        }
    }

    /// Our addresses, all with prefix length 64.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.prefixes.addresses()
    }

    /// On-link prefixes.
    pub fn on_link(&self) -> impl Iterator<Item = Ipv6Cidr> {
        self.prefixes.on_link()
    }

    /// The default router.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.routers.best()
    }

    /// The name servers that routers advertise.
    pub fn name_servers(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.name_servers.iter()
    }

    /// The IPv6 MTU of this link, and the router that announces it.
    pub fn mtu(&self) -> Option<(Ipv6Addr, usize)> {
        self.mtu.map(|(router, mtu)| (router, mtu as usize))
    }

    /// Restarts the solicitation of routers.
    pub fn solicit(&mut self, now: Instant) {
        (self.solicitations, self.next_solicitation) = (0, now);
    }

    /// Records whether a station answers. True if the default router changes.
    pub fn set_reachable(&mut self, ip: Ipv6Addr, answers: bool, now: Instant) -> bool {
        self.routers.set_reachable(ip, answers, now)
    }

    /// A router whose reachability must be probed.
    pub fn router_to_probe(&mut self, now: Instant) -> Option<Ipv6Addr> {
        self.routers.next_to_probe(now)
    }

    /// Handles a frame with a router advertisement. True if addresses, routers, on-link prefixes, name servers
    /// or the MTU changed.
    pub fn handle_advertisement(
        &mut self,
        frame: &[u8],
        notices: &mut Notices,
        now: Instant,
    ) -> bool {
        self.advertisement(frame, notices, now).unwrap_or(false)
    }

    fn advertisement(&mut self, frame: &[u8], notices: &mut Notices, now: Instant) -> Option<bool> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
        let good = icmp.msg_type() == Icmpv6Message::RouterAdvert
            && icmp.msg_code() == 0
            && icmp.verify_checksum(&source, &destination)
            && source.is_unicast_link_local()
            && are_sound(icmp.payload());
        if !good {
            return None;
        }
        self.solicitations = MAX_RTR_SOLICITATIONS;
        let lifetime = Duration::from_secs(icmp.router_lifetime().secs());
        let preference = Preference::of(*ip.payload().get(FLAGS)?);
        let mut changed = self.routers.advertised(source, lifetime, preference, now);
        let id = port_addresses::eui64(self.mac);
        let mut options = icmp.payload();
        while let [kind, length, ..] = *options {
            let (option, rest) = options.split_at_checked(usize::from(length) * 8)?;
            options = rest;
            match (kind, option.get(2..).unwrap_or_default()) {
                (PREFIX_INFORMATION, value) => {
                    if let Some(prefix) = Advertised::of(value) {
                        changed |= self.prefixes.advertised(prefix, id, now);
                    }
                }
                (MTU, &[_, _, a, b, c, d]) => {
                    let mtu = u32::from_be_bytes([a, b, c, d]);
                    changed |= self.set_mtu(source, mtu, notices, now);
                }
                (RECURSIVE_DNS_SERVER, value) => {
                    changed |= self.name_servers.advertised(value, now);
                }
                _ => {}
            }
        }
        Some(changed)
    }

    /// Records an announced MTU. If two routers disagree, the smaller one is used.
    fn set_mtu(&mut self, router: Ipv6Addr, mtu: u32, notices: &mut Notices, now: Instant) -> bool {
        let card = self.card_mtu;
        if mtu < SMALLEST_MTU || mtu as usize > card {
            notices.report(Topic::RouterMtu, router, Severity::Warning, now, || {
                format!("router {router}: MTU {mtu} is outside {SMALLEST_MTU} to {card}: ignored")
            });
            return false;
        }
        let before = self.mtu;
        if before.is_none_or(|(other, smaller)| other == router || mtu < smaller) {
            self.mtu = Some((router, mtu));
        }
        before.map(|(_, mtu)| mtu) != self.mtu.map(|(_, mtu)| mtu)
    }

    /// Removes expired entries and solicits routers, from the unspecified address while `source` is None. True if
    /// addresses, routers or on-link prefixes changed.
    pub fn poll(&mut self, now: Instant, source: Option<Ipv6Addr>, queue: &mut Queue) -> bool {
        let had_router = self.router().is_some();
        let mut changed = self.prefixes.expire(now);
        changed |= self.routers.expire(now);
        changed |= self.name_servers.expire(now);
        if had_router && self.router().is_none() {
            self.solicit(now);
        }
        if self.soliciting().is_some_and(|at| at <= now) && !queue.is_full() {
            let lladdr = source.map(|_| EthernetAddress(self.mac).into());
            let message = Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { lladdr });
            let source = source.unwrap_or(Ipv6Addr::UNSPECIFIED);
            push_icmpv6(queue, self.mac, source, ALL_ROUTERS, &message);
            self.solicitations += 1;
            self.next_solicitation = now + RTR_SOLICITATION_INTERVAL;
        }
        changed
    }

    fn soliciting(&self) -> Option<Instant> {
        (self.solicitations < MAX_RTR_SOLICITATIONS).then_some(self.next_solicitation)
    }

    /// When [`Slaac::poll`] or a probe of a router is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (prefixes, routers) = (self.prefixes.poll_timeout(), self.routers.poll_timeout());
        let name_servers = self.name_servers.poll_timeout();
        Instant::first([prefixes, routers, name_servers, self.soliciting()])
    }
}

/// Whether every option has a nonzero length and ends within the message. Otherwise the whole message is discarded
/// (RFC 4861 section 6.1.2).
fn are_sound(mut options: &[u8]) -> bool {
    while let [_, length, ..] = *options {
        match options.get(usize::from(length) * 8..) {
            Some(rest) if length > 0 => options = rest,
            _ => return false,
        }
    }
    options.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::ALL_NODES;
    use smoltcp::wire::{
        IpProtocol, Ipv6Repr, NdiscPrefixInfoFlags, NdiscPrefixInformation, NdiscRouterFlags,
    };
    use std::vec::Vec;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn advertisement(prefix: &str, valid: u64, router: u64) -> Vec<u8> {
        let seconds = smoltcp::time::Duration::from_secs;
        let prefix_info = Some(NdiscPrefixInformation {
            prefix_len: 64,
            flags: NdiscPrefixInfoFlags::ADDRCONF,
            valid_lifetime: seconds(valid),
            preferred_lifetime: seconds(valid),
            prefix: prefix.parse().unwrap(),
        });
        let message = Icmpv6Repr::Ndisc(NdiscRepr::RouterAdvert {
            hop_limit: 64,
            flags: NdiscRouterFlags::empty(),
            router_lifetime: seconds(router),
            reachable_time: seconds(0),
            retrans_time: seconds(0),
            lladdr: None,
            mtu: None,
            prefix_info,
        });
        let mut queue = Queue::new(1, 256);
        push_icmpv6(&mut queue, [2, 0, 0, 0, 0, 9], ROUTER, ALL_NODES, &message);
        queue.front().unwrap().into()
    }

    fn receive(slaac: &mut Slaac, frame: &[u8], now: Instant) -> bool {
        slaac.handle_advertisement(frame, &mut Notices::default(), now)
    }

    #[test]
    fn router_is_solicited_three_times() {
        let (mut slaac, mut queue) = (Slaac::new(MAC, 1500, at(0)), Queue::new(4, 256));
        for n in 0..3 {
            assert_eq!(slaac.poll_timeout(), Some(at(4 * n)));
            slaac.poll(at(4 * n), Some(ROUTER), &mut queue);
        }
        assert_eq!(slaac.poll_timeout(), None);
        let frame = Ipv6Packet::new_checked(&queue.front().unwrap()[14..]).unwrap();
        let repr = Ipv6Repr::parse(&frame).unwrap();
        assert_eq!((repr.next_header, repr.hop_limit), (IpProtocol::Icmpv6, 255));
    }

    #[test]
    fn address_and_router_are_learnt_and_expire() {
        let (mut slaac, mut queue) = (Slaac::new(MAC, 1500, at(0)), Queue::new(4, 256));
        assert!(receive(&mut slaac, &advertisement("2001:db8::", 9000, 1800), at(0)));
        let ip: Ipv6Addr = "2001:db8::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(slaac.addresses().collect::<Vec<_>>(), [ip]);
        assert_eq!(slaac.router(), Some(ROUTER));
        assert!(!receive(&mut slaac, &advertisement("2001:db8::", 9000, 1800), at(1)));
        // A forged short lifetime does not end the address before two hours.
        assert!(!receive(&mut slaac, &advertisement("2001:db8::", 1, 1800), at(2)));
        assert_eq!(slaac.poll_timeout(), Some(at(1802)));
        assert!(slaac.poll(at(1802), None, &mut queue), "the router was silent");
        assert_eq!(slaac.router(), None);
        assert!(slaac.poll(at(7202), None, &mut queue));
        assert_eq!(slaac.addresses().count(), 0);
    }

    #[test]
    fn malformed_option_discards_its_message() {
        for kind in 0..=255 {
            for (length, tail) in [(0, 6), (0, 14), (2, 6), (255, 30), (1, 7), (0, 0)] {
                let mut frame = advertisement("2001:db8::", 9000, 1800);
                frame.extend([kind, length]);
                frame.extend(std::vec![0; tail]);
                let length = (frame.len() - 54) as u16;
                frame[18..20].copy_from_slice(&length.to_be_bytes());
                Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&ROUTER, &ALL_NODES);
                let mut slaac = Slaac::new(MAC, 1500, at(0));
                assert!(!receive(&mut slaac, &frame, at(0)), "{kind}");
                assert_eq!((slaac.addresses().count(), slaac.router()), (0, None));
            }
        }
    }

    /// An advertisement from `router` with these flags and options.
    fn with_options(router: Ipv6Addr, flags: u8, options: &[u8]) -> Vec<u8> {
        let mut frame = advertisement("2001:db8::", 0, 1800);
        frame.truncate(70);
        frame.extend(options);
        frame[22..38].copy_from_slice(&router.octets());
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame[59] = flags;
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&router, &ALL_NODES);
        frame
    }

    #[test]
    fn smallest_announced_mtu_within_limits_is_used() {
        let mut slaac = Slaac::new(MAC, 1500, at(0));
        let other = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
        let mut announce = |router, mtu: u32| {
            let option = [&[5, 1, 0, 0][..], &mtu.to_be_bytes()].concat();
            let changed = receive(&mut slaac, &with_options(router, 0, &option), at(0));
            (changed, slaac.mtu().map(|(_, mtu)| mtu))
        };
        assert_eq!(announce(ROUTER, 0), (true, None), "the router is new");
        for impossible in [0, 1, 1279, 1501, 65_536 + 1280, u32::MAX] {
            assert_eq!(announce(ROUTER, impossible), (false, None));
        }
        assert_eq!(announce(ROUTER, 1400), (true, Some(1400)));
        assert_eq!(announce(ROUTER, 1400), (false, Some(1400)));
        assert_eq!(announce(ROUTER, 1500), (true, Some(1500)));
        assert_eq!(announce(other, 1280), (true, Some(1280)));
        assert_eq!(announce(ROUTER, 1500), (false, Some(1280)));
        assert_eq!(announce(other, 1300), (true, Some(1300)));
        let long = [5, 2, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(!receive(&mut slaac, &with_options(ROUTER, 0, &long), at(0)), "wrong length");
    }

    #[test]
    fn router_preference_is_read_from_the_flags() {
        let mut slaac = Slaac::new(MAC, 1500, at(0));
        let high = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
        receive(&mut slaac, &with_options(ROUTER, 0, &[]), at(0));
        assert!(receive(&mut slaac, &with_options(high, 0x08, &[]), at(0)));
        assert_eq!(slaac.router(), Some(high));
    }

    #[test]
    fn options_after_an_unknown_one_are_read() {
        let mut slaac = Slaac::new(MAC, 1500, at(0));
        let options = [25, 1, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 5, 1, 0, 0, 0, 0, 5, 0];
        assert!(receive(&mut slaac, &with_options(ROUTER, 0, &options), at(0)));
        assert_eq!(slaac.mtu(), Some((ROUTER, 1280)));
    }
}
