//! Stateless address autoconfiguration: router discovery (RFC 4861 section 6.3) and addresses from
//! the prefixes that routers announce (RFC 4862 section 5.5). smoltcp's own is not used: it panics
//! on prefixes that are impossible, and its timer does not let a loop halt (head of the crate).
//!
//! Does not do: duplicate address detection, privacy addresses, preferred lifetimes, the MTU or
//! hop limit that a router announces.

use crate::link::Queue;
use crate::messages::push_icmpv6;
use crate::port_addresses;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, Ipv6Packet,
    NdiscOption, NdiscOptionType, NdiscPrefixInfoFlags, NdiscRepr,
};

/// RFC 4861 section 10.
const MAX_RTR_SOLICITATIONS: u8 = 3;
const RTR_SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Prefixes that are kept.
pub const MAX_PREFIXES: usize = 2;
/// A lifetime that is not authenticated can be cut down to this only (RFC 4862, 5.5.3 e).
const TWO_HOURS: Duration = Duration::from_secs(7200);

/// Something that holds until a time; None: for ever.
#[derive(Clone, Copy, Debug)]
struct Lease {
    ip: Ipv6Addr,
    until: Option<Instant>,
}

/// The state of one port.
#[derive(Debug)]
pub struct Slaac {
    mac: [u8; 6],
    solicitations: u8,
    next_solicitation: Instant,
    /// Our addresses in the announced prefixes, all /64.
    addresses: [Option<Lease>; MAX_PREFIXES],
    router: Option<Lease>,
}

impl Slaac {
    /// Begins to look for routers at `now`.
    pub fn new(mac: [u8; 6], now: Instant) -> Self {
        Slaac {
            mac,
            solicitations: 0,
            next_solicitation: now,
            addresses: [None; MAX_PREFIXES],
            router: None,
        }
    }

    /// Our addresses (of prefix length 64).
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.addresses.iter().flatten().map(|lease| lease.ip)
    }

    /// The default router.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.router.map(|lease| lease.ip)
    }

    /// Takes in a frame with a router's advertisement. True if addresses or router changed.
    pub fn handle_advertisement(&mut self, frame: &[u8], now: Instant) -> bool {
        self.advertisement(frame, now).unwrap_or(false)
    }

    fn advertisement(&mut self, frame: &[u8], now: Instant) -> Option<bool> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
        let good = icmp.msg_type() == Icmpv6Message::RouterAdvert
            && icmp.verify_checksum(&source, &destination)
            && source.is_unicast_link_local()
            && are_sound(icmp.payload());
        if !good {
            return None;
        }
        self.solicitations = MAX_RTR_SOLICITATIONS;
        let lifetime = Duration::from_secs(icmp.router_lifetime().secs());
        let mut changed = self.set_router(source, lifetime, now);
        let mut options = icmp.payload();
        while let Ok(option) = NdiscOption::new_checked(options) {
            if option.option_type() == NdiscOptionType::PrefixInformation {
                let auto = option.prefix_flags().contains(NdiscPrefixInfoFlags::ADDRCONF);
                let seconds = option.valid_lifetime().secs();
                if auto && option.prefix_len() == 64 {
                    changed |= self.set_prefix(option.prefix(), seconds, now);
                }
            }
            let length = usize::from(option.data_len()) * 8;
            options = options.get(length..).unwrap_or_default();
        }
        Some(changed)
    }

    fn set_router(&mut self, ip: Ipv6Addr, lifetime: Duration, now: Instant) -> bool {
        let before = self.router();
        if !lifetime.is_zero() {
            // The first router stays until it withdraws or is silent for its lifetime.
            if before.is_none_or(|router| router == ip) {
                self.router = Some(Lease { ip, until: Some(now + lifetime) });
            }
        } else if before == Some(ip) {
            self.router = None;
        }
        before != self.router()
    }

    fn set_prefix(&mut self, prefix: Ipv6Addr, seconds: u64, now: Instant) -> bool {
        let global = !prefix.is_unicast_link_local() && port_addresses::is_host(prefix.into());
        if !global {
            return false;
        }
        let ip = port_addresses::in_prefix(prefix, port_addresses::eui64(self.mac));
        let wanted = Duration::from_secs(seconds);
        let for_ever = seconds == u64::from(u32::MAX);
        if let Some(lease) = self.addresses.iter_mut().flatten().find(|lease| lease.ip == ip) {
            let left = lease.until.map_or(Duration::MAX, |until| until.since(now));
            if for_ever {
                lease.until = None;
            } else if wanted > left || wanted > TWO_HOURS {
                lease.until = Some(now + wanted);
            } else if left > TWO_HOURS {
                lease.until = Some(now + TWO_HOURS);
            }
            return false;
        }
        let free = self.addresses.iter_mut().find(|slot| slot.is_none());
        let Some(slot) = free.filter(|_| seconds > 0) else { return false };
        *slot = Some(Lease { ip, until: (!for_ever).then(|| now + wanted) });
        true
    }

    /// Ends what has expired and solicits routers. True if addresses or router changed.
    pub fn poll(&mut self, now: Instant, queue: &mut Queue) -> bool {
        let mut changed = false;
        let ended = |lease: Lease| lease.until.is_some_and(|until| until <= now);
        for slot in &mut self.addresses {
            if slot.is_some_and(ended) {
                *slot = None;
                changed = true;
            }
        }
        if self.router.is_some_and(ended) {
            *self = Slaac { solicitations: 0, next_solicitation: now, router: None, ..*self };
            changed = true;
        }
        if self.soliciting().is_some_and(|at| at <= now) && !queue.is_full() {
            let lladdr = Some(EthernetAddress(self.mac).into());
            let message = Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { lladdr });
            push_icmpv6(
                queue,
                self.mac,
                port_addresses::link_local(self.mac),
                ALL_ROUTERS,
                &message,
            );
            self.solicitations += 1;
            self.next_solicitation = now + RTR_SOLICITATION_INTERVAL;
        }
        changed
    }

    fn soliciting(&self) -> Option<Instant> {
        (self.solicitations < MAX_RTR_SOLICITATIONS).then_some(self.next_solicitation)
    }

    /// When [`Slaac::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let leases = self.addresses.iter().chain([&self.router]).flatten();
        leases.filter_map(|lease| lease.until).chain(self.soliciting()).min()
    }
}

