//! The DHCP client (RFC 2131), which is smoltcp's. It writes Ethernet frames, so it has a stack of its
//! own, of which nothing else is used: whatever it sends goes to everybody, or to its server, whom it
//! finds by itself.

use crate::link::{Framing, Link, Queue, from_smoltcp, to_smoltcp};
use crate::port_addresses;
use core::net::Ipv4Addr;
use drivers::hal::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4::{Event, Socket};
use smoltcp::wire::{ArpOperation, ArpPacket, DhcpOption, EthernetAddress, IpCidr, Ipv4Cidr};

/// What a server has given: an address with its network, and a router.
pub type Lease = (Ipv4Cidr, Option<Ipv4Addr>);

/// The client of a port.
pub struct Client {
    stack: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    mtu: usize,
    due: Option<Instant>,
}

impl Client {
    /// Begins to look for a server. `options` are said besides.
    pub fn new(
        mac: [u8; 6],
        mtu: usize,
        seed: u64,
        options: &'static [DhcpOption<'static>],
        now: Instant,
    ) -> Self {
        let mut queue = Queue::new(0, 0);
        let mut link = Link { received: None, queue: &mut queue, mtu, framing: Framing::Ethernet };
        let mut config = Config::new(EthernetAddress(mac).into());
        config.random_seed = seed;
        let stack = Interface::new(config, &mut link, to_smoltcp(now));
        let mut socket = Socket::new();
        socket.set_outgoing_options(options);
        let mut sockets = SocketSet::new(alloc::vec::Vec::with_capacity(1));
        let socket = sockets.add(socket);
        Client { stack, sockets, socket, mtu, due: Some(now) }
    }

    /// Asks at once.
    pub fn reset(&mut self, now: Instant) {
        self.sockets.get_mut::<Socket>(self.socket).reset();
        self.due = Some(now);
    }

    /// Tells it our addresses and the router, by which it finds its server when it renews a lease.
    pub fn set_addresses(&mut self, addresses: &[IpCidr], router: Option<Ipv4Addr>) {
        self.stack.update_ip_addrs(|list| {
            list.clear();
            list.extend(addresses.iter().filter(|cidr| matches!(cidr, IpCidr::Ipv4(_))).copied());
        });
        let routes = self.stack.routes_mut();
        match router {
            Some(ip) => drop(routes.add_default_ipv4_route(ip)),
            None => drop(routes.remove_default_ipv4_route()),
        }
    }

    /// Takes in what a server says.
    pub fn handle_frame(&mut self, frame: &[u8], queue: &mut Queue, now: Instant) {
        let (mtu, framing) = (self.mtu, Framing::Ethernet);
        let mut link = Link { received: Some(frame), queue, mtu, framing };
        self.stack.poll_ingress_single(to_smoltcp(now), &mut link, &mut self.sockets);
        self.due = Some(now);
    }

    /// Takes in an ARP packet, if it is an answer: questions are not its to answer.
    pub fn handle_arp(&mut self, frame: &[u8], queue: &mut Queue, now: Instant) {
        let packet = frame.get(14..).and_then(|packet| ArpPacket::new_checked(packet).ok());
        if packet.is_some_and(|packet| packet.operation() == ArpOperation::Reply) {
            self.handle_frame(frame, queue, now);
        }
    }

    /// Says what is due; the lease if there is news of it.
    pub fn poll(&mut self, queue: &mut Queue, now: Instant) -> Option<Option<Lease>> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        let at = to_smoltcp(now);
        let (mtu, framing) = (self.mtu, Framing::Ethernet);
        let mut link = Link { received: None, queue, mtu, framing };
        self.stack.poll_egress(at, &mut link, &mut self.sockets);
        let news = self.sockets.get_mut::<Socket>(self.socket).poll().map(|event| match event {
            Event::Deconfigured => None,
            // The server's word is checked like anybody's.
            Event::Configured(config) => {
                let router = config.router.filter(|&ip| port_addresses::is_host(ip.into()));
                let good = port_addresses::is_host(config.address.address().into());
                good.then_some((config.address, router))
            }
        });
        let due = self.stack.poll_at(at, &self.sockets);
        // What it wanted at once, and could not do, it tries again.
        self.due = due.map(|at| from_smoltcp(at).max(now + crate::interface::STALLED));
        news
    }

    /// When [`Client::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }
}
