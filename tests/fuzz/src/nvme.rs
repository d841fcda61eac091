//! The NVMe-oF target over TCP, with connections of an attacker and of a victim. The input determines the attacker's
//! bytes, PDUs and commands, and the passing time. Free memory and the victim's volume are marked. No byte of a mark may
//! reach the attacker. Afterwards the victim still reads its data.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use nvme::tcp::TcpQueue;
use nvme::testing::{Carry, Initiator, Sqe, connect_data};
use nvme::{Context, Ends, HostList, NamespaceConfig, Settings, SubsystemConfig, Target};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use storage::volume::{RamVolume, Volumes};

const MEMORY: usize = 4 << 20;
const EVENTS: usize = 200;
/// Connections of the attacker at a time.
const CONNECTIONS: usize = 4;
const BYTES: usize = 64 << 10;
const VICTIM: &str = "nqn.2026-01.victim:host";
const ATTACKER: &str = "nqn.2026-01.attacker:host";
const SUBSYSTEMS: [&str; 2] = ["nqn.2026-01.victim:store", "nqn.2026-01.attacker:store"];
const DISCOVERY: &str = nvme::DISCOVERY_NQN;
const CC: u32 = 0x14;
const ENABLE: u32 = 0x46_0001;

struct World {
    arena: Arena,
    volumes: Volumes,
    target: Target,
    now: Instant,
    /// The attacker's connections, each with the bytes that it received last.
    connections: Vec<(TcpQueue, Vec<u8>)>,
    /// Identifier of the attacker's controller, if it has one.
    cntlid: u16,
}

impl World {
    fn new(memory: Window) -> World {
        let mut arena = Arena::new(memory);
        // What is allocated later has marks of former users.
        let all = arena.alloc(MEMORY, 4096).expect("room");
        leak::fill(all, Owner::Past);
        arena.free(all);
        let mut volumes = Volumes::new();
        for name in ["victim", "attacker"] {
            let memory = arena.alloc(BYTES, 4096).expect("room");
            let name = rtrs::Name::new(name).expect("a name");
            volumes.add(name, Box::new(RamVolume::new(memory, false))).expect("new");
        }
        let settings = Settings { capsules: 2, memory: 144 << 10, ..Settings::default() };
        let mut target = Target::new(settings, &mut arena).expect("room");
        let subsystem = |n: usize, host: &str, volume: &str| SubsystemConfig {
            nqn: SUBSYSTEMS[n].into(),
            serial: None,
            model: "m".into(),
            hosts: HostList::Listed(vec![host.into()]),
            networks: Default::default(),
            cntlids: (1, 100),
            dhchap: Default::default(),
            tls: Default::default(),
            namespaces: vec![NamespaceConfig {
                nsid: 1,
                volume: volume.into(),
                uuid: None,
                ana_group: 1,
                read_only: false,
                block_size: None,
                limits: Default::default(),
            }],
        };
        let both = vec![subsystem(0, VICTIM, "victim"), subsystem(1, ATTACKER, "attacker")];
        target.configure(both, &volumes);
        let now = Instant::from_nanos(1_000_000_000);
        World { arena, volumes, target, now, connections: Vec::new(), cntlid: 0 }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut Target, &mut Context<'_>) -> R) -> R {
        let World { arena, volumes, target, now, .. } = self;
        let random = &mut |into: &mut [u8]| into.fill(0x5a);
        act(target, &mut Context { volumes, arena, now: *now, random })
    }

    fn open(&mut self, host: u8) -> Option<TcpQueue> {
        let host: IpAddr = Ipv4Addr::new(10, 0, 0, host).into();
        let ends = Ends { host, ours: Ipv4Addr::new(10, 0, 0, 1).into(), port: 4420 };
        self.with(|target, ctx| TcpQueue::open(target, ends, ctx))
    }

