//! A malicious RTRS client: the project's RoCE engine in this process, on a network of its own with the appliance, with
//! connection requests and RTRS requests of any content above it. Replies are handed to the test unchecked.

mod session;

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use drivers::hal::Window;
use launch::qemu::Nic;
use rand::RngExt;
use rtrs::Errno;
use rtrs::wire::{ConnectRequest, ConnectResponse, InfoResponse, Uuid};
use tempfile::TempDir;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Provider, QpId, QpInit,
    QpType, RecvRequest, RejectReason, SendOperation, SendRequest,
};

use crate::host::{Host, HostLoop, MTU};
use crate::port::DgramPort;
pub use session::{Fate, Request, Session};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Receives of a connection.
const RECEIVES: usize = 32;
/// Bytes of the first receive, which takes the INFO_RSP.
const INFO: usize = InfoResponse::message_size(2048);
/// Bytes of each other receive.
const SMALL: usize = 64;
/// Work request id of all sends.
const SEND: u64 = u64::MAX;
/// Connection requests after which the engine is replaced, as if the client had restarted.
const REQUESTS: usize = 250;

const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 0,
    initiator_depth: 0,
    retry_count: 2,
    rnr_retry_count: 2,
    min_rnr_timer: 12,
};

/// The client, 10.0.N.2 on network N.
pub struct Stranger {
    host: Host,
    mac: Option<[u8; 6]>,
    events: VecDeque<ConnectionEvent>,
    /// The server's reply to the last accepted connection.
    offer: Option<ConnectResponse>,
    directory: TempDir,
}

/// How a connection request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// Accepted.
    Accepted,
    /// Refused by the RTRS server, with an error number.
    Refused(Errno),
    /// Rejected for another reason.
    Rejected(RejectReason),
}

/// An established connection.
pub struct Connection {
    id: ConnectionId,
    qp: QpId,
    receives: Window,
}

impl Connection {
    /// The buffer of a receive. Number 0 has room for an INFO_RSP.
    fn receive_buffer(&self, n: u64) -> Result<Window> {
        let (at, len) = if n == 0 { (0, INFO) } else { (INFO + (n as usize - 1) * SMALL, SMALL) };
        self.receives.slice(at, len).context("a receive")
    }
}

impl HostLoop for Stranger {
    const PATIENCE: Duration = Duration::from_secs(20);

    fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn round(&mut self) {
        self.host.round();
        while let Some(event) = self.host.roce.poll_connection_event() {
            self.events.push_back(event);
        }
    }
}

impl Stranger {
    /// A client on network N, whose engine has not sent anything yet.
    pub fn new(network: usize) -> Result<Stranger> {
        let directory = tempfile::Builder::new().prefix("isthmus-stranger-").tempdir()?;
        let ours = directory.path().join("stranger");
        let port = DgramPort::new(&ours, &directory.path().join("appliance"), MAC, MTU)?;
        let host = Host::new(network, port)?;
        Ok(Stranger { host, mac: None, events: VecDeque::new(), offer: None, directory })
    }

    /// The appliance's interface at the other end.
    pub fn nic(&self) -> Nic {
        let path = |name| self.directory.path().join(name);
        Nic::Dgram { ours: path("appliance"), peer: path("stranger") }
    }

    /// Resolves the appliance's MAC address, and pins it in the engine.
    fn resolve_server(&mut self) -> Result<()> {
        let mac = match self.mac {
            Some(mac) => mac,
            None => self.find_server()?,
        };
        self.mac = Some(mac);
        self.host.roce.pin_neighbour(0, self.host.server.into(), mac);
        Ok(())
    }

