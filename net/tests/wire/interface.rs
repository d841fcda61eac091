//! Two interfaces on a wire: ping, neighbours, and robustness against noise.

use crate::common::{Wire, fixed, mac};
use drivers::hal::Instant;
use net::ping::{Event, Options, Ping, StartError};
use net::{Addressing, AddressingError, Interface, Resolution};
use netsim::{Collector, Rng};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

/// Delay of the reply to a broadcast or multicast request.
const HELD: Duration = Duration::from_millis(50);

fn pair() -> Wire {
    Wire::new([fixed("10.0.0.1/24"), fixed("10.0.0.2/24")])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Pings from node 0 until the end. Returns the events.
fn ping(wire: &mut Wire, target: &str, options: Options) -> Vec<Event> {
    let mut ping = Ping::start(&mut wire.nodes[0], ip(target), 7, options, wire.now).unwrap();
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Finished(_))) {
        match ping.poll(&mut wire.nodes[0], wire.now) {
            Some(event) => events.push(event),
            None => {
                wire.settle();
                wire.now = wire.now + Duration::from_millis(5);
            }
        }
    }
    assert_eq!(ping.poll_timeout(), None);
    ping.stop(&mut wire.nodes[0]);
    events
}

#[test]
fn pings_of_both_families_are_answered() {
    for target in ["10.0.0.2", "fe80::ff:fe00:2"] {
        let events = ping(&mut pair(), target, Options::default());
        let Some(Event::Finished(summary)) = events.last() else { panic!("{events:?}") };
        assert_eq!((summary.sent, summary.received), (4, 4), "{target}: {events:?}");
        // One of four waits for the neighbour's resolution.
        assert!(summary.mean().is_some_and(|t| t <= Duration::from_millis(20)));
        assert!(matches!(events[0], Event::Reply { sequence: 0, .. }));
    }
}

#[test]
fn unanswered_pings_time_out() {
    let options = Options { count: 12, interval: Duration::from_millis(50), ..Options::default() };
    let events = ping(&mut pair(), "10.0.0.3", options);
    assert_eq!(events.len(), 13);
    assert!(events[..12].iter().all(|e| matches!(e, Event::Timeout { .. })));
    let wire = &mut pair();
    let start =
        |wire: &mut Wire, to, o| Ping::start(&mut wire.nodes[0], ip(to), 1, o, wire.now).err();
    assert_eq!(start(wire, "192.0.2.1", options), Some(StartError::NoRoute));
    let large = Options { size: 1473, ..options };
    assert_eq!(start(wire, "10.0.0.2", large), Some(StartError::TooLarge));
}

#[test]
fn largest_ping_is_answered() {
    let options = Options { size: 1472, count: 1, ..Options::default() };
    let events = ping(&mut pair(), "10.0.0.2", options);
    assert!(matches!(events[0], Event::Reply { .. }));
}

#[test]
fn neighbours_and_gateways_are_resolved() {
    let mut first = fixed("10.0.0.1/24");
    first.gateways.push(ip("10.0.0.2"));
    let mut wire = Wire::new([first, fixed("10.0.0.2/24")]);
    let v6 = wire.nodes[1].local().v6[0].into();
    for target in [ip("10.0.0.2"), ip("192.0.2.9"), v6] {
        let now = wire.now;
        assert_ne!(wire.nodes[0].resolve(target, now), Resolution::NoRoute);
        wire.settle();
        wire.pass(HELD, HELD);
        assert_eq!(wire.nodes[0].resolve(target, wire.now), Resolution::Known(mac(2)), "{target}");
        assert_eq!(wire.nodes[0].neighbour(target, wire.now), Some(mac(2)));
    }
    // The target of a request learns the sender's address.
    assert_eq!(wire.nodes[1].neighbour(ip("10.0.0.1"), wire.now), Some(mac(1)));
    let now = wire.now;
    assert_eq!(wire.nodes[0].resolve(ip("2001:db8::1"), now), Resolution::NoRoute);
    assert_eq!(wire.nodes[0].resolve(ip("10.0.0.1"), now), Resolution::NoRoute);
    wire.nodes[0].resolve(ip("10.0.0.77"), now);
    wire.pass(Duration::from_millis(3500), Duration::from_millis(500));
    let resolution = wire.nodes[0].resolve(ip("10.0.0.77"), wire.now);
    assert_eq!(resolution, Resolution::Unreachable);
}

