//! A client that keeps to no protocol: the project's own RoCE engine in this process, on a network of its
//! own with the appliance, and above it connection requests and RTRS requests of any content. What an
//! honest client would look at is handed to the test as it came.

mod session;

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use drivers::hal::Window;
use launch::qemu::Nic;
use rand::Rng;
use rtrs::Errno;
use rtrs::wire::{ConnectRequest, ConnectResponse, InfoResponse, Uuid};
use tempfile::TempDir;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Provider, QpId, QpInit,
    QpType, RecvRequest, RejectReason, SendOperation, SendRequest,
};

use crate::host::{Host, MTU, Resident};
use crate::port::DgramPort;
pub use session::{Fate, Request, Session};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Receives of a connection, and bytes of the first and of the others.
const RECEIVES: usize = 32;
const INFO: usize = InfoResponse::message_size(2048);
const SMALL: usize = 64;
/// The id of everything that is sent.
const SEND: u64 = u64::MAX;
/// Connection requests that one engine makes: beyond that it is made anew, as if it had been started anew.
const REQUESTS: usize = 250;

const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 0,
    initiator_depth: 0,
    retry_count: 2,
    rnr_retry_count: 2,
    min_rnr_timer: 12,
};

/// The stranger, 10.0.N.2 on network N.
pub struct Stranger {
    host: Host,
    mac: Option<[u8; 6]>,
    events: VecDeque<ConnectionEvent>,
    /// What the server said when it last let a connection in.
    offer: Option<ConnectResponse>,
    directory: TempDir,
}

/// How a connection request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knock {
    /// Let in.
    Accepted,
    /// Refused by the RTRS server.
    Refused(Errno),
    /// Refused for another reason.
    Rejected(RejectReason),
}

/// A connection that stands.
pub struct Line {
    id: ConnectionId,
    qp: QpId,
    receives: Window,
}

impl Line {
    /// Where the receive with that number puts its message: number 0 has room for an INFO_RSP.
    fn receive(&self, n: u64) -> Result<Window> {
        let (at, len) = if n == 0 { (0, INFO) } else { (INFO + (n as usize - 1) * SMALL, SMALL) };
        self.receives.slice(at, len).context("a receive")
    }
}

impl Resident for Stranger {
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
    /// On network N; its engine has not said a word yet.
    pub fn new(network: usize) -> Result<Stranger> {
        let directory = tempfile::Builder::new().prefix("isthmus-stranger-").tempdir()?;
        let ours = directory.path().join("stranger");
        let port = DgramPort::new(&ours, &directory.path().join("appliance"), MAC, MTU)?;
        let host = Host::new(network, port)?;
        Ok(Stranger { host, mac: None, events: VecDeque::new(), offer: None, directory })
    }

    /// The interface of the appliance at the other end.
    pub fn nic(&self) -> Nic {
        let path = |name| self.directory.path().join(name);
        Nic::Dgram { ours: path("appliance"), peer: path("stranger") }
    }

    /// Asks who has the appliance's address.
    fn meet(&mut self) -> Result<()> {
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

    fn ask(&mut self, qp: QpId, port: u16, private_data: &[u8]) -> Result<ConnectionId> {
        let (from, to, now) = (self.host.address.into(), self.host.service(port), self.host.now());
        let Host { roce, rng, .. } = &mut self.host;
        let asked = roce.connect(qp, from, to, &PARAMETERS, private_data, now, rng);
        asked.map_err(|error| anyhow!("no connection request: {error:?}"))
    }

    /// Asks for a connection with these private data; what the answer is, and the connection.
    pub fn knock(&mut self, port: u16, private_data: &[u8]) -> Result<(Knock, Option<Line>)> {
        self.meet()?;
        let qp = self.make_qp()?;
        let receives = INFO + (RECEIVES - 1) * SMALL;
        let receives = self.host.arena.alloc(receives, 64).context("memory")?;
        let id = self.ask(qp, port, private_data)?;
        let line = Line { id, qp, receives };
        for n in 0..RECEIVES as u64 {
            self.post_receive(&line, n)?;
        }
        let mut accepted = None;
        let knock =
            self.until("a connection request", |stranger| match stranger.events.pop_front()? {
                ConnectionEvent::Established { connection, private_data } if connection == id => {
                    accepted = ConnectResponse::parse(private_data.as_slice()).ok();
                    Some(Knock::Accepted)
                }
                ConnectionEvent::Rejected { connection, reason, private_data }
                    if connection == id =>
                {
                    match ConnectResponse::parse(private_data.as_slice()) {
                        Ok(ConnectResponse::Refused(errno)) if reason == RejectReason::CONSUMER => {
                            Some(Knock::Refused(errno))
                        }
                        _ => Some(Knock::Rejected(reason)),
                    }
                }
                _ => None,
            })?;
        self.offer = accepted;
        if knock == Knock::Accepted {
            return Ok((knock, Some(line)));
        }
        self.hang_up(line);
        Ok((knock, None))
    }

    /// Ends a connection in order.
    pub fn hang_up(&mut self, line: Line) {
        // It may be gone already: then it is as it shall be.
        let _ = self.host.roce.destroy_qp(line.qp);
        self.host.arena.free(line.receives);
    }

    fn post_receive(&mut self, line: &Line, n: u64) -> Result<()> {
        let request = RecvRequest { id: n, into: &[line.receive(n)?] };
        self.host
            .roce
            .post_recv(line.qp, &request)
            .map_err(|error| anyhow!("no receive: {error:?}"))
    }

    fn post(&mut self, line: &Line, operation: SendOperation<'_>) -> Result<()> {
        let request = SendRequest {
            id: SEND,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        self.host.roce.post_send(line.qp, &request).map_err(|error| anyhow!("no send: {error:?}"))
    }

    /// Asks for so many connections of sessions that do not exist, and never hears the answers; each
    /// engine that asks is gone soon.
    pub fn half_open(&mut self, count: usize) -> Result<()> {
        for n in 0..count {
            if n % REQUESTS == 0 {
                self.host.forget()?;
                self.meet()?;
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
            self.ask(qp, 1234, &request.emit())?;
            self.host.deaf = true;
            self.round();
            self.host.deaf = false;
        }
        self.host.forget()?;
        self.events.clear();
        Ok(())
    }
}
