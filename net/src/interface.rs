//! A port's IP interface: addresses, ARP and neighbour discovery, answers to pings, and the
//! sockets of the services. IPv4 and IPv6; ICMP, UDP and what TCP does is smoltcp's.
//!
//! Driven by the poll loop: [`Interface::handle_frame`] for what arrived, [`Interface::poll`] in
//! every round (it returns at once when nothing is due), [`Interface::transmit`] to let frames
//! out, [`Interface::poll_timeout`] before halting. Does not fragment, forward or send to itself.

mod users;

use crate::address_defense;
use crate::addressing::{Addressing, AddressingError};
use crate::connections::{Connections, Outside};
use crate::delayed_replies::DelayedReplies;
use crate::dhcp::{Client, Lease};
use crate::filter::{self, Kind};
use crate::fragments::{self, Fragments};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::mld::{self, Occasion};
use crate::neighbour::{Resolution, Table};
use crate::outbox::Outbox;
use crate::packet_too_big::PacketTooBig;
use crate::path_mtu::PathMtus;
use crate::port_addresses::{self, PortAddresses};
use crate::routes::Routes;
use crate::segment::Segment;
use crate::slaac::Slaac;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port, TransmitError};
use smoltcp::iface::{PollResult, SocketSet};
use smoltcp::wire::{DhcpOption, HardwareAddress, IpCidr, Ipv6Cidr};

/// Frames that wait for room in the port before nobody is asked for more.
const QUEUE_DEPTH: usize = 16;
/// Frames that wait when what arrives is lost, because it may have to be answered.
const ANSWERS: usize = 256;
/// Neighbours that are remembered.
const NEIGHBOURS: usize = 4096;
/// When to try again what smoltcp wanted to do at once and could not.
pub(crate) const STALLED: Duration = Duration::from_millis(10);

/// What an interface counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that the loop handed in.
    pub rx_frames: u64,
    /// Of these: not for us, malformed, or of a kind that is not taken.
    pub rx_filtered: u64,
    /// Of these: lost because no answer could be queued.
    pub rx_no_room: u64,
    /// Frames in which another station claims an address of ours.
    pub conflicts: u64,
    /// Frames that the port took.
    pub tx_frames: u64,
    /// Frames that the port can never send.
    pub tx_too_large: u64,
}

/// The interface of one port.
pub struct Interface {
    stack: smoltcp::iface::Interface,
    connections: Connections,
    /// Sockets of the services that use neither TCP nor DHCP, and when they want to be seen to.
    sockets: SocketSet<'static>,
    sockets_due: Option<Instant>,
    outbox: Outbox,
    queue: Queue,
    hold: DelayedReplies,
    mtu: usize,
    seed: u64,
    local: PortAddresses,
    routes: Routes,
    addressing: Addressing,
    lease: Option<Lease>,
    dhcp: Option<Client>,
    /// What DHCP requests say besides.
    dhcp_options: &'static [DhcpOption<'static>],
    slaac: Option<Slaac>,
    neighbours: Table,
    paths: PathMtus,
    fragments: Fragments,
    /// Something happened since the last poll.
    attention: bool,
    /// The port had no room for a frame, and will say when it has.
    blocked: bool,
    deadline: Option<Instant>,
    /// Frames and timers for sockets that are none of TCP's.
    activity: u64,
    now: Instant,
    counters: Counters,
}

