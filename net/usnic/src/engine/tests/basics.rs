//! Two engines on a link without faults.

use super::world::{Setup, TAG, World, message, port, sender};
use crate::engine::{Channel, Config, Delivery, Failure, SendError, State};
use crate::wire::header::{Header, Kind, Layout};
use core::time::Duration;
use drivers::hal::Window;
use std::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
const LAYOUTS: [Layout; 2] = [Layout::V4, Layout::V5];

#[test]
fn messages_of_all_sizes_arrive_in_both_layouts() {
    for layout in LAYOUTS {
        for mtu in [1500u16, 9000] {
            let setup = Setup { layout, mtu, memory: 1 << 23, ..Setup::default() };
            let mut world = World::new(setup);
            let fragment = usize::from(mtu) - 28 - layout.header();
            let chunk = usize::from(mtu) - 28 - layout.chunk_header();
            let sizes = [0, 1, 4, 100, fragment, fragment + 1, 3 * chunk, 3 * chunk + 1, 1 << 20];
            for (number, &size) in sizes.iter().enumerate() {
                assert!(world.send(number % 2, &message(number as u32, size)));
            }
            world.run(SECOND, |world| world.is_drained(0) && world.is_drained(1));
            world.pass(SECOND / 1000);
            for (number, &size) in sizes.iter().enumerate() {
                let came = &world.sides[1 - number % 2].came;
                let expected = (TAG, message(number as u32, size));
                assert!(came.contains(&expected), "{size} bytes");
            }
            let counters = world.counters(0);
            assert_eq!((counters.num_resends, world.counters(1).num_resends), (0, 0));
            // The largest fragment that fits goes in one packet.
            assert_eq!(counters.num_frag_sends + world.counters(1).num_frag_sends, 5);
        }
    }
}

/// The network passes less than the MTU that both sides have agreed on. A side that knows it sends smaller packets, until
/// the network passes all again; a limit above the MTU changes nothing.
#[test]
fn limited_packets_pass_a_smaller_network() {
    for layout in LAYOUTS {
        let mut world = World::new(Setup { layout, ..Setup::default() });
        world.log = Some(Vec::new());
        let longest = |world: &mut World| {
            let log = world.log.as_mut().unwrap();
            log.drain(..).map(|(_, datagram)| datagram.bytes.len()).max().unwrap()
        };
        for (passes, longest_datagram) in [(1400u16, 1372), (9000, 1472), (100, 548)] {
            for side in &mut world.sides {
                side.engine.limit_packets(0, passes);
            }
            world.wire.longest = longest_datagram;
            for (number, size) in [1300, 1440, 5000, 100_000].into_iter().enumerate() {
                assert!(world.send(number % 2, &message(number as u32, size)));
            }
            world.run(SECOND, |world| world.is_drained(0) && world.is_drained(1));
            world.pass(SECOND / 1000);
            assert_eq!(longest(&mut world), longest_datagram, "{passes}");
            for (number, size) in [1300, 1440, 5000, 100_000].into_iter().enumerate() {
                let came = &world.sides[1 - number % 2].came;
                assert!(came.contains(&(TAG, message(number as u32, size))), "{passes}, {size}");
            }
            world.sides.iter_mut().for_each(|side| side.came.clear());
            assert_eq!((world.counters(0).num_resends, world.counters(1).num_resends), (0, 0));
        }
    }
}

#[test]
fn puts_arrive_where_they_were_granted() {
    for layout in LAYOUTS {
        let mut world = World::new(Setup { layout, ..Setup::default() });
        let memory = world.window(1, &std::vec![7; 100_000]);
        let endpoint = world.sides[1].endpoint;
        world.sides[1].engine.grant(endpoint, 0x5000, memory).unwrap();
        let endpoint = world.sides[0].endpoint;
        world.sides[0].engine.permit_put(endpoint, 0x5000, 100_000);
        for (cookie, size) in [(1u64, 10usize), (2, 50_000)] {
            // In two windows, whose border is inside of a packet.
            let bytes = message(cookie as u32, size);
            let windows =
                [world.window(0, &bytes[..size / 3]), world.window(0, &bytes[size / 3..])];
            let now = world.now;
            let engine = &mut world.sides[0].engine;
            engine.put(endpoint, 0x5000 + 1000 * cookie, windows, cookie, now).unwrap();
            world.run(SECOND, |world| world.sides[0].completed.contains(&(cookie, true)));
            let mut written = std::vec![0; size + 2];
            memory.read(1000 * cookie as usize - 1, &mut written).unwrap();
            assert_eq!(written[1..=size], bytes);
            assert_eq!((written[0], written[size + 1]), (7, 7));
        }
        assert_eq!(world.counters(1).puts_received, 2);
        assert!(world.sides[1].came.is_empty());
    }
}

