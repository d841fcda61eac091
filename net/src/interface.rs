//! A port's IP interface: addresses, ARP and neighbour discovery, answers to pings, and the
//! sockets of the services. IPv4 and IPv6; ICMP, UDP and what TCP does is smoltcp's.
//!
//! Driven by the poll loop: [`Interface::handle_frame`] for what arrived, [`Interface::poll`] in
//! every round (it returns at once when nothing is due), [`Interface::transmit`] to let frames
//! out, [`Interface::poll_timeout`] before halting. Does not fragment, forward or send to itself.

mod addresses;
mod users;

pub use addresses::MtuOrigin;

use crate::address_defense::{self, Conflict, Defence};
use crate::addressing::Addressing;
use crate::connections::{Connections, Outside};
use crate::delayed_replies::DelayedReplies;
use crate::dhcp::{Client, Lease};
use crate::filter::{self, Kind};
use crate::fragments::{self, Fragments};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::mld;
use crate::mss;
use crate::neighbour::{Resolution, Table};
use crate::notices::{Notice, Notices};
use crate::outbox::Outbox;
use crate::packet_too_big::PacketTooBig;
use crate::path_mtu::PathMtus;
use crate::port_addresses::{self, PortAddresses};
use crate::probes::Probes;
use crate::routes::Routes;
use crate::seeds::Seeds;
use crate::segment::{SYN, Segment};
use crate::slaac::Slaac;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port, TransmitError};
use smoltcp::iface::{PollResult, SocketSet};
use smoltcp::wire::HardwareAddress;

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
    /// TCP segments with a wrong SYN cookie, in a flood of SYNs.
    pub cookie_guesses: u64,
    /// The last of these.
    pub conflict: Option<Conflict>,
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
    /// The card's.
    mtu: usize,
    mtu_origins: [MtuOrigin; 2],
    pub(crate) seeds: Seeds,
    local: PortAddresses,
    routes: Routes,
    addressing: Addressing,
    lease: Option<Lease>,
    /// The IPv6 addresses whose groups were reported.
    groups: Vec<Ipv6Addr>,
    dhcp: Option<Client>,
    /// The name by which DHCP servers know us.
    host_name: Option<&'static str>,
    slaac: Option<Slaac>,
    probes: Probes,
    /// When one of these has something to do.
    addresses_due: Option<Instant>,
    defence: Defence,
    notices: Notices,
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
    /// not be predictable, and nobody else's: the keys of TCP's sequence numbers and cookies come from it.
    ///
    /// # Panics
    /// If `mac` is not a station's address: the driver's mistake.
    pub fn new(mac: [u8; 6], mtu: usize, seed: [u8; 32], now: Instant) -> Self {
        let mac = port_addresses::unicast_mac(mac).expect("a port has a unicast MAC address");
        // Smaller packets than this every host must take (RFC 791); nobody's port is below it.
        let mtu = mtu.max(576);
        let mut queue = Queue::new(QUEUE_DEPTH, mtu + ETHERNET_HEADER);
        let mut config = smoltcp::iface::Config::new(HardwareAddress::Ip);
        let mut seeds = Seeds::new(seed);
        let connections = Connections::new(&mut seeds);
        config.random_seed = seeds.word();
        let framing = Framing::Ip { from: mac, to: [0; 6], smc: false };
        let mut link = Link { received: None, queue: &mut queue, mtu, framing };
        let stack = smoltcp::iface::Interface::new(config, &mut link, to_smoltcp(now));
        let mut interface = Interface {
            stack,
            connections,
            sockets: SocketSet::new(Vec::new()),
            sockets_due: None,
            outbox: Outbox::new(mtu + ETHERNET_HEADER),
            queue,
            hold: DelayedReplies::new(),
            mtu,
            mtu_origins: [MtuOrigin::Card; 2],
            seeds,
            local: PortAddresses { mac, ..PortAddresses::default() },
            routes: Routes::new(mtu),
            addressing: Addressing::default(),
            lease: None,
            groups: Vec::new(),
            dhcp: None,
            host_name: None,
            slaac: None,
            probes: Probes::default(),
            addresses_due: None,
            defence: Defence::default(),
            notices: Notices::default(),
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
                    self.report_groups(occasion);
                }
            }
            Kind::RouterAdvertisement => {
                self.addresses_due = Some(now);
                let notices = &mut self.notices;
                if self.slaac.as_mut().is_some_and(|s| s.handle_advertisement(frame, notices, now))
                {
                    self.apply();
                }
            }
            Kind::Dhcp => {
                self.addresses_due = Some(now);
                if let Some(client) = &mut self.dhcp {
                    client.handle_frame(frame, &mut self.notices, now);
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
                let mtu = self.routes.mtu_of(&whole[ETHERNET_HEADER..]);
                let large = whole.len() > ETHERNET_HEADER + mtu;
                if !large || !fragments::answer_echo(&whole, mtu, number, &mut self.queue) {
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
        // What the peer offers is what we keep to.
        let mtu = self.routes.mtu_to(segment.ends.remote);
        let opens = segment.flags & SYN != 0;
        let clamped = opens.then(|| mss::clamp(frame, mtu)).flatten();
        let (connections, mut outside) = self.outside(now);
        match clamped.as_deref().and_then(|frame| Some((frame, Segment::of(frame)?))) {
            Some((frame, segment)) => {
                connections.handle_segment(frame, &segment, from, &mut outside);
            }
            None => connections.handle_segment(frame, &segment, from, &mut outside),
        }
    }

    /// Takes in what somebody asks or says about who has which address.
    fn handle_neighbour(&mut self, frame: &[u8], kind: Kind, now: Instant) {
        if let Some(claim) = address_defense::claim(frame, kind, self.local.mac) {
            self.note_claim(claim, now);
        }
        match kind {
            Kind::Arp => self.neighbours.handle_arp(frame, &self.local, now),
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
        // What is larger than the network takes is not to be answered by as much.
        if received.is_some_and(|packet| packet.len() > self.routes.mtu_of(packet)) {
            self.counters.rx_filtered += 1;
            return;
        }
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
        if self.addresses_due.is_some_and(|due| due <= now) {
            self.poll_addresses(now);
        }
        self.neighbours.poll(now, &self.local, &mut self.queue);
        self.settle_neighbours();
        let neighbours = self.neighbours.poll_timeout();
        let (connections, hold) = (self.connections.poll_timeout(), self.hold.poll_timeout());
        self.deadline =
            Instant::first([self.sockets_due, self.addresses_due, neighbours, connections, hold]);
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
            self.note_router(ip, mac.is_some());
        }
    }

    /// Lets queued frames out, as many as the port takes, and shows each to `sent`.
    pub fn transmit(&mut self, port: &mut (impl Port + ?Sized), mut sent: impl FnMut(&Packet<'_>)) {
        let was_full = self.queue.is_full();
        while let Some(frame) = self.queue.front() {
            let mtu = frame.get(ETHERNET_HEADER..).map_or(self.mtu, |p| self.routes.mtu_of(p));
            let clamped = if mtu < self.mtu { mss::clamp(frame, mtu) } else { None };
            let header = clamped.as_deref().unwrap_or(frame);
            let packet = Packet { header, payload: &[], trailer: &[] };
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

    /// Largest layer 3 packet in bytes that passes to `ip`, as far as is known at `now`.
    pub fn path_mtu(&self, ip: IpAddr, now: Instant) -> usize {
        let most = self.mtu.min(self.routes.mtu_to(ip));
        self.paths.get(ip, now).map_or(most, |(mtu, _)| mtu.min(most))
    }

    /// Changes whenever a destination is added to [`Interface::small_paths`].
    pub fn path_changes(&self) -> u64 {
        self.paths.changes()
    }

    /// The destinations with a path MTU below the interface's: the path MTU, and until when that holds.
    pub fn small_paths(&self) -> impl Iterator<Item = (IpAddr, usize, Instant)> {
        self.paths.all()
    }

    /// The next line for the log.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.next()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        Counters { cookie_guesses: self.connections.cookie_guesses(), ..self.counters }
    }

    /// The station on the link to which a packet for `ip` goes: itself, or a gateway.
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        self.routes.next_hop(ip)
    }

    /// Whether packets for `ip` go to a gateway.
    pub fn is_routed(&self, ip: IpAddr) -> bool {
        self.next_hop(ip).is_some_and(|hop| hop != ip)
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
