//! Two nodes with what most cases need: a domain, a completion queue and a queue pair each.

use crate::fixture::{Fixture, Offers};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use netsim::Rng;
use rand_core::RngCore;
use verbs::*;

/// How long anything may take. (A request that nobody answers is given up after 16 times 4.3 s.)
const PATIENCE: Duration = Duration::from_secs(100);

/// How long nothing may happen, where nothing should.
const QUIET: Duration = Duration::from_millis(5);

/// What both ask for when they connect.
pub const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 2,
    initiator_depth: 3,
    retry_count: 3,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

/// How queue pairs that are joined without the connection manager send: an ACK timeout of 67 ms.
pub const SEND: ReadyToSend =
    ReadyToSend { sq_psn: 0, max_rd_atomic: 4, ack_timeout: 14, retry_count: 3, rnr_retry: 7 };

/// PSNs that both begin with.
const PSNS: [u32; 2] = [0xff_fff0, 0x12_3456];

/// Two nodes.
pub struct World {
    fixture: Box<dyn Fixture>,
    /// Their domains,
    pub pd: [PdId; 2],
    /// completion queues, for sends and receives,
    pub cq: [CqId; 2],
    /// and queue pairs, in state Init.
    pub qp: [QpId; 2],
    /// All chance.
    pub rng: Rng,
}

/// A signaled request.
pub fn request(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

/// A SEND of these bytes, inline.
pub fn send_inline(bytes: &[u8]) -> SendOperation<'_> {
    SendOperation::Send { payload: Payload::Inline(bytes), with: SendWith::Nothing }
}

/// The first byte of a region, as its peer is told.
pub fn granted(region: &Region) -> RemoteAddress {
    RemoteAddress { address: region.address, rkey: region.rkey }
}

/// A WRITE of one byte.
pub fn write_byte(to: RemoteAddress) -> SendOperation<'static> {
    SendOperation::Write { payload: Payload::Inline(&[7]), to, immediate: None }
}

impl World {
    /// Two nodes.
    pub fn new(mut fixture: Box<dyn Fixture>) -> Self {
        let mut rng = Rng::new(7);
        let pd = [0, 1].map(|n| fixture.device(n).alloc_pd().expect("a domain"));
        let cq = [0, 1].map(|n| fixture.device(n).create_cq(1024).expect("a queue"));
        let qp = [0, 1].map(|n| {
            let init = Self::init(pd[n], cq[n]);
            fixture.device(n).create_qp(&init, &mut rng).expect("a queue pair")
        });
        World { fixture, pd, cq, qp, rng }
    }

    /// How queue pairs are made.
    pub fn init(pd: PdId, cq: CqId) -> QpInit {
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

    /// What the devices have that not each has.
    pub fn offers(&self) -> Offers {
        self.fixture.offers()
    }

    /// The device of a node.
    pub fn device(&mut self, n: usize) -> &mut dyn RdmaDevice {
        self.fixture.device(n)
    }

    /// The present.
    pub fn now(&self) -> Instant {
        self.fixture.now()
    }

    /// The address of a node.
    pub fn address(&self, n: usize) -> core::net::IpAddr {
        self.fixture.address(n)
    }

    /// The way from a node to the other.
    pub fn way(&self, n: usize) -> AddressVector {
        self.fixture.way(n)
    }

    /// Nothing arrives any more.
    pub fn cut(&mut self) {
        self.fixture.cut();
    }

    /// Memory of a node.
    pub fn memory(&mut self, n: usize, len: usize) -> Window {
        self.fixture.memory(n, len)
    }

    /// Memory of a node with something in it.
    pub fn filled(&mut self, n: usize, len: usize) -> (Window, Vec<u8>) {
        let (window, mut bytes) = (self.memory(n, len), vec![0; len]);
        self.rng.fill_bytes(&mut bytes);
        window.write(0, &bytes).expect("its own length");
        (window, bytes)
    }

    /// Grants memory of a node to its peers.
    pub fn grant(&mut self, n: usize, memory: Window, access: Access) -> Region {
        let pd = self.pd[n];
        self.fixture.device(n).register(pd, memory, access, &mut self.rng).expect("a region")
    }

    /// Another queue pair of a node.
    pub fn queue_pair(&mut self, n: usize, init: &QpInit) -> QpId {
        self.fixture.device(n).create_qp(init, &mut self.rng).expect("a queue pair")
    }

    /// Lets time pass until `done`; panics if that does not happen.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let end = self.now() + PATIENCE;
        loop {
            if done(self) {
                return;
            }
            assert!(self.now() < end, "this never came: {what}");
            self.fixture.step(end);
        }
    }

    /// Lets some time pass.
    pub fn pause(&mut self) {
        let end = self.now() + QUIET;
        while self.now() < end {
            self.fixture.step(end);
        }
    }

    /// What node `n` has to know of the other's queue pair to receive.
    pub fn to_receive(&mut self, n: usize, from: QpId) -> ReadyToReceive {
        ReadyToReceive {
            remote_qpn: self.device(1 - n).qp_number(from).expect("it is there"),
            rq_psn: PSNS[1 - n],
            path_mtu: PathMtu::Mtu1024,
            address: self.way(n),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        }
    }

    /// What node `n` has to know to send.
    pub fn to_send(n: usize) -> ReadyToSend {
        ReadyToSend { sq_psn: PSNS[n], ..SEND }
    }

    /// Joins a queue pair of each node, without the connection manager.
    pub fn join(&mut self, qps: [QpId; 2], to: ReadyToSend) {
        for n in 0..2 {
            let peer = self.to_receive(n, qps[1 - n]);
            self.device(n).ready_to_receive(qps[n], &peer).expect("it is in Init");
            let to = ReadyToSend { sq_psn: PSNS[n], ..to };
            self.device(n).ready_to_send(qps[n], &to).expect("it is in RTR");
        }
        self.until("both are ready to send", |world| {
            (0..2).all(|n| world.device(n).qp_state(qps[n]) == Ok(QpState::Rts))
        });
    }