#[test]
fn sends_that_the_peer_did_not_permit_are_rejected() {
    let mut world = World::new(Setup::default());
    let window = [world.window(0, &[1; 100]), Window::empty()];
    let now = world.now;
    let (endpoint, engine) = (world.sides[0].endpoint, &mut world.sides[0].engine);
    assert_eq!(engine.put(endpoint, 0x5000, window, 1, now), Err(SendError::NotPermitted));
    engine.permit_put(endpoint, 0x5000, 150);
    for (address, right) in
        [(0x5000, true), (0x5032, true), (0x5033, false), (0x4fff, false), (0, false)]
    {
        assert_eq!(engine.put(endpoint, address, window, 1, now).is_ok(), right, "{address:#x}");
    }
    let nothing = [Window::empty(); 2];
    assert_eq!(engine.put(endpoint, 0x5000, nothing, 1, now), Err(SendError::NotPermitted));
    assert_eq!(engine.send(endpoint, TAG + 1, b"x", now), Err(SendError::Tag(TAG + 1)));
    let long = std::vec![0; (1 << 20) + 1];
    assert_eq!(engine.send(endpoint, TAG, &long, now), Err(SendError::TooLong));
}

#[test]
fn sequence_numbers_wrap() {
    let setup = Setup { isns: [65_530, 65_000], ..Setup::default() };
    let mut world = World::new(setup);
    for number in 0..200_000u32 {
        while !world.send(0, &number.to_le_bytes()) {
            world.step();
        }
    }
    world.run(20 * SECOND, |world| world.is_drained(0));
    let number = |(_, message): &(u8, Vec<u8>)| u32::from_le_bytes(message[..].try_into().unwrap());
    let mut came: Vec<u32> = world.sides[1].came.iter().map(number).collect();
    // Packets sent closely after each other are reordered.
    came.sort_unstable();
    assert!(came.iter().copied().eq(0..200_000));
    assert_eq!(world.counters(0).num_resends, 0);
}

/// The receiver does not respond: the sender stops with 4,095 packets in flight.
#[test]
fn the_window_is_never_overrun() {
    let config = Config { sends: 16_384, ..Setup::default().config };
    let mut world =
        World::with(Setup { config, link_speed: 0, ..Setup::default() }, |_, config| {
            config.sends = 8192;
        });
    // First, ACKs raise the limit of packets in flight.
    for _ in 0..6000 {
        assert!(world.send(0, b"open"));
    }
    world.run(SECOND, |world| world.is_drained(0));
    world.wire.cut = [true, false];
    let before = world.counters(0);
    for _ in 0..6000 {
        assert!(world.send(0, b"more"));
    }
    world.pass(Duration::from_millis(1));
    let sent = world.counters(0).num_frag_sends - before.num_frag_sends;
    assert_eq!(sent, 4095);
    world.wire.cut = [false, false];
    world.run(SECOND, |world| world.is_drained(0));
    assert_eq!(world.sides[1].came.len(), 12_000);
}

/// ACKs are piggybacked on data if there is some, are delayed for it, and are sent at once when a fragment is complete.
#[test]
fn acks_are_delayed_for_piggybacking() {
    let mut world = World::new(Setup::default());
    world.log = Some(Vec::new());
    world.send(0, b"question");
    let start = world.now;
    world.run(SECOND, |world| !world.sides[1].came.is_empty());
    world.send(1, b"answer");
    world.run(SECOND, |world| world.is_drained(0) && world.is_drained(1));
    let log = world.log.take().unwrap();
    let kinds: Vec<_> = log
        .iter()
        .map(|(at, datagram)| {
            let header = Header::parse(Layout::V4, &datagram.bytes).unwrap().0;
            (header.kind, header.acknowledged, at.since(start), datagram.port)
        })
        .collect();
    let [question, answer, ack] = kinds[..] else { panic!("{kinds:?}") };
    assert_eq!((question.0, question.1), (Kind::Fragment, None));
    assert_eq!((answer.0, answer.1, answer.3), (Kind::Fragment, Some(10), port(Channel::Data)));
    assert_eq!((ack.0, ack.1, ack.3), (Kind::Ack, Some(60_000), port(Channel::Priority)));
    let waited = ack.2 - answer.2;
    assert!(
        waited > Duration::from_micros(70) && waited < Duration::from_micros(120),
        "{waited:?}"
    );

    world.log = Some(Vec::new());
    let start = world.now;
    world.send(0, &message(1, 2000));
    world.run(SECOND, |world| world.is_drained(0));
    let last = world.log.take().unwrap().pop().unwrap();
    assert!(last.0.since(start) < Duration::from_micros(25), "{:?}", last.0.since(start));
}

