//! The addresses of an interface: combines configuration, DHCP, SLAAC and duplicate detection, and derives routes and
//! MTUs.

use super::Interface;
use crate::address_defense::{self, Claim};
use crate::addressing::{Addressing, AddressingError};
use crate::dhcp::Client;
use crate::mld::{self, Occasion};
use crate::neighbour::Resolution;
use crate::notices::{Mac, Topic};
use crate::port_addresses::{self, PortAddresses};
use crate::slaac::Slaac;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use drivers::hal::{Instant, Severity};
use smoltcp::wire::{IpCidr, Ipv6Cidr};

/// Source of an MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuOrigin {
    /// The network card.
    Card,
    /// The operator.
    Configuration,
    /// The DHCP server of the lease.
    Dhcp(Ipv4Addr),
    /// A router of the link.
    Router(Ipv6Addr),
}

impl fmt::Display for MtuOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MtuOrigin::Card => f.write_str("card"),
            MtuOrigin::Configuration => f.write_str("configuration"),
            MtuOrigin::Dhcp(server) => write!(f, "DHCP server {server}"),
            MtuOrigin::Router(router) => write!(f, "router {router}"),
        }
    }
}

/// An address that the interface should have.
struct Wanted {
    cidr: IpCidr,
    /// It is used during its probing.
    at_once: bool,
    /// Its network is on the link.
    on_link: bool,
}

impl Interface {
    /// Sets the sources of addresses, at the start or later. A DHCP lease and announced prefixes are kept if their
    /// source stays enabled. On error nothing changes.
    pub fn set_addressing(
        &mut self,
        addressing: Addressing,
        now: Instant,
    ) -> Result<(), AddressingError> {
        addressing.check()?;
        self.now = now;
        if !addressing.dhcp {
            self.dhcp = None;
            self.lease = None;
        } else if self.dhcp.is_none() {
            self.dhcp = Some(self.new_client(now));
        }
        if !addressing.slaac {
            self.slaac = None;
        } else if self.slaac.is_none() {
            self.slaac = Some(Slaac::new(self.local.mac, self.mtu, now));
        }
        self.addressing = addressing;
        self.apply();
        Ok(())
    }

    fn new_client(&mut self, now: Instant) -> Client {
        Client::new(self.local.mac, self.mtu, self.seeds.word(), self.host_name, now)
    }

    /// Enables duplicate address detection (RFC 5227, RFC 4862). Configured IPv4 addresses are used during their
    /// probing. Must be called before any frame is sent.
    pub fn detect_duplicates(&mut self, now: Instant) {
        self.now = now;
        self.queue.clear();
        self.groups.clear();
        self.probes.enable();
        self.apply();
    }

    /// Sets the host name that is sent to DHCP servers (option 12, RFC 2132). Must be called before DHCP is enabled.
    pub fn set_hostname(&mut self, name: &'static str) {
        self.host_name = Some(name);
    }

    /// Handles link-up, after which the network may be another one: searches for routers and DHCP servers at once. A
    /// lease is kept until a server refuses it, so that connections survive a pulled cable.
    pub fn link_came_up(&mut self, now: Instant) {
        self.now = now;
        self.neighbours.clear();
        if let Some(client) = &mut self.dhcp {
            client.link_came_up(now);
        }
        if let Some(slaac) = &mut self.slaac {
            slaac.solicit(now);
        }
        self.probes.restart(self.counters.rx_frames == 0, now);
        self.apply();
        address_defense::announce(&self.announced(), &mut self.queue);
        self.report_groups(Occasion::Joined);
        self.attention = true;
    }

    /// Changes the MAC address of the port. Everything that depends on the old one is restarted.
    pub fn set_mac(&mut self, mac: [u8; 6], now: Instant) {
        let Some(mac) = port_addresses::unicast_mac(mac).filter(|mac| *mac != self.local.mac)
        else {
            return;
        };
        self.now = now;
        self.local.mac = mac;
        if self.dhcp.is_some() {
            self.dhcp = Some(self.new_client(now));
            self.lease = None;
        }
        if let Some(slaac) = &mut self.slaac {
            *slaac = Slaac::new(mac, self.mtu, now);
        }
        self.probes.clear();
        self.neighbours.clear();
        self.apply();
    }