/// Whether each of these options has a length, and none reaches beyond the message. Otherwise all of it counts for nothing
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
    use smoltcp::wire::{IpProtocol, Ipv6Repr, NdiscPrefixInformation, NdiscRouterFlags};
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

    #[test]
    fn solicits_thrice_then_rests() {
        let (mut slaac, mut queue) = (Slaac::new(MAC, at(0)), Queue::new(4, 256));
        for n in 0..3 {
            assert_eq!(slaac.poll_timeout(), Some(at(4 * n)));
            slaac.poll(at(4 * n), &mut queue);
        }
        assert_eq!(slaac.poll_timeout(), None);
        let frame = Ipv6Packet::new_checked(&queue.front().unwrap()[14..]).unwrap();
        let repr = Ipv6Repr::parse(&frame).unwrap();
        assert_eq!((repr.next_header, repr.hop_limit), (IpProtocol::Icmpv6, 255));
    }

    #[test]
    fn takes_an_address_and_a_router_and_loses_them() {
        let (mut slaac, mut queue) = (Slaac::new(MAC, at(0)), Queue::new(4, 256));
        assert!(slaac.handle_advertisement(&advertisement("2001:db8::", 9000, 1800), at(0)));
        let ip: Ipv6Addr = "2001:db8::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(slaac.addresses().collect::<Vec<_>>(), [ip]);
        assert_eq!(slaac.router(), Some(ROUTER));
        assert!(!slaac.handle_advertisement(&advertisement("2001:db8::", 9000, 1800), at(1)));
        // A forged short lifetime does not end it before two hours.
        assert!(!slaac.handle_advertisement(&advertisement("2001:db8::", 1, 1800), at(2)));
        assert_eq!(slaac.poll_timeout(), Some(at(1802)));
        assert!(slaac.poll(at(1802), &mut queue), "the router was silent");
        assert_eq!(slaac.router(), None);
        assert!(slaac.poll(at(7202), &mut queue));
        assert_eq!(slaac.addresses().count(), 0);
    }

    #[test]
    fn an_option_without_length_ends_nothing_but_its_message() {
        for kind in 0..=255 {
            for (length, tail) in [(0, 6), (0, 14), (2, 6), (255, 30), (1, 7), (0, 0)] {
                let mut frame = advertisement("2001:db8::", 9000, 1800);
                frame.extend([kind, length]);
                frame.extend(std::vec![0; tail]);
                let length = (frame.len() - 54) as u16;
                frame[18..20].copy_from_slice(&length.to_be_bytes());
                Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&ROUTER, &ALL_NODES);
                let mut slaac = Slaac::new(MAC, at(0));
                assert!(!slaac.handle_advertisement(&frame, at(0)), "{kind}");
                assert_eq!((slaac.addresses().count(), slaac.router()), (0, None));
            }
        }
    }

    #[test]
    fn impossible_prefixes_are_ignored() {
        let mut slaac = Slaac::new(MAC, at(0));
        for prefix in ["ff02::", "fe80::", "::"] {
            slaac.handle_advertisement(&advertisement(prefix, 100, 0), at(0));
        }
        assert_eq!(slaac.addresses().count(), 0);
        for n in 0..9 {
            let prefix = std::format!("2001:db8:{n}::");
            slaac.handle_advertisement(&advertisement(&prefix, 100, 0), at(0));
        }
        assert_eq!(slaac.addresses().count(), MAX_PREFIXES);
    }
}
