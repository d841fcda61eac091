//! Tests of the connectivity checker.

use super::world::{Setup, World, address, port, socket};
use crate::engine::{Channel, Failure, State};
use crate::wire::header::Layout;
use crate::wire::ping::{Ping, Version};
use core::net::SocketAddrV4;
use core::time::Duration;
use std::string::ToString;
use std::vec::Vec;

fn world(layout: Layout) -> World {
    let mut world = World::with(Setup { layout, ..Setup::default() }, |side, config| {
        config.check_connectivity = side == 0;
    });
    world.log = Some(Vec::new());
    world
}

/// PINGs that side 0 sent: milliseconds from the start, and size.
fn pings(world: &World) -> Vec<(u128, usize)> {
    let log = world.log.as_ref().unwrap();
    let start = log[0].0;
    let of_ping = log.iter().filter(|(_, d)| d.to == 1 && d.port == port(Channel::Ping));
    of_ping.map(|(at, d)| (at.since(start).as_millis(), d.bytes.len())).collect()
}

#[test]
fn small_ping_precedes_the_large_one() {
    for layout in [Layout::V4, Layout::V5] {
        let mut world = world(layout);
        world.pass(Duration::from_secs(1));
        assert!(world.log.as_ref().unwrap().is_empty(), "no PING before the first message");
        world.send(0, b"data");
        world.pass(Duration::from_secs(1));
        assert_eq!(pings(&world), [(0, 40), (20, 1468)]);
        let (engine, endpoint) = (&world.sides[0].engine, world.sides[0].endpoint);
        assert_eq!(engine.connectivity(endpoint), Some((true, true)));
        assert_eq!(world.sides[1].engine.interface_counters(0).unwrap().pings_answered, 2);
        // ACKs have 40 bytes, and data did not wait for them.
        let log = world.log.as_ref().unwrap();
        assert_eq!(log.iter().filter(|(_, d)| d.to == 0 && d.bytes.len() == 40).count(), 2);
        assert_eq!(world.sides[1].came.len(), 1);
    }
}

#[test]
fn failure_names_the_mtu_that_the_path_lacks() {
    let mut world = world(Layout::V4);
    world.wire.longest = 1400;
    world.send(0, b"data");
    world.pass(Duration::from_secs(12));
    let pings = pings(&world);
    assert_eq!(pings[..3], [(0, 40), (20, 1468), (270, 1468)]);
    assert_eq!(pings.len(), 1 + 41);
    let to = socket(1, Channel::Ping);
    let why = Failure::LargeLost { to, packet: 1496 };
    let state = world.sides[0].engine.state(world.sides[0].endpoint);
    assert_eq!(state, Some(State::Failed(why)));
    assert!(why.to_string().contains("1496 bytes are not"), "{why}");
    assert!(why.to_string().contains("smaller MTU"), "{why}");
}

#[test]
fn unreachable_peer_is_reported() {
    let mut world = world(Layout::V4);
    world.wire.cut[1] = true;
    world.send(0, b"data");
    world.pass(Duration::from_secs(12));
    assert_eq!(pings(&world).len(), 41);
    let state = world.sides[0].engine.state(world.sides[0].endpoint);
    let to = socket(1, Channel::Ping);
    assert_eq!(state, Some(State::Failed(Failure::NoAnswer { to })));
    assert_eq!(world.sides[0].engine.deadline(), None);
}

#[test]
fn pings_of_strangers_and_other_versions_are_ignored() {
    let mut world = world(Layout::V4);
    let ping = Ping {
        is_ack: false,
        asker: socket(1, Channel::Ping),
        version: Version { major: 4, minor: 1 },
        size: 40,
    };
    let mut try_one = |from: SocketAddrV4, bytes: &[u8]| {
        let (now, engine) = (world.now, &mut world.sides[0].engine);
        let before = engine.interface_counters(0).unwrap().pings_answered;
        engine.receive(0, from, port(Channel::Ping), bytes, now);
        while engine.poll_transmit(now).is_some() {}
        engine.interface_counters(0).unwrap().pings_answered > before
    };
    let honest = socket(1, Channel::Ping);
    assert!(try_one(honest, &ping.emit()));
    assert!(!try_one(SocketAddrV4::new(address(3), 102), &ping.emit()));
    assert!(!try_one(SocketAddrV4::new(address(1), 103), &ping.emit()));
    assert!(!try_one(honest, &Ping { version: Version { major: 5, minor: 0 }, ..ping }.emit()));
    assert!(!try_one(honest, &Ping { asker: socket(0, Channel::Ping), ..ping }.emit()));
    assert!(!try_one(honest, &Ping { size: 41, ..ping }.emit()));
    // ACKs of PINGs that were never sent.
    let ack = Ping { is_ack: true, asker: socket(0, Channel::Ping), ..ping };
    assert!(!try_one(honest, &ack.emit()));
    assert_eq!(world.sides[0].engine.interface_counters(0).unwrap().ping_acks, 0);
    // A flood of PINGs: the number of queued ACKs is bounded.
    let (now, engine) = (world.now, &mut world.sides[0].engine);
    for _ in 0..1000 {
        engine.receive(0, honest, port(Channel::Ping), &ping.emit(), now);
    }
    let mut answers = 0;
    while engine.poll_transmit(now).is_some() {
        answers += 1;
    }
    assert_eq!(answers, 32);
}

/// A check by the operator ignores earlier answers, and no endpoint fails without an answer.
#[test]
fn operator_ping_repeats_the_check_and_fails_no_endpoint() {
    let mut world = world(Layout::V4);
    world.send(0, b"data");
    world.pass(Duration::from_secs(1));
    let (now, endpoint) = (world.now, world.sides[0].endpoint);
    assert!(world.sides[0].engine.ping(endpoint, now));
    assert_eq!(world.sides[0].engine.connectivity(endpoint), Some((false, false)));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.sides[0].engine.connectivity(endpoint), Some((true, true)));
    let times = world.sides[0].engine.ping_times(endpoint).unwrap();
    assert!(times.iter().all(|time| time.is_some_and(|time| time < Duration::from_millis(10))));
    world.wire.longest = 30;
    let now = world.now;
    assert!(world.sides[0].engine.ping(endpoint, now));
    let before = pings(&world).len();
    world.pass(Duration::from_secs(20));
    assert_eq!(pings(&world).len() - before, 8);
    assert_eq!(world.sides[0].engine.state(endpoint), Some(State::Open));
    assert_eq!(world.sides[0].engine.connectivity(endpoint), Some((false, false)));
}