/// Packets leave at the speed of the link, not all at once.
#[test]
fn packets_are_paced() {
    let mut world = World::new(Setup { link_speed: 1000, ..Setup::default() });
    let start = world.now;
    for number in 0..10 {
        assert!(world.send(0, &message(number, 100_000)));
    }
    let mut most = 0;
    while !world.is_drained(0) {
        let before = world.counters(0).num_chunk_sends;
        assert!(world.step());
        world.settle();
        most = most.max(world.counters(0).num_chunk_sends - before);
    }
    let took = world.now.since(start);
    // A megabyte, with headers, at 1 Gb/s.
    assert!(took > Duration::from_millis(8) && took < Duration::from_millis(11), "{took:?}");
    assert!(most <= 16, "{most} packets at once");
}

#[test]
fn closing_waits_for_the_last_ack() {
    let mut world = World::new(Setup::default());
    world.send(0, b"last");
    let (endpoint, now) = (world.sides[0].endpoint, world.now);
    let engine = &mut world.sides[0].engine;
    engine.close(endpoint);
    assert_eq!(engine.state(endpoint), Some(State::Closing));
    assert_eq!(engine.send(endpoint, TAG, b"more", now), Err(SendError::Closed));
    world.run(SECOND, |world| world.sides[0].engine.state(endpoint) == Some(State::Closed));
    assert_eq!(world.sides[1].came.len(), 1);
    // The closed endpoint still acknowledges.
    world.send(1, b"after");
    world.run(SECOND, |world| world.is_drained(1));
    let engine = &mut world.sides[0].engine;
    engine.remove(endpoint);
    assert_eq!((engine.state(endpoint), engine.next_news()), (None, None));
    assert_eq!(engine.deadline(), None);
}

/// The user takes no messages: the peer retransmits, gets no ACKs, and other endpoints are not affected.
#[test]
fn packets_to_a_user_that_takes_no_messages_are_retransmitted() {
    let mut world = World::with(Setup::default(), |_, config| config.messages = 10);
    world.sides[1].is_deaf = true;
    for number in 0..30 {
        assert!(world.send(0, &message(number, 50)));
    }
    world.pass(Duration::from_millis(500));
    assert_eq!(world.counters(1).messages_received, 10);
    assert!(world.counters(1).no_room > 20);
    let sent = world.counters(0).num_resends;
    assert!(sent < 40, "{sent} retransmissions");
    world.sides[1].is_deaf = false;
    world.run(5 * SECOND, |world| world.is_drained(0));
    assert_eq!(world.sides[1].came.len(), 30);
}

/// Messages are delivered in the order of sending, although large messages take longer and packets are reordered.
#[test]
fn messages_arrive_in_order_with_in_order_delivery() {
    for seed in 0..50 {
        let mut world = World::with(Setup { seed, ..Setup::default() }, |_, config| {
            config.delivery = Delivery::InOrder;
        });
        world.wire.late = 200;
        world.wire.loss = 20;
        let sizes = [5000, 4, 3000, 10, 1440, 1441, 20_000, 5];
        for number in 0..40u32 {
            assert!(world.send(0, &message(number, sizes[number as usize % sizes.len()])));
        }
        world.run(20 * SECOND, |world| world.sides[1].came.len() == 40);
        for (number, (_, bytes)) in (0..).zip(&world.sides[1].came) {
            assert_eq!(*bytes, message(number, bytes.len()), "seed {seed}");
        }
    }
}

/// The peer does not respond: retransmissions back off, and the endpoint fails with a reason.
#[test]
fn endpoint_of_a_silent_peer_fails() {
    let mut world = World::with(Setup::default(), |_, config| config.timing.retries = 12);
    world.wire.cut = [false, true];
    world.log = Some(Vec::new());
    let window = [world.window(0, b"hello"), Window::empty()];
    let (endpoint, now) = (world.sides[0].endpoint, world.now);
    world.sides[0].engine.send_windows(endpoint, TAG, window, 9, now).unwrap();
    let failed = |world: &World| world.sides[0].engine.state(endpoint);
    world.run(30 * SECOND, |world| matches!(failed(world), Some(State::Failed(_))));
    let why = Failure::Unacknowledged { times: 12 };
    assert_eq!(failed(&world), Some(State::Failed(why)));
    world.collect(0);
    assert_eq!(world.sides[0].completed, [(9, false)]);
    let log = world.log.take().unwrap();
    let pauses: Vec<u128> =
        log.windows(2).map(|pair| pair[1].0.since(pair[0].0).as_millis()).collect();
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 500, 500, 500, 500, 500]);
    assert_eq!(world.sides[0].engine.deadline(), None);
    // Later packets are counted, and not acknowledged.
    world.wire.cut = [false; 2];
    world.send(1, b"late");
    world.pass(Duration::from_millis(20));
    assert!(world.counters(0).after_failure > 0);
    assert_eq!(world.counters(0).num_ack_sends, 0);
}

