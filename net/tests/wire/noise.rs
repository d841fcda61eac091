//! Plausible noise: frames with valid checksums that match the interface's real connections, lease and neighbours, with
//! some fields changed. Plain noise would be dropped before it reaches the code under test.

use crate::common::mac;
use drivers::hal::Instant;
use net::http::{Handler, Limits, Read, Request, Response, Server};
use net::{Addressing, Interface};
use netsim::{Collector, Rng};
use smoltcp::wire::{
    Icmpv4Packet, Icmpv6Packet, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket,
};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

const REQUEST: &[u8] = b"GET /noise HTTP/1.1\r\nHost: a\r\n\r\n";
const SYN: u8 = 2;
const PSH_ACK: u8 = 0x18;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Random choices.
struct Random(Rng);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0.within(0..bound as u64) as usize
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| if self.once_in(2) { self.byte() } else { 0 }).collect()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        self.0.pick(from)
    }
}

struct Noise {
    random: Random,
    /// Sequence and acknowledgement number of the next segment from each of our ports.
    connections: HashMap<u16, (u32, u32)>,
    /// Transaction of the last DHCP request.
    transaction: [u8; 4],
}

impl Noise {
    /// Learns sequence numbers and the DHCP transaction from a frame of the interface.
    fn learn(&mut self, frame: &[u8]) {
        let Ok(ip) = Ipv4Packet::new_checked(&frame[14..]) else { return };
        if let (UDP, Some(transaction)) = (ip.next_header().into(), ip.payload().get(12..16)) {
            self.transaction.copy_from_slice(transaction);
        }
        let Ok(tcp) = TcpPacket::new_checked(ip.payload()) else { return };
        if u8::from(ip.next_header()) == TCP && !tcp.rst() {
            let next = tcp.seq_number().0 as u32;
            let next = next.wrapping_add(tcp.segment_len() as u32);
            self.connections.insert(tcp.dst_port(), (tcp.ack_number().0 as u32, next));
        }
    }

