//! Two engines on a lossy link: every message arrives once and complete, for any seed.

use super::world::{Setup, TAG, Wire, World, message};
use crate::engine::{Config, Delivery};
use crate::wire::header::Layout;
use core::time::Duration;
use drivers::hal::Window;
use netsim::explore;
use std::vec::Vec;

/// With `--full`, `explore` uses five times as many seeds: ten thousand.
fn seeds(count: u64) -> u64 {
    if std::env::var_os("ISTHMUS_FULL").is_some() { 2000 } else { count }
}

/// Messages and PUTs of random sizes in both directions, over a link with random faults.
#[test]
fn messages_and_puts_arrive_once() {
    explore("messages_and_puts_arrive_once", seeds(400), |seed| scenario(seed, 60));
}

/// One side restarts with messages in flight: messages sent afterwards arrive once and complete.
#[test]
fn restart_loses_only_messages_in_flight() {
    explore("restart_loses_only_messages_in_flight", seeds(100), |seed| {
        let mut rng = netsim::Rng::new(seed ^ 0xb007);
        let setup = any_setup(seed, &mut rng);
        let mut world = World::new(setup);
        world.wire = any_wire(&mut rng);
        let mut number = 0;
        for life in 0..3 {
            let mut sent: [Vec<Vec<u8>>; 2] = [Vec::new(), Vec::new()];
            for _ in 0..20 {
                let bytes = message(number, 4 + rng.within(0..9000) as usize);
                let side = usize::from(rng.chance(500));
                if world.send(side, &bytes) {
                    sent[side].push(bytes);
                }
                number += 1;
                if rng.chance(500) {
                    world.step();
                }
            }
            if life == 2 {
                world.run(Duration::from_secs(600), |w| w.is_drained(0) && w.is_drained(1));
                world.pass(Duration::from_millis(100));
            }
            for (side, sent) in sent.iter_mut().enumerate() {
                let mut came: Vec<_> = world.sides[1 - side].came.drain(..).map(|m| m.1).collect();
                came.sort();
                sent.sort();
                let all = life == 2;
                let once = came.windows(2).all(|pair| pair[0] != pair[1]);
                assert!(once && came.iter().all(|m| sent.contains(m)), "seed {seed}");
                assert!(!all || came == *sent, "seed {seed}");
            }
            if life < 2 {
                world.restart(usize::from(rng.chance(500)), rng.within(0..65_536) as u16);
            }
        }
    });
}

fn any_setup(seed: u64, rng: &mut netsim::Rng) -> Setup {
    Setup {
        seed,
        isns: [rng.within(0..65_536) as u16, rng.within(65_000..65_536) as u16],
        layout: rng.pick(&[Layout::V4, Layout::V5]),
        config: Config { receive_windows: rng.pick(&[0, 1, 2]), ..Setup::default().config },
        memory: 1 << 21,
        ..Setup::default()
    }
}

fn any_wire(rng: &mut netsim::Rng) -> Wire {
    Wire {
        loss: rng.pick(&[0, 1, 10, 50, 200]),
        twice: rng.pick(&[0, 10, 200]),
        late: rng.pick(&[0, 10, 300]),
        corrupt: rng.pick(&[0, 10]),
        later: rng.pick(&[10, 200, 20_000]),
        latency: rng.pick(&[1, 20, 2000]),
        ..Wire::default()
    }
}