    /// Passes bytes to a connection of the attacker, and searches what it sends.
    fn feed(&mut self, at: usize, bytes: &[u8]) {
        if at >= self.connections.len() {
            return;
        }
        let (mut queue, mut seen) = self.connections.swap_remove(at);
        // A host chooses what it writes; a mark that it reads back would be its own.
        let bytes = if leak::in_part(bytes) { leak::plain(bytes) } else { bytes.to_vec() };
        self.with(|target, ctx| {
            let mut sent = 0;
            let mut buffer = vec![0; 32 << 10];
            loop {
                sent += queue.receive(&bytes[sent..], target, ctx);
                target.poll(ctx);
                while target.next_ready().is_some() {}
                queue.advance(target, ctx);
                let n = queue.transmit(&mut buffer, target, ctx);
                seen.extend_from_slice(&buffer[..n]);
                let leaked = leak::find(&seen);
                assert!(leaked.is_none(), "the attacker received {leaked:?}");
                let kept = seen.len().saturating_sub(64);
                seen.drain(..kept);
                if n == 0 {
                    break;
                }
            }
        });
        match queue.is_finished() {
            true => self.with(|target, ctx| queue.close(target, ctx)),
            false => self.connections.push((queue, seen)),
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let at = input.below(self.connections.len());
        match input.below(8) {
            0 if self.connections.len() < CONNECTIONS => {
                if let Some(queue) = self.open(9) {
                    self.connections.push((queue, Vec::new()));
                    let last = self.connections.len() - 1;
                    self.feed(last, &ic_req(input.byte() & 3));
                }
            }
            0 => {
                let (queue, _) = self.connections.swap_remove(at);
                self.with(|target, ctx| queue.close(target, ctx));
            }
            1 => {
                let len = input.below(200);
                self.feed(at, input.take(len));
            }
            2 => {
                let nqn = [SUBSYSTEMS[1], SUBSYSTEMS[0], DISCOVERY, SUBSYSTEMS[1]][input.below(4)];
                let qid = input.below(3) as u16;
                let cntlid = if qid == 0 { 0xffff } else { self.cntlid };
                let data = connect_data(1, cntlid, nqn, ATTACKER);
                let connect = Sqe::connect(qid, 2 + input.byte() as u16 % 120, 1000, true);
                self.feed(at, &capsule(connect, &data));
                self.cntlid = self.target.controllers().last().map_or(1, |one| one.cntlid);
                self.feed(at, &capsule(Sqe::property_set(CC, ENABLE), &[]));
            }
            3 | 4 => {
                let sqe = command(input);
                let data = match input.below(3) {
                    0 => Vec::new(),
                    _ => input.take(512).repeat(1 + input.below(4)),
                };
                self.feed(at, &capsule(sqe, &data));
            }
            5 => {
                // A command whose data is to be fetched, or sent.
                let length = (u32::from(input.word()) << input.below(4)).to_le_bytes();
                let sqe = command(input).with(32, &length).with(39, &[0x5a]);
                self.feed(at, &header(4, 72, 72, &sqe.0));
            }
            6 => {
                let body = input.take(4096);
                let mut fields = [0; 16];
                let start = input.take(12);
                fields[..start.len()].copy_from_slice(start);
                fields[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
                let mut pdu = header(6, 24, 24 + body.len() as u32, &fields);
                pdu[1] = input.byte() & 4;
                pdu[3] = 24;
                pdu.extend_from_slice(body);
                self.feed(at, &pdu);
            }
            _ => {
                self.now = self.now + Duration::from_millis(u64::from(input.byte()) * 20);
                self.with(|target, ctx| target.poll(ctx));
            }
        }
    }

    /// Executes a command of the victim.
    fn execute(
        &mut self,
        host: &mut Initiator,
        queue: &mut TcpQueue,
        sqe: Sqe,
        data: Window,
        carry: Carry,
    ) {
        let cid = host.submit(sqe, data, carry).expect("room");
        self.exchange(host, queue);
        let completion = host.take(cid).expect("the victim's command completes");
        assert_eq!(completion.status, 0, "the victim's command succeeds");
    }

    fn exchange(&mut self, host: &mut Initiator, queue: &mut TcpQueue) {
        let mut buffer = vec![0; 32 << 10];
        self.with(|target, ctx| {
            for _ in 0..20 {
                let n = host.connection.transmit(&mut buffer);
                queue.receive(&buffer[..n], target, ctx);
                target.poll(ctx);
                queue.advance(target, ctx);
                let n = queue.transmit(&mut buffer, target, ctx);
                host.receive(&buffer[..n]);
            }
        });
    }

    /// The victim connects, and writes its mark or reads it back.
    fn serve_victim(&mut self, data: Window, writes: bool) {
        let mut queues = Vec::new();
        let mut cntlid = 0xffff;
        for qid in 0..2u16 {
            let mut queue = self.open(2).expect("the victim has a place");
            let mut host = Initiator::new(0, 32);
            self.exchange(&mut host, &mut queue);
            data.write(0, &connect_data(2, cntlid, SUBSYSTEMS[0], VICTIM)).expect("room");
            let connect = data.slice(0, 1024).expect("room");
            let sqe = Sqe::connect(qid, 32, 0, false);
            self.execute(&mut host, &mut queue, sqe, connect, Carry::InCapsule);
            if qid == 0 {
                let mine = self.target.controllers().filter(|one| one.host == VICTIM);
                cntlid = mine.last().expect("the victim is connected").cntlid;
                let enable = Sqe::property_set(CC, ENABLE);
                self.execute(&mut host, &mut queue, enable, Window::empty(), Carry::None);
            }
            queues.push((host, queue));
        }
        let (host, queue) = &mut queues[1];
        let (opcode, carry) = if writes { (1, Carry::Out) } else { (2, Carry::In) };
        if writes {
            leak::fill(data, Owner::Volume);
        } else {
            data.fill(0);
        }
        let blocks = data.len() as u32 / 512;
        self.execute(host, queue, Sqe::blocks(opcode, 1, 0, blocks, 0), data, carry);
        if !writes {
            let mut read = [0; 64];
            data.read(data.len() - 64, &mut read).expect("inside");
            assert!(leak::find(&read).is_some(), "the victim reads its data");
        }
        for (_, queue) in queues {
            self.with(|target, ctx| queue.close(target, ctx));
        }
    }
}

fn header(kind: u8, hlen: u8, plen: u32, rest: &[u8]) -> Vec<u8> {
    let [a, b, c, d] = plen.to_le_bytes();
    let mut pdu = vec![kind, 0, hlen, 0, a, b, c, d];
    pdu.extend_from_slice(rest);
    pdu
}

fn ic_req(digests: u8) -> Vec<u8> {
    let mut rest = [0; 120];
    rest[3] = digests;
    header(0, 128, 128, &rest)
}

/// A capsule, without digests.
fn capsule(sqe: Sqe, data: &[u8]) -> Vec<u8> {
    let kind = if data.is_empty() { 0x5a } else { 0x01 };
    let sqe = sqe.with(32, &(data.len() as u32).to_le_bytes()).with(39, &[kind]);
    let mut pdu = header(4, 72, 72 + data.len() as u32, &sqe.0);
    pdu[3] = if data.is_empty() { 0 } else { 72 };
    pdu.extend_from_slice(data);
    pdu
}

fn command(input: &mut Input<'_>) -> Sqe {
    let opcodes = [0, 1, 2, 5, 8, 9, 0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18, 0x7f, input.byte()];
    let mut sqe = Sqe::new(opcodes[input.below(opcodes.len())]).nsid(1);
    sqe = sqe.with(2, &[input.byte() % 8, 0]);
    for _ in 0..input.below(6) {
        let (at, byte) = (4 + input.below(60), input.byte());
        sqe = sqe.with(at, &[byte]);
    }
    sqe
}

/// Runs a list of events.
pub fn run(data: &[u8]) {
    netsim::with_memory(MEMORY + BYTES + 8192, |memory| {
        let mut outer = Arena::new(memory);
        let theirs = outer.alloc(BYTES, 4096).expect("room");
        let ours = outer.alloc(MEMORY, 4096).expect("room");
        let mut world = World::new(ours);
        world.serve_victim(theirs, true);
        let mut input = Input(data);
        input.events(EVENTS, |input| world.act(input));
        for (queue, _) in core::mem::take(&mut world.connections) {
            world.with(|target, ctx| queue.close(target, ctx));
        }
        world.now = world.now + Duration::from_secs(60);
        world.with(|target, ctx| target.poll(ctx));
        assert_eq!(world.target.queues(), 0, "all queues of closed connections are gone");
        world.serve_victim(theirs, false);
    });
}

/// Inputs that connect, and read and write.
pub fn corpus() -> Vec<Vec<u8>> {
    let open = [0, 0, 0];
    let admin = [0, 2, 0, 0, 30];
    let io = [1, 2, 0, 1, 126];
    let identify = [0, 5, 16, 0, 0, 0, 7, 1, 1, 36, 1];
    let read = [1, 5, 2, 0, 0, 0, 2, 1, 0];
    let write = [1, 3, 0, 1, 2, 0, 1, 7, 7, 7, 7];
    vec![
        [&open[..], &admin, &identify].concat(),
        [&open[..], &admin, &open, &io, &read, &write, &read].concat(),
        [&open[..], &[0, 1, 20, 4, 0, 72, 0, 72]].concat(),
    ]
}
