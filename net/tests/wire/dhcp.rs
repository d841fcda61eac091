//! DHCP with a small server, and addresses from a router's advertisement.

use crate::common::mac;
use drivers::hal::Instant;
use net::{Addressing, Interface};
use netsim::Collector;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket, UdpRepr,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// What the server hands out.
#[derive(Clone, Copy)]
struct Offer {
    server: Ipv4Addr,
    address: Ipv4Addr,
    router: Ipv4Addr,
    lease: Duration,
}

/// The server's answer to a frame, if it is a request.
fn serve(frame: &[u8], offer: Offer) -> Option<Vec<u8>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let ip = Ipv4Packet::new_checked(frame.payload()).ok()?;
    let udp = UdpPacket::new_checked(ip.payload()).ok()?;
    let request = DhcpPacket::new_checked(udp.payload()).ok()?;
    assert!(request.options().any(|o| (o.kind, o.data) == (12, b"gate-1")), "it says its name");
    let request = DhcpRepr::parse(&request).ok()?;
    let message_type = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return None,
    };
    let dhcp = DhcpRepr {
        message_type,
        your_ip: offer.address,
        server_ip: offer.server,
        router: Some(offer.router),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        server_identifier: Some(offer.server),
        lease_duration: Some(offer.lease.as_secs() as u32),
        renew_duration: None,
        rebind_duration: None,
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        broadcast: false,
        ..request
    };
    let checksums = ChecksumCapabilities::default();
    let udp = UdpRepr { src_port: 67, dst_port: 68 };
    let ip = Ipv4Repr {
        src_addr: offer.server,
        dst_addr: Ipv4Addr::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: 8 + dhcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; 14 + ip.buffer_len() + ip.payload_len];
    let mut answer = EthernetFrame::new_unchecked(&mut bytes[..]);
    answer.set_src_addr(EthernetAddress(mac(254)));
    answer.set_dst_addr(frame.src_addr());
    answer.set_ethertype(EthernetProtocol::Ipv4);
    let mut packet = Ipv4Packet::new_unchecked(answer.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    let (from, to) = (offer.server.into(), Ipv4Addr::BROADCAST.into());
    let fill = |b: &mut [u8]| dhcp.emit(&mut DhcpPacket::new_unchecked(b)).unwrap();
    udp.emit(&mut datagram, &from, &to, dhcp.buffer_len(), fill, &checksums);
    Some(bytes)
}

struct World {
    now: Instant,
    interface: Interface,
    /// None: nobody answers.
    offer: Option<Offer>,
    frames: usize,
}

impl World {
    fn new(offer: Option<Offer>) -> Self {
        let now = Instant::from_nanos(1);
        let mut interface = Interface::new(mac(1), 1500, [9; 32], now);
        interface.set_hostname("gate-1");
        let addressing = Addressing { dhcp: true, ..Addressing::default() };
        interface.set_addressing(addressing, now).unwrap();
        World { now, interface, offer, frames: 0 }
    }

    /// Runs from timer to timer, as the loop does; how often it woke up.
    fn run(&mut self, time: Duration) -> usize {
        let (end, mut wakeups) = (self.now + time, 0);
        while self.now < end {
            self.interface.poll(self.now);
            let mut port = Collector::new(64);
            self.interface.transmit(&mut port, |_| ());
            self.frames += port.frames.len();
            for frame in port.frames {
                if let Some(answer) = self.offer.and_then(|offer| serve(&frame, offer)) {
                    self.interface.handle_frame(&answer, self.now);
                }
            }
            match self.interface.poll_timeout() {
                Some(at) if at <= self.now => (),
                at => {
                    self.now = at.map_or(end, |at| at.min(end));
                    wakeups += 1;
                }
            }
        }
        wakeups
    }
}

fn offer() -> Offer {
    Offer {
        server: SERVER,
        address: Ipv4Addr::new(10, 0, 0, 7),
        router: SERVER,
        lease: Duration::from_secs(600),
    }
}

#[test]
fn takes_a_lease_renews_it_and_loses_it() {
    let mut world = World::new(Some(offer()));
    let before = world.interface.generation();
    world.run(Duration::from_millis(100));
    assert!(world.interface.has_lease());
    assert_eq!(world.interface.local().v4, [Ipv4Addr::new(10, 0, 0, 7)]);
    assert_eq!(world.interface.gateways().0, Some(SERVER));
    let far = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(world.interface.next_hop(far), Some(SERVER.into()));
    assert_ne!(world.interface.generation(), before);
    world.run(Duration::from_secs(3600));
    assert!(world.interface.has_lease(), "it was renewed");
    world.offer = None;
    world.run(Duration::from_secs(601));
    assert!(!world.interface.has_lease(), "nobody renews it");
    assert!(world.interface.local().v4.is_empty());
    world.offer = Some(offer());
    world.run(Duration::from_secs(30));
    assert!(world.interface.has_lease());
    world.interface.set_addressing(Addressing::default(), world.now).unwrap();
    assert!(world.interface.local().v4.is_empty() && !world.interface.has_lease());
}

#[test]
fn without_a_server_it_asks_seldom() {
    let mut world = World::new(None);
    let wakeups = world.run(Duration::from_secs(100));
    assert!(world.frames >= 9 && world.frames <= 30, "{}", world.frames);
    assert!(wakeups <= 40, "{wakeups}");
    world.offer = Some(offer());
    world.interface.link_came_up(world.now);
    world.run(Duration::from_millis(100));
    assert!(world.interface.has_lease(), "the link came up, so it asked at once");
}

#[test]
fn impossible_offers_are_not_taken() {
    for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        let mut world = World::new(Some(Offer { address, ..offer() }));
        world.run(Duration::from_secs(60));
        assert!(world.interface.local().v4.is_empty(), "{address}");
    }
    // A lease of nobody could not be renewed: smoltcp panics on the way.
    let mut world = World::new(Some(Offer { server: Ipv4Addr::UNSPECIFIED, ..offer() }));
    world.run(Duration::from_secs(600));
    assert!(!world.interface.has_lease());
    let router = Ipv4Addr::new(224, 0, 0, 1);
    let mut world = World::new(Some(Offer { router, ..offer() }));
    world.run(Duration::from_secs(60));
    assert!(world.interface.has_lease());
    assert_eq!(world.interface.gateways().0, None);
}
