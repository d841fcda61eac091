//! A malicious peer, or an attacker in its name: its packets are counted, only granted memory is
//! written, other users' data does not leak, memory is bounded, and other endpoints make progress.

use super::world::{Setup, TAG, World, engine, message, port, sender, socket};
use crate::engine::{Channel, Config, Counters, EndpointConfig, Failure, State};
use crate::wire::header::{Header, Kind, Layout, MAX_HEADER};
use crate::wire::modex::Modex;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use drivers::hal::Instant;
use netsim::{Rng, explore};
use std::vec::Vec;

/// First sequence number of side 0, which attacks side 1.
pub(super) const ISN: u16 = 10;

pub(super) fn header(sequence: u16, kind: Kind) -> Header {
    Header { sender: sender(0), sequence, acknowledged: None, put_address: 0, tag: TAG, kind }
}

pub(super) fn packet(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_HEADER];
    let length = header.emit(Layout::V4, payload.len() as u16, &mut bytes);
    [&bytes[..length], payload].concat()
}

/// Side 1 receives a datagram; returns its counters afterwards.
pub(super) fn arrive(world: &mut World, bytes: &[u8]) -> Counters {
    arrive_from(world, socket(0, Channel::Data), Channel::Data, bytes)
}

fn arrive_from(world: &mut World, from: SocketAddrV4, to: Channel, bytes: &[u8]) -> Counters {
    let now = world.now;
    world.sides[1].engine.receive(0, from, port(to), bytes, now);
    world.collect(1);
    world.counters(1)
}

pub(super) fn chunk(fragment: u32, size: u32, offset: u32) -> Kind {
    Kind::Chunk { fragment, size, offset }
}

#[test]
fn puts_outside_of_grants_write_nothing() {
    let mut world = World::new(Setup::default());
    let memory = world.window(1, &[7; 4000]);
    let endpoint = world.sides[1].endpoint;
    let part = |from, len| memory.slice(from, len).unwrap();
    let engine = &mut world.sides[1].engine;
    engine.grant(endpoint, 0x1000, part(1000, 1000)).unwrap();
    engine.grant(endpoint, 0x1000 + 2000, part(3000, 500)).unwrap();
    assert!(engine.grant(endpoint, 0x1000 + 1999, part(0, 2)).is_err());
    assert!(engine.grant(endpoint, 0xfff, part(0, 2)).is_err());
    assert!(engine.grant(endpoint, 0, part(0, 2)).is_err());
    assert!(engine.grant(endpoint, u64::MAX, part(0, 2)).is_err());
    let mut refused = 0;
    let addresses = [
        (0xfff, 10),
        (0x1000 - 10, 20),
        (0x1000 + 991, 10),
        (0x1000 + 1000, 1),
        (0x1000 + 1999, 5),
        (0x1000 + 2495, 10),
        (u64::MAX, 10),
        (u64::MAX - 5, 10),
        (1, 10),
        (0x1000, 1001),
    ];
    for (address, length) in addresses {
        let put = Header { put_address: address, ..header(ISN, Kind::Fragment) };
        refused += 1;
        assert_eq!(arrive(&mut world, &packet(&put, &std::vec![9; length])).puts_refused, refused);
        // As the first part of a longer PUT.
        let kind = chunk(5, 2 * length as u32, 0);
        let put = Header { put_address: address, ..header(ISN, kind) };
        refused += 1;
        let counters = arrive(&mut world, &packet(&put, &std::vec![9; length]));
        assert_eq!(counters.puts_refused, refused, "{address:#x}");
    }
    // A part whose end wraps around the address space.
    let put = Header { put_address: 0x1000, ..header(ISN, chunk(6, u32::MAX, u32::MAX - 9)) };
    arrive(&mut world, &packet(&put, &[9; 10]));
    let mut bytes = [0; 4000];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4000]);
    assert_eq!(world.counters(1).num_ack_sends, 0);
    // All of it was refused: a valid PUT is still accepted, until the region is revoked.
    let honest = Header { put_address: 0x1000 + 990, ..header(ISN, Kind::Fragment) };
    assert_eq!(arrive(&mut world, &packet(&honest, &[8; 10])).puts_received, 1);
    memory.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes[1989..2000], bytes[2000]), (&[7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8][..], 7));
    world.sides[1].engine.revoke(endpoint, 0x1000);
    let again = Header { sequence: ISN + 1, ..honest };
    assert_eq!(arrive(&mut world, &packet(&again, &[9; 10])).puts_received, 1);
}

