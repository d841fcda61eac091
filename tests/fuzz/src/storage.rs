//! The storage server, RNBD over RTRS over RoCE, with an attacker who has verbs in his hands: the input is a
//! list of what he does. His queue pairs are an honest engine's, so that every packet has a right ICRC and is
//! looked at; what he writes, where, under which key, and what he says it is, is the input's. Before that he
//! has done what an honest client does: a session is there, and a device is open.
//!
//! What must hold: nothing panics, what he receives and what his volume holds has no bytes of others
//! ([`leak`]), and volumes that are not his stay as they are.

use crate::input::Input;
use crate::leak::{self, Owner};
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::server::Config;
use rtrs::wire::{
    Addressing, ConnectRequest, Descriptor, Immediate, InfoRequest, InfoResponse, IoHeader,
    RkeyResponse, Uuid,
};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use storage::rnbd::server::{Export, Server};
use storage::rnbd::wire::{AccessMode, Close, Io, IoFlags, Open, Operation, SessionInfo};
use storage::volume::{RamVolume, Volume, Volumes};
use verbs::EngineContext;
use verbs::{
    Access, CompletedOperation, ConnectionEvent, ConnectionManager, ConnectionParameters, CqId,
    Payload, PdId, Provider, QpId, QpInit, QpType, RecvRequest, RemoteAddress, SendOperation,
    SendRequest, SendWith,
};

const GATEWAY: usize = 0;
const ATTACKER: usize = 1;
/// Memory of the gateway's arena, of the attacker, and of all.
const ARENA: usize = 512 << 10;
const THEIRS: usize = 160 << 10;
const MEMORY: usize = ARENA + THEIRS + 2 * VOLUME + (16 << 10);
const VOLUME: usize = 32 << 10;
const CHUNK: u32 = 8192;
const DEPTH: u16 = 8;
/// Bytes of data that a chunk has room for, beside headers.
const ROOM: u32 = CHUNK - 4096;
const PORT: u16 = 1234;
/// What the attacker does at most.
const ACTIONS: usize = 200;
const RECEIVES: usize = 12;
const RECEIVE: usize = 256;
/// The first receive of a connection takes the INFO_RSP.
const FIRST: usize = 1024;
const DATA: usize = 32 << 10;

/// Takes a list of actions; memory of sessions is reserved for each.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.byte();
    netsim::with_memory(MEMORY, |memory| {
        let mut world = World::new(memory, how);
        world.open_session();
        input.events(ACTIONS, |input| world.act(input));
        world.end();
    });
}

/// Lists of actions that get far.
pub fn corpus() -> Vec<Vec<u8>> {
    let read = [0, 0, 0, 0, 0, 0, 8, 0];
    let write = [0, 1, 1, 0, 0, 0, 8, 1];
    let all: Vec<u8> = [read, write].concat().repeat(3);
    let mut operations = Vec::new();
    for operation in 0..6u8 {
        operations.extend([0, operation, u8::from(operation == 1), 0, 0, 0, 4, operation]);
    }
    let mut lists =
        vec![vec![0, 4, 4], [&[0][..], &all].concat(), [&[0][..], &operations].concat()];
    lists.push([&[1][..], &operations].concat());
    lists.push([&[2][..], &all, &operations].concat());
    lists.push([&[4][..], &all, &[5, 0, 1, 4, 6, 0, 0, 2, 0, 0]].concat());
    lists
}

struct Node {
    roce: Roce,
    tx: TxBuffer,
    arena: Arena,
    rng: Rng,
}

/// A connection of the attacker's.
struct Line {
    qp: QpId,
    receives: Window,
}

struct World {
    gateway: Node,
    server: Server,
    volumes: Volumes,
    attacker: Node,
    pd: PdId,
    cq: CqId,
    lines: Vec<Line>,
    /// Where answers go, and how the server names it.
    data: (Window, Descriptor),
    staging: Window,
    chunks: Vec<Descriptor>,
    places: Addressing,
    uuids: [Uuid; 2],
    /// The attacker's volume, and one that is not his.
    his: Window,
    other: Window,
    wire: VecDeque<(usize, Vec<u8>)>,
    now: Instant,
}

