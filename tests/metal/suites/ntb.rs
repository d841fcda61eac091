//! The drivers of bridges on their models, with two machines; and NTRDMA over them, carried by the CPU or by an I/OAT
//! engine in the same machine.

use drivers::dma::Carried;
use drivers::driver::Class;
use drivers::hal::{Instant, Platform, Window};
use drivers::ntb::{NtbDevice, Side};
use metal::Metal;
use metal::bridges::*;
use models::Function;
use models::ioat::{self, Ioat};
use models::ntb::amd::{self, AmdNtb};
use models::ntb::intel::{self, IntelNtb};
use models::ntb::switchtec::{self, Switchtec};
use netsim::Rng;
use ntrdma::{Layout, Ntrdma, State};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use verbs::{
    Access, AddressVector, CqId, GidType, MemoryVerbs, PathMtu, Payload, PdId, Provider, QpId,
    QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest, RemoteAddress, SendOperation,
    SendRequest, SendWith, Status,
};

const STEP: Duration = Duration::from_micros(20);
const LAYOUT: Layout = Layout { qps: 4, ring: 16, staging: 256 << 10, landing: 128 << 10 };

/// The reason why a bridge with this set-up is refused.
fn refused<M: Joined>(functions: [M; 2], memory: usize, side: Option<Side>) -> String {
    let [mut machine, _] = machines(functions, memory);
    open_as(&mut machine, side).err().expect("it is refused")
}

#[test]
fn firmware_mistakes_are_named_with_the_right_setting() {
    use intel::Fault;
    let gen4 = intel::Config::new(intel::GEN4, BAR);
    for (settings, fault, words) in [
        (good(), Fault::NotBackToBack, "NTB to NTB"),
        (good(), Fault::NoWindow, "BAR 2"),
        (good(), Fault::NoLimit, "IMBAR1XLMT"),
        (good(), Fault::NoTranslation, "IMBAR1XBASE"),
        (gen4, Fault::NotBackToBack, "NTB to NTB"),
        (gen4, Fault::NoLimit, "IMBAR1XLMT"),
        (gen4, Fault::NoIndex, "IMBAR1XBASEIDX"),
    ] {
        let pair = IntelNtb::pair(intel::Config { fault: Some(fault), ..settings });
        let why = refused(pair, MEMORY, None);
        assert!(why.contains(words) && why.contains("BIOS"), "{fault:?}: {why}");
    }
    let why = refused(gen3(), MEMORY, Some(Side::B));
    assert!(why.contains("side 0") && why.contains("BIOS"), "{why}");
    let why = refused(gen3(), MEMORY / 2, None);
    assert!(why.contains("cannot be mapped") && why.contains("BIOS"), "{why}");
    let machines = gen3().map(|function| Metal::new(function, 5 << 20));
    let [mut machine, other] = machines;
    machine.put_behind(2, other.memory(1 << 20, BAR as usize));
    let why = open(&mut machine).err().unwrap();
    assert!(why.contains("multiple of 4194304") && why.contains("BIOS"), "{why}");
}

#[test]
fn amd_and_switchtec_mistakes_are_named_with_the_right_setting() {
    for (fault, words) in [
        (amd::Fault::NoWindow, "BAR 2"),
        (amd::Fault::NoLimit, "BAR23LMT"),
        (amd::Fault::NoTranslation, "BAR23XLAT"),
    ] {
        let settings = amd::Config { fault: Some(fault), ..amd::Config::new(amd::DEVICE, BAR) };
        let why = refused(AmdNtb::pair(settings), MEMORY, None);
        assert!(why.contains(words) && why.contains("BIOS"), "{fault:?}: {why}");
    }
    let why = refused(amd(), MEMORY, Some(Side::B));
    assert!(why.contains("primary"), "{why}");
    for (fault, words) in [
        (switchtec::Fault::NotBridge, "management"),
        (switchtec::Fault::Alone, "partition 0"),
        (switchtec::Fault::NoTable, "0 entries"),
    ] {
        let settings = switchtec::Config::new(2 * BAR);
        let pair = Switchtec::pair(switchtec::Config { fault: Some(fault), ..settings });
        let why = refused(pair, MEMORY, None);
        assert!(why.contains(words) && why.contains("configuration file"), "{fault:?}: {why}");
    }
    let why = refused(switchtec(), MEMORY, Some(Side::B));
    assert!(why.contains("lower"), "{why}");
}

