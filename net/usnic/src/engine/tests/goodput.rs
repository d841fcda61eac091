//! Goodput to a stock receiver over a lossy link, of the engine and of a stock
//! sender (`super::stock`), compared with the grid in `goodput.txt`.

use super::stock::{Sender, StockReceiver, StockSender};
use super::world::{Setup, TAG, engine, message, port, sender, socket};
use crate::engine::{Channel, Config, EndpointConfig, EndpointId, Engine};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use netsim::Rng;
use std::collections::VecDeque;
use std::fmt::Write;
use std::string::String;
use std::vec::Vec;

const MESSAGE: usize = 65_536;
/// Loss in thousandths.
const LOSSES: [u32; 4] = [0, 1, 10, 50];
const SEEDS: u64 = 5;
/// Picoseconds of a byte at 10 Gb/s.
const BYTE: u64 = 800;
/// Bytes of overhead of a UDP payload: IPv4, UDP, Ethernet, gap between frames.
const OVERHEAD: u64 = 28 + 38;

/// A row of the grid.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Send each message after the ACK of the one before.
    each: bool,
    /// Microseconds in each direction.
    latency: u64,
    /// Both sides run in turns of so many microseconds, as on one processor; 0 if each has its own processor.
    turn: u64,
}

const CASES: [Case; 6] = [
    Case { name: "each", each: true, latency: 20, turn: 0 },
    Case { name: "bulk", each: false, latency: 20, turn: 0 },
    Case { name: "each", each: true, latency: 500, turn: 0 },
    Case { name: "bulk", each: false, latency: 500, turn: 0 },
    Case { name: "each", each: true, latency: 20, turn: 3000 },
    Case { name: "bulk", each: false, latency: 20, turn: 3000 },
];

/// The engine as a sender.
struct Ours {
    engine: Engine,
    endpoint: EndpointId,
    bytes: Vec<u8>,
    _arena: Arena,
}

impl Ours {
    fn new(seed: u64, now: Instant) -> Ours {
        let config = Config { sends: 256, ..Setup::default().config };
        let setup = Setup { seed, memory: 1 << 24, isns: [0, 0], config, ..Setup::default() };
        let (mut engine, arena) = engine(&setup, 0, 0, now);
        let (other, _) = super::world::engine(&setup, 1, 0, now);
        let peer = other.modex(0).expect("it exists");
        let mut config = EndpointConfig::new(0, sender(0), sender(1), peer);
        config.check_connectivity = false;
        let endpoint = engine.add_endpoint(&config, now).expect("it is valid");
        Ours { engine, endpoint, bytes: message(1, MESSAGE), _arena: arena }
    }
}

impl Sender for Ours {
    fn give(&mut self, bytes: usize, now: Instant) -> bool {
        self.engine.send(self.endpoint, TAG, &self.bytes[..bytes], now).is_ok()
    }

    fn is_drained(&self) -> bool {
        self.engine.backlog(self.endpoint) == Some((0, 0))
    }

    fn receive(&mut self, datagram: &[u8], now: Instant) {
        let (from, to) = (socket(1, Channel::Priority), port(Channel::Priority));
        self.engine.receive(0, from, to, datagram, now);
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let packet = self.engine.poll_transmit(now)?;
        let mut bytes = packet.header().to_vec();
        bytes.resize(packet.len(), 0);
        Some(bytes)
    }

    fn deadline(&mut self) -> Option<Instant> {
        self.engine.deadline()
    }
}

/// One direction of the link: datagrams in flight, by the time of their arrival.
#[derive(Default)]
struct Link {
    busy: u64,
    flying: VecDeque<(Instant, Vec<u8>)>,
}

impl Link {
    fn carry(&mut self, datagram: Vec<u8>, case: &Case, loss: u32, rng: &mut Rng, now: Instant) {
        let bytes = datagram.len() as u64 + OVERHEAD;
        self.busy = self.busy.max(now.as_nanos()) + bytes * BYTE / 1000;
        if !rng.chance(loss) {
            let at = Instant::from_nanos(self.busy + case.latency * 1000);
            self.flying.push_back((at, datagram));
        }
    }
}

/// The first time from `at` on at which a side has the processor.
fn in_turn(case: &Case, side: u64, at: Instant) -> Instant {
    let turn = case.turn * 1000;
    if turn == 0 || at.as_nanos() / turn % 2 == side {
        return at;
    }
    Instant::from_nanos((at.as_nanos() / turn + 1) * turn)
}

