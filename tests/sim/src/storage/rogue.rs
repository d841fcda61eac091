//! A malicious host with two queue pairs, without the RTRS client. It requests data that it may not access, in many
//! ways, and checks the received data.

use super::gateway::{LIMITS, Port, transmit};
use super::leak::{UNTOUCHED, check, mark};
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use rand_core::Rng as _;
use roce::{PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::wire::{
    Addressing, ConnectRequest, ConnectResponse, Descriptor, Immediate, InfoResponse, IoHeader,
    RkeyResponse, Uuid,
};
use std::net::SocketAddr;
use std::time::Duration;
use storage::rnbd::wire::{AccessMode, Io, IoFlags, Open, OpenResponse, Operation, PORT};
use verbs::{
    Access, CompletedOperation, Completion, ConnectionEvent, ConnectionId, ConnectionManager,
    ConnectionParameters, CqId, MemoryVerbs, Payload, PdId, Provider, QpId, QpInit, QpType,
    RecvRequest, Region, RemoteAddress, SendOperation, SendRequest, SendWith, Status,
};

/// Largest answer, and size of a chunk, in bytes.
const ROOM: usize = 16 << 10;
/// Receives of a queue pair, and bytes of one: INFO_RSP is the longest message.
const RECEIVES: usize = 24;
const LONGEST: usize = 1024;

/// A queue pair and its connection.
struct Line {
    qp: QpId,
    id: ConnectionId,
}

/// State of the host: the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Time to start again.
    Until(Instant),
    /// A connection.
    Connection,
    /// INFO_RSP.
    Info,
    /// The answer to a request in this chunk: to OPEN, to a read of this many bytes, or to a request without data.
    Opened(u16),
    Read(u16, usize),
    Nothing(u16),
    /// The device is open, and the next request is due at this time.
    Idle(Instant),
}

/// The host.
pub struct Rogue {
    host: usize,
    own: Port,
    gateway: Port,
    roce: Roce,
    tx: Vec<TxBuffer>,
    rng: Rng,
    pd: PdId,
    cq: CqId,
    /// Memory for answers, requests and messages.
    data: Region,
    staging: Window,
    messages: Window,
    request: ConnectRequest,
    lines: Vec<Line>,
    places: Addressing,
    chunk_size: usize,
    chunks: Vec<Descriptor>,
    device: u32,
    waits: Waits,
    since: Instant,
    what: String,
    pub answered: u32,
}

impl Rogue {
    pub fn new(host: usize, own: Port, gateway: Port, memory: Window, mut rng: Rng) -> Self {
        let config = PortConfig { mac: own.mac, addresses: vec![own.ip], mtu: 1500 };
        let mut roce = Roce::new(config, LIMITS, &mut rng);
        roce.pin_neighbour(0, gateway.ip, gateway.mac);
        let mut arena = Arena::new(memory);
        let mut take = |bytes| arena.alloc(bytes, 4096).expect("room");
        let (data, staging) = (take(ROOM), take(ROOM + 4096));
        let messages = take(2 * RECEIVES * LONGEST);
        let pd = roce.alloc_pd().expect("room");
        let cq = roce.create_cq(1024).expect("room");
        let data = roce.register(pd, data, Access::REMOTE_WRITE, &mut rng).expect("room");
        Rogue {
            host,
            own,
            gateway,
            roce,
            tx: vec![TxBuffer::new()],
            rng,
            pd,
            cq,
            data,
            staging,
            messages,
            request: ConnectRequest {
                cid: 0,
                cid_num: 2,
                recon_cnt: 1,
                path: Uuid([0; 16]),
                session: Uuid([0; 16]),
                first: true,
            },
            lines: Vec::new(),
            places: Addressing::new(2),
            chunk_size: 0,
            chunks: Vec::new(),
            device: 0,
            waits: Waits::Until(Instant::ZERO),
            since: Instant::ZERO,
            what: String::new(),
            answered: 0,
        }
    }