#[test]
fn parts_that_do_not_fit_their_fragment_are_dropped() {
    let mut world = World::new(Setup::default());
    let lies = [
        chunk(0, 100, 0),
        chunk(1, 9, 0),
        chunk(1, 100, 91),
        chunk(1, 100, u32::MAX),
        chunk(1, u32::MAX, 0),
        chunk(1, (1 << 20) + 1, 0),
    ];
    for (n, kind) in (1..).zip(lies) {
        let counters = arrive(&mut world, &packet(&header(ISN, kind), &[1; 10]));
        assert_eq!(counters.num_badfrag_recvs, n, "{kind:?}");
    }
    assert_eq!(
        arrive(&mut world, &packet(&header(ISN, chunk(1, 100, 0)), &[])).num_badfrag_recvs,
        7
    );
    // A fragment begins, and a later part contradicts it.
    arrive(&mut world, &packet(&header(ISN, chunk(2, 30, 10)), &[1; 10]));
    for kind in [chunk(2, 31, 0), chunk(2, 29, 0)] {
        arrive(&mut world, &packet(&header(ISN + 1, kind), &[1; 10]));
    }
    let put = Header { put_address: 5, ..header(ISN + 1, chunk(2, 30, 0)) };
    arrive(&mut world, &packet(&put, &[1; 10]));
    assert_eq!(world.counters(1).num_badfrag_recvs, 10);
    // Overlapping parts: the complete message has zeros in the gaps, not other users' data.
    arrive(&mut world, &packet(&header(ISN + 1, chunk(2, 30, 5)), &[2; 10]));
    arrive(&mut world, &packet(&header(ISN + 2, chunk(2, 30, 7)), &[3; 10]));
    let expected: Vec<u8> = [&[0; 5][..], &[2; 2], &[3; 10], &[1; 3], &[0; 10]].concat();
    assert_eq!(world.sides[1].came, [(TAG, expected)]);
    // Shorter than its header says, of an unknown type, and with an impossible length.
    let mut short = packet(&header(ISN + 3, Kind::Fragment), &[1; 10]);
    short.pop();
    assert_eq!(arrive(&mut world, &short).malformed, 1);
    short[24] = 9;
    assert_eq!(arrive(&mut world, &short).malformed, 2);
    assert_eq!(arrive(&mut world, &[]).malformed, 3);
}

#[test]
fn packets_in_the_name_of_a_peer_are_dropped() {
    let mut world = World::new(Setup::default());
    let honest = packet(&header(ISN, Kind::Fragment), b"hello");
    let elsewhere = [
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), 101),
        SocketAddrV4::new(*socket(0, Channel::Data).ip(), 5000),
    ];
    for (n, from) in (1..).zip(elsewhere) {
        arrive_from(&mut world, from, Channel::Data, &honest);
        assert_eq!(world.sides[1].engine.interface_counters(0).unwrap().num_unk_recvs, n);
    }
    let other = packet(&Header { sender: sender(5), ..header(ISN, Kind::Fragment) }, b"hello");
    assert_eq!(arrive(&mut world, &other).other_senders, 1);
    assert!(world.sides[1].came.is_empty());
    // Small data on the priority channel is accepted, large data is not.
    let large = packet(&header(ISN, Kind::Fragment), &[0; 737]);
    let from = socket(0, Channel::Priority);
    assert_eq!(arrive_from(&mut world, from, Channel::Priority, &large).large_on_priority, 1);
    let small = packet(&header(ISN, Kind::Fragment), &[0; 736]);
    arrive_from(&mut world, from, Channel::Priority, &small);
    assert_eq!(world.sides[1].came.len(), 1);
}

#[test]
fn acks_of_packets_never_sent_are_ignored() {
    let mut world = World::new(Setup::default());
    world.wire.cut = [true, true];
    for number in 0..5 {
        world.send(1, &message(number, 10));
    }
    world.settle();
    let isn = world.setup.isns[1];
    for (n, ahead) in (1..).zip([5u16, 6, 1000, 30_000]) {
        let ack = Header { acknowledged: Some(isn.wrapping_add(ahead)), ..header(0, Kind::Ack) };
        assert_eq!(arrive(&mut world, &packet(&ack, &[])).acks_of_unsent, n);
    }
    let backlog = world.sides[1].engine.backlog(world.sides[1].endpoint);
    assert_eq!(backlog, Some((5, 0)));
    // A valid ACK is accepted.
    let ack = Header { acknowledged: Some(isn.wrapping_add(4)), ..header(0, Kind::Ack) };
    arrive(&mut world, &packet(&ack, &[]));
    assert!(world.is_drained(1));
    for _ in 0..1000 {
        let ack = Header { acknowledged: Some(isn.wrapping_add(9)), ..header(0, Kind::Ack) };
        arrive(&mut world, &packet(&ack, &[]));
    }
    assert_eq!(world.sides[1].engine.state(world.sides[1].endpoint), Some(State::Open));
}