fn mac(node: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + node as u8]
}

fn ip(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + node as u8))
}

const LIMITS: Limits = Limits {
    qps: 24,
    cqs: 4,
    pds: 8,
    regions: 64,
    keys: 128,
    wr: 64,
    connections: 16,
    connections_per_host: 16,
    half_open: 8,
    unacknowledged: 16,
};

impl World {
    fn new(memory: Window, how: u8) -> Self {
        let mut rng = Rng::new(9);
        let mut rest = Arena::new(memory);
        let mut take = |len| rest.alloc(len, 4096).expect("room");
        let (arena, theirs, his, other) = (take(ARENA), take(THEIRS), take(VOLUME), take(VOLUME));
        leak::fill(arena, Owner::Past);
        leak::fill(other, Owner::Volume);
        let node = |n: usize, arena: Window, rng: &mut Rng| {
            let port = PortConfig { mac: mac(n), addresses: vec![ip(n)], mtu: 1500 };
            let mut roce = Roce::new(port, LIMITS, rng);
            roce.learn_neighbour(ip(1 - n), mac(1 - n));
            let (tx, arena, rng) = (TxBuffer::new(), Arena::new(arena), rng.fork());
            Node { roce, tx, arena, rng }
        };
        let mut gateway = node(GATEWAY, arena, &mut rng);
        let mut attacker = node(ATTACKER, theirs, &mut rng);
        let oversubscribe = if how & 1 == 0 { 1 } else { 4 };
        if oversubscribe > 1 {
            let shared = gateway.arena.alloc(16 * CHUNK as usize, 8192).expect("room");
            gateway.roce.give_memory(shared, CHUNK as usize).expect("it has none yet");
        }
        let config = Config {
            queue_depth: DEPTH,
            chunk_size: CHUNK,
            oversubscribe,
            always_invalidate: how & 2 == 0,
            max_sessions: 4,
            max_paths: 2,
            max_connections: 4,
            receives: 16,
            completions: 1024,
            ..Config::default()
        };
        let mut server = Server::new(config, 4, &mut gateway.roce).expect("a sound configuration");
        let mut volumes = Volumes::new();
        for (name, window, read_only, allow) in [
            ("ram0", his, how & 4 != 0, Vec::new()),
            ("secret", other, false, vec![Name::new("victim").expect("a name")]),
        ] {
            let name = Name::new(name).expect("a name");
            let volume: Box<dyn Volume> = Box::new(RamVolume::new(window, false));
            let volume = volumes.add(name, volume).expect("another name");
            let export = Export { name, volume, read_only, allow, hosts: Default::default() };
            server.add_export(export, &volumes).expect("a sound export");
        }
        // What a RAM volume does when it is made is not the attacker's.
        leak::fill(other, Owner::Volume);
        let pd = attacker.roce.alloc_pd().expect("room");
        let cq = attacker.roce.create_cq(512).expect("room");
        let data = attacker.arena.alloc(DATA, 64).expect("room");
        let staging = attacker.arena.alloc(2 * CHUNK as usize, 64).expect("room");
        data.fill(0);
        staging.fill(0);
        let region = attacker.roce.register(pd, data, Access::all(), &mut attacker.rng);
        let region = region.expect("room");
        let into = Descriptor { address: region.address, key: region.rkey, length: DATA as u32 };
        World {
            gateway,
            server,
            volumes,
            attacker,
            pd,
            cq,
            lines: Vec::new(),
            data: (data, into),
            staging,
            chunks: Vec::new(),
            places: Addressing::new(DEPTH),
            uuids: [Uuid([1; 16]), Uuid([2; 16])],
            his,
            other,
            wire: VecDeque::new(),
            now: Instant::from_nanos(1),
        }
    }