    fn make_qp(&mut self) -> Result<QpId> {
        let init = QpInit {
            kind: QpType::Rc,
            pd: self.host.pd,
            send_cq: self.host.cq,
            recv_cq: self.host.cq,
            max_send_wr: 16,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = self.host.roce.create_qp(&init, &mut self.host.rng);
        qp.map_err(|error| anyhow!("no queue pair: {error:?}"))
    }

    fn send_request(&mut self, qp: QpId, port: u16, private_data: &[u8]) -> Result<ConnectionId> {
        let (from, to, now) = (self.host.address.into(), self.host.service(port), self.host.now());
        let Host { roce, rng, .. } = &mut self.host;
        let sent = roce.connect(qp, from, to, &PARAMETERS, private_data, now, rng);
        sent.map_err(|error| anyhow!("no connection request: {error:?}"))
    }

    /// Requests a connection with these private data.
    pub fn connect(
        &mut self,
        port: u16,
        private_data: &[u8],
    ) -> Result<(ConnectOutcome, Option<Connection>)> {
        self.resolve_server()?;
        let qp = self.make_qp()?;
        let receives = INFO + (RECEIVES - 1) * SMALL;
        let receives = self.host.arena.alloc(receives, 64).context("memory")?;
        let id = self.send_request(qp, port, private_data)?;
        let connection = Connection { id, qp, receives };
        for n in 0..RECEIVES as u64 {
            self.post_receive(&connection, n)?;
        }
        let mut accepted = None;
        let outcome =
            self.until("a connection request", |stranger| match stranger.events.pop_front()? {
                ConnectionEvent::Established { connection, private_data } if connection == id => {
                    accepted = ConnectResponse::parse(private_data.as_slice()).ok();
                    Some(ConnectOutcome::Accepted)
                }
                ConnectionEvent::Rejected { connection, reason, private_data }
                    if connection == id =>
                {
                    match ConnectResponse::parse(private_data.as_slice()) {
                        Ok(ConnectResponse::Refused(errno)) if reason == RejectReason::CONSUMER => {
                            Some(ConnectOutcome::Refused(errno))
                        }
                        _ => Some(ConnectOutcome::Rejected(reason)),
                    }
                }
                _ => None,
            })?;
        self.offer = accepted;
        if outcome == ConnectOutcome::Accepted {
            return Ok((outcome, Some(connection)));
        }
        self.disconnect(connection);
        Ok((outcome, None))
    }

    /// Destroys a connection's queue pair, and frees its buffers.
    pub fn disconnect(&mut self, connection: Connection) {
        // Fails if the queue pair is gone already, which is fine.
        let _ = self.host.roce.destroy_qp(connection.qp);
        self.host.arena.free(connection.receives);
    }

    fn post_receive(&mut self, connection: &Connection, n: u64) -> Result<()> {
        let request = RecvRequest { id: n, into: &[connection.receive_buffer(n)?] };
        self.host
            .roce
            .post_recv(connection.qp, &request)
            .map_err(|error| anyhow!("no receive: {error:?}"))
    }

    fn post(&mut self, connection: &Connection, operation: SendOperation<'_>) -> Result<()> {
        let request = SendRequest {
            id: SEND,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        self.host
            .roce
            .post_send(connection.qp, &request)
            .map_err(|error| anyhow!("no send: {error:?}"))
    }

    /// Leaves this many connection requests half open: they are for sessions that do not exist, and the client drops
    /// the replies. The engine is replaced after every `REQUESTS` of them.
    pub fn half_open(&mut self, count: usize) -> Result<()> {
        for n in 0..count {
            if n % REQUESTS == 0 {
                self.host.restart_engine()?;
                self.resolve_server()?;
            }
            let request = ConnectRequest {
                cid: 0,
                cid_num: 2,
                recon_cnt: 1,
                path: Uuid(self.host.rng.random()),
                session: Uuid(self.host.rng.random()),
                first: true,
            };
            let qp = self.make_qp()?;
            self.send_request(qp, 1234, &request.emit())?;
            self.host.deaf = true;
            self.round();
            self.host.deaf = false;
        }
        self.host.restart_engine()?;
        self.events.clear();
        Ok(())
    }
}
