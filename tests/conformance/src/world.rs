//! Two nodes with the objects that most cases need: a domain, a completion queue and a queue pair each.

use crate::fixture::{Fixture, Offers};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use netsim::Rng;
use rand_core::Rng as _;
use verbs::*;

/// Time limit of a wait. (A request without an answer is given up after 16 times 4.3 s.)
const PATIENCE: Duration = Duration::from_secs(100);

/// Time for which the absence of an event is checked.
const QUIET: Duration = Duration::from_millis(5);

/// Connection parameters of both nodes.
pub const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 2,
    initiator_depth: 3,
    retry_count: 3,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

/// Send parameters of queue pairs that are joined without the connection manager: an ACK timeout of 67 ms.
pub const SEND: ReadyToSend =
    ReadyToSend { sq_psn: 0, max_rd_atomic: 4, ack_timeout: 14, retry_count: 3, rnr_retry: 7 };

/// First PSN of each node.
const PSNS: [u32; 2] = [0xff_fff0, 0x12_3456];

/// Two nodes.
pub struct World {
    fixture: Box<dyn Fixture>,
    /// Protection domains.
    pub pd: [PdId; 2],
    /// Completion queues, for sends and receives.
    pub cq: [CqId; 2],
    /// Queue pairs, in state Init.
    pub qp: [QpId; 2],
    /// The random generator.
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

/// Address and key of a region's first byte.
pub fn granted(region: &Region) -> RemoteAddress {
    RemoteAddress { address: region.address, rkey: region.rkey }
}

/// A WRITE of one byte.
pub fn write_byte(to: RemoteAddress) -> SendOperation<'static> {
    SendOperation::Write { payload: Payload::Inline(&[7]), to, immediate: None }
}

impl World {
    /// Creates the objects of both nodes.
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

    /// Parameters of new queue pairs.
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

    /// Optional features of the devices.
    pub fn offers(&self) -> Offers {
        self.fixture.offers()
    }

    /// The device of a node.
    pub fn device(&mut self, n: usize) -> &mut dyn RdmaDevice {
        self.fixture.device(n)
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.fixture.now()
    }

    /// The address of a node.
    pub fn address(&self, n: usize) -> core::net::IpAddr {
        self.fixture.address(n)
    }

    /// The address vector from a node to the other.
    pub fn way(&self, n: usize) -> AddressVector {
        self.fixture.way(n)
    }

    /// Drops all packets from now on.
    pub fn cut(&mut self) {
        self.fixture.cut();
    }

    /// Allocates memory of a node.
    pub fn memory(&mut self, n: usize, len: usize) -> Window {
        self.fixture.memory(n, len)
    }

    /// Allocates memory of a node with random contents.
    pub fn filled(&mut self, n: usize, len: usize) -> (Window, Vec<u8>) {
        let (window, mut bytes) = (self.memory(n, len), vec![0; len]);
        self.rng.fill_bytes(&mut bytes);
        window.write(0, &bytes).expect("its own length");
        (window, bytes)
    }

    /// Registers memory of a node for its peers.
    pub fn grant(&mut self, n: usize, memory: Window, access: Access) -> Region {
        let pd = self.pd[n];
        self.fixture.device(n).register(pd, memory, access, &mut self.rng).expect("a region")
    }

    /// Creates another queue pair of a node.
    pub fn queue_pair(&mut self, n: usize, init: &QpInit) -> QpId {
        self.fixture.device(n).create_qp(init, &mut self.rng).expect("a queue pair")
    }