#[test]
fn unsupported_devices_are_refused_by_name() {
    let why = refused(IntelNtb::pair(intel::Config::new(0x6f0d, BAR)), MEMORY, None);
    assert!(why.contains("the first") && why.contains("8086:6f0d"), "{why}");
    let early = intel::Config { revision: 1, ..intel::Config::new(intel::GEN4, BAR) };
    let why = refused(IntelNtb::pair(early), MEMORY, None);
    assert!(why.contains("revision 1"), "{why}");
}

/// An end with its objects for verbs.
struct End<M> {
    machine: Metal<M>,
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

impl<M: Joined> End<M> {
    fn new(n: usize, mut machine: Metal<M>, with_engine: bool, rng: &mut Rng) -> Self {
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

struct Pair<M> {
    ends: [End<M>; 2],
    rng: Rng,
}

impl<M: Joined> Pair<M> {
    fn new(functions: [M; 2], with_engine: bool) -> Self {
        let mut rng = Rng::new(1);
        let mut n = 0;
        let ends = machines(functions, MEMORY).map(|machine| {
            n += 1;
            End::new(n - 1, machine, with_engine, &mut rng)
        });
        Pair { ends, rng }
    }

    fn step(&mut self) {
        self.ends.iter_mut().for_each(|end| _ = end.step());
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Pair<M>) -> bool) {
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

    /// Creates and connects new queue pairs after the link was down.
    fn connect_again(&mut self) {
        for end in &mut self.ends {
            while end.ntrdma.poll_cq(end.cq).is_some() {}
            end.ntrdma.destroy_qp(end.qp).unwrap();
            end.qp = end.ntrdma.create_qp(&End::<M>::init(end.pd, end.cq), &mut self.rng).unwrap();
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

    /// Transfers a write, a read and a message of several sizes, and checks the data.
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
                let mut received = vec![0; len];
                window.read(0, &mut received).unwrap();
                assert!(received == bytes, "{len} bytes");
            }
        }
        let memory = [(0, source), (0, sink), (1, into), (1, inbox)];
        memory.into_iter().for_each(|(n, window)| self.ends[n].machine.arena().free(window));
    }
}

fn link_comes_up_and_only_exposed_memory_is_reached<M: Joined>(functions: impl Fn() -> [M; 2]) {
    let mut pair = Pair::new(functions(), false);
    for n in 0..2 {
        let end = &pair.ends[n];
        assert_eq!(end.bridge.side() == Side::B, n == 1);
        assert!(!end.bridge.link() && end.bridge.wakes());
        let exposed = end.bridge.exposed();
        let exposed_range = (exposed.bus_address(), exposed.len() as u64);
        assert_eq!(exposed_range, M::EXPOSED, "the memory behind the other window");
        assert!(end.machine.model(M::exposed).is_none_or(|range| range == exposed_range));
    }
    pair.bring_up();
    let speeds = pair.ends.iter().map(|end| end.bridge.link_speed());
    speeds.for_each(|speed| assert!(matches!(speed, Some((3 | 4, 16))), "{speed:?}"));
}

fn verbs_work_with_both_carriers<M: Joined>(functions: impl Fn() -> [M; 2]) {
    for with_engine in [false, true] {
        let mut pair = Pair::new(functions(), with_engine);
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

fn a_batch_costs_two_writes_and_reads_only_before_its_bell<M: Joined>(
    functions: impl Fn() -> [M; 2],
) {
    let mut pair = Pair::new(functions(), true);
    pair.connect();
    let into = pair.ends[1].machine.arena().alloc(1 << 16, 64).unwrap();
    let to = pair.ends[1].grant(into, &mut pair.rng);
    let source = pair.ends[0].machine.arena().alloc(1 << 16, 64).unwrap();
    let count = |pair: &Pair<M>| {
        let end = &pair.ends[0];
        let engine = end.engine.as_ref().unwrap();
        let reads = end.machine.reads() + engine.reads();
        let accesses = end.machine.accesses() + engine.accesses();
        (reads, accesses - reads, end.ntrdma.counters().batches)
    };
    let (before, began) = (count(&pair), pair.ends[0].pass());
    for _ in 0..50 {
        for id in 0..8 {
            let payload = Payload::Windows(&[source]);
            pair.ends[0].post(id, SendOperation::Write { payload, to, immediate: None });
        }
        pair.completed(0, 8);
    }
    let (after, ended) = (count(&pair), pair.ends[0].pass());
    let batches = after.2 - before.2;
    let beats = 50 + batches;
    // The driver polls the link state every 5 ms, with up to three registers.
    let looks = ended.since(began).as_millis() as u64 / 5 + 1;
    // And reads back before a bell that has waited for the engine: up to two registers.
    let reads = after.0 - before.0;
    assert!(reads <= 3 * looks + 2 * batches, "{reads} reads, {looks}, {batches}");
    assert!(batches > 4 * looks, "batches do not poll the link: {batches}, {looks}");
    assert!(batches >= 50 && after.1 - before.1 <= 2 * batches + beats, "{before:?} {after:?}");
}

#[test]
fn a_lost_interrupt_loses_no_bell() {
    fn of<M: Joined>(functions: [M; 2]) {
        let mut pair = Pair::new(functions, false);
        pair.bring_up();
        let [a, b] = &mut pair.ends;
        b.bridge.set_interrupts(true);
        b.bridge.rung();
        let before = b.bridge.interrupts();
        a.bridge.ring();
        b.machine.run();
        assert_eq!(b.bridge.interrupts(), before);
        assert!(b.bridge.pending(), "pending before a halt");
        b.bridge.set_interrupts(true);
        assert!(b.bridge.rung() && !b.bridge.rung() && !b.bridge.pending());
    }
    of(IntelNtb::pair(intel::Config { fault: Some(intel::Fault::NoInterrupt), ..good() }));
    let settings = amd::Config::new(amd::DEVICE, BAR);
    of(AmdNtb::pair(amd::Config { fault: Some(amd::Fault::NoInterrupt), ..settings }));
    let settings = switchtec::Config { entries: 64, ..switchtec::Config::new(2 * BAR) };
    let fault = Some(switchtec::Fault::NoInterrupt);
    of(Switchtec::pair(switchtec::Config { fault, ..settings }));
}

fn only_doorbells_end_a_halt<M: Joined>(functions: impl Fn() -> [M; 2]) {
    let mut pair = Pair::new(functions(), false);
    pair.bring_up();
    let [a, b] = &mut pair.ends;
    b.bridge.set_interrupts(false);
    b.bridge.rung();
    let before = b.bridge.interrupts();
    a.bridge.ring();
    b.machine.run();
    assert_eq!(b.bridge.interrupts(), before, "interrupts are off");
    b.bridge.set_interrupts(true);
    b.machine.run();
    assert!(b.bridge.pending(), "the doorbell was rung before");
    assert!(b.bridge.rung() && !b.bridge.rung() && !b.bridge.pending());
    a.bridge.ring();
    b.machine.run();
    assert_eq!(b.bridge.interrupts(), before + 1);
    assert!(b.bridge.pending() && b.bridge.rung());
}

fn link_recovers_from_a_pulled_cable_and_a_restarted_peer<M: Joined>(
    functions: impl Fn() -> [M; 2],
) {
    for with_engine in [false, true] {
        let mut pair = Pair::new(functions(), with_engine);
        pair.connect();
        pair.traffic();
        pair.ends[0].machine.model(|model| M::set_cable(model, false));
        pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.link() != State::Up));
        pair.ends[0].machine.model(|model| M::set_cable(model, true));
        pair.connect_again();
        pair.traffic();
        // The other machine's function is reset behind its driver's back. The link needs a new set-up.
        pair.ends[1].machine.model(M::reset);
        pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.link() != State::Up));
    }
}