    fn tcp(&mut self) -> Vec<u8> {
        let r = &mut self.random;
        let port = 1000 + r.below(4) as u16;
        let known = self.connections.get(&port).filter(|_| !r.once_in(8));
        let (sequence, acknowledge) = known.copied().unwrap_or_default();
        let usual = if known.is_some() { PSH_ACK } else { SYN };
        let flags = if r.once_in(8) { r.byte() } else { usual };
        let options = if r.once_in(3) { r.below(11) } else { 0 };
        let mut segment = [port.to_be_bytes(), 80u16.to_be_bytes()].concat();
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledge.to_be_bytes());
        segment.extend([(5 + options as u8) << 4, flags, r.byte(), r.byte(), 0, 0, 0, 0]);
        segment.extend((0..options * 4).map(|_| r.pick(&[0, 1, 2, 3, 4, 5, 8, 10])));
        if flags & SYN == 0 && !r.once_in(4) {
            let pieces = r.below(3);
            segment.extend(REQUEST.repeat(pieces));
        }
        segment
    }

    fn udp(&mut self) -> Vec<u8> {
        let r = &mut self.random;
        let mut data = r.bytes(300);
        let dhcp = !r.once_in(4);
        if dhcp {
            data[..4].copy_from_slice(&[2, 1, 6, 0]);
            data[4..8].copy_from_slice(&self.transaction);
            data[16..20].copy_from_slice(&[10, 0, 0, 40]);
            data[28..34].copy_from_slice(&mac(1));
            data[34..236].fill(0);
            let options = [0x63, 0x82, 0x53, 0x63, 53, 1, r.pick(&[2, 5, 5, 6]), 54, 4, 10, 0, 0];
            data[236..248].copy_from_slice(&options);
            let lease = [254, 51, 4, 0, 0, 0, r.byte(), 1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 9];
            data[248..267].copy_from_slice(&lease);
            data[267..].fill(255);
        }
        let from: u16 = if dhcp { 67 } else { 53 };
        let to: u16 = if dhcp { 68 } else { r.pick(&[7, 514, 9]) };
        let length = 8 + data.len() as u16;
        let mut datagram = [from, to, length, 0].map(u16::to_be_bytes).concat();
        datagram.extend(data);
        datagram
    }

    fn icmpv6(&mut self) -> Vec<u8> {
        let r = &mut self.random;
        let kind = r.pick(&[1, 2, 3, 4, 128, 129, 130, 131, 133, 134, 135, 136, 137, 143]);
        let mut message = vec![kind, 0, 0, 0];
        match kind {
            134 => {
                message.extend([64, 0, r.byte(), r.byte(), 0, 0, 0, 0, 0, 0, 0, 0]);
                message.extend([3, 4, r.pick(&[0, 64, 64, 128, 200]), 0xc0]);
            }
            135 | 136 => {
                let target: Ipv6Addr = r.pick(&["2001:db8::1", "fe80::2"]).parse().unwrap();
                message.extend([r.byte(), 0, 0, 0]);
                message.extend(target.octets());
                message.extend([kind - 134, 1, 2, 0, 0, 0, 0, 2]);
            }
            _ => (),
        }
        let length = r.below(100);
        message.extend(r.bytes(length));
        message
    }

    /// An IPv4 packet with its protocol's checksum.
    fn v4(&mut self) -> Vec<u8> {
        let (protocol, mut payload) = match self.random.below(4) {
            0 => (ICMP, self.random.bytes(64)),
            1 => (UDP, self.udp()),
            _ => (TCP, self.tcp()),
        };
        let r = &mut self.random;
        let odd = [[0; 4], [255; 4], [10, 0, 0, 255], [192, 0, 2, 1], [224, 0, 0, 1]];
        let source = if r.once_in(6) { r.pick(&odd) } else { [10, 0, 0, 2] };
        let target = if r.once_in(6) { r.pick(&odd) } else { [10, 0, 0, 1] };
        fill_checksum(protocol, &mut payload, IpAddr::from(source), IpAddr::from(target));
        let mut packet = vec![0x45, 0];
        packet.extend((20 + payload.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        packet.extend(source);
        packet.extend(target);
        packet.extend(payload);
        Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
        packet
    }

    /// An IPv6 packet with its protocol's checksum.
    fn v6(&mut self) -> Vec<u8> {
        let (protocol, mut payload) = match self.random.below(4) {
            0 => (TCP, self.tcp()),
            1 => (UDP, self.udp()),
            _ => (ICMPV6, self.icmpv6()),
        };
        let r = &mut self.random;
        let sources = ["fe80::2", "fe80::2", "2001:db8::2", "::", "ff02::1"];
        let targets = ["2001:db8::1", "fe80::ff:fe00:1", "ff02::1", "ff02::1:ff00:1"];
        let source: Ipv6Addr = r.pick(&sources).parse().unwrap();
        let target: Ipv6Addr = r.pick(&targets).parse().unwrap();
        fill_checksum(protocol, &mut payload, source.into(), target.into());
        let options = r.once_in(6);
        if options {
            payload.splice(..0, [protocol, 0, 5, 2, 0, 0, 1, 0]);
        }
        let mut packet = vec![0; 40];
        let mut header = Ipv6Packet::new_unchecked(&mut packet[..]);
        header.set_version(6);
        header.set_payload_len(payload.len() as u16);
        header.set_next_header(if options { 0 } else { protocol }.into());
        header.set_hop_limit(r.pick(&[255, 255, 64, 1]));
        header.set_src_addr(source);
        header.set_dst_addr(target);
        packet.extend(payload);
        packet
    }

    fn arp(&mut self) -> Vec<u8> {
        let r = &mut self.random;
        let sender = if r.once_in(2) { 2 } else { r.byte() };
        let target = r.pick(&[1, 1, 40, 99]);
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, r.pick(&[1, 2, 3])];
        packet.extend(mac(2));
        packet.extend([10, 0, 0, sender, 0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
        packet
    }

    fn frame(&mut self) -> Vec<u8> {
        let (ethertype, packet): (u16, _) = match self.random.below(8) {
            0 => (0x0806, self.arp()),
            1..=2 => (0x86dd, self.v6()),
            _ => (0x0800, self.v4()),
        };
        let r = &mut self.random;
        let to = if r.once_in(8) { [0xff; 6] } else { mac(1) };
        let mut frame = [to, mac(2)].concat();
        frame.extend(ethertype.to_be_bytes());
        frame.extend(packet);
        if r.once_in(6) {
            let at = r.below(frame.len());
            frame[at] = r.byte();
        }
        if r.once_in(20) {
            frame.truncate(r.below(frame.len() + 1));
        }
        frame
    }
}

fn fill_checksum(protocol: u8, payload: &mut [u8], source: IpAddr, target: IpAddr) {
    let (from, to) = (IpAddress::from(source), IpAddress::from(target));
    match (protocol, source, target) {
        (TCP, ..) => TcpPacket::new_unchecked(payload).fill_checksum(&from, &to),
        (UDP, ..) => UdpPacket::new_unchecked(payload).fill_checksum(&from, &to),
        (ICMPV6, IpAddr::V6(from), IpAddr::V6(to)) => {
            Icmpv6Packet::new_unchecked(payload).fill_checksum(&from, &to);
        }
        _ => Icmpv4Packet::new_unchecked(payload).fill_checksum(),
    }
}

/// Answers with streams that are pending now and then.
struct Routes {
    random: Random,
    requests: usize,
}

impl Handler for Routes {
    fn handle(&mut self, _: &Request<'_>) -> Response {
        self.requests += 1;
        let length = self.random.below(100_000) as u64;
        Response::stream(Response::TEXT, 1, length.is_multiple_of(2).then_some(length))
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> Read {
        match self.random.below(into.len() + 1) {
            0 => Read::End,
            count if self.random.once_in(3) => Read::Bytes(count),
            _ => Read::Pending,
        }
    }
}

/// Sends `count` frames of noise to an interface with all services. Returns the number of HTTP requests that were
/// answered, and whether there was ever a lease.
fn expose(seed: u64, count: usize) -> (usize, bool) {
    let mut now = Instant::from_nanos(1);
    let mut interface = Interface::new(mac(1), 1500, [seed as u8; 32], now);
    let addressing = Addressing {
        addresses: ["10.0.0.1/24", "2001:db8::1/64"].map(|a| a.parse().unwrap()).into(),
        dhcp: true,
        slaac: true,
        ..Addressing::default()
    };
    interface.set_addressing(addressing, now).unwrap();
    let limits = Limits { connections: 3, ..Limits::default() };
    let mut server = Server::new(&mut interface, 80, limits, None);
    let mut routes = Routes { random: Random(Rng::new(seed)), requests: 0 };
    let (random, connections) = (Random(Rng::new(seed)), HashMap::new());
    let mut noise = Noise { random, connections, transaction: [0; 4] };
    let mut leased = false;
    for _ in 0..count {
        let frame = noise.frame();
        interface.handle_frame(&frame, now);
        interface.poll(now);
        server.poll(&mut interface, &mut routes, now);
        leased |= interface.has_lease();
        if noise.random.once_in(50) {
            interface.resolve(IpAddr::from([10, 0, 0, noise.random.byte()]), now);
        }
        let mut port = Collector::new(noise.random.below(20));
        interface.transmit(&mut port, |_| ());
        port.frames.iter().for_each(|frame| noise.learn(frame));
        let most = noise.random.pick(&[10, 1000, 100_000, 5_000_000]);
        now = now + Duration::from_micros(noise.random.below(most) as u64);
    }
    // Without noise, no timer but DHCP's remains.
    let mut wakeups = 0;
    let end = now + Duration::from_secs(600);
    while now < end {
        interface.poll(now);
        server.poll(&mut interface, &mut routes, now);
        interface.poll(now);
        interface.transmit(&mut Collector::new(99), |_| ());
        let next = [interface.poll_timeout(), server.poll_timeout()].into_iter().flatten().min();
        now = next.unwrap_or(end).max(now + Duration::from_micros(1));
        wakeups += 1;
    }
    assert_eq!(server.connections(), 0, "seed {seed}");
    assert!(wakeups < 3000, "seed {seed}: woke up {wakeups} times in ten minutes");
    (routes.requests, leased)
}

#[test]
fn plausible_noise_does_no_harm() {
    let runs: Vec<_> = (1..=20).map(|seed| expose(seed, 2000)).collect();
    let requests: usize = runs.iter().map(|(requests, _)| requests).sum();
    let leases = runs.iter().filter(|(_, leased)| *leased).count();
    assert!(requests >= 20, "only {requests} requests got through: the noise does not fit");
    assert!(leases >= 5, "only {leases} leases were taken: the noise does not fit");
}
