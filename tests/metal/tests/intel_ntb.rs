//! The driver of Intel's bridge of the third generation on the model, two machines against each other; and NTRDMA over
//! it, carried by the CPU or by an I/OAT engine beside the bridge.

use drivers::dma::Carried;
use drivers::hal::{Instant, Platform, Window};
use drivers::ntb::{NtbDevice, Side};
use drivers::registry::Class;
use metal::Metal;
use models::Function;
use models::ioat::{self, Ioat};
use models::ntb::intel::{Config, DEVICE, Fault, IntelNtb};
use netsim::Rng;
use ntrdma::{Layout, Ntrdma, State};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use verbs::{
    Access, AddressVector, CqId, GidType, PathMtu, Payload, PdId, Provider, QpId, QpInit, QpType,
    ReadyToReceive, ReadyToSend, RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith,
    Status,
};

const BAR: u64 = 4 << 20;
const MEMORY: usize = 12 << 20;
const STEP: Duration = Duration::from_micros(20);
const LAYOUT: Layout = Layout { qps: 4, ring: 16, staging: 256 << 10, landing: 128 << 10 };

fn good() -> Config {
    Config::new(DEVICE, BAR)
}

/// Machines that are joined. Where the CPU writes to a window it writes to where the other is expected to
/// expose memory: the first multiple of the BAR's size.
fn machines(settings: Config, memory: usize) -> [Metal<IntelNtb>; 2] {
    let machines = IntelNtb::pair(settings).map(|function| Metal::new(function, memory));
    if memory == MEMORY {
        for n in 0..2 {
            machines[n].put_behind(2, machines[1 - n].memory(BAR, BAR as usize));
        }
    }
    machines
}

fn open(machine: &mut Metal<IntelNtb>) -> Result<Box<dyn NtbDevice>, String> {
    open_as(machine, None)
}

fn open_as(
    machine: &mut Metal<IntelNtb>,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, String> {
    let device = machine.find().take(Class::Bridge).remove(0);
    assert_eq!(device.driver(), "ntb_hw_intel");
    let free = machine.arena().available();
    device.open_bridge(machine, side).map_err(|why| {
        assert_eq!(machine.arena().available(), free, "memory is given back");
        why.to_string()
    })
}

/// Why a bridge that is set up so cannot be used.
fn refused(settings: Config, memory: usize, side: Option<Side>) -> String {
    let [mut machine, _] = machines(settings, memory);
    open_as(&mut machine, side).err().expect("it is refused")
}

#[test]
fn what_firmware_did_wrong_is_named_with_what_to_set() {
    let broken = |fault| refused(Config { fault: Some(fault), ..good() }, MEMORY, None);
    for (fault, words) in [
        (Fault::NotBackToBack, "NTB to NTB"),
        (Fault::NoWindow, "BAR 2"),
        (Fault::NoLimit, "IMBAR1XLMT"),
        (Fault::NoTranslation, "IMBAR1XBASE"),
    ] {
        let why = broken(fault);
        assert!(why.contains(words) && why.contains("BIOS"), "{fault:?}: {why}");
    }
    let why = refused(good(), MEMORY, Some(Side::B));
    assert!(why.contains("side 0") && why.contains("BIOS"), "{why}");
    let why = refused(good(), MEMORY / 2, None);
    assert!(why.contains("cannot be mapped") && why.contains("BIOS"), "{why}");
    let machines = IntelNtb::pair(good()).map(|function| Metal::new(function, 5 << 20));
    let [mut machine, other] = machines;
    machine.put_behind(2, other.memory(1 << 20, BAR as usize));
    let why = open(&mut machine).err().unwrap();
    assert!(why.contains("multiple of 4194304") && why.contains("BIOS"), "{why}");
}

#[test]
fn other_generations_are_refused_by_name() {
    for (device, words) in [(0x6f0d, "the first"), (0x347e, "the fourth"), (0x0db4, "the fourth")] {
        let why = refused(Config { device, ..good() }, MEMORY, None);
        assert!(why.contains(words) && why.contains(&format!("8086:{device:04x}")), "{why}");
    }
}

/// What an end needs for verbs.
struct End {
    machine: Metal<IntelNtb>,
    engine: Option<Metal<Ioat>>,
    bridge: Box<dyn NtbDevice>,
    ntrdma: Ntrdma,
    pd: PdId,
    cq: CqId,
    qp: QpId,
}

fn address(n: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1).into()
}