impl Interface {
    /// The interface of a port with this MAC address and MTU (layer 3, in bytes). `seed` must
    /// not be predictable: TCP's initial sequence numbers come from it.
    ///
    /// # Panics
    /// If `mac` is not a station's address: the driver's mistake.
    pub fn new(mac: [u8; 6], mtu: usize, seed: u64, now: Instant) -> Self {
        let mac = port_addresses::unicast_mac(mac).expect("a port has a unicast MAC address");
        // Smaller packets than this every host must take (RFC 791); nobody's port is below it.
        let mtu = mtu.max(576);
        let mut queue = Queue::new(QUEUE_DEPTH, mtu + ETHERNET_HEADER);
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let framing = Framing::Ip { from: mac, to: [0; 6], smc: false };
        let mut link = Link { received: None, queue: &mut queue, mtu, framing };
        let stack = smoltcp::iface::Interface::new(config, &mut link, to_smoltcp(now));
        let mut interface = Interface {
            stack,
            connections: Connections::new(seed),
            sockets: SocketSet::new(Vec::new()),
            sockets_due: None,
            outbox: Outbox::new(mtu + ETHERNET_HEADER),
            queue,
            hold: DelayedReplies::new(),
            mtu,
            seed,
            local: PortAddresses { mac, ..PortAddresses::default() },
            routes: Routes::default(),
            addressing: Addressing::default(),
            lease: None,
            dhcp: None,
            dhcp_options: &[],
            slaac: None,
            neighbours: Table::new(NEIGHBOURS),
            paths: PathMtus::default(),
            fragments: Fragments::default(),
            attention: true,
            blocked: false,
            deadline: None,
            activity: 0,
            now,
            counters: Counters::default(),
        };
        interface.apply();
        interface
    }

    /// Sets where addresses come from, at the start or later. A DHCP lease and announced prefixes
    /// stay if they are wanted still. On error nothing changes.
    pub fn set_addressing(
        &mut self,
        addressing: Addressing,
        now: Instant,
    ) -> Result<(), AddressingError> {
        addressing.check()?;
        if !addressing.dhcp {
            self.dhcp = None;
            self.lease = None;
        } else if self.dhcp.is_none() {
            let Interface { local, mtu, seed, dhcp_options, .. } = self;
            self.dhcp = Some(Client::new(local.mac, *mtu, !*seed, dhcp_options, now));
        }
        if !addressing.slaac {
            self.slaac = None;
        } else if self.slaac.is_none() {
            self.slaac = Some(Slaac::new(self.local.mac, now));
        }
        self.addressing = addressing;
        self.apply();
        Ok(())
    }

    /// Sets the name by which DHCP servers know us (option 12, RFC 2132), before DHCP is wanted.
    /// Called once: smoltcp wants the memory for ever.
    pub fn set_hostname(&mut self, name: &'static str) {
        const HOST_NAME: u8 = 12;
        let option = DhcpOption { kind: HOST_NAME, data: name.as_bytes() };
        self.dhcp_options = Box::leak(Box::new([option]));
    }

    /// The link came up (again): looks for routers and for a DHCP server at once. A lease that is
    /// held is kept, so that connections survive a pulled cable.
    pub fn link_came_up(&mut self, now: Instant) {
        self.neighbours.clear();
        if let Some(client) = self.dhcp.as_mut().filter(|_| self.lease.is_none()) {
            client.reset(now);
        }
        if let Some(slaac) = self.slaac.as_mut().filter(|slaac| slaac.router().is_none()) {
            *slaac = Slaac::new(self.local.mac, now);
        }
        self.tell_link();
        self.attention = true;
    }

    /// The port has another MAC address: all that was had by the former one begins anew.
    pub fn set_mac(&mut self, mac: [u8; 6], now: Instant) {
        let Some(mac) = port_addresses::unicast_mac(mac).filter(|mac| *mac != self.local.mac)
        else {
            return;
        };
        self.local.mac = mac;
        let Interface { mtu, seed, dhcp_options, .. } = self;
        if let Some(client) = &mut self.dhcp {
            *client = Client::new(mac, *mtu, !*seed, dhcp_options, now);
            self.lease = None;
        }
        if let Some(slaac) = &mut self.slaac {
            *slaac = Slaac::new(mac, now);
        }
        self.neighbours.clear();
        self.apply();
    }

    /// Takes in a received frame.
    pub fn handle_frame(&mut self, frame: &[u8], now: Instant) {
        self.now = now;
        self.counters.rx_frames += 1;
        let Some(kind) = filter::accept(frame, &self.local) else {
            self.counters.rx_filtered += 1;
            return;
        };
        self.attention = true;
        if self.queue.len() >= ANSWERS {
            self.counters.rx_no_room += 1;
            return;
        }
        self.handle_accepted(frame, kind, now);
    }

