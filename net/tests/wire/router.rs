//! Router advertisements and duplicate addresses, on a link with virtual time.

use crate::common::{fixed, mac};
use crate::segment;
use drivers::hal::{Instant, Severity};
use net::ping::{Options, Ping, StartError};
use net::tcp::{Limits, Listener};
use net::{Addressing, Interface, MtuOrigin, Notice};
use netsim::Collector;
use smoltcp::wire::Icmpv6Packet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

const ALL_NODES: &str = "ff02::1";
const OURS: &str = "fe80::ff:fe00:1";
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// An ICMPv6 message from a station.
fn icmpv6(station: u8, from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let [.., a, b, c, d] = to.octets();
    let to_mac = if to.is_multicast() { [0x33, 0x33, a, b, c, d] } else { mac(1) };
    let mut frame = [to_mac, mac(station)].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([58, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(message);
    Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&from, &to);
    frame
}

fn prefix(prefix: &str, flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid.to_be_bytes());
    option.extend(preferred.to_be_bytes());
    option.extend([0; 4]);
    option.extend(ip(prefix).octets());
    option
}

fn mtu(mtu: u32) -> Vec<u8> {
    [&[5, 1, 0, 0][..], &mtu.to_be_bytes()].concat()
}

/// The advertisement of the router fe80::N at station N.
fn advertisement(n: u8, flags: u8, lifetime: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, flags];
    message.extend(lifetime.to_be_bytes());
    message.extend([0; 8]);
    message.extend(options.concat());
    icmpv6(n, router(n), ip(ALL_NODES), &message)
}

fn router(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n.into())
}

/// A station advertises an address.
fn neighbour_advertisement(station: u8, target: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend(target.octets());
    message.extend([2, 1]);
    message.extend(mac(station));
    icmpv6(station, target, to, &message)
}

/// A station solicits an address. `from` is unspecified for a probe.
fn neighbour_solicitation(station: u8, from: &str, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    if ip(from) != Ipv6Addr::UNSPECIFIED {
        message.extend([1, 1]);
        message.extend(mac(station));
    }
    let [.., a, b, c] = target.octets();
    let group =
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
    icmpv6(station, ip(from), group, &message)
}

struct World {
    now: Instant,
    interface: Interface,
    frames: Vec<(Instant, Vec<u8>)>,
    notices: Vec<Notice>,
    /// Stations that answer neighbour solicitations, by address.
    stations: Vec<(Ipv6Addr, u8)>,
}

impl World {
    fn new(addressing: Addressing, probes: bool) -> Self {
        let now = Instant::from_nanos(1);
        let mut interface = Interface::new(mac(1), 1500, [9; 32], now);
        if probes {
            interface.detect_duplicates(now);
        }
        interface.set_addressing(addressing, now).unwrap();
        World { now, interface, frames: Vec::new(), notices: Vec::new(), stations: Vec::new() }
    }

    fn slaac() -> Self {
        Self::new(Addressing { slaac: true, ..Addressing::default() }, false)
    }

    fn receive(&mut self, frame: &[u8]) {
        self.interface.handle_frame(frame, self.now);
        self.run(Duration::from_millis(1));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.interface.poll(self.now);
            self.notices.extend(core::iter::from_fn(|| self.interface.next_notice()));
            let mut port = Collector::new(64);
            self.interface.transmit(&mut port, |_| ());
            let quiet = port.frames.is_empty();
            for frame in port.frames {
                if let Some(target) = solicited(&frame) {
                    let sender: [u8; 16] = frame[22..38].try_into().unwrap();
                    let sender = Ipv6Addr::from(sender);
                    let to = if sender.is_unspecified() { ip(ALL_NODES) } else { sender };
                    for (ip, station) in self.stations.clone() {
                        if ip == target {
                            let answer = neighbour_advertisement(station, target, to);
                            self.interface.handle_frame(&answer, self.now);
                        }
                    }
                }
                self.frames.push((self.now, frame));
            }
            let due = self.interface.poll_timeout();
            if due.is_some_and(|at| at <= self.now) || !quiet {
                continue;
            }
            if self.now >= end {
                return;
            }
            self.now = due.map_or(end, |at| at.min(end));
        }
    }

    fn addresses(&self) -> Vec<String> {
        let all = self.interface.addresses().iter().map(ToString::to_string);
        all.filter(|address| !address.starts_with("fe80")).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let warnings = self.notices.iter().filter(|notice| notice.severity == Severity::Warning);
        warnings.map(ToString::to_string).collect()
    }

    /// Pings once, and returns the MAC address that the request went to.
    fn ping(&mut self, target: &str) -> Option<[u8; 6]> {
        let from = self.frames.len();
        let options = Options { count: 1, ..Options::default() };
        let started = Ping::start(&mut self.interface, ip(target).into(), 7, options, self.now);
        let mut ping = started.unwrap();
        for _ in 0..50 {
            let _ = ping.poll(&mut self.interface, self.now);
            self.run(Duration::from_millis(100));
        }
        let _ = ping.stop(&mut self.interface);
        let request = self.frames[from..]
            .iter()
            .find(|(_, frame)| frame[54] == 128 && frame[12..14] == [0x86, 0xdd]);
        request.map(|(_, frame)| frame[..6].try_into().unwrap())
    }

    /// The addresses solicited since frame number `from`.
    fn solicited(&self, from: usize) -> Vec<Ipv6Addr> {
        self.frames[from..].iter().filter_map(|(_, frame)| solicited(frame)).collect()
    }
}

