//! The IP interface of a port (IPv4 and IPv6): addresses, ARP and neighbour discovery, replies to pings, and the
//! sockets of the services. smoltcp implements ICMP, UDP and TCP.
//!
//! The poll loop calls [`Interface::handle_frame`] for received frames, [`Interface::poll`] in every round (it returns
//! at once when nothing is due), [`Interface::transmit`] to send queued frames, and [`Interface::poll_timeout`] before
//! it halts. The interface does not fragment, forward, or send to itself.

mod addresses;
mod users;

pub use addresses::MtuOrigin;

use crate::address_defense::{self, Conflict, Defence};
use crate::addressing::Addressing;
use crate::connections::{Connections, Ctx};
use crate::delayed_replies::DelayedReplies;
use crate::dhcp::{Client, Lease};
use crate::filter::{self, Kind};
use crate::fragments::{self, Fragments};
use crate::link::{ETHERNET_HEADER, Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::mld;
use crate::neighbour::{Resolution, Table};
use crate::notices::{Notice, Notices};
use crate::outbox::Outbox;
use crate::packet_too_big::PacketTooBig;
use crate::path_mtu::PathMtus;
use crate::port_addresses::{self, PortAddresses};
use crate::probes::Probes;
use crate::refusal::Refusals;
use crate::routes::Routes;
use crate::seeds::Seeds;
use crate::segment::{SYN, Segment};
use crate::slaac::Slaac;
use crate::smoltcp_gaps::mss;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port, TransmitError};
use smoltcp::iface::{PollResult, SocketSet};
use smoltcp::wire::HardwareAddress;

/// Queued frames at which sockets and connections are no longer polled for more.
const QUEUE_DEPTH: usize = 16;
/// Queued frames at which received frames are dropped, because they may need a reply.
const ANSWERS: usize = 256;
/// Capacity of the neighbour table.
const NEIGHBOURS: usize = 4096;
/// Delay before a poll is repeated in which smoltcp was due but sent nothing.
pub(crate) const STALLED: Duration = Duration::from_millis(10);

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received from the loop.
    pub rx_frames: u64,
    /// Received frames dropped by the filter: not for us, malformed, or of an unsupported kind.
    pub rx_filtered: u64,
    /// Received frames dropped because a reply could not have been queued.
    pub rx_no_room: u64,
    /// Frames in which another station claims an address of ours.
    pub conflicts: u64,
    /// TCP segments with a wrong SYN cookie, counted during SYN floods.
    pub cookie_guesses: u64,
    /// SYNs to listening ports with the address of a host, from another station than the neighbour table has for it.
    pub foreign_syns: u64,
    /// The last conflict.
    pub conflict: Option<Conflict>,
    /// When the last conflict was noticed.
    pub conflict_at: Option<Instant>,
    /// Frames accepted by the port.
    pub tx_frames: u64,
    /// Frames dropped because they are too large for the port.
    pub tx_too_large: u64,
}

/// The interface of one port.
pub struct Interface {
    stack: smoltcp::iface::Interface,
    connections: Connections,
    /// UDP and ICMP sockets of the services.
    sockets: SocketSet<'static>,
    /// When they must be polled.
    sockets_due: Option<Instant>,
    outbox: Outbox,
    queue: Queue,
    hold: DelayedReplies,
    /// MTU of the card.
    mtu: usize,
    mtu_origins: [MtuOrigin; 2],
    pub(crate) seeds: Seeds,
    local: PortAddresses,
    routes: Routes,
    addressing: Addressing,
    lease: Option<Lease>,
    /// IPv6 addresses whose multicast groups were reported.
    groups: Vec<Ipv6Addr>,
    dhcp: Option<Client>,
    /// Host name that is sent to DHCP servers.
    host_name: Option<&'static str>,
    slaac: Option<Slaac>,
    probes: Probes,
    /// When DHCP, SLAAC or the probes must be polled.
    addresses_due: Option<Instant>,
    defence: Defence,
    notices: Notices,
    neighbours: Table,
    paths: PathMtus,
    fragments: Fragments,
    /// There was an event since the last poll.
    attention: bool,
    /// The port had no room for a frame; `look_for_room` checks whether it has again.
    blocked: bool,
    deadline: Option<Instant>,
    /// Frames and timers of sockets other than TCP's.
    activity: u64,
    now: Instant,
    counters: Counters,
}

