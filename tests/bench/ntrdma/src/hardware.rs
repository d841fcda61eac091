//! Two machines joined by Intel's bridge of the third generation, each with an I/OAT engine for writes to the other:
//! drivers on models, in one process.

use crate::fixture::{address, init, peer_of};
use crate::request;
use crate::storage::{End, Site};
use drivers::driver::Class;
use drivers::hal::{Arena, Instant, Platform, Window};
use drivers::ntb::NtbDevice;
use metal::{ENTERED, LEFT, Metal, bridges};
use models::ioat::{self, Ioat};
use models::ntb::intel::{self, IntelNtb};
use netsim::Rng;
use ntrdma::{Config, Layout, Ntrdma, State};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use verbs::{
    Access, CqId, MemoryVerbs, Payload, PdId, Provider, QpId, RecvRequest, RemoteAddress,
    SendOperation, Status,
};

/// Bytes of a window. The memory behind the other machine's window begins at this offset.
const WINDOW: u64 = 8 << 20;
/// Start and size of a machine's memory.
const START: u64 = 1 << 20;
const MEMORY: usize = 48 << 20;
/// Time between two polls of a machine.
const STEP: Duration = Duration::from_micros(4);

/// Bytes of a WRITE.
const LONG: usize = 1 << 20;
/// Stores to these mark the begin and the end of the traced work.
static BEGUN: AtomicU8 = AtomicU8::new(0);
static ENDED: AtomicU8 = AtomicU8::new(0);

/// A machine.
pub struct Node {
    machine: Metal<IntelNtb>,
    engine: Metal<Ioat>,
    bridge: Box<dyn NtbDevice>,
    ntrdma: Ntrdma,
    pd: PdId,
    cq: CqId,
    qp: QpId,
    rng: Rng,
}

impl Node {
    fn new(number: u8, mut machine: Metal<IntelNtb>) -> Self {
        let mut bridge = bridges::open(&mut machine).expect("the model is a good device");
        let settings = ioat::Config { device: 0x2021, channels: 1, version: 0x34, fault: None };
        let mut engine = machine.beside(Ioat::new(settings));
        let device = engine.find().take(Class::Dma).remove(0);
        let clock = engine.clock();
        let opened = device.open_dma(&mut engine, &clock);
        let channel = opened.expect("the model is a good device").remove(0);
        assert!(bridge.use_engine(channel, machine.arena()), "there is memory enough");
        let layout = Layout::within(WINDOW as usize - LONG).expect("large enough");
        let config = Config::new(number.into(), address(number), address(3 - number));
        let config = Config { layout, lost: Duration::from_secs(60), ..config };
        let mut rng = Rng::new(number.into());
        let mut ntrdma = Ntrdma::new(config, bridge.exposed(), &mut rng).expect("it fits");
        let pd = ntrdma.alloc_pd().expect("room");
        let cq = ntrdma.create_cq(4096).expect("room");
        let qp = ntrdma.create_qp(&init(pd, cq), &mut rng).expect("room");
        Node { machine, engine, bridge, ntrdma, pd, cq, qp, rng }
    }

    fn poll(&mut self, now: Instant) {
        self.ntrdma.poll(self.bridge.bridge(), now);
    }

    /// Advances the time, in which the models work. Returns the current time.
    fn pass(&self, time: Duration) -> Instant {
        let now = self.machine.pass(time);
        self.machine.run();
        self.engine.pass(time);
        self.engine.run();
        now
    }

    fn memory(&mut self, len: usize) -> Window {
        self.machine.arena().alloc(len, 4096).expect("there is memory enough")
    }

    fn arena(&mut self) -> Arena {
        self.machine.arena().share()
    }

    /// Accesses to registers: writes, and reads.
    fn accesses(&self) -> [u64; 2] {
        let reads = self.machine.reads() + self.engine.reads();
        [self.machine.accesses() + self.engine.accesses() - reads, reads]
    }
}

fn step(nodes: &mut [Node; 2], time: Duration) {
    for node in nodes {
        let now = node.pass(time);
        node.ntrdma.handle_timeout(now);
        node.poll(now);
    }
}

/// Two nodes whose link is up.
fn linked() -> [Node; 2] {
    let settings = intel::Config::new(intel::DEVICE, WINDOW);
    let machines = IntelNtb::pair(settings).map(|function| Metal::new(function, MEMORY));
    for n in 0..2 {
        machines[n].put_behind(2, machines[1 - n].memory(WINDOW, WINDOW as usize));
    }
    let mut number = 0;
    let mut nodes = machines.map(|machine| {
        number += 1;
        Node::new(number, machine)
    });
    while nodes.iter().any(|node| node.ntrdma.link() != State::Up) {
        step(&mut nodes, Duration::from_millis(1));
    }
    nodes
}