fn cpu_replaces_a_failed_engine<M: Joined>(functions: impl Fn() -> [M; 2]) {
    let mut pair = Pair::new(functions(), true);
    pair.connect();
    pair.traffic();
    let engine = pair.ends[0].engine.as_ref().unwrap();
    engine.model(|model| model.inject(Some(ioat::Fault::Halt)));
    pair.traffic();
    assert_eq!(pair.ends[0].carried(), Carried::Cpu);
    assert_eq!(pair.ends[0].ntrdma.counters().link_down, 0);
    // The other machine's engine is removed.
    pair.ends[1].engine.as_ref().unwrap().pull_out(true);
    pair.until("lost", |pair| pair.ends[1].ntrdma.counters().engines_lost == 1);
    pair.until("down", |pair| pair.ends.iter().all(|end| end.ntrdma.counters().link_down == 1));
    pair.connect_again();
    pair.traffic();
    assert!(pair.ends.iter().all(|end| end.carried() == Carried::Cpu));
}

fn doorbell_arrives_after_the_engines_data<M: Joined>(functions: impl Fn() -> [M; 2]) {
    let mut pair = Pair::new(functions(), true);
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
    assert_eq!(b.bridge.interrupts(), before, "not rung yet");
    assert!(a.bridge.is_busy(), "a loop that halts now would ring late");
    for _ in 0..10 {
        let now = a.pass();
        a.bridge.complete(now);
        b.machine.run();
        let there = b.bridge.exposed().load32(BAR as usize - 64) == 7;
        assert!(there || b.bridge.interrupts() == before);
    }
    assert_eq!(b.bridge.interrupts(), before + 1);
    assert!(!a.bridge.is_busy());
}