    /// Advances time until `done`. Panics after the time limit.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let end = self.now() + PATIENCE;
        loop {
            if done(self) {
                return;
            }
            assert!(self.now() < end, "time limit exceeded: {what}");
            self.fixture.step(end);
        }
    }

    /// Advances time by [`QUIET`].
    pub fn pause(&mut self) {
        let end = self.now() + QUIET;
        while self.now() < end {
            self.fixture.step(end);
        }
    }

    /// Parameters of node `n` for the transition to ready-to-receive.
    pub fn to_receive(&mut self, n: usize, from: QpId) -> ReadyToReceive {
        ReadyToReceive {
            remote_qpn: self.device(1 - n).qp_number(from).expect("the queue pair exists"),
            rq_psn: PSNS[1 - n],
            path_mtu: PathMtu::Mtu1024,
            address: self.way(n),
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
        }
    }

    /// Parameters of node `n` for the transition to ready-to-send.
    pub fn to_send(n: usize) -> ReadyToSend {
        ReadyToSend { sq_psn: PSNS[n], ..SEND }
    }

    /// Joins a queue pair of each node, without the connection manager.
    pub fn join(&mut self, qps: [QpId; 2], to: ReadyToSend) {
        for n in 0..2 {
            let peer = self.to_receive(n, qps[1 - n]);
            self.device(n).ready_to_receive(qps[n], &peer).expect("the queue pair is in Init");
            let to = ReadyToSend { sq_psn: PSNS[n], ..to };
            self.device(n).ready_to_send(qps[n], &to).expect("the queue pair is in RTR");
        }
        self.until("both are ready to send", |world| {
            (0..2).all(|n| world.device(n).qp_state(qps[n]) == Ok(QpState::Rts))
        });
    }

    /// Joins the queue pairs of the world.
    pub fn connected(mut self) -> World {
        self.join(self.qp, SEND);
        self
    }

    /// Posts a signaled request to the queue pair of a node.
    pub fn post(&mut self, n: usize, id: u64, operation: SendOperation<'_>) {
        let qp = self.qp[n];
        self.device(n).post_send(qp, &request(id, operation)).expect("there is room");
    }

    /// Posts a receive to the queue pair of a node.
    pub fn post_recv(&mut self, n: usize, id: u64, into: &[Window]) {
        let qp = self.qp[n];
        self.device(n).post_recv(qp, &RecvRequest { id, into }).expect("there is room");
    }

    /// Waits for `count` completions of a node's queue.
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

    /// Waits for `count` completions of a node's queue. Returns their ids and statuses.
    pub fn statuses(&mut self, n: usize, count: usize) -> Vec<(u64, Status)> {
        self.completions(n, count).iter().map(|c| (c.id, c.status)).collect()
    }

    /// Checks that no completion follows.
    pub fn nothing_completes(&mut self) {
        self.pause();
        for n in 0..2 {
            let cq = self.cq[n];
            let more = self.device(n).poll_cq(cq);
            assert!(more.is_none(), "unexpected completion of node {n}: {more:?}");
        }
    }

    /// Runs one request of node 0 alone, and returns its status.
    pub fn attempt(&mut self, operation: SendOperation<'_>) -> Status {
        self.post(0, 99, operation);
        let [end] = self.statuses(0, 1)[..] else { unreachable!() };
        assert_eq!(end.0, 99);
        end.1
    }

    /// Waits until the queue pair of a node is in the error state.
    pub fn expect_error(&mut self, n: usize) {
        let qp = self.qp[n];
        self.until("a queue pair fails", |world| {
            world.device(n).qp_state(qp) == Ok(QpState::Error)
        });
    }

    /// Requests a connection from node 0 to node 1 for the world's queue pair.
    pub fn request_connection(
        &mut self,
        port: u16,
        data: &[u8],
    ) -> Result<ConnectionId, VerbsError> {
        self.request_connection_for(self.qp[0], port, data)
    }

    /// Requests a connection from node 0 to node 1 for this queue pair.
    pub fn request_connection_for(
        &mut self,
        qp: QpId,
        port: u16,
        data: &[u8],
    ) -> Result<ConnectionId, VerbsError> {
        let (from, to) = (self.address(0), SocketAddr::new(self.address(1), port));
        let (now, rng) = (self.fixture.now(), &mut self.rng);
        self.fixture.device(0).connect(qp, from, to, &PARAMETERS, data, now, rng)
    }

    /// Waits for the next event of a node's connection manager.
    pub fn event(&mut self, n: usize) -> ConnectionEvent {
        let mut found = None;
        self.until(&format!("an event of node {n}"), |world| {
            found = world.device(n).poll_connection_event();
            found.is_some()
        });
        found.expect("`until` has found one")
    }

    /// Checks that no connection event follows.
    pub fn no_event(&mut self) {
        self.pause();
        for n in 0..2 {
            let more = self.device(n).poll_connection_event();
            assert!(more.is_none(), "unexpected connection event of node {n}: {more:?}");
        }
    }

    /// Waits for a connection request at node 1.
    pub fn incoming_request(&mut self) -> (ConnectionId, ConnectionParameters) {
        match self.event(1) {
            ConnectionEvent::Request { connection, parameters, .. } => (connection, parameters),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// Connects the world's queue pairs by the connection manager. Returns the connection id of each node.
    pub fn connect(&mut self) -> [ConnectionId; 2] {
        self.connect_pairs(self.qp)
    }

    /// Connects these queue pairs by the connection manager. Returns the connection id of each node.
    pub fn connect_pairs(&mut self, qp: [QpId; 2]) -> [ConnectionId; 2] {
        let own = self.request_connection_for(qp[0], PORT, b"").expect("the request is sent");
        let (other, parameters) = self.incoming_request();
        let now = self.now();
        self.device(1)
            .accept(other, qp[1], &parameters, b"", now)
            .expect("the request is accepted");
        for (n, expected) in [(0, own), (1, other)] {
            match self.event(n) {
                ConnectionEvent::Established { connection, .. } => assert_eq!(connection, expected),
                other => panic!("expected a connection, got {other:?}"),
            }
        }
        [own, other]
    }

    /// Checks that the node's next event is the end of this connection.
    pub fn expect_disconnect(&mut self, n: usize, expected: ConnectionId) {
        match self.event(n) {
            ConnectionEvent::Disconnected { connection } => assert_eq!(connection, expected),
            other => panic!("expected a disconnect, got {other:?}"),
        }
    }

    /// Checks that node 1 receives a message from node 0.
    pub fn use_connection(&mut self) {
        let into = self.memory(1, 64);
        self.post_recv(1, 41, &[into]);
        self.post(0, 42, send_inline(b"hello"));
        assert_eq!(self.statuses(0, 1), [(42, Status::Success)]);
        assert_eq!(self.statuses(1, 1), [(41, Status::Success)]);
        assert_eq!(&netsim::contents(&into)[..5], b"hello");
    }
}

/// The port on which node 1 listens in cases of connections.
pub const PORT: u16 = 7;