impl End {
    fn new(n: usize, mut machine: Metal<IntelNtb>, with_engine: bool, rng: &mut Rng) -> Self {
        let mut bridge = open(&mut machine).unwrap();
        let engine = with_engine.then(|| {
            let settings = ioat::Config { device: 0x2021, channels: 2, version: 0x34, fault: None };
            let mut engine = machine.beside(Ioat::new(settings));
            let device = engine.find().take(Class::Dma).remove(0);
            let clock = engine.clock();
            let channel = device.open_dma(&mut engine, &clock).unwrap().remove(0);
            assert!(bridge.use_engine(channel, machine.arena()));
            engine
        });
        let config = ntrdma::Config {
            layout: LAYOUT,
            frames: 0,
            beat: Duration::from_millis(2),
            lost: Duration::from_millis(20),
            ..ntrdma::Config::new(n as u64, address(n), address(1 - n))
        };
        let mut ntrdma = Ntrdma::new(config, bridge.exposed(), rng).unwrap();
        let pd = ntrdma.alloc_pd().unwrap();
        let cq = ntrdma.create_cq(256).unwrap();
        let qp = ntrdma.create_qp(&Self::init(pd, cq), rng).unwrap();
        End { machine, engine, bridge, ntrdma, pd, cq, qp }
    }

    fn init(pd: PdId, cq: CqId) -> QpInit {
        QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        }
    }

    fn step(&mut self) -> bool {
        let now = self.pass();
        self.ntrdma.handle_timeout(now);
        self.ntrdma.poll(self.bridge.bridge(), now)
    }

    fn pass(&mut self) -> Instant {
        let now = self.machine.pass(STEP);
        self.machine.run();
        if let Some(engine) = &self.engine {
            engine.pass(STEP);
            engine.run();
        }
        now
    }

    fn connect(&mut self, number: u32) {
        let peer = ReadyToReceive {
            remote_qpn: number,
            rq_psn: 0,
            path_mtu: PathMtu::Mtu4096,
            address: AddressVector {
                local: address(0),
                remote: address(1),
                gid_type: GidType::RoceV2,
                remote_mac: [0; 6],
                source_port: 0,
                traffic_class: 0,
                hop_limit: 0,
            },
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        };
        let send = ReadyToSend {
            sq_psn: 0,
            max_rd_atomic: 4,
            ack_timeout: 17,
            retry_count: 7,
            rnr_retry: 7,
        };
        self.ntrdma.ready_to_receive(self.qp, &peer).unwrap();
        self.ntrdma.ready_to_send(self.qp, &send).unwrap();
    }

    fn post(&mut self, id: u64, operation: SendOperation<'_>) {
        let request = SendRequest {
            id,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        self.ntrdma.post_send(self.qp, &request).unwrap();
    }

    fn grant(&mut self, memory: Window, rng: &mut Rng) -> RemoteAddress {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = self.ntrdma.register(self.pd, memory, access, rng).unwrap();
        RemoteAddress { address: region.address, rkey: region.rkey }
    }

    fn carried(&self) -> Carried {
        self.bridge.carrier().unwrap().carried()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.machine.model(|model| model.counters());
        counters.into_iter().find(|(known, _)| known == name).unwrap().1
    }
}

struct Pair {
    ends: [End; 2],
    rng: Rng,
}

impl Pair {
    fn new(with_engine: bool) -> Self {
        let mut rng = Rng::new(1);
        let mut n = 0;
        let ends = machines(good(), MEMORY).map(|machine| {
            n += 1;
            End::new(n - 1, machine, with_engine, &mut rng)
        });
        Pair { ends, rng }
    }

    fn step(&mut self) {
        self.ends.iter_mut().for_each(|end| _ = end.step());
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("{what}: never");
    }

    fn bring_up(&mut self) {
        self.until("link", |pair| pair.ends.iter().all(|end| end.ntrdma.link() == State::Up));
    }

    fn connect(&mut self) {
        self.bring_up();
        let numbers = [0, 1].map(|n| self.ends[n].ntrdma.qp_number(self.ends[n].qp).unwrap());
        for n in 0..2 {
            self.ends[n].connect(numbers[1 - n]);
        }
    }