/// Target of a neighbour solicitation.
fn solicited(frame: &[u8]) -> Option<Ipv6Addr> {
    let is_one = frame[12..14] == [0x86, 0xdd] && frame[20] == 58 && frame[54] == 135;
    is_one.then(|| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[62..78]).unwrap()))
}

#[test]
fn prefix_that_is_not_on_link_is_reached_by_the_router() {
    let mut world = World::slaac();
    world.stations = vec![(router(1), 11), (ip("fd07::77"), 77)];
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", AUTONOMOUS, 9000, 9000)]));
    assert_eq!(world.addresses(), ["fd07::ff:fe00:1/64"]);
    let from = world.frames.len();
    assert_eq!(world.ping("fd07::77"), Some(mac(11)));
    assert!(!world.solicited(from).contains(&ip("fd07::77")));
    // Now the prefix is on the link, and stays so.
    world.receive(&advertisement(
        1,
        0,
        1800,
        &[prefix("fd07::", ON_LINK | AUTONOMOUS, 9000, 9000)],
    ));
    assert_eq!(world.ping("fd07::77"), Some(mac(77)));
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", AUTONOMOUS, 9000, 9000)]));
    assert_eq!(world.ping("fd07::77"), Some(mac(77)));
}

#[test]
fn off_link_prefix_without_a_router_is_unreachable() {
    let mut world = World::slaac();
    world.receive(&advertisement(1, 0, 0, &[prefix("fd07::", AUTONOMOUS, 9000, 9000)]));
    assert_eq!(world.addresses(), ["fd07::ff:fe00:1/64"]);
    let target = ip("fd07::77").into();
    let started = Ping::start(&mut world.interface, target, 7, Options::default(), world.now);
    assert_eq!(started.err(), Some(StartError::NoRoute));
}

#[test]
fn network_of_a_configured_address_is_on_link() {
    let mut world = World::new(fixed("fd07::1/64"), false);
    world.stations = vec![(ip("fd07::77"), 77)];
    assert_eq!(world.ping("fd07::77"), Some(mac(77)));
}

#[test]
fn on_link_prefix_needs_no_address() {
    let mut world = World::slaac();
    let options = [prefix("fd07::", AUTONOMOUS, 9000, 9000), prefix("fd08::", ON_LINK, 9000, 9000)];
    world.receive(&advertisement(1, 0, 1800, &options));
    assert_eq!(world.addresses(), ["fd07::ff:fe00:1/64"]);
    assert_eq!(world.interface.next_hop(ip("fd08::5").into()), Some(ip("fd08::5").into()));
}

#[test]
fn prefix_with_preferred_above_valid_lifetime_makes_no_address() {
    let mut world = World::slaac();
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", 0xc0, 100, 200)]));
    assert_eq!(world.addresses(), [""; 0]);
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", 0xc0, 100, 100)]));
    assert_eq!(world.addresses(), ["fd07::ff:fe00:1/64"]);
}

