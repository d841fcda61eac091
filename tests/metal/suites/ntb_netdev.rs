//! Ethernet ports over a bridge (`ntb_transport`, `ntb_netdev`), with Isthmus at both ends.

use drivers::driver::Class;
use drivers::hal::{Frame, Instant, Packet, Platform, Port, TransmitError, Window};
use drivers::ntb::NtbDevice;
use drivers::ntb::transport::{Error, Mismatch, NtbNetdev, State};
use metal::Metal;
use metal::bridges::*;
use models::Function;
use models::ioat::{self, Ioat};
use models::ntb::intel::{self, IntelNtb};
use netsim::Rng;
use std::time::Duration;

const STEP: Duration = Duration::from_micros(50);
const MTU: usize = 9000;
const LARGEST: usize = MTU + 14;

/// One of the two machines.
struct End<M> {
    machine: Metal<M>,
    engine: Option<Metal<Ioat>>,
    port: Option<NtbNetdev>,
    payload: Window,
}

impl<M: Joined> End<M> {
    fn new(mut machine: Metal<M>, with_engine: bool) -> Self {
        // The exposed memory is allocated first, because it must be behind the other side's window.
        let mut bridge = open(&mut machine).unwrap();
        let payload = machine.arena().alloc(1 << 16, 64).unwrap();
        let mut end = End { machine, engine: None, port: None, payload };
        if with_engine {
            let settings = ioat::Config { device: 0x2021, channels: 1, version: 0x34, fault: None };
            let mut engine = end.machine.beside(Ioat::new(settings));
            let device = engine.find().take(Class::Dma).remove(0);
            let clock = engine.clock();
            let channel = device.open_dma(&mut engine, &clock).unwrap().remove(0);
            assert!(bridge.use_engine(channel, end.machine.arena()));
            end.engine = Some(engine);
        }
        end.take(bridge);
        end
    }

    fn take(&mut self, bridge: Box<dyn NtbDevice>) {
        let mac = [2, 0, 0, 0, 0, 1];
        let port = NtbNetdev::new(bridge, mac, MTU, self.machine.arena());
        self.port = Some(port.unwrap());
    }

    fn port(&mut self) -> &mut NtbNetdev {
        self.port.as_mut().unwrap()
    }

    fn step(&mut self) -> Instant {
        let now = self.machine.pass(STEP);
        self.machine.run();
        if let Some(engine) = &self.engine {
            engine.pass(STEP);
            engine.run();
        }
        if let Some(port) = &mut self.port {
            port.poll(now);
        }
        now
    }

    /// Sends a frame of `len` bytes generated from `seed`, with its middle in two windows.
    fn send(&mut self, seed: usize, len: usize) -> Result<(), TransmitError> {
        let bytes = frame(seed, len);
        let header = len.min(42);
        let rest = len - header;
        let trailer = rest.min(4);
        let (first, second) = ((rest - trailer) / 2, rest - trailer - (rest - trailer) / 2);
        // Lent payload may be read later, so each frame has memory of its own.
        let place = seed % 4 * (1 << 14);
        self.payload.write(place, &bytes[header..len - trailer]).unwrap();
        let windows = [
            self.payload.slice(place, first).unwrap(),
            self.payload.slice(place + first, second).unwrap(),
        ];
        let packet = Packet {
            header: &bytes[..header],
            payload: &windows,
            trailer: &bytes[len - trailer..],
        };
        self.port().transmit(&packet)
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let frame: Frame = self.port().receive()?;
        let bytes = self.port().bytes(&frame).to_vec();
        self.port().recycle(frame);
        Some(bytes)
    }
}

fn frame(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect()
}

struct Pair<M> {
    ends: [End<M>; 2],
}