/// Thousands of duplicate ACKs cause few retransmissions.
#[test]
fn flood_of_duplicate_acks_causes_few_retransmissions() {
    let mut world = World::new(Setup::default());
    world.wire.cut = [true, true];
    for number in 0..50 {
        world.send(1, &message(number, 1000));
    }
    world.settle();
    let isn = world.setup.isns[1];
    let ack = Header { acknowledged: Some(isn.wrapping_sub(1)), ..header(0, Kind::Ack) };
    let ack = packet(&ack, &[]);
    for _ in 0..10_000 {
        arrive(&mut world, &ack);
        world.settle();
        world.now = world.now + Duration::from_nanos(100);
    }
    let counters = world.counters(1);
    // A millisecond has passed: at most one retransmission in 100 µs.
    assert!(counters.num_resends <= 11, "{counters:?}");
    assert_eq!(counters.num_dup_acks, 10_000);
    // Old ACKs cause none.
    let resends = counters.num_resends;
    let old = Header { acknowledged: Some(isn.wrapping_sub(3000)), ..header(0, Kind::Ack) };
    for _ in 0..1000 {
        arrive(&mut world, &packet(&old, &[]));
    }
    world.settle();
    assert_eq!(world.counters(1).num_resends, resends);
}

/// Thousands of packets beyond and before the window: one ACK for each burst.
#[test]
fn packets_outside_of_the_window_cause_one_ack_a_turn() {
    let mut world = World::new(Setup::default());
    for n in 0..1000u16 {
        for sequence in [ISN + 4096 + n, ISN.wrapping_sub(1 + n)] {
            arrive(&mut world, &packet(&header(sequence, Kind::Fragment), b"x"));
        }
    }
    world.settle();
    let counters = world.counters(1);
    assert_eq!((counters.num_oow_high_recvs, counters.num_oow_low_recvs), (1000, 1000));
    assert_eq!(counters.num_ack_sends, 1);
    assert!(world.sides[1].came.is_empty());
}

/// While many attackers take all the memory that they can get, a message of another peer arrives, and is answered.
#[test]
fn greedy_peers_leave_memory_to_others() {
    const ATTACKERS: u32 = 40;
    for (size, length) in [(400_000u32, 100), (60_000, 1400), (4, 1)] {
        let config = Config { endpoints: 64, messages: 512, sends: 512, ..Setup::default().config };
        let own = config.messages / config.endpoints;
        let setup = Setup { config, memory: 1 << 24, ..Setup::default() };
        let now = Instant::from_nanos(1_000_000_000);
        let (mut engine, _arena) = engine(&setup, 1, 0, now);
        let host = |n: u32| Ipv4Addr::from_bits(0x0a01_0000 + n);
        let all: Vec<_> = (0..=ATTACKERS)
            .map(|n| {
                let modex = Modex { address: host(n), isn: ISN, ..engine.modex(0).unwrap() };
                let config = EndpointConfig::new(0, sender(1), sender(0), modex);
                let config = EndpointConfig { messages: own, sends: own, ..config };
                engine.add_endpoint(&config, now).unwrap()
            })
            .collect();
        let from = |n: u32| SocketAddrV4::new(host(n), port(Channel::Data));
        for (n, &id) in (0..ATTACKERS).zip(&all) {
            for number in 0..600u16 {
                let kind = chunk(1 + u32::from(number), size, 0);
                let bytes = packet(&header(ISN + number, kind), &std::vec![1; length]);
                engine.receive(0, from(n), port(Channel::Data), &bytes, now);
                // The attacker does not acknowledge messages to it.
                let _ = engine.send(id, TAG, &[7; 1000], now);
            }
            assert!(engine.counters(id).unwrap().no_room > 0, "attacker {n} was not limited");
        }
        let bytes = packet(&header(ISN, Kind::Fragment), &[2; 1000]);
        engine.receive(0, from(ATTACKERS), port(Channel::Data), &bytes, now);
        let honest = all[ATTACKERS as usize];
        let message = engine.take_message(honest).expect("it has arrived");
        assert_eq!(engine.send(honest, TAG, &[2; 1000], now), Ok(()), "{size}");
        engine.release(message);
    }
}