    /// Polls DHCP, SLAAC and probes.
    pub(super) fn poll_addresses(&mut self, now: Instant) {
        if let Some(client) = &mut self.dhcp {
            let packets = self.outbox.packets();
            let change = client.poll(&mut self.queue, packets, &mut self.notices, now);
            let Interface { outbox, routes, neighbours, queue, .. } = self;
            outbox.send(routes, neighbours, queue, now);
            if let Some(lease) = change {
                self.lease = lease;
                self.apply();
            }
        }
        let source = self.link_local();
        if self.slaac.as_mut().is_some_and(|slaac| slaac.poll(now, source, &mut self.queue)) {
            self.apply();
        }
        while let Some(router) = self.slaac.as_mut().and_then(|slaac| slaac.router_to_probe(now)) {
            match self.neighbours.resolve(router.into(), now) {
                Resolution::Known(_) => self.note_router(router.into(), true),
                Resolution::Unreachable => self.note_router(router.into(), false),
                Resolution::Pending | Resolution::NoRoute => {}
            }
        }
        if self.probes.poll(self.local.mac, &mut self.queue, now) {
            self.apply();
        }
        let dhcp = self.dhcp.as_ref().and_then(Client::poll_timeout);
        let slaac = self.slaac.as_ref().and_then(Slaac::poll_timeout);
        self.addresses_due = Instant::first([dhcp, slaac, self.probes.poll_timeout()]);
    }

    /// Records whether a station answers. If the router in use does not, another one is selected.
    pub(super) fn note_router(&mut self, ip: IpAddr, answers: bool) {
        let IpAddr::V6(router) = ip else { return };
        // A missing neighbour entry does not mean that the router is unreachable.
        let known = answers || self.neighbours.is_unreachable(ip, self.now);
        let now = self.now;
        self.addresses_due = Some(now);
        if known
            && self.slaac.as_mut().is_some_and(|slaac| slaac.set_reachable(router, answers, now))
        {
            self.apply();
        }
    }

    /// Handles another station's claim to an address.
    pub(super) fn note_claim(&mut self, claim: Claim, now: Instant) {
        let Claim { ip, mac, probes } = claim;
        let (ours, other) = (Mac(self.local.mac), Mac(mac));
        if self.probes.is_tentative(ip) {
            self.addresses_due = Some(now);
            self.note_conflict(ip, mac, now);
            let leased = self.lease.is_some_and(|l| IpAddr::V4(l.address.address()) == ip);
            if let Some(client) = self.dhcp.as_mut().filter(|_| leased) {
                return client.decline(mac, &mut self.queue, &mut self.notices, now);
            }
            self.probes.found(ip, now);
            self.notices.report(Topic::Duplicate, ip, Severity::Warning, now, || {
                format!(
                    "duplicate address {ip}: also used by {other}, ours is {ours}; not used here. \
                     Change one of them"
                )
            });
        } else if self.local.has(ip) {
            self.defence.defend(claim, &self.local, &mut self.queue, now);
            if !probes {
                self.note_conflict(ip, mac, now);
                self.addresses_due = Some(now);
                self.probes.found(ip, now);
                self.notices.report(Topic::Duplicate, ip, Severity::Warning, now, || {
                    format!(
                        "duplicate address {ip}: also used by {other}, ours is {ours}; change one of them"
                    )
                });
            }
        }
    }

    fn note_conflict(&mut self, ip: IpAddr, mac: [u8; 6], now: Instant) {
        self.counters.conflicts += 1;
        self.counters.conflict = Some((ip, mac));
        self.counters.conflict_at = Some(now);
    }