    fn seen(&self) -> Vec<u8> {
        let mut bytes = vec![0; ROOM];
        self.data.memory.read(0, &mut bytes).expect("as long");
        bytes
    }

    /// Drops all state, and starts again later.
    fn restart(&mut self, now: Instant) {
        check(self.host, &self.seen(), format_args!("{}", self.what));
        for line in self.lines.drain(..) {
            let _ = self.roce.destroy_qp(line.qp);
        }
        self.chunks.clear();
        self.waits = Waits::Until(now + Duration::from_millis(self.rng.within(1..300)));
    }

    fn message(&self, line: usize, n: usize) -> Window {
        self.messages.slice((line * RECEIVES + n) * LONGEST, LONGEST).expect("one of them")
    }

    fn post_receive(&mut self, line: usize, n: usize) {
        let into = [self.message(line, n)];
        let request = RecvRequest { id: (line * RECEIVES + n) as u64, into: &into };
        // Fails if the queue pair has failed.
        let _ = self.roce.post_recv(self.lines[line].qp, &request);
    }

    fn connect(&mut self, now: Instant) {
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
        let parameters = ConnectionParameters {
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 1,
        };
        self.request.cid = self.lines.len() as u16;
        let Ok(qp) = self.roce.create_qp(&init, &mut self.rng) else { return self.restart(now) };
        let (from, to) = (self.own.ip, SocketAddr::new(self.gateway.ip, PORT));
        let private = self.request.emit();
        let asked = self.roce.connect(qp, from, to, &parameters, &private, now, &mut self.rng);
        let Ok(id) = asked else {
            let _ = self.roce.destroy_qp(qp);
            return self.restart(now);
        };
        self.lines.push(Line { qp, id });
        for n in 0..RECEIVES {
            self.post_receive(self.lines.len() - 1, n);
        }
        (self.waits, self.since) = (Waits::Connection, now);
    }