#[test]
fn mtu_of_a_router_limits_ipv6_alone() {
    let mut world = World::slaac();
    let options = [mtu(1280), prefix("fd07::", 0xc0, 9000, 9000)];
    world.receive(&advertisement(1, 0, 1800, &options));
    assert_eq!(
        world.interface.mtus(),
        [(1500, MtuOrigin::Card), (1280, MtuOrigin::Router(router(1)))]
    );
    let start = |world: &mut World, size| {
        let options = Options { size, ..Options::default() };
        Ping::start(&mut world.interface, ip("fd07::9").into(), 7, options, world.now).err()
    };
    assert_eq!(start(&mut world, 1233), Some(StartError::TooLarge));
    assert_eq!(start(&mut world, 1232), None);
    assert_eq!(world.notices.len(), 1, "{:?}", world.notices);
    // A request that exceeds the link's MTU gets no reply.
    world.stations = vec![(ip("fd07::9"), 9)];
    for (size, answers) in [(1232, 1), (1233, 0)] {
        let from = world.frames.len();
        let message = [&[128, 0, 0, 0, 0, 1, 0, 1][..], &vec![7; size]].concat();
        world.receive(&icmpv6(9, ip("fd07::9"), ip("fd07::ff:fe00:1"), &message));
        world.run(Duration::from_secs(1));
        let answered = world.frames[from..].iter().filter(|(_, f)| f[20] == 58 && f[54] == 129);
        assert_eq!(answered.count(), answers, "{size}");
    }
    for impossible in [0, 1279, 1501, u32::MAX] {
        world.receive(&advertisement(1, 0, 1800, &[mtu(impossible)]));
        assert_eq!(world.interface.mtus()[1].0, 1280);
    }
    assert_eq!(world.warnings().len(), 1, "{:?}", world.notices);
}

#[test]
fn mtu_of_a_router_limits_segments_of_ipv6_alone() {
    let addressing = Addressing { slaac: true, ..fixed("10.0.0.1/24") };
    let mut world = World::new(addressing, false);
    world.stations = vec![(ip("fd07::9"), 9)];
    world.receive(&advertisement(1, 0, 1800, &[mtu(1280), prefix("fd07::", 0xc0, 9000, 9000)]));
    let limits = Limits { connections: 2, receive: 4096, transmit: 16_384 };
    let mut listener = Listener::new(&mut world.interface, segment::PORT, limits);
    let question = [&[0xff; 6][..], &mac(9), &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac(9)].concat();
    world.receive(&[&question[..], &[10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]].concat());
    let v4: [IpAddr; 2] = ["10.0.0.9", "10.0.0.1"].map(|ip| ip.parse().unwrap());
    let v6: [IpAddr; 2] = ["fd07::9", "fd07::ff:fe00:1"].map(|ip| ip.parse().unwrap());
    for ([client, ours], wanted, longest) in [(v6, 1220, Some(&1280)), (v4, 1460, None)] {
        world.frames.clear();
        world.receive(&segment::syn(9, client, ours));
        let frames =
            |world: &World| world.frames.iter().map(|(_, f)| f.clone()).collect::<Vec<_>>();
        let (mss, ack) = segment::handshake(&frames(&world), 9, client, ours).unwrap();
        assert_eq!(mss, wanted);
        world.receive(&ack);
        let stream = listener.accept(&mut world.interface, world.now).unwrap();
        listener.write(&mut world.interface, stream, &[7; 6000]).unwrap();
        world.run(Duration::from_secs(3));
        if longest.is_some() {
            assert_eq!(segment::lengths(&frames(&world)).iter().max(), longest);
        }
    }
}

#[test]
fn mtu_of_a_router_limits_segments_of_open_connections() {
    let mut world = World::new(Addressing { slaac: true, ..fixed("10.0.0.1/24") }, false);
    world.stations = vec![(ip("fd07::9"), 9)];
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", 0xc0, 9000, 9000)]));
    let limits = Limits { connections: 2, receive: 4096, transmit: 16_384 };
    let mut listener = Listener::new(&mut world.interface, segment::PORT, limits);
    let [client, ours]: [IpAddr; 2] = ["fd07::9", "fd07::ff:fe00:1"].map(|ip| ip.parse().unwrap());
    let frames = |world: &World| world.frames.iter().map(|(_, f)| f.clone()).collect::<Vec<_>>();
    world.receive(&segment::syn(9, client, ours));
    let (mss, ack) = segment::handshake(&frames(&world), 9, client, ours).unwrap();
    assert_eq!(mss, 1440);
    world.receive(&ack);
    let stream = listener.accept(&mut world.interface, world.now).unwrap();
    world.receive(&advertisement(1, 0, 1800, &[mtu(1280)]));
    world.frames.clear();
    listener.write(&mut world.interface, stream, &[7; 6000]).unwrap();
    world.run(Duration::from_millis(10));
    assert_eq!(segment::lengths(&frames(&world)).iter().max(), Some(&1280));
}