/// A peer begins messages and completes none: it is limited to its share, and its endpoint fails in the end.
#[test]
fn incomplete_messages_are_limited_and_end_their_endpoint() {
    let mut world = World::with(Setup::default(), |_, config| {
        config.receive_bytes = 1 << 20;
        config.messages = 100;
    });
    let free = world.sides[1].engine.memory_available();
    for n in 0..1000u16 {
        let kind = chunk(1 + u32::from(n), 100_000, 50_000);
        arrive(&mut world, &packet(&header(ISN + n % 4000, kind), &[1; 100]));
    }
    let held = free - world.sides[1].engine.memory_available();
    assert!((1 << 19..=1 << 20).contains(&held), "{held}");
    // Small messages are limited by their number.
    let mut other = World::with(Setup::default(), |_, config| config.messages = 100);
    for n in 0..1000u16 {
        let kind = chunk(1 + u32::from(n), 2, 0);
        arrive(&mut other, &packet(&header(ISN + n, kind), &[1]));
    }
    assert_eq!(other.counters(1).no_room, 900);
    world.now = world.now + Duration::from_secs(61);
    world.settle();
    let state = world.sides[1].engine.state(world.sides[1].endpoint);
    assert_eq!(state, Some(State::Failed(Failure::Silent)));
    assert_eq!(world.sides[1].engine.memory_available(), free);
}

/// Random bytes, and packets with a few changed bytes: no panic, no write outside of the grant, no leak of
/// former contents of memory.
#[test]
fn random_datagrams_are_survived() {
    explore("random_datagrams_are_survived", 1000, |seed| {
        let mut rng = Rng::new(seed);
        let mut world = World::new(Setup { seed, memory: 1 << 18, ..Setup::default() });
        let memory = world.window(1, &[7; 3000]);
        let endpoint = world.sides[1].endpoint;
        let granted = memory.slice(1000, 1000).unwrap();
        world.sides[1].engine.grant(endpoint, 0x1000, granted).unwrap();
        for number in 0..10 {
            world.send(1, &message(number, 3000));
        }
        for _ in 0..300 {
            let sequence = ISN.wrapping_add(rng.pick(&[0, 1, 2, 3, 10, 100, 4095, 4096, 65_000]));
            let sequence = sequence.wrapping_add(rng.within(0..20) as u16);
            let kind = match rng.within(0..4) {
                0 => Kind::Ack,
                1 => Kind::Fragment,
                _ => chunk(
                    rng.within(0..5) as u32,
                    rng.pick(&[0, 10, 100, 3000, 1 << 17, u32::MAX]),
                    rng.pick(&[0, 10, 90, 1500, 1 << 16, u32::MAX]),
                ),
            };
            let acknowledged = rng.chance(500).then(|| {
                world.setup.isns[1].wrapping_add(rng.within(0..100) as u16).wrapping_sub(20)
            });
            let put_address = rng.pick(&[0, 0, 0, 0xff0, 0x1000, 0x1300, 0x13f0, u64::MAX]);
            let header = Header { acknowledged, put_address, ..header(sequence, kind) };
            let length = rng.pick(&[0, 1, 10, 100, 1400]);
            let mut bytes = packet(&header, &std::vec![0x55; length]);
            for _ in 0..rng.pick(&[0, 0, 0, 1, 5]) {
                let at = rng.within(0..bytes.len() as u64) as usize;
                bytes[at] = rng.within(0..256) as u8;
            }
            bytes.truncate(rng.pick(&[usize::MAX, usize::MAX, usize::MAX, 40, 10]));
            let channel =
                rng.pick(&[Channel::Data, Channel::Data, Channel::Priority, Channel::Ping]);
            arrive_from(&mut world, socket(0, channel), channel, &bytes);
            if rng.chance(100) {
                world.step();
            }
        }
        let mut bytes = [0; 3000];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes[..1000] == [7; 1000] && bytes[2000..] == [7; 1000], "seed {seed}");
        // Memory held 0xee before. An attacker's random bytes may have that value, but not eight in a row.
        for (_, came) in &world.sides[1].came {
            assert!(!came.windows(8).any(|run| run == [0xee; 8]), "seed {seed}");
        }
        world.sides[1].engine.remove(endpoint);
        assert!(world.sides[1].engine.memory_available() >= (1 << 18) - 128);
        assert_eq!(world.sides[1].engine.deadline(), None);
    });
}