    fn post(&mut self, line: usize, operation: SendOperation<'_>) {
        let request = SendRequest {
            id: u64::MAX,
            operation,
            signaled: false,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        // Fails if the queue pair has failed, which a completion reports.
        let _ = self.roce.post_send(self.lines[line].qp, &request);
    }

    /// Sends INFO_REQ with its name.
    fn send_info(&mut self) {
        let mut bytes = [0; 272];
        let name = format!("host{}", self.host);
        bytes[2..2 + name.len()].copy_from_slice(name.as_bytes());
        self.staging.write(0, &bytes).expect("room");
        let message = [self.staging.slice(0, bytes.len()).expect("room")];
        let payload = Payload::Windows(&message);
        self.post(0, SendOperation::Send { payload, with: SendWith::Nothing });
        self.waits = Waits::Info;
    }

    /// Writes a request into a chunk: `length` bytes of data without the first `unsent`.
    fn ask(
        &mut self,
        chunk: u16,
        user: &[u8],
        length: usize,
        header: IoHeader,
        unsent: usize,
        announced: bool,
    ) {
        self.data.memory.fill(UNTOUCHED);
        let (header, header_len) = header.emit();
        self.staging.slice(0, length).expect("room").fill(mark(self.host));
        self.staging.write(length, user).expect("room");
        self.staging.write(length + user.len(), &header[..header_len]).expect("room");
        let all = length + user.len() + header_len;
        let Descriptor { address, key, .. } = self.chunks[usize::from(chunk)];
        let place = self.places.join(chunk, (length + user.len()) as u32);
        let sent = [self.staging.slice(unsent, all - unsent).expect("room")];
        self.post(
            1,
            SendOperation::Write {
                payload: Payload::Windows(&sent),
                to: RemoteAddress { address: address + unsent as u64, rkey: key },
                immediate: announced.then(|| Immediate::Request { place }.emit()),
            },
        );
    }

    fn room(&self, length: usize) -> Option<Descriptor> {
        let Region { address, rkey, .. } = self.data;
        Some(Descriptor { address, key: rkey, length: length as u32 })
    }

    fn open(&mut self) {
        // Mostly its own volume.
        let name = if self.rng.chance(900) { self.host } else { 1 + self.host % 3 };
        let name = Name::new(&format!("own{name}")).expect("a name");
        let user = Open { mode: Ok(AccessMode::ReadWrite), name }.emit();
        let (user_len, length) = (user.len() as u16, OpenResponse::SIZE);
        let header = IoHeader::Read { user_len, need_invalidate: false, into: self.room(length) };
        let chunk = self.rng.within(0..self.chunks.len() as u64) as u16;
        self.what = format!("OPEN {name}");
        self.ask(chunk, &user, length, header, length, true);
        self.waits = Waits::Opened(chunk);
    }

    /// Schedules the next request.
    fn rest(&mut self, now: Instant) {
        self.waits = Waits::Idle(now + Duration::from_micros(self.rng.within(1..20_000)));
    }

    /// Sends a random request.
    fn misbehave(&mut self, now: Instant) {
        self.rest(now);
        let rng = &mut self.rng;
        let most = self.chunk_size - 4096;
        let size = rng.pick(&[0, 512, 512, 4096, 8192, most / 512 * 512]);
        let length = if rng.chance(900) { size } else { rng.pick(&[0, 1, 512, 4096]) };
        let operation = rng.pick(&[
            Operation::Read,
            Operation::Read,
            Operation::Write,
            Operation::Write,
            Operation::Flush,
            Operation::Discard,
            Operation::SecureErase,
            Operation::WriteZeroes,
        ]);
        let (device, sector) = (self.device, rng.within(0..30));
        let flags = IoFlags::empty();
        let size = size as u32;
        let user = Io { device, sector, operation, flags, size, priority: 0 }.emit();
        let user_len = user.len() as u16;
        let chunk = rng.within(0..self.chunks.len() as u64) as u16;
        let reads = rng.chance(600);
        let unsent = match reads {
            true => length,
            // It sends all, none, or a part of the announced data.
            false => rng.pick(&[0, length, length, length / 2]),
        };
        let announced = rng.chance(950);
        let header = match reads && length > 0 {
            true => IoHeader::Read { user_len, need_invalidate: false, into: self.room(length) },
            false => IoHeader::Write { user_len },
        };
        let sound = reads && operation == Operation::Read && length == size as usize && length > 0;
        self.what = format!("{operation:?} of {size} as {header:?}, {unsent} of {length} unsent");
        self.ask(chunk, &user, length, header, unsent, announced);
        if announced {
            self.waits = if sound { Waits::Read(chunk, length) } else { Waits::Nothing(chunk) };
        }
    }

    /// Handles an answer.
    fn answer(&mut self, immediate: u32, key: Option<u32>, now: Instant) {
        let Immediate::Response { message, result, .. } = Immediate::parse(immediate) else {
            return;
        };
        if let (Some(key), Some(chunk)) = (key, self.chunks.get_mut(message as usize)) {
            chunk.key = key;
        }
        let bytes = self.seen();
        let what = format!("{}: {result:?}", self.what);
        let (chunk, length) = match self.waits {
            Waits::Opened(chunk) => (chunk, OpenResponse::SIZE),
            Waits::Read(chunk, length) => (chunk, length),
            Waits::Nothing(chunk) => (chunk, 0),
            _ => return,
        };
        if message != u32::from(chunk) {
            return;
        }
        self.answered += 1;
        check(self.host, &bytes, format_args!("{what}"));
        let length = if result.is_ok() { length } else { 0 };
        let untouched = bytes[length..].iter().all(|byte| *byte == UNTOUCHED);
        assert!(untouched, "host {} received data that it may not access: {what}", self.host);
        let opened = OpenResponse::parse(&bytes[..OpenResponse::SIZE]);
        match (self.waits, result) {
            (Waits::Opened(_), Ok(())) => {
                self.device = opened.expect("the answer is valid").device;
                let own = self.what == format!("OPEN own{}", self.host);
                assert!(own, "host {} opened a foreign volume: {what}", self.host);
                self.rest(now);
            }
            (Waits::Opened(_), Err(_)) => self.open(),
            _ if self.rng.chance(10) => self.restart(now),
            _ => self.rest(now),
        }
        self.since = now;
    }

    fn complete(&mut self, completion: &Completion, now: Instant) {
        let line = self.lines.iter().position(|line| line.qp == completion.qp);
        let Some(line) = line else { return };
        if completion.status != Status::Success {
            return self.restart(now);
        }
        let (length, immediate) = match completion.operation {
            CompletedOperation::Send | CompletedOperation::KeyChanged { .. } => return,
            CompletedOperation::Recv { length, with } => match with {
                SendWith::Immediate(immediate) => (length as usize, Some(immediate)),
                _ => (length as usize, None),
            },
            CompletedOperation::RecvWriteImmediate { immediate, .. } => (0, Some(immediate)),
        };
        let n = completion.id as usize % RECEIVES;
        let mut message = vec![0; length];
        self.message(line, n).read(0, &mut message).expect("as long");
        self.post_receive(line, n);
        match immediate {
            Some(immediate) => {
                let key = RkeyResponse::parse(&message).ok().map(|response| response.rkey);
                self.answer(immediate, key, now);
            }
            None if self.waits == Waits::Info => {
                check(self.host, &message, format_args!("INFO_RSP"));
                InfoResponse::parse(&message).expect("INFO_RSP is valid");
                self.chunks = InfoResponse::descriptors(&message).collect();
                self.open();
            }
            None => {}
        }
    }

    fn handle_event(&mut self, event: &ConnectionEvent, now: Instant) {
        match event {
            ConnectionEvent::Established { connection, private_data }
                if self.lines.last().is_some_and(|line| line.id == *connection) =>
            {
                let Ok(ConnectResponse::Accepted { queue_depth, max_io_size, max_header, .. }) =
                    ConnectResponse::parse(private_data.as_slice())
                else {
                    return self.restart(now);
                };
                self.places = Addressing::new(queue_depth);
                self.chunk_size = (max_io_size + max_header) as usize;
                if self.lines.len() < 2 { self.connect(now) } else { self.send_info() }
            }
            ConnectionEvent::Rejected { connection, .. }
            | ConnectionEvent::Disconnected { connection }
                if self.lines.iter().any(|line| line.id == *connection) =>
            {
                self.restart(now);
            }
            _ => {}
        }
    }
}

impl netsim::Node for Rogue {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        // The host sees the frame even if its engine drops it.
        check(self.host, frame, format_args!("a frame"));
        self.roce.handle_frame(port, frame, now);
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        transmit(&mut self.roce, &mut self.tx[port], port, now)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        let own = match self.waits {
            Waits::Until(at) | Waits::Idle(at) => at,
            _ => self.since + Duration::from_secs(2),
        };
        Instant::first([self.roce.poll_timeout(), Some(own)])
    }
    fn work(&mut self, now: Instant) {
        self.roce.handle_timeout(now);
        while let Some(event) = self.roce.poll_connection_event() {
            self.handle_event(&event, now);
        }
        while let Some(completion) = self.roce.poll_cq(self.cq) {
            self.complete(&completion, now);
        }
        match self.waits {
            Waits::Until(at) if at <= now => {
                self.rng.fill_bytes(&mut self.request.path.0);
                self.rng.fill_bytes(&mut self.request.session.0);
                self.data.memory.fill(UNTOUCHED);
                self.connect(now);
            }
            Waits::Idle(at) if at <= now => {
                self.misbehave(now);
                self.since = now;
            }
            Waits::Until(_) | Waits::Idle(_) => {}
            // No answer: the request ended the path, or was ignored.
            _ if now >= self.since + Duration::from_secs(2) => self.restart(now),
            _ => {}
        }
    }
}