    /// New queue pairs after the link was down.
    fn connect_again(&mut self) {
        for end in &mut self.ends {
            while end.ntrdma.poll_cq(end.cq).is_some() {}
            end.ntrdma.destroy_qp(end.qp).unwrap();
            end.qp = end.ntrdma.create_qp(&End::init(end.pd, end.cq), &mut self.rng).unwrap();
        }
        self.connect();
    }

    fn completed(&mut self, n: usize, count: usize) {
        let mut ended = 0;
        self.until("completions", |pair| {
            while let Some(completion) = pair.ends[n].ntrdma.poll_cq(pair.ends[n].cq) {
                assert_eq!(completion.status, Status::Success);
                ended += 1;
            }
            ended >= count
        });
    }

    /// A write, a read and a message of several sizes, and what arrives of them.
    fn traffic(&mut self) {
        const MOST: usize = 300_000;
        let [source, sink] = [0; 2].map(|_| self.ends[0].machine.arena().alloc(MOST, 64).unwrap());
        let [into, inbox] = [0; 2].map(|_| self.ends[1].machine.arena().alloc(MOST, 64).unwrap());
        let to = self.ends[1].grant(into, &mut self.rng);
        for (round, len) in [1, 64, 65, 300, 4096, 100_000, MOST].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251 + round) as u8).collect();
            source.write(0, &bytes).unwrap();
            into.fill(0);
            let from = source.slice(0, len).unwrap();
            let payload = Payload::Windows(&[from]);
            self.ends[0].post(1, SendOperation::Write { payload, to, immediate: None });
            let read = [sink.slice(0, len).unwrap()];
            self.ends[0].post(2, SendOperation::Read { into: &read, from: to });
            let end = &mut self.ends[1];
            let receive = RecvRequest { id: 3, into: &[inbox.slice(0, len).unwrap()] };
            end.ntrdma.post_recv(end.qp, &receive).unwrap();
            self.ends[0].post(3, SendOperation::Send { payload, with: SendWith::Nothing });
            self.completed(0, 3);
            source.fill(0xee);
            self.completed(1, 1);
            for window in [into, sink, inbox] {
                let mut is = vec![0; len];
                window.read(0, &mut is).unwrap();
                assert!(is == bytes, "{len} bytes");
            }
        }
        let memory = [(0, source), (0, sink), (1, into), (1, inbox)];
        memory.into_iter().for_each(|(n, window)| self.ends[n].machine.arena().free(window));
    }
}

#[test]
fn the_link_comes_up_and_only_what_is_exposed_is_reached() {
    let mut pair = Pair::new(false);
    for n in 0..2 {
        let end = &pair.ends[n];
        assert_eq!(end.bridge.side() == Side::B, n == 1);
        assert!(!end.bridge.link() && end.bridge.wakes());
        let (start, len) = end.machine.model(IntelNtb::exposed);
        assert_eq!((start, len), (end.bridge.exposed().bus_address(), BAR));
        assert_eq!(start, BAR, "which is what lies behind the other's window here");
    }
    pair.bring_up();
    assert!(pair.ends.iter().all(|end| end.bridge.link_speed() == Some((3, 16))));
}

#[test]
fn verbs_work_whoever_carries() {
    for with_engine in [false, true] {
        let mut pair = Pair::new(with_engine);
        pair.connect();
        pair.traffic();
        for n in 0..2 {
            let end = &pair.ends[n];
            let (writes, missed) = (end.counter("window_writes"), end.counter("missed"));
            assert_eq!((writes > 20, missed), (with_engine, 0), "{writes}");
            assert_eq!(end.counter("unreachable"), 0);
            let counters = end.ntrdma.counters();
            assert_eq!((counters.link_down, counters.violations), (0, 0));
            assert_eq!(end.carried() == Carried::Cpu, !with_engine);
        }
    }
}