    /// What an honest client does first.
    fn open_session(&mut self) {
        for cid in 0..2 {
            self.connect(&ConnectRequest {
                cid,
                cid_num: 2,
                recon_cnt: 1,
                path: self.uuids[0],
                session: self.uuids[1],
                first: true,
            });
            self.settle();
        }
        self.info(b"attacker");
        self.settle();
        self.user_message(1, 0, &SessionInfo { version: 2 }.emit(), 64);
        self.settle();
        let open = Open { mode: Ok(AccessMode::ReadWrite), name: name("ram0") };
        self.user_message(1, 1, &open.emit(), 256);
        self.settle();
    }

    fn connect(&mut self, request: &ConnectRequest) {
        let init = QpInit {
            kind: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: 16,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let Node { roce, arena, rng, .. } = &mut self.attacker;
        let Ok(qp) = roce.create_qp(&init, rng) else { return };
        let len = FIRST + (RECEIVES - 1) * RECEIVE;
        let Some(receives) = arena.alloc(len, 64) else {
            let _ = roce.destroy_qp(qp);
            return;
        };
        receives.fill(0);
        self.lines.push(Line { qp, receives });
        let line = self.lines.len() - 1;
        (0..RECEIVES).for_each(|n| self.post_receive(line, n));
        let parameters = ConnectionParameters {
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
        };
        let Node { roce, rng, .. } = &mut self.attacker;
        let to = SocketAddr::new(ip(GATEWAY), PORT);
        let private = request.emit();
        let _ = roce.connect(qp, ip(ATTACKER), to, &parameters, &private, self.now, rng);
    }

    fn receive(line: &Line, n: usize) -> Window {
        let (at, len) = if n == 0 { (0, FIRST) } else { (FIRST + (n - 1) * RECEIVE, RECEIVE) };
        line.receives.slice(at, len).expect("inside")
    }

    fn post_receive(&mut self, line: usize, n: usize) {
        let line = &self.lines[line];
        let into = [World::receive(line, n)];
        let _ = self.attacker.roce.post_recv(line.qp, &RecvRequest { id: n as u64, into: &into });
    }

    fn post(&mut self, line: usize, operation: SendOperation<'_>) {
        let Some(line) = self.lines.get(line) else { return };
        let request = SendRequest {
            id: u64::MAX,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        let _ = self.attacker.roce.post_send(line.qp, &request);
    }

    /// INFO_REQ with a name.
    fn info(&mut self, name: &[u8]) {
        let mut bytes = [0; InfoRequest::SIZE];
        let honest = InfoRequest { name: self::name("attacker") };
        bytes.copy_from_slice(&honest.emit());
        if name != b"attacker" {
            let len = name.len().min(bytes.len() - 2);
            bytes[2..].fill(0);
            bytes[2..2 + len].copy_from_slice(&name[..len]);
        }
        let message = self.staging.slice(0, bytes.len()).expect("inside");
        message.write(0, &bytes).expect("inside");
        let payload = Payload::Windows(&[message]);
        self.post(0, SendOperation::Send { payload, with: SendWith::Nothing });
    }

    /// A request for data with this user header.
    fn user_message(&mut self, line: usize, chunk: u16, user: &[u8], length: u32) {
        let into = Some(Descriptor { length, ..self.data.1 });
        let user_len = user.len() as u16;
        let header = IoHeader::Read { user_len, need_invalidate: true, into };
        // The user's header lies behind the room for the answer, as Linux has it.
        self.request(line, chunk, &[], user, header, length.min(ROOM), None);
    }

    /// A request in a chunk: data, user header, RTRS header. `skip` bytes of the data are not sent; the place
    /// that the immediate names may be another.
    #[allow(clippy::too_many_arguments)]
    fn request(
        &mut self,
        line: usize,
        chunk: u16,
        data: &[u8],
        user: &[u8],
        header: IoHeader,
        skip: u32,
        offset: Option<u32>,
    ) {
        let Some(&Descriptor { address, key, .. }) = self.chunks.get(usize::from(chunk)) else {
            return;
        };
        let (header, len) = header.emit();
        let bytes = [data, user, &header[..len]].concat();
        let bytes = &bytes[..bytes.len().min(CHUNK as usize)];
        let message = self.staging.slice(0, bytes.len()).expect("inside");
        message.write(0, bytes).expect("inside");
        let offset = offset.unwrap_or(skip + (data.len() + user.len()) as u32);
        let place = self.places.join(chunk, offset);
        let operation = SendOperation::Write {
            payload: Payload::Windows(&[message]),
            to: RemoteAddress { address: address + u64::from(skip), rkey: key },
            immediate: Some(Immediate::Request { place }.emit()),
        };
        self.post(line, operation);
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte() % 14;
        match what {
            0..=2 => self.io(input),
            3 => {
                // Bytes anywhere in a chunk, told of or not.
                let chunk = input.below(usize::from(DEPTH)) as u16;
                let Some(&to) = self.chunks.get(usize::from(chunk)) else { return };
                let at = u32::from(input.word()) % (CHUNK + 64);
                let bytes = leak::plain(input.take(64));
                let message = self.staging.slice(0, bytes.len()).expect("inside");
                message.write(0, &bytes).expect("inside");
                let told = input.byte();
                let place = self.places.join(chunk, u32::from(input.word()) % CHUNK);
                let key = if told & 0x40 != 0 { to.key ^ (1 << (told & 31)) } else { to.key };
                let operation = SendOperation::Write {
                    payload: Payload::Windows(&[message]),
                    to: RemoteAddress { address: to.address + u64::from(at), rkey: key },
                    immediate: (told & 0x80 == 0).then(|| Immediate::Request { place }.emit()),
                };
                self.post(1 + usize::from(told & 1), operation);
            }
            4 => self.settle(),
            5 => {
                // Verbs that no client of RTRS has a use for.
                let chunk = input.below(usize::from(DEPTH));
                let Some(&at) = self.chunks.get(chunk) else { return };
                let kind = input.byte();
                let offset = u64::from(input.word()) & !7;
                let from = RemoteAddress { address: at.address + offset, rkey: at.key };
                let len = usize::from(input.word()) % 4096;
                let into = [self.data.0.slice(0, len).expect("inside")];
                let eight = self.data.0.slice(8192, 8).expect("inside");
                let operation = match kind % 4 {
                    0 => SendOperation::Read { into: &into, from },
                    1 => SendOperation::FetchAdd { into: eight, at: from, add: 1 },
                    2 => SendOperation::CompareSwap { into: eight, at: from, compare: 0, swap: 1 },
                    _ => SendOperation::Send {
                        payload: Payload::Windows(&into),
                        with: SendWith::Invalidate(at.key),
                    },
                };
                self.post(usize::from(kind >> 7), operation);
            }
            6 => {
                // A message of any kind on a connection.
                let line = input.below(3);
                let bytes = leak::plain(input.take(48));
                let message = self.staging.slice(0, bytes.len()).expect("inside");
                message.write(0, &bytes).expect("inside");
                let payload = Payload::Windows(&[message]);
                let with = match input.byte() % 3 {
                    0 => SendWith::Nothing,
                    1 => SendWith::Immediate(u32::from(input.word()) << (input.byte() % 17)),
                    _ => SendWith::Immediate(Immediate::Heartbeat.emit()),
                };
                self.post(line, SendOperation::Send { payload, with });
            }
            7 => {
                let open = Open {
                    mode: match input.byte() % 4 {
                        0 => Ok(AccessMode::ReadOnly),
                        1 => Ok(AccessMode::ReadWrite),
                        2 => Ok(AccessMode::Migration),
                        _ => Err(7),
                    },
                    name: name(["ram0", "secret", "/dev/ram0", "none"][input.below(4)]),
                };
                let length = u32::from(input.word()) % 512;
                self.user_message(1, input.below(8) as u16, &open.emit(), length);
            }
            8 => {
                let chunk = input.below(8) as u16;
                let device = u32::from(input.byte() % 4);
                if input.byte() & 1 == 0 {
                    let header = IoHeader::Write { user_len: Close::SIZE as u16 };
                    self.request(1, chunk, &[], &Close { device }.emit(), header, 0, None);
                } else {
                    let user = SessionInfo { version: input.byte() }.emit();
                    self.user_message(1, chunk, &user, u32::from(input.word()));
                }
            }
            9 => {
                // Another connection, of this path or of another.
                let byte = input.byte();
                let mut path = self.uuids[0];
                path.0[0] ^= byte & 1;
                let mut session = self.uuids[1];
                session.0[0] ^= byte >> 1 & 1;
                self.connect(&ConnectRequest {
                    cid: u16::from(input.byte() % 6),
                    cid_num: u16::from(input.byte() % 6),
                    recon_cnt: u16::from(byte >> 4),
                    path,
                    session,
                    first: byte & 4 == 0,
                });
            }
            10 => {
                let name: Vec<u8> = input.take(12).to_vec();
                let name = if name.first() == Some(&0) { b"victim".to_vec() } else { name };
                self.info(&name);
            }
            11 => {
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 35));
                self.work();
            }
            12 => {
                // A frame is lost, or comes twice.
                self.collect();
                match (input.byte() % 2, self.wire.pop_front()) {
                    (0, Some((to, frame))) => {
                        self.deliver(to, &frame);
                        self.wire.push_back((to, frame));
                    }
                    _ => {}
                }
            }
            _ => {
                let at = input.below(self.lines.len());
                if let Some(line) = self.lines.get(at)
                    && input.byte() > 128
                {
                    let _ = self.attacker.roce.destroy_qp(line.qp);
                    // Its receives stay where they are: they are looked at in the end.
                }
            }
        }
    }