    /// Takes in a frame that the filter has accepted.
    fn handle_accepted(&mut self, frame: &[u8], kind: Kind, now: Instant) {
        match kind {
            Kind::Fragment => self.handle_fragment(frame, now),
            Kind::Tcp => self.handle_segment(frame, now),
            Kind::Arp | Kind::NeighbourDiscovery => self.handle_neighbour(frame, kind, now),
            Kind::ListenerQuery => {
                if let Some(occasion) = mld::query(frame) {
                    mld::report(&self.local, occasion, &mut self.queue);
                }
            }
            Kind::RouterAdvertisement => {
                if self.slaac.as_mut().is_some_and(|s| s.handle_advertisement(frame, now)) {
                    self.apply();
                }
            }
            Kind::Dhcp => {
                if let Some(client) = &mut self.dhcp {
                    client.handle_frame(frame, &mut self.queue, now);
                }
            }
            Kind::Other => self.handle_packet(frame, now),
        }
    }

    /// Takes in a part of a packet, and the packet with the last that was missing.
    fn handle_fragment(&mut self, frame: &[u8], now: Instant) {
        let Some(whole) = self.fragments.take(frame, now) else { return };
        match filter::accept(&whole, &self.local) {
            // Neighbour discovery is not to be fragmented (RFC 6980).
            Some(kind @ (Kind::Tcp | Kind::Other)) => {
                let number = self.counters.rx_frames as u16;
                let large = whole.len() > ETHERNET_HEADER + self.mtu;
                if !large || !fragments::answer_echo(&whole, self.mtu, number, &mut self.queue) {
                    self.handle_accepted(&whole, kind, now);
                }
            }
            _ => self.counters.rx_filtered += 1,
        }
    }

    /// Takes in a frame with a TCP segment.
    fn handle_segment(&mut self, frame: &[u8], now: Instant) {
        let (Some(segment), Some(from)) = (Segment::of(frame), source(frame)) else {
            self.counters.rx_filtered += 1;
            return;
        };
        let (connections, mut outside) = self.outside(now);
        connections.handle_segment(frame, &segment, from, &mut outside);
    }

    /// Takes in what somebody asks or says about who has which address.
    fn handle_neighbour(&mut self, frame: &[u8], kind: Kind, now: Instant) {
        let conflict = address_defense::defend(frame, kind, &self.local, &mut self.queue);
        self.counters.conflicts += u64::from(conflict);
        match kind {
            Kind::Arp => {
                self.neighbours.handle_arp(frame, &self.local, now);
                if let Some(client) = &mut self.dhcp {
                    client.handle_arp(frame, &mut self.queue, now);
                }
            }
            _ => self.neighbours.handle_discovery(frame, &self.local, now),
        }
        let held = DelayedReplies::concerns(frame, kind) && !self.hold.is_full();
        let queue = if held { self.hold.answers() } else { &mut self.queue };
        address_defense::answer(frame, kind, &self.local, queue);
        self.hold.hold(now);
        self.settle_neighbours();
    }

    /// Takes in any other packet.
    fn handle_packet(&mut self, frame: &[u8], now: Instant) {
        if let Some(report) = PacketTooBig::of(frame, &self.local) {
            let (connections, mut outside) = self.outside(now);
            return connections.packet_too_big(&report, &mut outside);
        }
        let Some(from) = source(frame) else { return };
        let framing = Framing::Ip { from: self.local.mac, to: from, smc: false };
        let received = frame.get(ETHERNET_HEADER..);
        let mut link = Link { received, queue: &mut self.queue, mtu: self.mtu, framing };
        self.stack.poll_ingress_single(to_smoltcp(now), &mut link, &mut self.sockets);
        self.sockets_due = Some(now);
        self.activity += 1;
    }

    /// The connections, and all that they have to do with.
    fn outside(&mut self, now: Instant) -> (&mut Connections, Outside<'_>) {
        let outside = Outside {
            stack: &mut self.stack,
            queue: &mut self.queue,
            neighbours: &mut self.neighbours,
            routes: &self.routes,
            paths: &mut self.paths,
            local: &self.local,
            mtu: self.mtu,
            now,
        };
        (&mut self.connections, outside)
    }

