//! A port's IP interface: addresses, ARP and neighbour discovery, answers to pings, and the
//! sockets of the services. IPv4 and IPv6; the stack itself is smoltcp.
//!
//! Driven by the poll loop: [`Interface::handle_frame`] for what arrived, [`Interface::poll`] in
//! every round (it returns at once when nothing is due), [`Interface::transmit`] to let frames
//! out, [`Interface::poll_timeout`] before halting. Does not fragment, forward or send to itself.

use crate::addressing::{Addressing, AddressingError};
use crate::announce;
use crate::door::Doors;
use crate::filter::{self, Kind};
use crate::hold::{self, Hold};
use crate::link::{ETHERNET_HEADER, Link, Queue, from_smoltcp, to_smoltcp};
use crate::local::{self, Local};
use crate::mld::{self, Occasion};
use crate::neighbour::{Resolution, Table};
use crate::slaac::Slaac;
use crate::smc_option::SmcOption;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port, TransmitError};
use smoltcp::iface::{PollResult, SocketHandle, SocketSet};
use smoltcp::socket::{Socket, dhcpv4};
use smoltcp::wire::{DhcpOption, EthernetAddress, IpCidr, Ipv4Cidr, Ipv6Cidr};

/// Frames that wait for room in the port before nobody is asked for more.
const QUEUE_DEPTH: usize = 16;
/// Frames that wait when what arrives is lost, because it may have to be answered.
const ANSWERS: usize = 256;
/// Neighbours that are remembered for the RDMA side.
const NEIGHBOURS: usize = 256;
/// When to try again what smoltcp wanted to do at once and could not.
const STALLED: Duration = Duration::from_millis(10);

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
    sockets: SocketSet<'static>,
    queue: Queue,
    hold: Hold,
    mtu: usize,
    smc: SmcOption,
    doors: Doors,
    local: Local,
    addressing: Addressing,
    lease: Option<(Ipv4Cidr, Option<Ipv4Addr>)>,
    dhcp: Option<SocketHandle>,
    /// What DHCP requests say besides.
    dhcp_options: &'static [DhcpOption<'static>],
    slaac: Option<Slaac>,
    neighbours: Table,
    /// Something happened since the last poll.
    attention: bool,
    deadline: Option<Instant>,
    activity: u64,
    generation: u64,
    counters: Counters,
}