    /// An I/O whose parts need not fit together.
    fn io(&mut self, input: &mut Input<'_>) {
        let operation = match input.byte() % 6 {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 => Operation::Discard,
            4 => Operation::SecureErase,
            _ => Operation::WriteZeroes,
        };
        let how = input.byte();
        let device = u32::from(input.byte() % 3);
        let sector = u64::from(input.byte());
        let chunk = input.byte() as u16 % DEPTH;
        let size = u32::from(input.byte()) * 512;
        let fill = input.byte() & 0x7f;
        let flags = if how & 8 == 0 { IoFlags::empty() } else { IoFlags::FUA };
        let io = Io { device, sector, operation, flags, size, priority: 0 };
        let user_len = if how & 16 == 0 { Io::SIZE as u16 } else { u16::from(how) };
        // What is written is there, or in part, or not at all.
        let there = match how >> 5 {
            0..=3 => size.min(ROOM),
            4 => size.min(512),
            _ => 0,
        };
        let data = if how & 1 == 1 { vec![fill; there as usize] } else { Vec::new() };
        let mut skip = (size - there.min(size)).min(ROOM);
        let header = if how & 1 == 1 {
            IoHeader::Write { user_len }
        } else {
            skip = size.min(ROOM);
            let length = if how & 4 == 0 { size } else { u32::from(fill) << 8 };
            let into = (how & 2 == 0).then_some(Descriptor { length, ..self.data.1 });
            IoHeader::Read { user_len, need_invalidate: how & 64 == 0, into }
        };
        self.request(1, chunk, &data, &io.emit(), header, skip, None);
    }