    /// Does what is due: timers, and what the services want sent.
    pub fn poll(&mut self, now: Instant) {
        self.now = now;
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if !self.attention && !due {
            return;
        }
        self.attention = false;
        self.hold.release(now, &mut self.queue);
        let (connections, mut outside) = self.outside(now);
        connections.poll(&mut outside);
        self.poll_sockets(now);
        if let Some(lease) = self.dhcp.as_mut().and_then(|c| c.poll(&mut self.queue, now))
            && lease != self.lease
        {
            self.lease = lease;
            self.apply();
        }
        if self.slaac.as_mut().is_some_and(|slaac| slaac.poll(now, &mut self.queue)) {
            self.apply();
        }
        self.neighbours.poll(now, &self.local, &mut self.queue);
        self.settle_neighbours();
        let dhcp = self.dhcp.as_ref().and_then(Client::poll_timeout);
        let slaac = self.slaac.as_ref().and_then(Slaac::poll_timeout);
        let neighbours = self.neighbours.poll_timeout();
        let (connections, hold) = (self.connections.poll_timeout(), self.hold.poll_timeout());
        self.deadline =
            Instant::first([self.sockets_due, dhcp, slaac, neighbours, connections, hold]);
    }

    /// Sends what sockets that are none of TCP's have to send.
    fn poll_sockets(&mut self, now: Instant) {
        if self.sockets_due.is_none_or(|due| now < due) || self.queue.is_full() {
            return;
        }
        let at = to_smoltcp(now);
        let framing = Framing::Ip { from: self.local.mac, to: [0; 6], smc: false };
        let (queue, mtu) = (self.outbox.packets(), self.mtu);
        let mut link = Link { received: None, queue, mtu, framing };
        for _ in 0..QUEUE_DEPTH {
            if self.stack.poll_egress(at, &mut link, &mut self.sockets) == PollResult::None {
                break;
            }
            self.activity += 1;
        }
        self.outbox.send(&self.routes, &mut self.neighbours, &mut self.queue, now);
        let due = self.stack.poll_at(at, &self.sockets);
        self.sockets_due = due.map(|t| if t <= at { now + STALLED } else { from_smoltcp(t) });
    }

    /// Lets those go on who waited for a neighbour.
    fn settle_neighbours(&mut self) {
        while let Some((ip, waiting)) = self.neighbours.next_settled() {
            waiting.into_iter().for_each(|key| self.connections.settled(key));
            let mac = self.neighbours.get(ip, self.now);
            self.outbox.settled(ip, mac, &mut self.queue);
            self.attention = true;
        }
    }

    /// Brings smoltcp's and our own lists up to date with where addresses come from.
    fn apply(&mut self) {
        let link_local =
            IpCidr::Ipv6(Ipv6Cidr::new(port_addresses::link_local(self.local.mac), 64));
        let mut wanted = Vec::from([link_local]);
        let announced = self.slaac.iter().flat_map(Slaac::addresses);
        let others = self
            .addressing
            .addresses
            .iter()
            .copied()
            .chain(self.lease.map(|(address, _)| address.into()))
            .chain(announced.map(|ip| Ipv6Cidr::new(ip, 64).into()));
        for cidr in others {
            if !wanted.iter().any(|w| w.address() == cidr.address()) {
                wanted.push(cidr);
            }
        }
        self.attention = true;
        self.routes.routers = self.gateways();
        self.routes.generation += 1;
        let changed = self.routes.addresses != wanted;
        if let Some(client) = &mut self.dhcp {
            client.set_addresses(&wanted, self.routes.routers.0);
        }
        if !changed {
            return;
        }
        self.stack.update_ip_addrs(|list| {
            list.clear();
            list.extend_from_slice(&wanted).expect("MAX_STATIC leaves room for every source");
        });
        self.local.v4.clear();
        self.local.v6.clear();
        for cidr in &wanted {
            match cidr.address().into() {
                IpAddr::V4(ip) => self.local.v4.push(ip),
                IpAddr::V6(ip) => self.local.v6.push(ip),
            }
        }
        self.routes.addresses = wanted;
        self.neighbours.clear();
        // Whoever has one of the former addresses is to learn that it is gone.
        self.connections.look_after_all();
        self.tell_link();
    }