impl Interface {
    /// The interface of a port with this MAC address and MTU (layer 3, in bytes). `seed` must
    /// not be predictable: TCP's initial sequence numbers come from it.
    ///
    /// # Panics
    /// If `mac` is not a station's address: the driver's mistake.
    pub fn new(mac: [u8; 6], mtu: usize, seed: u64, now: Instant) -> Self {
        let mac = local::unicast_mac(mac).expect("a port has a unicast MAC address");
        // Smaller packets than this every host must take (RFC 791); nobody's port is below it.
        let mtu = mtu.max(576);
        let mut queue = Queue::new(QUEUE_DEPTH, mtu + ETHERNET_HEADER);
        let mut config = smoltcp::iface::Config::new(EthernetAddress(mac).into());
        config.random_seed = seed;
        let smc = SmcOption::default();
        let mut link = Link { received: None, queue: &mut queue, mtu, smc: &smc };
        let stack = smoltcp::iface::Interface::new(config, &mut link, to_smoltcp(now));
        let mut interface = Interface {
            stack,
            sockets: SocketSet::new(Vec::new()),
            queue,
            hold: Hold::new(),
            mtu,
            smc,
            doors: Doors::default(),
            local: Local { mac, ..Local::default() },
            addressing: Addressing::default(),
            lease: None,
            dhcp: None,
            dhcp_options: &[],
            slaac: None,
            neighbours: Table::new(NEIGHBOURS),
            attention: true,
            deadline: None,
            activity: 0,
            generation: 0,
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
        match (addressing.dhcp, self.dhcp) {
            (true, None) => {
                let mut socket = dhcpv4::Socket::new();
                socket.set_outgoing_options(self.dhcp_options);
                self.dhcp = Some(self.sockets.add(socket));
            }
            (false, Some(handle)) => {
                self.sockets.remove(handle);
                self.dhcp = None;
                self.lease = None;
            }
            _ => (),
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
        if let Some(handle) = self.dhcp.filter(|_| self.lease.is_none()) {
            self.sockets.get_mut::<dhcpv4::Socket>(handle).reset();
        }
        if let Some(slaac) = self.slaac.as_mut().filter(|slaac| slaac.router().is_none()) {
            *slaac = Slaac::new(self.local.mac, now);
        }
        self.tell_link();
        self.attention = true;
    }

    /// Takes in a received frame.
    pub fn handle_frame(&mut self, frame: &[u8], now: Instant) {
        self.counters.rx_frames += 1;
        let Some(kind) = filter::accept(frame, &self.local) else {
            self.counters.rx_filtered += 1;
            return;
        };
        self.attention = true;
        let conflict = announce::defend(frame, kind, &self.local, &mut self.queue);
        self.counters.conflicts += u64::from(conflict);
        match kind {
            Kind::ListenerQuery => {
                if let Some(occasion) = mld::query(frame) {
                    mld::report(&self.local, occasion, &mut self.queue);
                }
                return;
            }
            Kind::Arp => self.neighbours.handle_arp(frame, &self.local, now),
            Kind::NeighbourDiscovery => {
                self.neighbours.handle_discovery(frame, &self.local, now);
            }
            Kind::RouterAdvertisement => {
                if self.slaac.as_mut().is_some_and(|s| s.handle_advertisement(frame, now)) {
                    self.apply();
                }
                return;
            }
            Kind::Other => self.smc.inspect(frame),
        }
        let held = Hold::concerns(frame, kind);
        let (queue, mtu, most) = if held {
            (self.hold.answers(), hold::LONGEST - ETHERNET_HEADER, hold::DEPTH)
        } else {
            (&mut self.queue, self.mtu, ANSWERS)
        };
        if queue.len() >= most {
            self.counters.rx_no_room += 1;
            return;
        }
        let caller = match kind {
            Kind::Other => self.doors.admit(frame, &mut self.sockets),
            _ => None,
        };
        let mut link = Link { received: Some(frame), queue, mtu, smc: &self.smc };
        self.stack.poll_ingress_single(to_smoltcp(now), &mut link, &mut self.sockets);
        if let Some(caller) = caller {
            self.doors.settle(caller, &mut self.sockets);
        }
        self.hold.hold(now);
        self.activity += 1;
    }

    /// Does what is due: timers, and what the services want sent.
    pub fn poll(&mut self, now: Instant) {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if !self.attention && !due {
            return;
        }
        self.attention = false;
        self.activity += u64::from(due);
        self.hold.release(now, &mut self.queue);
        let at = to_smoltcp(now);
        for _ in 0..QUEUE_DEPTH {
            if self.queue.is_full() {
                break;
            }
            let mut link =
                Link { received: None, queue: &mut self.queue, mtu: self.mtu, smc: &self.smc };
            if self.stack.poll_egress(at, &mut link, &mut self.sockets) == PollResult::None {
                break;
            }
            self.activity += 1;
        }
        self.poll_dhcp();
        if self.slaac.as_mut().is_some_and(|slaac| slaac.poll(now, &mut self.queue)) {
            self.apply();
        }
        self.neighbours.poll(now, &self.local, &mut self.queue);
        let stack = self.stack.poll_at(at, &self.sockets);
        let stack = stack.map(|t| if t <= at { now + STALLED } else { from_smoltcp(t) });
        let slaac = self.slaac.as_ref().and_then(Slaac::poll_timeout);
        let neighbours = self.neighbours.poll_timeout();
        let hold = self.hold.poll_timeout();
        self.deadline = Instant::first([stack, slaac, neighbours, hold]);
    }

    fn poll_dhcp(&mut self) {
        let Some(handle) = self.dhcp else { return };
        let lease = match self.sockets.get_mut::<dhcpv4::Socket>(handle).poll() {
            None => return,
            Some(dhcpv4::Event::Deconfigured) => None,
            // The server's word is checked like anybody's.
            Some(dhcpv4::Event::Configured(config)) => {
                let router = config.router.filter(|&ip| local::is_host(ip.into()));
                let good = local::is_host(config.address.address().into());
                good.then_some((config.address, router))
            }
        };
        if lease != self.lease {
            self.lease = lease;
            self.apply();
        }
    }

    /// Brings smoltcp's and our own lists up to date with where addresses come from.
    fn apply(&mut self) {
        let link_local = IpCidr::Ipv6(Ipv6Cidr::new(local::link_local(self.local.mac), 64));
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
        let (v4, v6) = self.gateways();
        let routes = self.stack.routes_mut();
        match v4 {
            Some(ip) => drop(routes.add_default_ipv4_route(ip)),
            None => drop(routes.remove_default_ipv4_route()),
        }
        match v6 {
            Some(ip) => drop(routes.add_default_ipv6_route(ip)),
            None => drop(routes.remove_default_ipv6_route()),
        }
        self.generation += 1;
        if self.stack.ip_addrs() == wanted {
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
        self.neighbours.clear();
        self.tell_link();
    }

    /// Tells the others on the link which addresses are ours.
    fn tell_link(&mut self) {
        announce::announce(&self.local, &mut self.queue);
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
                Err(TransmitError::Full) => return,
            }
            self.queue.pop();
            self.attention |= was_full;
        }
    }

    /// Resets all TCP connections: the machine is about to end.
    pub fn shut_down(&mut self) {
        for (_, socket) in self.sockets.iter_mut() {
            if let Socket::Tcp(socket) = socket {
                socket.abort();
            }
        }
        self.attention = true;
    }

    /// Whether nothing is left to be said.
    pub fn is_shut_down(&self) -> bool {
        !self.attention && self.queue.is_empty()
    }

    /// When [`Interface::poll`] has something to do, if nothing arrives before; a time in the
    /// past means at once.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.wants_poll() { Some(Instant::ZERO) } else { self.deadline }
    }