#[test]
fn reachable_router_is_preferred() {
    let mut world = World::slaac();
    world.stations = vec![(router(2), 12)];
    // The first router is preferred, but unreachable.
    world.receive(&advertisement(1, 0x08, 1800, &[prefix("fd07::", 0xc0, 9000, 9000)]));
    world.receive(&advertisement(2, 0x18, 1800, &[]));
    world.run(Duration::from_secs(4));
    assert_eq!(world.interface.gateways().1, Some(router(2)));
    assert_eq!(world.ping("2001:db8::1"), Some(mac(12)));
    world.receive(&advertisement(1, 0x08, 1800, &[]));
    assert_eq!(
        world.interface.gateways().1,
        Some(router(2)),
        "an advertisement does not prove reachability"
    );
    world.stations.push((router(1), 11));
    world.run(Duration::from_secs(70));
    assert_eq!(world.interface.gateways().1, Some(router(1)));
    assert_eq!(world.ping("2001:db8::1"), Some(mac(11)));
    world.receive(&advertisement(1, 0x08, 0, &[]));
    assert_eq!(world.interface.gateways().1, Some(router(2)));
}

#[test]
fn flood_of_advertisements_does_no_harm() {
    let mut world = World::slaac();
    world.stations = vec![(router(1), 11)];
    world.receive(&advertisement(1, 0, 1800, &[prefix("fd07::", 0xc0, 90_000, 90_000)]));
    world.run(Duration::from_secs(1));
    for n in 0..3000u32 {
        let [a, b] = (n as u16).to_be_bytes();
        let many = (0..4).map(|k| prefix(&format!("2001:db8:{n:x}:{k}::"), 0xc0, 9000, 9000));
        let mut message = vec![134, 0, 0, 0, 64, 0x08, 0xff, 0xff];
        message.extend([0; 8]);
        message.extend([mtu(1280 + n % 200)].into_iter().chain(many).flatten());
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 1, a.into(), b.into());
        let frame = icmpv6(9, from, ip(ALL_NODES), &message);
        world.interface.handle_frame(&frame, world.now);
        if n % 100 == 0 {
            world.run(Duration::from_millis(1));
        }
    }
    world.run(Duration::from_secs(5));
    assert!(world.addresses().contains(&"fd07::ff:fe00:1/64".into()));
    assert!(world.addresses().len() <= 2);
    assert_eq!(world.interface.gateways().1, Some(router(1)), "the reachable router");
    assert!(world.notices.len() <= 20, "{}", world.notices.len());
}

#[test]
fn tentative_address_is_probed_and_answers_nothing_for_a_second() {
    let addressing = Addressing { slaac: true, ..fixed("fd07::1/64") };
    let mut world = World::new(addressing, true);
    world.run(Duration::from_millis(100));
    assert!(world.interface.addresses().is_empty());
    assert_eq!(world.solicited(0), [ip(OURS), ip("fd07::1")]);
    for (_, frame) in world.frames.iter().filter(|(_, frame)| frame[12..14] == [0x86, 0xdd]) {
        assert_eq!(frame[22..38], [0; 16], "no frame is sent from a tentative address");
    }
    let from = world.frames.len();
    world.receive(&neighbour_solicitation(9, "fd07::9", ip("fd07::1")));
    let echo = [128, 0, 0, 0, 0, 1, 0, 1];
    world.receive(&icmpv6(9, ip("fd07::9"), ip("fd07::1"), &echo));
    world.run(Duration::from_millis(500));
    assert_eq!(world.frames.len(), from);
    world.run(Duration::from_millis(500));
    let reports = |world: &World, source: &[u8]| {
        let is_report = |f: &[u8]| f[12..14] == [0x86, 0xdd] && f[20] == 0 && f[62] == 143;
        world.frames.iter().filter(|(_, f)| is_report(f) && f[22..38] == *source).count()
    };
    assert_eq!(reports(&world, &[0; 16]), 2, "groups are joined before");
    assert_eq!(reports(&world, &ip(OURS).octets()), 1, "and reported again from the address");
    assert_eq!(world.addresses(), ["fd07::1/64"]);
    assert_eq!(world.interface.local().v6, [ip(OURS), ip("fd07::1")]);
    world.receive(&neighbour_solicitation(9, "fd07::9", ip("fd07::1")));
    world.run(Duration::from_millis(100));
    assert!(
        world.frames[from..].iter().any(|(_, f)| f[20] == 58 && f[54] == 136 && f[..6] == mac(9))
    );
    assert_eq!(world.warnings(), [""; 0]);
}