    /// The addresses that the interface should have, the link-local one first.
    fn wanted(&self) -> Vec<Wanted> {
        let link_local = Ipv6Cidr::new(port_addresses::link_local(self.local.mac), 64);
        let fixed = self.addressing.addresses.iter().map(|&cidr| Wanted {
            cidr,
            at_once: matches!(cidr, IpCidr::Ipv4(_)),
            on_link: true,
        });
        let learnt = |cidr: IpCidr, on_link| Wanted { cidr, at_once: false, on_link };
        let lease = self.lease.map(|lease| learnt(lease.address.into(), true));
        let announced = self.slaac.iter().flat_map(Slaac::addresses);
        let announced = announced.map(|ip| learnt(Ipv6Cidr::new(ip, 64).into(), false));
        let mut all = Vec::from([learnt(link_local.into(), true)]);
        for wanted in fixed.chain(lease).chain(announced) {
            if !all.iter().any(|other| other.cidr.address() == wanted.cidr.address()) {
                all.push(wanted);
            }
        }
        all
    }

    /// Recomputes addresses, routes and MTUs from their sources, and updates smoltcp.
    pub(super) fn apply(&mut self) {
        let mut wanted = self.wanted();
        let all = wanted.iter().map(|wanted| (wanted.cidr.address().into(), wanted.at_once));
        self.probes.want(all, self.now);
        let groups = self.groups_of(&wanted);
        wanted.retain(|wanted| self.probes.may_use(wanted.cidr.address().into()));
        let used: Vec<IpCidr> = wanted.iter().map(|wanted| wanted.cidr).collect();
        self.attention = true;
        self.addresses_due = Some(self.now);
        let removed = |cidr: &IpCidr| !used.contains(cidr);
        let has_lost = self.routes.addresses.iter().any(removed);
        let changed = self.routes.addresses != used;
        let source = self.link_local();
        if changed {
            self.stack.update_ip_addrs(|list| {
                list.clear();
                list.extend_from_slice(&used).expect("MAX_STATIC leaves room for every source");
            });
            self.local.v4.clear();
            self.local.v6.clear();
            for cidr in &used {
                match cidr.address().into() {
                    IpAddr::V4(ip) => self.local.v4.push(ip),
                    IpAddr::V6(ip) => self.local.v6.push(ip),
                }
            }
            self.routes.addresses = used;
        }
        let own = wanted.iter().filter(|wanted| wanted.on_link).map(|wanted| wanted.cidr);
        let announced = self.slaac.iter().flat_map(Slaac::on_link).map(IpCidr::Ipv6);
        self.routes.on_link = own.chain(announced).collect();
        self.routes.routers = self.gateways();
        self.set_mtus();
        self.routes.generation += 1;
        if has_lost {
            self.neighbours.clear();
        }
        if changed {
            // Connections from removed addresses must end.
            self.connections.schedule_all();
            if !self.probes.detects() {
                address_defense::announce(&self.local, &mut self.queue);
            }
        }
        // Reports from the unspecified address count for switches only (RFC 3590 section 4).
        if groups != self.groups || source.is_none() && self.link_local().is_some() {
            self.groups = groups;
            self.report_groups(Occasion::Joined);
        }
    }

    /// The addresses to announce at link-up: those that other stations may have cached.
    fn announced(&self) -> PortAddresses {
        let mut local = self.local.clone();
        if self.counters.rx_frames == 0 && self.probes.detects() {
            local.v4.clear();
            local.v6.clear();
        }
        local
    }