    fn collect(&mut self) {
        for (n, node) in [&mut self.gateway, &mut self.attacker].into_iter().enumerate() {
            while self.wire.len() < 128 && node.roce.poll_transmit(0, self.now, &mut node.tx) {
                self.wire.push_back((1 - n, netsim::bytes(&node.tx.packet())));
            }
        }
    }

    fn deliver(&mut self, to: usize, frame: &[u8]) {
        let node = if to == GATEWAY { &mut self.gateway } else { &mut self.attacker };
        node.roce.handle_frame(0, frame, self.now);
        self.work();
    }

    /// Both do what there is to do.
    fn work(&mut self) {
        for node in [&mut self.gateway, &mut self.attacker] {
            if node.roce.poll_timeout().is_some_and(|at| at <= self.now) {
                node.roce.handle_timeout(self.now);
            }
        }
        let Node { roce, arena, rng, .. } = &mut self.gateway;
        let mut context = EngineContext { provider: roce, arena, now: self.now, rng };
        while let Some(event) = context.provider.poll_connection_event() {
            self.server.handle_connection_event(&event, &mut context);
        }
        while self.server.poll(&mut self.volumes, &mut context) {}
        while self.server.transport_mut().poll_notice().is_some() {}
        while let Some(event) = self.attacker.roce.poll_connection_event() {
            if let ConnectionEvent::Request { connection, .. } = event {
                let reason = verbs::RejectReason::CONSUMER;
                let _ = self.attacker.roce.reject(connection, reason, b"");
            }
        }
        while let Some(done) = self.attacker.roce.poll_cq(self.cq) {
            let Some(line) = self.lines.iter().position(|line| line.qp == done.qp) else {
                continue;
            };
            let length = match done.operation {
                CompletedOperation::Recv { length, .. } => length as usize,
                CompletedOperation::RecvWriteImmediate { .. } => 0,
                CompletedOperation::Send | CompletedOperation::KeyChanged { .. } => continue,
            };
            let n = done.id as usize;
            let mut bytes = vec![0; length];
            let got = World::receive(&self.lines[line], n).read(0, &mut bytes).is_ok();
            if got {
                self.learn(&bytes);
            }
            self.post_receive(line, n);
        }
    }