impl Interface {
    /// The interface of a port with this MAC address and MTU (layer 3, in bytes). The keys of TCP sequence numbers and
    /// cookies are derived from `seed`: it must be unpredictable and used for nothing else.
    ///
    /// # Panics
    /// If `mac` is not a unicast address, which is a fault of the driver.
    pub fn new(mac: [u8; 6], mtu: usize, seed: [u8; 32], now: Instant) -> Self {
        let mac = port_addresses::unicast_mac(mac).expect("a port has a unicast MAC address");
        // Every host must accept packets of this size (RFC 791), and no port has a smaller MTU.
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

    /// Handles a received frame.
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

    /// Handles a frame that the filter has accepted.
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

    /// Handles a fragment, and the whole packet once it is complete.
    fn handle_fragment(&mut self, frame: &[u8], now: Instant) {
        let Some(whole) = self.fragments.take(frame, now) else { return };
        match filter::accept(&whole, &self.local) {
            // Fragmented neighbour discovery is dropped (RFC 6980).
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

    /// Handles a frame with a TCP segment.
    fn handle_segment(&mut self, frame: &[u8], now: Instant) {
        let (Some(segment), Some(from)) = (Segment::of(frame), source(frame)) else {
            self.counters.rx_filtered += 1;
            return;
        };
        // smoltcp limits its segments to the MSS in the peer's SYN, so a smaller link MTU is applied to it.
        let mtu = self.routes.mtu_to(segment.ends.remote);
        let opens = segment.flags & SYN != 0;
        let clamped = opens.then(|| mss::clamp(frame, mtu)).flatten();
        let (connections, mut ctx) = self.context(now);
        match clamped.as_deref().and_then(|frame| Some((frame, Segment::of(frame)?))) {
            Some((frame, segment)) => {
                connections.handle_segment(frame, &segment, from, &mut ctx);
            }
            None => connections.handle_segment(frame, &segment, from, &mut ctx),
        }
    }

    /// Handles ARP packets and neighbour discovery.
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

    /// Handles any other packet.
    fn handle_packet(&mut self, frame: &[u8], now: Instant) {
        if let Some(report) = PacketTooBig::of(frame, &self.local) {
            let (connections, mut ctx) = self.context(now);
            return connections.packet_too_big(&report, &mut ctx);
        }
        let Some(from) = source(frame) else { return };
        let framing = Framing::Ip { from: self.local.mac, to: from, smc: false };
        let received = frame.get(ETHERNET_HEADER..);
        // A reply to an oversized packet would exceed the MTU.
        if received.is_some_and(|packet| packet.len() > self.routes.mtu_of(packet)) {
            self.counters.rx_filtered += 1;
            return;
        }
        let mut link = Link { received, queue: &mut self.queue, mtu: self.mtu, framing };
        self.stack.poll_ingress_single(to_smoltcp(now), &mut link, &mut self.sockets);
        self.sockets_due = Some(now);
        self.activity += 1;
    }

    /// The connections, and the parts of the interface that they use.
    fn context(&mut self, now: Instant) -> (&mut Connections, Ctx<'_>) {
        let ctx = Ctx {
            stack: &mut self.stack,
            queue: &mut self.queue,
            neighbours: &mut self.neighbours,
            routes: &self.routes,
            paths: &mut self.paths,
            local: &self.local,
            mtu: self.mtu,
            now,
        };
        (&mut self.connections, ctx)
    }

    /// Handles expired timers, and sends data of connections and sockets.
    pub fn poll(&mut self, now: Instant) {
        self.now = now;
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if !self.attention && !due {
            return;
        }
        self.attention = false;
        self.hold.release(now, &mut self.queue);
        let (connections, mut ctx) = self.context(now);
        connections.poll(&mut ctx);
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

    /// Sends packets of UDP and ICMP sockets.
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

    /// Resumes connections and packets whose neighbour was resolved or has failed.
    fn settle_neighbours(&mut self) {
        while let Some((ip, waiting)) = self.neighbours.next_settled() {
            waiting.into_iter().for_each(|key| self.connections.settled(key));
            let mac = self.neighbours.get(ip, self.now);
            self.outbox.settled(ip, mac, &mut self.queue);
            self.attention = true;
            self.note_router(ip, mac.is_some());
        }
    }

    /// Sends queued frames while the port accepts them. Calls `sent` for each.
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

    /// Checks whether a port that was full has room again.
    pub fn look_for_room(&mut self, port: &(impl Port + ?Sized)) {
        if self.blocked {
            self.blocked = !port.has_room();
        }
    }

    /// Resets all TCP connections, before the machine shuts down.
    pub fn shut_down(&mut self) {
        self.connections().shut_down();
    }

    /// Whether all frames are sent.
    pub fn is_shut_down(&self) -> bool {
        !self.attention && self.queue.is_empty() && !self.connections.wants_poll()
    }

    /// When [`Interface::poll`] is due without an event. A time in the past means at once.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.wants_poll() { Some(Instant::ZERO) } else { self.deadline }
    }

    /// Whether [`Interface::poll`] is due at once.
    pub fn wants_poll(&self) -> bool {
        self.attention || !self.queue.is_empty() && !self.blocked
    }

    /// Our addresses. Fast paths must read them again when [`Interface::generation`] changes.
    pub fn local(&self) -> &PortAddresses {
        &self.local
    }

    /// A counter that changes with every change of addresses or routers.
    pub fn generation(&self) -> u64 {
        self.routes.generation
    }

    /// Path MTU to `ip` known at `now`: largest layer 3 packet in bytes.
    pub fn path_mtu(&self, ip: IpAddr, now: Instant) -> usize {
        let most = self.mtu.min(self.routes.mtu_to(ip));
        self.paths.get(ip, now).map_or(most, |(mtu, _)| mtu.min(most))
    }

    /// A counter that changes whenever a destination is added to [`Interface::small_paths`].
    pub fn path_changes(&self) -> u64 {
        self.paths.changes()
    }

    /// Destinations with a path MTU below the interface's: address, path MTU, expiry.
    pub fn small_paths(&self) -> impl Iterator<Item = (IpAddr, usize, Instant)> {
        self.paths.all()
    }

    /// Takes the next line for the log.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.next()
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        Counters {
            cookie_guesses: self.connections.cookie_guesses(),
            foreign_syns: self.connections.foreign_syns(),
            ..self.counters
        }
    }

    /// Refused SYNs of stations that use the address of another host, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        self.connections.refusals()
    }

    /// The station on the link to which a packet for `ip` goes: itself, or a gateway.
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        self.routes.next_hop(ip)
    }

    /// Whether packets for `ip` go to a gateway.
    pub fn is_routed(&self, ip: IpAddr) -> bool {
        self.next_hop(ip).is_some_and(|hop| hop != ip)
    }

    /// MAC address to which frames for `ip` go, if it is known at `now`. Starts no resolution.
    pub fn neighbour(&self, ip: IpAddr, now: Instant) -> Option<[u8; 6]> {
        self.neighbours.get(self.next_hop(ip)?, now)
    }

    /// As [`Interface::neighbour`], but starts the resolution of an unknown address: the next [`Interface::poll`] sends
    /// an ARP request or neighbour solicitation.
    pub fn resolve(&mut self, ip: IpAddr, now: Instant) -> Resolution {
        let Some(hop) = self.next_hop(ip) else { return Resolution::NoRoute };
        let resolution = self.neighbours.resolve(hop, now);
        self.attention |= resolution == Resolution::Pending;
        resolution
    }
}

/// Source MAC address of a frame.
fn source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(6..12)?.first_chunk().copied()
}