#[test]
fn ipv6_address_of_another_station_is_not_used() {
    let target = ip("fd07::1");
    let answers: [Vec<u8>; 2] = [
        neighbour_advertisement(77, target, ip(ALL_NODES)),
        neighbour_solicitation(77, "::", target),
    ];
    for answer in answers {
        let mut world = World::new(fixed("fd07::1/64"), true);
        world.run(Duration::from_millis(300));
        world.receive(&answer);
        world.run(Duration::from_secs(10));
        assert_eq!(world.addresses(), [""; 0]);
        assert_eq!(world.interface.local().v6, [ip(OURS)]);
        let warnings = world.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for part in ["duplicate address fd07::1", "02:00:00:00:00:4d", "02:00:00:00:00:01"] {
            assert!(warnings[0].contains(part), "{warnings:?}");
        }
        assert_eq!(world.interface.counters().conflicts, 1);
        world.run(Duration::from_secs(310));
        assert_eq!(world.addresses(), ["fd07::1/64"], "the other station is gone");
    }
}

#[test]
fn address_of_a_prefix_is_probed_as_well() {
    let mut world = World::new(Addressing { slaac: true, ..Addressing::default() }, true);
    world.run(Duration::from_secs(2));
    world.stations = vec![(ip("fd07::ff:fe00:1"), 77)];
    let options = [prefix("fd07::", 0xc0, 9000, 9000), prefix("fd08::", 0xc0, 9000, 9000)];
    world.receive(&advertisement(1, 0, 1800, &options));
    world.run(Duration::from_secs(2));
    assert_eq!(world.addresses(), ["fd08::ff:fe00:1/64"]);
    assert_eq!(world.warnings().len(), 1);
}

#[test]
fn conflict_with_an_address_in_use_is_logged_and_the_address_defended() {
    let mut world = World::new(fixed("fd07::1/64"), true);
    world.run(Duration::from_secs(2));
    let from = world.frames.len();
    for _ in 0..100 {
        world.receive(&neighbour_advertisement(77, ip("fd07::1"), ip(ALL_NODES)));
    }
    assert_eq!(world.addresses(), ["fd07::1/64"]);
    assert_eq!(world.warnings().len(), 1, "{:?}", world.warnings());
    assert_eq!(world.frames.len(), from + 1, "it is defended once");
    assert_eq!(world.interface.counters().conflicts, 100);
}

/// Configured IPv4 addresses are used at once, and probed nevertheless.
#[test]
fn conflict_with_a_configured_ipv4_address_is_logged() {
    for (operation, sender) in [(2, [10, 0, 0, 1]), (1, [10, 0, 0, 1])] {
        let mut world = World::new(fixed("10.0.0.1/24"), true);
        world.run(Duration::from_millis(1));
        assert_eq!(world.interface.local().v4, ["10.0.0.1".parse::<std::net::Ipv4Addr>().unwrap()]);
        let probe = world.frames.iter().find(|(_, frame)| frame[12..14] == [8, 6]);
        assert_eq!(probe.unwrap().1[28..32], [0; 4], "a probe comes first");
        let mut frame = [[0xff; 6], mac(77)].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend(mac(77));
        frame.extend(sender);
        frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        world.receive(&frame);
        world.run(Duration::from_secs(5));
        assert_eq!(world.interface.local().v4.len(), 1, "it stays in use");
        let warnings = world.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for part in
            ["duplicate address 10.0.0.1", "02:00:00:00:00:4d", "02:00:00:00:00:01", "change one"]
        {
            assert!(warnings[0].contains(part), "{warnings:?}");
        }
    }
}

#[test]
fn first_link_up_probes_addresses_again() {
    let mut world = World::new(fixed("fd07::1/64"), true);
    world.run(Duration::from_secs(5));
    assert_eq!(world.addresses(), ["fd07::1/64"]);
    world.stations = vec![(ip("fd07::1"), 77)];
    world.interface.link_came_up(world.now);
    world.run(Duration::from_secs(5));
    assert_eq!(world.addresses(), [""; 0], "no frame was received before");
    assert_eq!(IpAddr::from(world.interface.local().v6[0]), IpAddr::from(ip(OURS)));
}