    /// What a message tells of chunks and their keys.
    fn learn(&mut self, message: &[u8]) {
        if let Ok(key) = RkeyResponse::parse(message) {
            if let Some(chunk) = self.chunks.get_mut(usize::from(key.buffer)) {
                chunk.key = key.rkey;
            }
        } else if InfoResponse::parse(message).is_ok() {
            self.chunks.clear();
            for all in InfoResponse::descriptors(message) {
                for n in 0..(all.length / CHUNK).min(u32::from(DEPTH)) {
                    let address = all.address + u64::from(n * CHUNK);
                    self.chunks.push(Descriptor { address, length: CHUNK, ..all });
                }
            }
        }
    }

    /// Until nothing is under way any more.
    fn settle(&mut self) {
        self.work();
        for _ in 0..200 {
            self.collect();
            let Some((to, frame)) = self.wire.pop_front() else { break };
            self.deliver(to, &frame);
        }
    }

    fn end(&mut self) {
        self.settle();
        // What asks for an ACK late, and what is sent again.
        for _ in 0..3 {
            self.now = self.now + Duration::from_millis(40);
            self.settle();
        }
        leak::check(self.data.0, "what the attacker received");
        for line in &self.lines {
            leak::check(line.receives, "a message to the attacker");
        }
        leak::check(self.his, "the attacker's volume");
        let mut other = vec![0; VOLUME];
        self.other.read(0, &mut other).expect("its own length");
        let mark = leak::mark(Owner::Volume);
        assert!(other.chunks(mark.len()).all(|part| part == mark), "another's volume was changed");
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an honest client does works, so that the attacker starts from a session with an open device.
    #[test]
    fn the_attacker_has_a_session_and_an_open_device() {
        for how in 0..8 {
            netsim::with_memory(MEMORY, |memory| {
                let mut world = World::new(memory, how);
                world.open_session();
                assert_eq!(world.chunks.len(), usize::from(DEPTH), "how {how}");
                // A write, and a read that brings it back.
                if how & 4 == 0 {
                    let mut input = Input(&[1, 1, 0, 3, 2, 8, 0x55]);
                    world.io(&mut input);
                    world.settle();
                    let mut bytes = [0; 512];
                    world.his.read(3 * 512, &mut bytes).expect("inside");
                    assert!(bytes == [0x55; 512], "how {how}: not written");
                    world.data.0.fill(0);
                    world.io(&mut Input(&[0, 0, 0, 3, 3, 8, 0]));
                    world.settle();
                    world.data.0.read(0, &mut bytes).expect("inside");
                    assert!(bytes == [0x55; 512], "how {how}: not read");
                }
            });
        }
    }
}