#[test]
fn impossible_addressing_is_refused_and_changes_nothing() {
    let mut interface = Interface::new(mac(1), 1500, [1; 32], Instant::ZERO);
    interface.set_addressing(fixed("10.0.0.1/24"), Instant::ZERO).unwrap();
    let before = (interface.local().clone(), interface.generation());
    let mut set = |addresses: &[&str], gateways: &[&str]| {
        let addressing = Addressing {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            gateways: gateways.iter().map(|g| ip(g)).collect(),
            ..Addressing::default()
        };
        interface.set_addressing(addressing, Instant::ZERO).unwrap_err()
    };
    assert_eq!(set(&["224.0.0.1/24"], &[]), AddressingError::NotAHost(ip("224.0.0.1")));
    assert_eq!(set(&["::/64"], &[]), AddressingError::NotAHost(ip("::")));
    assert_eq!(set(&["10.0.0.1/8"; 5], &[]), AddressingError::TooManyAddresses);
    let two = ["10.0.0.2", "10.0.0.3"];
    assert_eq!(set(&["10.0.0.1/24"], &two), AddressingError::TooManyGateways);
    let far = AddressingError::GatewayOffLink(ip("10.0.1.1"));
    assert_eq!(set(&["10.0.0.1/24"], &["10.0.1.1"]), far);
    assert_eq!((interface.local().clone(), interface.generation()), before);
}

#[test]
fn new_addresses_are_announced_and_conflicts_counted() {
    let mut wire = pair();
    wire.settle();
    assert_eq!(wire.nodes[0].counters().conflicts, 0);
    let now = wire.now;
    wire.nodes[0].resolve(ip("10.0.0.2"), now);
    wire.settle();
    // A third station replaces node 1: its announcement updates the neighbour entries of node 1.
    wire.nodes.remove(1);
    let mut successor = Interface::new(mac(3), 1500, [3; 32], now);
    successor.set_addressing(fixed("10.0.0.2/24"), now).unwrap();
    wire.nodes.push(successor);
    wire.settle();
    assert_eq!(wire.nodes[0].neighbour(ip("10.0.0.2"), now), Some(mac(3)));
    // A station that takes an address in use is detected by its announcement, and by its answer to the defence.
    wire.nodes[1].set_addressing(fixed("10.0.0.1/24"), now).unwrap();
    wire.settle();
    assert_eq!([0, 1].map(|n| wire.nodes[n].counters().conflicts), [2, 1]);
    assert!(wire.nodes[0].counters().conflict.is_some());
}

#[test]
fn frames_wait_for_room_in_the_port() {
    let mut wire = pair();
    wire.settle();
    wire.nodes[0].resolve(ip("10.0.0.2"), wire.now);
    wire.nodes[0].poll(wire.now);
    wire.nodes[0].transmit(&mut Collector::new(0), |_| ());
    assert_eq!(wire.nodes[0].poll_timeout(), Some(Instant::ZERO));
    wire.settle();
    wire.pass(HELD, HELD);
    assert_eq!(wire.nodes[0].neighbour(ip("10.0.0.2"), wire.now), Some(mac(2)));
}