impl<M: Joined> Pair<M> {
    fn new(functions: [M; 2], with_engine: bool) -> Self {
        let ends = machines(functions, MEMORY).map(|machine| End::new(machine, with_engine));
        Pair { ends }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.ends.iter_mut().for_each(|end| _ = end.step());
        }
        let states = self.ends.each_mut().map(|end| end.port.as_ref().map(NtbNetdev::state));
        panic!("{what}: never ({states:?})");
    }

    fn up(&mut self) {
        self.until("carrier", |pair| pair.ends.iter_mut().all(|end| end.port().link_up()));
    }

    /// Sends `count` frames from `n` while there is room. The other end receives in between. Checks that all arrive in
    /// order.
    fn stream(&mut self, n: usize, count: usize) {
        let lengths = [60, 61, 64, 1514, 300, LARGEST, 15, 4096, 42, 46, 47];
        let len = |seed: usize| lengths[seed % lengths.len()];
        let (mut sent, mut seen, mut turn) = (0, 0, 0);
        self.until("frames", |pair| {
            turn += 1;
            while sent < count && sent < seen + 4 * 10 {
                // Payload memory is reused only after its frame has arrived.
                if sent >= seen + 4 || pair.ends[n].send(sent, len(sent)).is_err() {
                    break;
                }
                sent += 1;
            }
            pair.ends[n].port().flush();
            if turn % 3 == 0 {
                while let Some(bytes) = pair.ends[1 - n].receive() {
                    assert!(
                        bytes == frame(seen, len(seen)),
                        "frame {seen} of {} bytes",
                        bytes.len()
                    );
                    seen += 1;
                }
                pair.ends[1 - n].port().flush();
            }
            seen == count
        });
    }
}

fn frames_pass_both_ways_with_both_carriers<M: Joined>(functions: impl Fn() -> [M; 2]) {
    for with_engine in [false, true] {
        let mut pair = Pair::new(functions(), with_engine);
        assert!(!pair.ends[0].port().link_up());
        pair.up();
        for n in 0..2 {
            pair.stream(n, 500);
        }
        for end in &mut pair.ends {
            let counters = end.port().counters();
            assert_eq!((counters.rx_frames, counters.tx_frames, counters.rx_errors), (500, 500, 0));
            assert_eq!((end.port().ups(), end.port().violations()), (1, 0));
        }
    }
}

fn full_receiver_holds_the_sender_back<M: Joined>(functions: impl Fn() -> [M; 2]) {
    let mut pair = Pair::new(functions(), false);
    pair.up();
    let mut sent = 0;
    // The other end does not receive.
    while pair.ends[0].send(sent, 100).is_ok() {
        pair.ends[0].port().flush();
        pair.ends.iter_mut().for_each(|end| _ = end.step());
        sent += 1;
        assert!(sent < 1000);
    }
    // 4 MiB have 63 entries, one of which is always free.
    assert_eq!(sent, 62);
    assert!(!pair.ends[0].port().has_room() && pair.ends[1].port().pending());
    // Held frames hold the sender back as well.
    let kept: Vec<Frame> = std::iter::from_fn(|| pair.ends[1].port().receive()).collect();
    assert_eq!(kept.len(), 32);
    kept.into_iter().for_each(|frame| pair.ends[1].port().recycle(frame));
    let rest = std::iter::from_fn(|| pair.ends[1].receive()).count();
    assert_eq!(rest, 30);
    pair.ends[1].port().flush();
    pair.until("room", |pair| pair.ends[0].port().has_room());
    pair.stream(0, 200);
}

fn link_recovers_from_a_pulled_cable_and_a_restarted_peer<M: Joined>(
    functions: impl Fn() -> [M; 2],
) {
    let mut pair = Pair::new(functions(), false);
    pair.up();
    pair.stream(0, 20);
    // A frame in flight is lost.
    pair.ends[0].send(0, 100).unwrap();
    pair.ends[0].port().flush();
    pair.ends[0].machine.model(|model| M::set_cable(model, false));
    pair.until("down", |pair| pair.ends.iter_mut().all(|end| !end.port().link_up()));
    assert_eq!(pair.ends[0].send(1, 100), Ok(()), "as on any cable");
    pair.ends[0].machine.model(|model| M::set_cable(model, true));
    pair.up();
    pair.stream(0, 20);
    pair.stream(1, 20);
    for round in 0..3 {
        // The driver is reloaded while frames are in flight.
        for seed in 0..5 {
            pair.ends[0].send(seed, 100).unwrap();
            pair.ends[1].send(seed, 100).unwrap();
        }
        pair.ends.iter_mut().for_each(|end| end.port().flush());
        let end = &mut pair.ends[round % 2];
        end.port = None;
        if round == 2 {
            // The machine is reset. The reset also clears the registers that the other side has written.
            end.machine.model(Function::reset);
        }
        let exposed = M::EXPOSED;
        // The arena returns the same memory, which is behind the other side's window.
        let memory = end.machine.memory(exposed.0, exposed.1 as usize);
        end.machine.arena().free(memory);
        let bridge = open(&mut end.machine).unwrap();
        end.take(bridge);
        pair.until("down", |pair| !pair.ends[1 - round % 2].port().link_up());
        pair.up();
        for end in &mut pair.ends {
            let exposed = end.machine.model(M::exposed);
            assert!(exposed.is_none_or(|exposed| exposed == M::EXPOSED), "{round}: {exposed:x?}");
        }
        pair.stream(0, 20);
        pair.stream(1, 20);
    }
}