fn connected() -> [Node; 2] {
    let mut nodes = linked();
    let numbers = [0, 1].map(|n: usize| nodes[n].ntrdma.qp_number(nodes[n].qp).expect("made"));
    for (node, to) in nodes.iter_mut().zip([numbers[1], numbers[0]]) {
        let (peer, send) = peer_of(to);
        node.ntrdma.ready_to_receive(node.qp, &peer).expect("fresh");
        node.ntrdma.ready_to_send(node.qp, &send).expect("fresh");
    }
    nodes
}

/// Runs until a node has `count` more completions.
fn completed(nodes: &mut [Node; 2], n: usize, count: usize) {
    let mut done = 0;
    while done < count {
        step(nodes, STEP);
        let node = &mut nodes[n];
        while let Some(completion) = node.ntrdma.poll_cq(node.cq) {
            assert_eq!(completion.status, Status::Success);
            done += 1;
        }
    }
}

/// Registers memory of a node for writes by its peer, and returns its remote address.
fn granted(node: &mut Node, memory: Window) -> RemoteAddress {
    let (pd, access) = (node.pd, Access::REMOTE_WRITE);
    let region = node.ntrdma.register(pd, memory, access, &mut node.rng).expect("room");
    RemoteAddress { address: region.address, rkey: region.rkey }
}

fn write(node: &mut Node, from: Window, to: RemoteAddress, immediate: Option<u32>) {
    let payload = Payload::Windows(&[from]);
    let operation = SendOperation::Write { payload, to, immediate };
    node.ntrdma.post_send(node.qp, &request(1, operation)).expect("room");
}

/// WRITEs of 1 MiB with immediate, from the post to both completions, to memory that a window covers or to other
/// memory. First prints the header for the memory tracer: the addresses of the stores that mark begin and end of a
/// model's work and of a WRITE, and the location of the machines' memory.
pub fn long_writes(count: u64, is_lent: bool) {
    let mut nodes = connected();
    let from = nodes[0].memory(LONG);
    let into = match is_lent {
        true => Arena::new(nodes[1].ntrdma.lent()).alloc(LONG, 4096).expect("as much as that"),
        false => nodes[1].memory(LONG),
    };
    let to = granted(&mut nodes[1], into);
    let place = |cell: &AtomicU8| core::ptr::from_ref(cell).addr();
    let marks = [&ENTERED, &LEFT, &BEGUN, &ENDED].map(place);
    let memory = [0, 1].map(|n: usize| nodes[n].machine.memory(START, MEMORY).as_ptr().addr());
    println!("trace {marks:?} {memory:?} {MEMORY}");
    for round in 0..count {
        from.fill(round as u8 + 1);
        let b = &mut nodes[1];
        b.ntrdma.post_recv(b.qp, &RecvRequest { id: 1, into: &[] }).expect("room");
        BEGUN.store(1, Ordering::Relaxed);
        write(&mut nodes[0], from, to, Some(1));
        completed(&mut nodes, 1, 1);
        completed(&mut nodes, 0, 1);
        ENDED.store(1, Ordering::Relaxed);
        assert_eq!([into.load32(0), into.load32(LONG - 4)], [(round as u32 + 1) * 0x0101_0101; 2]);
    }
}

/// Prints register writes and register reads per batch, for at least `count` batches of up to eight WRITEs of 64 KiB.
/// The state of this bridge's link is in configuration space, and is polled every 5 ms independent of writes.
pub fn registers(count: u64) {
    let mut nodes = connected();
    let from = nodes[0].memory(64 << 10);
    let into = nodes[1].memory(64 << 10);
    let to = granted(&mut nodes[1], into);
    let (began, before) = (nodes[0].ntrdma.counters().batches, nodes[0].accesses());
    while nodes[0].ntrdma.counters().batches < began + count {
        for _ in 0..8 {
            write(&mut nodes[0], from, to, None);
        }
        completed(&mut nodes, 0, 8);
    }
    let (batches, after) = (nodes[0].ntrdma.counters().batches - began, nodes[0].accesses());
    let each = [0, 1].map(|n| (after[n] - before[n]) as f64 / batches as f64);
    println!("{} {}", each[0], each[1]);
}

impl End for Node {
    type Provider = Ntrdma;

    fn provider(&mut self) -> &mut Ntrdma {
        &mut self.ntrdma
    }

    fn turn(&mut self, now: Instant) {
        self.ntrdma.handle_timeout(now);
        self.poll(now);
    }

    fn carry(&mut self, other: &mut Self) {
        for node in [self, other] {
            node.pass(Duration::from_millis(1));
        }
    }
}

/// Reads of 4 KiB from a volume in memory.
pub fn reads(count: u64) {
    let [mut a, mut b] = linked();
    let arenas = [a.arena(), b.arena()];
    let now = a.pass(Duration::ZERO);
    Site::new([a, b], arenas, now).read(count);
}