fn scenario(seed: u64, messages: u32) {
    let mut rng = netsim::Rng::new(seed ^ 0x5eed);
    let setup = any_setup(seed, &mut rng);
    let in_order = rng.chance(500);
    let mut world = World::with(setup, |_, config| {
        config.delivery = if in_order { Delivery::InOrder } else { Delivery::AsTheyCome };
    });
    world.wire = any_wire(&mut rng);
    let region = world.window(1, &std::vec![0; 60_000]);
    let endpoint = world.sides[1].endpoint;
    world.sides[1].engine.grant(endpoint, 0x1000, region).unwrap();
    let endpoint = world.sides[0].endpoint;
    world.sides[0].engine.permit_put(endpoint, 0x1000, 60_000);
    let put = message(77, 60_000);
    let window = [world.window(0, &put), Window::empty()];
    let now = world.now;
    world.sides[0].engine.put(endpoint, 0x1000, window, 5, now).unwrap();

    let mut sent: [Vec<Vec<u8>>; 2] = [Vec::new(), Vec::new()];
    for number in 0..messages {
        let length = rng.pick(&[4, 60, 700, 1440, 1441, 3000, 20_000]) + rng.within(0..20) as usize;
        let bytes = message(number, length);
        let side = usize::from(rng.chance(500));
        while !world.send(side, &bytes) {
            assert!(world.step());
        }
        sent[side].push(bytes);
        if rng.chance(300) {
            world.step();
        }
    }
    world.run(Duration::from_secs(600), |world| world.is_drained(0) && world.is_drained(1));
    world.pass(Duration::from_millis(100));
    for (side, sent) in sent.iter().enumerate() {
        let came: Vec<&Vec<u8>> = world.sides[1 - side].came.iter().map(|(_, m)| m).collect();
        if in_order {
            assert!(came.iter().copied().eq(sent), "seed {seed}");
        } else {
            let mut came: Vec<_> = came.into_iter().collect();
            let mut expected: Vec<_> = sent.iter().collect();
            came.sort();
            expected.sort();
            assert!(came == expected, "seed {seed}");
        }
    }
    assert_eq!(world.sides[0].completed, [(5, true)]);
    let mut written = std::vec![0; put.len()];
    region.read(0, &mut written).unwrap();
    assert!(written == put, "seed {seed}");
    // All memory is released, and no timer is left.
    for side in &mut world.sides {
        let free = side.engine.memory_available();
        assert!(free >= (1 << 21) - 128, "{free}");
        assert_eq!(side.engine.deadline(), None);
    }
}

/// With one packet missing, the next 4,094 packets are accepted; one more is not.
#[test]
fn window_accepts_4095_packets() {
    use super::world::{port, sender, socket};
    use crate::engine::Channel;
    use crate::wire::header::{Header, Kind, MAX_HEADER};
    let config = Config { messages: 8192, ..Setup::default().config };
    let mut world = World::with(Setup { config, ..Setup::default() }, |_, config| {
        config.messages = 8192;
    });
    let mut bytes = [0; MAX_HEADER];
    let mut arrive = |world: &mut World, sequence: u16| {
        let header = Header {
            sender: sender(0),
            sequence,
            acknowledged: None,
            put_address: 0,
            tag: TAG,
            kind: Kind::Fragment,
        };
        let length = header.emit(Layout::V4, 0, &mut bytes);
        let (from, now) = (socket(0, Channel::Data), world.now);
        world.sides[1].engine.receive(0, from, port(Channel::Data), &bytes[..length], now);
        world.collect(1);
    };
    for n in (1..4096u16).rev() {
        arrive(&mut world, 10u16.wrapping_add(n));
    }
    assert_eq!(world.sides[1].came.len(), 4095);
    arrive(&mut world, 10 + 4096);
    let counters = world.counters(1);
    assert_eq!((counters.num_oow_high_recvs, counters.max_rcvd_window_size), (1, 4095));
    arrive(&mut world, 10 + 4095);
    assert_eq!(world.counters(1).num_dup_recvs, 1);
    arrive(&mut world, 10);
    assert_eq!(world.sides[1].came.len(), 4096);
    arrive(&mut world, 10 + 4096);
    assert_eq!(world.sides[1].came.len(), 4097);
    arrive(&mut world, 10 + 4095);
    assert_eq!(world.counters(1).num_oow_low_recvs, 1);
}

/// One lost packet of a message is retransmitted long before the stock timer.
#[test]
fn lost_packet_is_retransmitted_within_a_millisecond() {
    for lost in 0..46 {
        netsim::label!(lost);
        let mut world = World::new(Setup::default());
        // Get samples of the round trip time first.
        for _ in 0..20 {
            world.send(0, b"round");
            world.run(Duration::from_secs(1), |world| world.is_drained(0));
        }
        let start = world.now;
        assert!(world.send(0, &message(1, 65_000)));
        let mut seen = 0;
        while world.sides[1].came.len() < 21 {
            world.settle();
            let log = world.flying.keys().copied().collect::<Vec<_>>();
            for key in log {
                let to = world.flying[&key].to;
                if to == 1 && world.flying[&key].bytes.len() > 48 && key.1 > seen {
                    seen = key.1;
                    if world.counters(0).num_chunk_sends as usize > lost
                        && world.counters(0).num_resends == 0
                    {
                        let number = u16::from_le_bytes([
                            world.flying[&key].bytes[8],
                            world.flying[&key].bytes[9],
                        ]);
                        if usize::from(number.wrapping_sub(30)) == lost {
                            world.flying.remove(&key);
                        }
                    }
                }
            }
            assert!(world.step());
        }
        let took = world.now.since(start);
        assert!(took < Duration::from_millis(1), "packet {lost}: {took:?}");
        assert!(world.counters(0).num_resends <= 3, "{:?}", world.counters(0));
    }
}