/// The tests that a port over every bridge must pass.
macro_rules! bridge {
    ($name:ident, $functions:ident) => {
        mod $name {
            #[test]
            fn frames_pass_both_ways_with_both_carriers() {
                super::frames_pass_both_ways_with_both_carriers(super::$functions);
            }

            #[test]
            fn full_receiver_holds_the_sender_back() {
                super::full_receiver_holds_the_sender_back(super::$functions);
            }

            #[test]
            fn link_recovers_from_a_pulled_cable_and_a_restarted_peer() {
                super::link_recovers_from_a_pulled_cable_and_a_restarted_peer(super::$functions);
            }
        }
    };
}

bridge!(intel_gen3, gen3);
bridge!(intel_gen4, ice_lake);
bridge!(amd_s, amd);
bridge!(switchtec_s, switchtec);

#[test]
fn incompatible_peer_is_named() {
    for (pad, value, wanted) in [
        (0, 3, Mismatch::Version(3)),
        (2, 1, Mismatch::Queues(1)),
        (3, 1, Mismatch::Windows(1)),
        (4, 1, Mismatch::Size(1 << 32 | BAR)),
        (5, 0x1_0000, Mismatch::Size(0x1_0000)),
        (5, 2 * BAR as u32, Mismatch::Size(2 * BAR)),
    ] {
        let [first, mut second] = machines(gen3(), MEMORY);
        let mut end = End::new(first, false);
        let mut bridge = open(&mut second).unwrap();
        let mut state = State::NoLink;
        for _ in 0..20_000 {
            let now = second.pass(STEP);
            second.run();
            bridge.complete(now);
            if bridge.link() {
                for (n, right) in [(0, 4), (2, 2), (3, 2), (4, 0), (5, BAR as u32)] {
                    bridge.set_peer_scratchpad(n, if n == pad { value } else { right });
                }
            }
            end.step();
            state = end.port().state();
            if matches!(state, State::Mismatch(_)) {
                break;
            }
        }
        assert_eq!(state, State::Mismatch(wanted));
        assert!(wanted.to_string().contains("the peer"), "{wanted}");
    }
}

#[test]
fn unusable_bridge_or_mtu_is_refused() {
    let small = IntelNtb::pair(intel::Config::new(intel::DEVICE, 1 << 16));
    let [mut machine, other] = small.map(|function| Metal::new(function, MEMORY));
    machine.put_behind(2, other.memory(0x10_0000, 1 << 16));
    let bridge = open(&mut machine).unwrap();
    let made = NtbNetdev::new(bridge, [2; 6], 1500, machine.arena());
    assert_eq!(made.err(), Some(Error::Window { bytes: 1 << 16 }));
    let [mut machine, _] = machines(gen3(), MEMORY);
    let bridge = open(&mut machine).unwrap();
    let made = NtbNetdev::new(bridge, [2; 6], 65_511, machine.arena());
    assert_eq!(made.err(), Some(Error::Mtu { most: 65_510 }));
}