/// The tests that every bridge must pass.
macro_rules! bridge {
    ($name:ident, $functions:ident) => {
        mod $name {
            #[test]
            fn link_comes_up_and_only_exposed_memory_is_reached() {
                super::link_comes_up_and_only_exposed_memory_is_reached(super::$functions);
            }
            #[test]
            fn verbs_work_with_both_carriers() {
                super::verbs_work_with_both_carriers(super::$functions);
            }
            #[test]
            fn a_batch_costs_two_writes_and_reads_only_before_its_bell() {
                super::a_batch_costs_two_writes_and_reads_only_before_its_bell(super::$functions);
            }
            #[test]
            fn only_doorbells_end_a_halt() {
                super::only_doorbells_end_a_halt(super::$functions);
            }
            #[test]
            fn link_recovers_from_a_pulled_cable_and_a_restarted_peer() {
                super::link_recovers_from_a_pulled_cable_and_a_restarted_peer(super::$functions);
            }
            #[test]
            fn cpu_replaces_a_failed_engine() {
                super::cpu_replaces_a_failed_engine(super::$functions);
            }
            #[test]
            fn doorbell_arrives_after_the_engines_data() {
                super::doorbell_arrives_after_the_engines_data(super::$functions);
            }
        }
    };
}

bridge!(intel_gen3, gen3);
bridge!(intel_gen4, ice_lake);
bridge!(amd_s, amd);
bridge!(switchtec_s, switchtec);

/// A doorbell that stays set would prevent further interrupts.
#[test]
fn link_doorbell_is_cleared() {
    for functions in [gen3, ice_lake, sapphire_rapids] {
        let mut pair = Pair::new(functions(), false);
        pair.bring_up();
        for end in &mut pair.ends {
            let bells = |end: &End<IntelNtb>| {
                let mut bytes = [0; 8];
                end.machine.model(|model| model.read(0, 0x40, &mut bytes));
                u64::from_le_bytes(bytes)
            };
            assert!(bells(end) >> 32 == 1);
            end.bridge.set_interrupts(true);
            assert!(bells(end) == 0, "{:#x}", bells(end));
        }
    }
}

/// Devices that differ from a tested one in a few registers only.
#[test]
fn other_devices_of_the_families_carry_verbs() {
    verbs_work_with_both_carriers(sapphire_rapids);
    verbs_work_with_both_carriers(granite_rapids);
    verbs_work_with_both_carriers(amd_with_three_windows);
}