    /// Joins the two queue pairs.
    pub fn connected(mut self) -> World {
        self.join(self.qp, SEND);
        self
    }

    /// Posts a signaled request to the queue pair of a node.
    pub fn post(&mut self, n: usize, id: u64, operation: SendOperation<'_>) {
        let qp = self.qp[n];
        self.device(n).post_send(qp, &request(id, operation)).expect("there is room");
    }

    /// Posts a receive likewise.
    pub fn post_recv(&mut self, n: usize, id: u64, into: &[Window]) {
        let qp = self.qp[n];
        self.device(n).post_recv(qp, &RecvRequest { id, into }).expect("there is room");
    }

    /// The next completions of a node's queue, as many.
    pub fn completions(&mut self, n: usize, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        self.until(&format!("{count} completions of node {n}"), |world| {
            let cq = world.cq[n];
            while all.len() < count
                && let Some(completion) = world.device(n).poll_cq(cq)
            {
                all.push(completion);
            }
            all.len() == count
        });
        all
    }

    /// Their ids and how they ended.
    pub fn ends(&mut self, n: usize, count: usize) -> Vec<(u64, Status)> {
        self.completions(n, count).iter().map(|c| (c.id, c.status)).collect()
    }

    /// Nothing more completes.
    pub fn nothing_completes(&mut self) {
        self.pause();
        for n in 0..2 {
            let cq = self.cq[n];
            let more = self.device(n).poll_cq(cq);
            assert!(more.is_none(), "node {n} completes what nobody waits for: {more:?}");
        }
    }

    /// Does one request of node 0, alone, and says how it ended.
    pub fn attempt(&mut self, operation: SendOperation<'_>) -> Status {
        self.post(0, 99, operation);
        let [end] = self.ends(0, 1)[..] else { unreachable!() };
        assert_eq!(end.0, 99);
        end.1
    }

    /// Waits for the queue pair of a node to be in error.
    pub fn fails(&mut self, n: usize) {
        let qp = self.qp[n];
        self.until("a queue pair fails", |world| {
            world.device(n).qp_state(qp) == Ok(QpState::Error)
        });
    }

    /// Node 0 asks node 1 for a connection of its queue pair.
    pub fn ask(&mut self, port: u16, data: &[u8]) -> Result<ConnectionId, VerbsError> {
        self.ask_with(self.qp[0], port, data)
    }

    /// Likewise, of another queue pair.
    pub fn ask_with(
        &mut self,
        qp: QpId,
        port: u16,
        data: &[u8],
    ) -> Result<ConnectionId, VerbsError> {
        let (from, to) = (self.address(0), SocketAddr::new(self.address(1), port));
        let (now, rng) = (self.fixture.now(), &mut self.rng);
        self.fixture.device(0).connect(qp, from, to, &PARAMETERS, data, now, rng)
    }

    /// The next event of a node's connection manager.
    pub fn event(&mut self, n: usize) -> ConnectionEvent {
        let mut found = None;
        self.until(&format!("an event of node {n}"), |world| {
            found = world.device(n).poll_connection_event();
            found.is_some()
        });
        found.expect("that was waited for")
    }

    /// Nothing more is told of connections.
    pub fn no_event(&mut self) {
        self.pause();
        for n in 0..2 {
            let more = self.device(n).poll_connection_event();
            assert!(more.is_none(), "node {n} is told what nobody waits for: {more:?}");
        }
    }

    /// The request that has come to node 1.
    pub fn asked(&mut self) -> (ConnectionId, ConnectionParameters) {
        match self.event(1) {
            ConnectionEvent::Request { connection, parameters, .. } => (connection, parameters),
            other => panic!("a request was expected, and not {other:?}"),
        }
    }

    /// Connects the two queue pairs by the connection manager; the connection as each names it.
    pub fn meet(&mut self) -> [ConnectionId; 2] {
        self.meet_with(self.qp)
    }

    /// Likewise, other queue pairs.
    pub fn meet_with(&mut self, qp: [QpId; 2]) -> [ConnectionId; 2] {
        let own = self.ask_with(qp[0], PORT, b"").expect("it can ask");
        let (other, parameters) = self.asked();
        let now = self.now();
        self.device(1).accept(other, qp[1], &parameters, b"", now).expect("it can accept");
        for (n, expected) in [(0, own), (1, other)] {
            match self.event(n) {
                ConnectionEvent::Established { connection, .. } => assert_eq!(connection, expected),
                other => panic!("a connection was expected, and not {other:?}"),
            }
        }
        [own, other]
    }

    /// The connection of a node is over, and it is told of that next.
    pub fn is_over(&mut self, n: usize, expected: ConnectionId) {
        match self.event(n) {
            ConnectionEvent::Disconnected { connection } => assert_eq!(connection, expected),
            other => panic!("the end was expected, and not {other:?}"),
        }
    }

    /// Node 0 sends something to node 1, which receives it.
    pub fn use_connection(&mut self) {
        let into = self.memory(1, 64);
        self.post_recv(1, 41, &[into]);
        self.post(0, 42, send_inline(b"hello"));
        assert_eq!(self.ends(0, 1), [(42, Status::Success)]);
        assert_eq!(self.ends(1, 1), [(41, Status::Success)]);
        assert_eq!(&netsim::contents(&into)[..5], b"hello");
    }
}

/// The port that node 1 listens on, once a case has it so.
pub const PORT: u16 = 7;