/// A peer writes arbitrary values into the exposed memory: the driver does not panic, frames do not exceed the limit,
/// and a good peer is served afterwards.
#[test]
fn arbitrary_writes_of_the_peer_do_no_harm() {
    let mut rng = Rng::new(7);
    for _ in 0..20 {
        let mut pair = Pair::new(gen3(), false);
        pair.up();
        pair.stream(0, 10);
        let exposed = pair.ends[0].machine.memory(BAR, BAR as usize);
        for _ in 0..2_000 {
            let entry = rng.within(0..64) as usize * 0x1_0000;
            let words = [0x1_0000 - 12, 0x1_0000 - 8, 0x1_0000 - 4, BAR as usize - 4];
            let at = (entry + rng.pick(&words)).min(BAR as usize - 4);
            let values = [0, 1, 2, 3, 10, 62, 63, 9015, 0xffff, u32::MAX];
            exposed.store32(at, rng.pick(&values));
            // The port sends only while it has room, whatever indices the peer writes.
            let _ = pair.ends[0].send(0, 100);
            pair.ends[0].port().flush();
            while let Some(bytes) = pair.ends[0].receive() {
                assert!((14..=LARGEST).contains(&bytes.len()));
            }
            pair.ends.iter_mut().for_each(|end| _ = end.step());
            while pair.ends[1].receive().is_some() {}
            pair.ends[1].port().flush();
        }
        // A pulled cable makes both sides restart.
        pair.ends[0].machine.model(|model| model.set_cable(false));
        pair.until("down", |pair| pair.ends.iter_mut().all(|end| !end.port().link_up()));
        pair.ends[0].machine.model(|model| model.set_cable(true));
        pair.up();
        pair.stream(0, 20);
        pair.stream(1, 20);
    }
}

#[test]
fn doorbells_end_a_halt() {
    let mut pair = Pair::new(gen3(), false);
    pair.up();
    let [a, b] = &mut pair.ends;
    b.port().set_interrupts(true);
    let before = b.port().counters().interrupts;
    assert!(b.port().wakes() && !b.port().pending());
    a.send(1, 100).unwrap();
    a.port().flush();
    b.machine.run();
    assert!(b.port().pending());
    assert_eq!(b.port().counters().interrupts, before + 1);
}

/// A port that always has frames in flight releases lent memory.
#[test]
fn lent_memory_is_released_while_more_is_sent() {
    let mut pair = Pair::new(gen3(), true);
    pair.up();
    let mut before = pair.ends[0].port().progress();
    for seed in 0..20 {
        pair.ends[0].send(seed, 1514).unwrap();
        pair.ends[0].port().flush();
        let progress = pair.ends[0].port().progress();
        assert!(progress.sent >= before.queued && progress.sent < progress.queued, "{progress:?}");
        assert!(pair.ends[0].port().is_sending());
        let now = Instant::ZERO;
        assert_eq!(pair.ends[0].port().deadline(now), now, "the engine raises no interrupt");
        pair.until("sent", |pair| pair.ends[0].port().progress().sent == progress.queued);
        while pair.ends[1].receive().is_some() {}
        pair.ends[1].port().flush();
        before = progress;
    }
    pair.until("idle", |pair| !pair.ends[0].port().is_sending());
}

/// A sender without room polls for room, and is notified once when there is some.
#[test]
fn sender_without_room_polls_for_it() {
    let mut pair = Pair::new(gen3(), false);
    pair.up();
    while pair.ends[0].send(0, 100).is_ok() {
        pair.ends[0].port().flush();
    }
    let now = pair.ends[0].step();
    let port = pair.ends[0].port();
    assert!(!port.has_room() && !port.pending());
    assert_eq!(port.deadline(now).since(now), Duration::from_micros(200));
    while pair.ends[1].receive().is_some() {}
    pair.ends[1].port().flush();
    let now = pair.ends[0].step();
    let port = pair.ends[0].port();
    assert!(port.pending(), "there is room");
    assert!(!port.pending(), "reported once");
    assert_eq!(port.deadline(now).since(now), Duration::from_millis(100));
}

/// All writes of the engine are inside the translated window.
#[test]
fn engine_writes_stay_inside_the_window() {
    let mut pair = Pair::new(gen3(), true);
    pair.up();
    pair.stream(0, 100);
    let counters = pair.ends[0].machine.model(|model| model.counters());
    assert!(counters.iter().any(|(name, count)| name == "missed" && *count == 0), "{counters:?}");
}