/// A peer restarts with another first sequence number, and with the old one.
#[test]
fn restart_of_a_peer_is_detected() {
    let mut world = World::new(Setup::default());
    for number in 0..100 {
        world.send(0, &message(number, 100));
    }
    world.run(SECOND, |world| world.is_drained(0));
    // Side 0 restarts without a new modex for side 1, which acknowledges packets that the new side 0 never sent.
    let setup = world.setup;
    let fresh = super::world::engine(&setup, 0, setup.isns[0], world.now);
    let other = world.sides[1].engine.modex(0).unwrap();
    let mut config = crate::engine::EndpointConfig::new(0, sender(0), sender(1), other);
    config.check_connectivity = false;
    (world.sides[0].engine, world.sides[0].arena) = fresh;
    world.sides[0].endpoint = world.sides[0].engine.add_endpoint(&config, world.now).unwrap();
    for number in 0..100 {
        world.send(0, &message(number, 100));
    }
    world.pass(5 * SECOND);
    let state = world.sides[0].engine.state(world.sides[0].endpoint);
    assert_eq!(state, Some(State::Failed(Failure::StaleState)));
    // They exchange their modexes again, with new first sequence numbers.
    let fresh = super::world::engine(&setup, 0, 999, world.now);
    (world.sides[0].engine, world.sides[0].arena) = fresh;
    let ours = world.sides[0].engine.modex(0).unwrap();
    let now = world.now;
    let mut again = crate::engine::EndpointConfig::new(0, sender(1), sender(0), ours);
    again.check_connectivity = false;
    let old = world.sides[1].endpoint;
    let engine = &mut world.sides[1].engine;
    assert!(engine.add_endpoint(&again, now).is_err());
    engine.remove(old);
    world.sides[1].endpoint = engine.add_endpoint(&again, now).unwrap();
    // Side 1 restarts with its first sequence number, as in its modex.
    world.sides[0].endpoint = world.sides[0].engine.add_endpoint(&config, now).unwrap();
    world.sides[1].came.clear();
    world.send(0, b"new");
    world.send(1, b"new");
    world.run(SECOND, |world| world.is_drained(0) && world.is_drained(1));
    assert_eq!((world.sides[0].came.len(), world.sides[1].came.len()), (1, 1));
}

/// A peer with two interfaces: fragments are distributed over both by their backlogs.
#[test]
fn fragments_are_distributed_over_interfaces() {
    use crate::Stripe;
    use crate::engine::{EndpointConfig, Engine, InterfaceConfig};
    let setup = Setup::default();
    let now = drivers::hal::Instant::ZERO;
    let (mut engine, _arena) = super::world::engine(&setup, 0, 1, now);
    let modex = engine.modex(0).unwrap();
    let second = core::net::Ipv4Addr::new(10, 0, 1, 1);
    let other = InterfaceConfig {
        address: second,
        netmask: modex.netmask,
        priority_port: 100,
        data_port: 101,
        ping_port: 0,
        link_speed: 40_000,
        mtu: setup.mtu,
        isn: 3,
    };
    assert_eq!(engine.add_interface(other), Ok(1));
    let add = |engine: &mut Engine, interface, host: u8| {
        let address = core::net::Ipv4Addr::new(10, 0, interface as u8, host);
        let modex = crate::wire::modex::Modex { address, ..modex };
        let mut config = EndpointConfig::new(interface, sender(0), sender(1), modex);
        config.check_connectivity = false;
        engine.add_endpoint(&config, now).unwrap()
    };
    let endpoints = [(add(&mut engine, 0, 2), 10_000), (add(&mut engine, 1, 2), 40_000)];
    let mut stripe = Stripe::new(&endpoints);
    for number in 0..50 {
        let endpoint = stripe.choose(&engine, 10_000).unwrap();
        engine.send(endpoint, TAG, &message(number, 10_000), now).unwrap();
    }
    let waits = endpoints.map(|(endpoint, _)| engine.backlog(endpoint).unwrap().1);
    assert_eq!(waits, [100_000, 400_000]);
    let mut interfaces = [0; 2];
    while let Some(packet) = engine.poll_transmit(now) {
        interfaces[packet.interface] += 1;
    }
    assert!(interfaces[0] > 0 && interfaces[1] > 0);
    engine.close(endpoints[1].0);
    assert_eq!(stripe.choose(&engine, 10), Some(endpoints[0].0));
}