#[test]
fn a_batch_costs_two_writes_and_no_read() {
    let mut pair = Pair::new(true);
    pair.connect();
    let into = pair.ends[1].machine.arena().alloc(1 << 16, 64).unwrap();
    let to = pair.ends[1].grant(into, &mut pair.rng);
    let source = pair.ends[0].machine.arena().alloc(1 << 16, 64).unwrap();
    let count = |pair: &Pair| {
        let end = &pair.ends[0];
        let engine = end.engine.as_ref().unwrap();
        let reads = end.machine.reads() + engine.reads();
        let accesses = end.machine.accesses() + engine.accesses();
        (reads, accesses - reads, end.ntrdma.counters().batches)
    };
    let before = count(&pair);
    for _ in 0..50 {
        for id in 0..8 {
            let payload = Payload::Windows(&[source]);
            pair.ends[0].post(id, SendOperation::Write { payload, to, immediate: None });
        }
        pair.completed(0, 8);
    }
    let after = count(&pair);
    let batches = after.2 - before.2;
    let beats = 50 + batches;
    assert_eq!(after.0 - before.0, 0, "reads");
    assert!(batches >= 50 && after.1 - before.1 <= 2 * batches + beats, "{before:?} {after:?}");
}

#[test]
fn bells_end_a_halt_and_nothing_else_does() {
    let mut pair = Pair::new(false);
    pair.bring_up();
    let [a, b] = &mut pair.ends;
    b.bridge.set_interrupts(false);
    b.bridge.rung();
    let before = b.bridge.interrupts();
    a.bridge.ring();
    b.machine.run();
    assert_eq!(b.bridge.interrupts(), before, "it polls");
    b.bridge.set_interrupts(true);
    b.machine.run();
    assert!(b.bridge.pending(), "it was rung before");
    assert!(b.bridge.rung() && !b.bridge.rung() && !b.bridge.pending());
    a.bridge.ring();
    b.machine.run();
    assert_eq!(b.bridge.interrupts(), before + 1);
    assert!(b.bridge.pending() && b.bridge.rung());
}

#[test]
fn a_cable_that_is_pulled_and_a_peer_that_begins_anew_come_back() {
    for with_engine in [false, true] {
        let mut pair = Pair::new(with_engine);
        pair.connect();
        pair.traffic();
        pair.ends[0].machine.model(|model| model.set_cable(false));
        pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.link() != State::Up));
        pair.ends[0].machine.model(|model| model.set_cable(true));
        pair.connect_again();
        pair.traffic();
        // The other machine's function is reset under it: only when it is set up anew can it come back.
        pair.ends[1].machine.model(Function::reset);
        pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.link() != State::Up));
    }
}

#[test]
fn an_engine_that_fails_is_replaced_by_the_cpu() {
    let mut pair = Pair::new(true);
    pair.connect();
    pair.traffic();
    let engine = pair.ends[0].engine.as_ref().unwrap();
    engine.model(|model| model.inject(Some(ioat::Fault::Halt)));
    pair.traffic();
    assert_eq!(pair.ends[0].carried(), Carried::Cpu);
    assert_eq!(pair.ends[0].ntrdma.counters().link_down, 0);
    // The other's is gone for good.
    pair.ends[1].engine.as_ref().unwrap().pull_out(true);
    pair.until("lost", |pair| pair.ends[1].ntrdma.counters().engines_lost == 1);
    pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.counters().link_down == 1));
    pair.connect_again();
    pair.traffic();
    assert!(pair.ends.iter().all(|end| end.carried() == Carried::Cpu));
}

#[test]
fn a_bell_is_rung_behind_what_the_engine_carries() {
    let mut pair = Pair::new(true);
    pair.bring_up();
    let [a, b] = &mut pair.ends;
    for _ in 0..100 {
        let now = a.pass();
        a.bridge.complete(now);
    }
    b.machine.run();
    b.bridge.set_interrupts(true);
    b.bridge.rung();
    let before = b.bridge.interrupts();
    let cell = a.bridge.window().slice(BAR as usize - 64, 4).unwrap();
    a.bridge.put32(&cell, 7);
    a.bridge.ring();
    b.machine.run();
    assert_eq!(b.bridge.interrupts(), before, "nothing is there yet");
    for _ in 0..10 {
        let now = a.pass();
        a.bridge.complete(now);
        b.machine.run();
        let there = b.bridge.exposed().load32(BAR as usize - 64) == 7;
        assert!(there || b.bridge.interrupts() == before);
    }
    assert_eq!(b.bridge.interrupts(), before + 1);
}