/// Linux misses an immediate reply (see `delayed_replies`).
#[test]
fn reply_to_a_multicast_request_is_delayed() {
    for target in ["10.0.0.2", "fe80::ff:fe00:2"] {
        let mut wire = pair();
        wire.settle();
        wire.nodes[0].resolve(ip(target), wire.now);
        wire.settle();
        let due = wire.nodes[1].poll_timeout();
        assert_eq!(due, Some(wire.now + HELD));
        wire.pass(HELD - Duration::from_micros(100), Duration::from_micros(100));
        assert_eq!(wire.nodes[0].neighbour(ip(target), wire.now), None);
        wire.pass(Duration::from_micros(200), Duration::from_micros(200));
        assert_eq!(wire.nodes[0].neighbour(ip(target), wire.now), Some(mac(2)));
        assert_eq!(wire.nodes[1].poll_timeout(), None);
    }
}

#[test]
fn idle_interface_has_no_timers() {
    let everything = Addressing { slaac: true, ..fixed("10.0.0.1/24") };
    let mut wire = Wire::new([everything, fixed("10.0.0.2/24")]);
    ping(&mut wire, "10.0.0.2", Options { count: 1, ..Options::default() });
    wire.pass(Duration::from_secs(20), Duration::from_secs(1));
    assert_eq!(wire.nodes[0].poll_timeout(), None);
    assert_eq!(wire.nodes[1].poll_timeout(), None);
}

/// A frame that passes the first checks: valid MAC address and ethertype, the rest is noise around plausible headers.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let header = prop_oneof![
        Just(vec![8, 6, 0, 1, 8, 0, 6, 4, 0]),
        Just(vec![8, 0, 0x45, 0]),
        Just(vec![0x86, 0xdd, 0x60, 0, 0, 0, 0]),
        Just(vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 36, 0, 1, 0xfe, 0x80]),
        any::<[u8; 2]>().prop_map(Vec::from),
    ];
    let to = prop_oneof![Just(mac(1)), Just([0xff; 6]), Just([0x33, 0x33, 0, 0, 0, 1])];
    (to, header, proptest::collection::vec(any::<u8>(), 0..200)).prop_map(|(to, header, noise)| {
        let mut frame = Vec::from(to);
        frame.extend(mac(9));
        frame.extend(header);
        frame.extend(noise);
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn arbitrary_frames_do_no_harm(frame in prop_oneof![
        noise(),
        proptest::collection::vec(any::<u8>(), 0..100),
    ]) {
        let addressing = Addressing { slaac: true, dhcp: true, ..fixed("10.0.0.1/24") };
        let mut wire = Wire::new([addressing]);
        wire.nodes[0].handle_frame(&frame, wire.now);
        wire.settle();
    }
}

/// Frames of two communicating interfaces, with a few bytes changed and truncated.
#[test]
fn damaged_frames_do_no_harm() {
    let mut wire = pair();
    ping(&mut wire, "10.0.0.2", Options { count: 1, ..Options::default() });
    ping(&mut wire, "fe80::ff:fe00:2", Options { count: 1, ..Options::default() });
    let log = std::mem::take(&mut wire.log);
    let mut random = Rng::new(1);
    let mut next = |n: usize| random.within(0..n as u64) as usize;
    for _ in 0..20_000 {
        let (from, frame) = &log[next(log.len())];
        let mut frame = frame.clone();
        for _ in 0..1 + next(3) {
            let at = next(frame.len());
            frame[at] = next(256) as u8;
        }
        frame.truncate(frame.len() - next(3) * next(frame.len()) / 2);
        wire.now = wire.now + Duration::from_millis(5);
        wire.nodes[1 - from].handle_frame(&frame, wire.now);
        wire.settle();
        wire.log.clear();
    }
    // A damaged frame may have a wrong MAC address, which is used for a minute, and then while it is verified.
    wire.pass(Duration::from_secs(61), Duration::from_secs(1));
    let events = ping(&mut wire, "10.0.0.2", Options { count: 4, ..Options::default() });
    let answered = events.iter().filter(|event| matches!(event, Event::Reply { .. })).count();
    assert!(answered >= 2, "{events:?}");
}