    /// Whether [`Interface::poll`] has something to do at once.
    pub fn wants_poll(&self) -> bool {
        self.attention || !self.queue.is_empty()
    }

    /// What is ours: for the fast paths, to be read anew when [`Interface::generation`] changes.
    pub fn local(&self) -> &Local {
        &self.local
    }

    /// Changes with every change of addresses or routers.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Largest layer 3 packet in bytes.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// The addresses in use, with their networks.
    pub fn addresses(&self) -> &[IpCidr] {
        self.stack.ip_addrs()
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
        if !local::is_host(ip) || self.local.has(ip) {
            return None;
        }
        if self.addresses().iter().any(|cidr| cidr.contains_addr(&ip.into())) {
            return Some(ip);
        }
        match (ip, self.gateways()) {
            (IpAddr::V4(_), (Some(gateway), _)) => Some(gateway.into()),
            (IpAddr::V6(_), (_, Some(gateway))) => Some(gateway.into()),
            _ => None,
        }
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

    /// Has a TCP socket connect to `peer` from the local port; false if there is no way.
    pub(crate) fn open(&mut self, socket: SocketHandle, peer: SocketAddr, port: u16) -> bool {
        self.attention = true;
        let socket = self.sockets.get_mut::<smoltcp::socket::tcp::Socket>(socket);
        socket.connect(self.stack.context(), peer, port).is_ok()
    }

    /// Whether a TCP socket has this local port.
    pub(crate) fn uses_port(&self, port: u16) -> bool {
        self.sockets.iter().any(|(_, socket)| match socket {
            smoltcp::socket::Socket::Tcp(socket) => {
                socket.local_endpoint().is_some_and(|end| end.port == port)
            }
            _ => false,
        })
    }

    /// The TCP ports that are listened on.
    pub(crate) fn doors(&mut self) -> &mut Doors {
        &mut self.doors
    }

    /// The SMC option of TCP connections.
    pub fn smc_option(&mut self) -> &mut SmcOption {
        &mut self.smc
    }

    /// Changes whenever the sockets may have changed.
    pub fn activity(&self) -> u64 {
        self.activity
    }

    /// The sockets, for the services; what they want is seen to with the next poll.
    pub(crate) fn sockets(&mut self) -> &mut SocketSet<'static> {
        self.attention = true;
        &mut self.sockets
    }
}