    /// Tells the others on the link which addresses are ours.
    fn tell_link(&mut self) {
        address_defense::announce(&self.local, &mut self.queue);
        mld::report(&self.local, Occasion::Joined, &mut self.queue);
    }

    /// Lets queued frames out, as many as the port takes, and shows each to `sent`.
    pub fn transmit(&mut self, port: &mut (impl Port + ?Sized), mut sent: impl FnMut(&Packet<'_>)) {
        let was_full = self.queue.is_full();
        while let Some(frame) = self.queue.front() {
            let packet = Packet { header: frame, payload: &[], trailer: &[] };
            match port.transmit(&packet) {
                Ok(()) => {
                    sent(&packet);
                    self.counters.tx_frames += 1;
                }
                Err(TransmitError::TooLarge) => self.counters.tx_too_large += 1,
                Err(TransmitError::Full) => {
                    self.blocked = !port.has_room();
                    return;
                }
            }
            self.queue.pop();
            self.attention |= was_full;
        }
        self.blocked = false;
    }

    /// Looks whether the port has room again for what it had none for.
    pub fn look_for_room(&mut self, port: &(impl Port + ?Sized)) {
        if self.blocked {
            self.blocked = !port.has_room();
        }
    }

    /// Resets all TCP connections: the machine is about to end.
    pub fn shut_down(&mut self) {
        self.connections().shut_down();
    }

    /// Whether nothing is left to be said.
    pub fn is_shut_down(&self) -> bool {
        !self.attention && self.queue.is_empty() && !self.connections.wants_poll()
    }

    /// When [`Interface::poll`] has something to do, if nothing arrives before; a time in the
    /// past means at once.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.wants_poll() { Some(Instant::ZERO) } else { self.deadline }
    }

    /// Whether [`Interface::poll`] has something to do at once.
    pub fn wants_poll(&self) -> bool {
        self.attention || !self.queue.is_empty() && !self.blocked
    }

    /// What is ours: for the fast paths, to be read anew when [`Interface::generation`] changes.
    pub fn local(&self) -> &PortAddresses {
        &self.local
    }

    /// Changes with every change of addresses or routers.
    pub fn generation(&self) -> u64 {
        self.routes.generation
    }

    /// Largest layer 3 packet in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Largest layer 3 packet in bytes that passes to `ip`, as far as is known at `now`.
    pub fn path_mtu(&self, ip: IpAddr, now: Instant) -> usize {
        self.paths.get(ip, now).map_or(self.mtu, |(mtu, _)| mtu.min(self.mtu))
    }

    /// Changes whenever a destination is added to [`Interface::small_paths`].
    pub fn path_changes(&self) -> u64 {
        self.paths.changes()
    }

    /// The destinations with a path MTU below the interface's: the path MTU, and until when that holds.
    pub fn small_paths(&self) -> impl Iterator<Item = (IpAddr, usize, Instant)> {
        self.paths.all()
    }

    /// The addresses in use, with their networks.
    pub fn addresses(&self) -> &[IpCidr] {
        &self.routes.addresses
    }

    /// Whether DHCP has given us an address.
    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
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
        let leased = self.lease.and_then(|(_, router)| router);
        (v4.or(leased), v6.or(self.slaac.as_ref().and_then(Slaac::router)))
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The station on the link to which a packet for `ip` goes: itself, or a gateway.
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        self.routes.next_hop(ip)
    }

    /// MAC address to which frames for `ip` go, if it is known at `now`. Asks nobody.
    pub fn neighbour(&self, ip: IpAddr, now: Instant) -> Option<[u8; 6]> {
        self.neighbours.get(self.next_hop(ip)?, now)
    }

    /// As [`Interface::neighbour`], but has it asked for where it is not known: by ARP or
    /// neighbour solicitation with the next [`Interface::poll`].
    pub fn resolve(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        let Some(hop) = self.next_hop(ip) else { return Resolution::NoRoute };
        let resolution = self.neighbours.resolve(hop, now);
        self.attention |= resolution == Resolution::Pending;
        resolution
    }
}

/// Who sent a frame.
fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..12)?.first_chunk().copied()
}
