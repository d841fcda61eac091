//! The storage server, RNBD over RTRS over RoCE, with an attacker that uses verbs directly: the input is a list of its
//! actions. The attacker has an unmodified RoCE engine, so that every packet has a valid ICRC and is processed. The
//! input determines the data, addresses, keys and headers of its requests. The attacker starts like a correct client,
//! with a session and an open device.
//!
//! Invariants: nothing panics; the data that the attacker receives, and the contents of its volume, contain no bytes of
//! others ([`leak`]); other volumes do not change.

mod actions;
mod carry;

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
use verbs::{
    Access, ChunksOnDemand, CompletedOperation, ConnectionEvent, ConnectionManager,
    ConnectionParameters, CqId, Ctx, MemoryVerbs, Payload, PdId, Provider, QpId, QpInit, QpType,
    RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith,
};

const GATEWAY: usize = 0;
const ATTACKER: usize = 1;
/// Memory of the gateway's arena, of the attacker, and in total.
const ARENA: usize = 512 << 10;
const THEIRS: usize = 160 << 10;
const MEMORY: usize = ARENA + THEIRS + 2 * VOLUME + (16 << 10);
const VOLUME: usize = 32 << 10;
const CHUNK: u32 = 8192;
const DEPTH: u16 = 8;
/// Bytes of data that fit into a chunk, beside headers.
const ROOM: u32 = CHUNK - 4096;
const PORT: u16 = 1234;
/// Most actions of an input.
const ACTIONS: usize = 200;
const RECEIVES: usize = 12;
const RECEIVE: usize = 256;
/// The first receive of a connection takes the INFO_RSP.
const FIRST: usize = 1024;
const DATA: usize = 32 << 10;

/// Runs a list of actions.
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

/// Lists of actions that reach deep.
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

/// A connection of the attacker.
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
    /// Memory for answers, and its descriptor for the server.
    data: (Window, Descriptor),
    staging: Window,
    chunks: Vec<Descriptor>,
    places: Addressing,
    uuids: [Uuid; 2],
    /// The attacker's volume, and another one.
    own: Window,
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
        let (arena, theirs, own, other) = (take(ARENA), take(THEIRS), take(VOLUME), take(VOLUME));
        leak::fill(arena, Owner::Past);
        leak::fill(other, Owner::Volume);
        let node = |n: usize, arena: Window, rng: &mut Rng| {
            let port = PortConfig { mac: mac(n), addresses: vec![ip(n)], mtu: 1500 };
            let mut roce = Roce::new(port, LIMITS, rng);
            roce.pin_neighbour(0, ip(1 - n), mac(1 - n));
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
        let mut server =
            Server::new(config, 4, &mut gateway.roce).expect("the configuration is valid");
        let mut volumes = Volumes::new();
        for (name, window, read_only, allow) in [
            ("ram0", own, how & 4 != 0, Vec::new()),
            ("secret", other, false, vec![Name::new("victim").expect("a name")]),
        ] {
            let name = Name::new(name).expect("a name");
            let volume: Box<dyn Volume> = Box::new(RamVolume::new(window, false));
            let volume = volumes.add(name, volume).expect("the name is free");
            let (hosts, limiter) = (Default::default(), Default::default());
            let export = Export { name, volume, read_only, allow, hosts, limiter };
            server.add_export(export, &volumes).expect("the export is valid");
        }
        // After the RAM volume's initialization, which zeroes its memory.
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
            own,
            other,
            wire: VecDeque::new(),
            now: Instant::from_nanos(1),
        }
    }

    /// Opens a session like a correct client.
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
        // As in Linux, the user's header is behind the room for the answer.
        self.request(line, chunk, &[], user, header, length.min(ROOM), None);
    }

    /// A request in a chunk: data, user header, RTRS header. `skip` bytes of the data are not sent. The immediate may
    /// name another place.
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

    fn end(&mut self) {
        self.settle();
        // Time for delayed ACKs and retransmissions.
        for _ in 0..3 {
            self.now = self.now + Duration::from_millis(40);
            self.settle();
        }
        leak::check(self.data.0, "the attacker's answers");
        for line in &self.lines {
            leak::check(line.receives, "a message to the attacker");
        }
        leak::check(self.own, "the attacker's volume");
        let mut other = vec![0; VOLUME];
        self.other.read(0, &mut other).expect("the lengths are equal");
        let mark = leak::mark(Owner::Volume);
        assert!(other.chunks(mark.len()).all(|part| part == mark), "the other volume was changed");
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A correct client works, so that the attacker starts with a session and an open device.
    #[test]
    fn attacker_starts_with_a_session_and_an_open_device() {
        for how in 0..8 {
            netsim::with_memory(MEMORY, |memory| {
                let mut world = World::new(memory, how);
                world.open_session();
                assert_eq!(world.chunks.len(), usize::from(DEPTH), "how {how}");
                // A write, and a read of the same data.
                if how & 4 == 0 {
                    let mut input = Input(&[1, 1, 0, 3, 2, 8, 0x55]);
                    world.io(&mut input);
                    world.settle();
                    let mut bytes = [0; 512];
                    world.own.read(3 * 512, &mut bytes).expect("inside");
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