    /// The addresses whose groups we join: those in use, and tentative ones.
    fn groups_of(&self, wanted: &[Wanted]) -> Vec<Ipv6Addr> {
        let ips = wanted.iter().map(|wanted| wanted.cidr.address().into());
        let listens = |ip: &IpAddr| self.probes.may_use(*ip) || self.probes.is_tentative(*ip);
        let v6 = |ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None };
        ips.filter(listens).filter_map(v6).collect()
    }

    /// The link-local address, if it may be used.
    fn link_local(&self) -> Option<Ipv6Addr> {
        self.local.v6.iter().find(|ip| ip.is_unicast_link_local()).copied()
    }

    /// Reports our multicast groups to switches and routers.
    pub(super) fn report_groups(&mut self, occasion: Occasion) {
        let source = self.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        let members =
            PortAddresses { mac: self.local.mac, v4: Vec::new(), v6: self.groups.clone() };
        mld::report(&members, source, occasion, &mut self.queue);
    }

    /// Sets the largest packets of both families.
    fn set_mtus(&mut self) {
        let before = self.routes.mtu;
        let set = self.addressing.fixed_mtu;
        let origin = if set { MtuOrigin::Configuration } else { MtuOrigin::Card };
        let card = (self.mtu, origin);
        let leased = self.lease.filter(|_| self.has_lease() && !set);
        let leased = leased.and_then(|lease| Some((lease.mtu?.into(), lease.server)));
        let v4 = leased.map_or(card, |(mtu, server)| (mtu, MtuOrigin::Dhcp(server)));
        let announced = self.slaac.as_ref().and_then(Slaac::mtu);
        let v6 = announced.map_or(card, |(router, mtu)| (mtu, MtuOrigin::Router(router)));
        self.mtu_origins = [v4.1, v6.1];
        self.routes.mtu = [v4.0, v6.0];
        for (family, (mtu, origin), before) in [("IPv4", v4, before[0]), ("IPv6", v6, before[1])] {
            if mtu == before {
                continue;
            }
            let (subject, text) = match origin {
                MtuOrigin::Card | MtuOrigin::Configuration => continue,
                MtuOrigin::Dhcp(server) => (IpAddr::V4(server), "DHCP server"),
                MtuOrigin::Router(router) => (IpAddr::V6(router), "router"),
            };
            self.notices.report(Topic::Mtu, subject, Severity::Information, self.now, || {
                format!("{family} MTU set to {mtu} by {text} {subject}")
            });
        }
    }

    /// Largest packets of IPv4 and of IPv6 in bytes, and the source of each limit.
    pub fn mtus(&self) -> [(usize, MtuOrigin); 2] {
        let [v4, v6] = self.routes.mtu;
        [(v4, self.mtu_origins[0]), (v6, self.mtu_origins[1])]
    }

    /// Link MTU to `ip` in bytes.
    pub fn mtu_to(&self, ip: IpAddr) -> usize {
        self.routes.mtu_to(ip)
    }

    /// The addresses in use, with their networks.
    pub fn addresses(&self) -> &[IpCidr] {
        &self.routes.addresses
    }

    /// Whether an address from DHCP is in use.
    pub fn has_lease(&self) -> bool {
        self.lease.is_some_and(|lease| self.local.has_v4(lease.address.address()))
    }

    /// Name servers that DHCP or a router has announced, with the announcer.
    pub fn name_servers(&self) -> impl Iterator<Item = (IpAddr, &'static str)> {
        let leased = self.lease.filter(|_| self.has_lease());
        let leased = leased.into_iter().flat_map(|lease| lease.name_servers).flatten();
        let announced = self.slaac.iter().flat_map(Slaac::name_servers);
        let leased = leased.map(|ip| (IpAddr::V4(ip), "DHCP"));
        leased.chain(announced.map(|ip| (IpAddr::V6(ip), "router")))
    }

    /// The default routers in use.
    pub fn gateways(&self) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let (mut v4, mut v6) = (None, None);
        for gateway in &self.addressing.gateways {
            match gateway {
                IpAddr::V4(ip) => v4 = Some(*ip),
                IpAddr::V6(ip) => v6 = Some(*ip),
            }
        }
        let leased = self.lease.filter(|_| self.has_lease()).and_then(|lease| lease.router);
        (v4.or(leased), v6.or(self.slaac.as_ref().and_then(Slaac::router)))
    }
}