/// Megabytes a second, and packets sent for each that was needed.
fn run(case: &Case, ours: bool, loss: u32, seed: u64) -> (f64, f64) {
    // The sender's turn is first.
    let mut now = Instant::from_nanos(1_200_000_000);
    let start = now;
    let mut rng = Rng::new(seed ^ 0x900d);
    let (mut our, mut stock) = (Ours::new(seed, now), StockSender::default());
    let from: &mut dyn Sender = if ours { &mut our } else { &mut stock };
    let mut to = StockReceiver::default();
    let [mut there, mut back] = [Link::default(), Link::default()];
    let count = if case.each { 100 } else { 500 };
    let (mut given, mut sent) = (0, 0u64);
    while given < count || !from.is_drained() {
        assert!(now.since(start) < Duration::from_secs(100), "{} {loss} {seed}", case.name);
        if in_turn(case, 0, now) == now {
            while let Some((_, datagram)) = back.flying.pop_front_if(|(at, _)| *at <= now) {
                from.receive(&datagram, now);
            }
            while given < count && (!case.each || from.is_drained()) && from.give(MESSAGE, now) {
                given += 1;
            }
            while let Some(datagram) = from.transmit(now) {
                sent += 1;
                there.carry(datagram, case, loss, &mut rng, now);
            }
        }
        if in_turn(case, 1, now) == now {
            while let Some((_, datagram)) = there.flying.pop_front_if(|(at, _)| *at <= now) {
                to.receive(&datagram, now);
                while let Some(ack) = to.transmit(now) {
                    back.carry(ack, case, loss, &mut rng, now);
                }
            }
            while let Some(ack) = to.transmit(now) {
                back.carry(ack, case, loss, &mut rng, now);
            }
        }
        let first = |link: &Link| link.flying.front().map(|(at, _)| *at);
        let moments =
            [(0, first(&back)), (0, from.deadline()), (1, first(&there)), (1, to.deadline())];
        let moments = moments.map(|(side, at)| at.map(|at| in_turn(case, side, at.max(now))));
        // The side that just ran is idle; at the end of its turn the other side runs.
        let next = Instant::first(moments);
        match next {
            Some(next) if next > now => now = next,
            Some(_) => now = now + Duration::from_nanos(100),
            None => assert!(given == count && from.is_drained()),
        }
    }
    assert_eq!(to.complete, count);
    let seconds = now.since(start).as_secs_f64();
    let needed = f64::from(count) * (MESSAGE as f64 / 1424.0).ceil();
    (f64::from(count) * MESSAGE as f64 / 1e6 / seconds, sent as f64 / needed)
}

fn grid() -> String {
    let mut text = String::from(
        "Megabytes a second to a stock receiver over 10 Gb/s: the engine / a stock sender, and packets sent\n\
         for each that was needed. Messages of 64 KiB: each when the last was acknowledged, or in bulk.\n\n",
    );
    let _ = write!(text, "{:<40}", "loss");
    for loss in LOSSES {
        let _ = write!(text, "{:>26}", std::format!("{:.1} %", f64::from(loss) / 10.0));
    }
    text.push('\n');
    for case in CASES {
        let turns = if case.turn > 0 { ", one processor" } else { "" };
        let name = std::format!("{}, {} us one way{turns}", case.name, case.latency);
        let _ = write!(text, "{name:<40}");
        for loss in LOSSES {
            let mean = |ours| {
                let runs = (0..SEEDS).map(|seed| run(&case, ours, loss, seed));
                let (rate, packets) =
                    runs.fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
                (rate / SEEDS as f64, packets / SEEDS as f64)
            };
            let (ours, stock) = (mean(true), mean(false));
            let cell =
                std::format!("{:.0} / {:.0} ({:.2} / {:.2})", ours.0, stock.0, ours.1, stock.1);
            let _ = write!(text, "{cell:>26}");
        }
        text.push('\n');
    }
    text
}

/// `ISTHMUS_WRITE_GOLDEN=1` rewrites the file.
#[test]
fn goodput_matches_the_recorded_grid() {
    let grid = grid();
    if std::env::var_os("ISTHMUS_WRITE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/engine/tests/goodput.txt");
        std::fs::write(path, &grid).expect("the source can be written");
        return;
    }
    assert!(grid == include_str!("goodput.txt"), "the grid differs from goodput.txt:\n{grid}");
}
