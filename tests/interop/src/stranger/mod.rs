//! A client that keeps to no protocol: the project's own RoCE engine in this process, on a network of its
//! own with the appliance, and above it connection requests and RTRS requests of any content. What an
//! honest client would look at is handed to the test as it came.

mod session;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use drivers::hal::{Arena, Port, Window};
use launch::qemu::Nic;
use net::{Addressing, Class, Interface, Resolution};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdma::roce::{Limits, PortConfig, Roce, TxBuffer};
use rdma::rtrs::Errno;
use rdma::rtrs::wire::{ConnectRequest, ConnectResponse, InfoResponse, Uuid};
use rdma::verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, CqId, PdId, Provider,
    QpId, QpInit, QpType, RecvRequest, RejectReason, SendOperation, SendRequest,
};
use tempfile::TempDir;

use crate::port::DgramPort;
pub use session::{Fate, Request, Session};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MTU: usize = 1500;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
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
    address: IpAddr,
    server: IpAddr,
    port: DgramPort,
    interface: Interface,
    mac: Option<[u8; 6]>,
    roce: Roce,
    arena: Arena,
    rng: StdRng,
    started: Instant,
    pd: PdId,
    cq: CqId,
    tx: TxBuffer,
    tx_waits: bool,
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

impl Stranger {
    /// On network N; its engine has not said a word yet.
    pub fn new(network: usize) -> Result<Stranger> {
        let directory = tempfile::Builder::new().prefix("isthmus-stranger-").tempdir()?;
        let ours = directory.path().join("stranger");
        let port = DgramPort::new(&ours, &directory.path().join("appliance"), MAC, MTU)?;
        let address: IpAddr = format!("10.0.{network}.2").parse()?;
        let mut rng = StdRng::from_os_rng();
        let mut interface = Interface::new(MAC, MTU, rng.random(), drivers::hal::Instant::ZERO);
        let cidr = format!("{address}/24").parse().map_err(|()| anyhow!("no address"))?;
        let addressing = Addressing { addresses: vec![cidr], ..Addressing::default() };
        let set = interface.set_addressing(addressing, drivers::hal::Instant::ZERO);
        set.map_err(|error| anyhow!("{error}"))?;
        let (roce, pd, cq) = engine(address, &mut rng)?;
        Ok(Stranger {
            address,
            server: format!("10.0.{network}.1").parse()?,
            port,
            interface,
            mac: None,
            roce,
            arena: Arena::on_heap(64 << 20),
            rng,
            started: Instant::now(),
            pd,
            cq,
            tx: TxBuffer::new(),
            tx_waits: false,
            events: VecDeque::new(),
            offer: None,
            directory,
        })
    }

    /// The interface of the appliance at the other end.
    pub fn nic(&self) -> Nic {
        let path = |name| self.directory.path().join(name);
        Nic::Dgram { ours: path("appliance"), peer: path("stranger") }
    }

    fn now(&self) -> drivers::hal::Instant {
        drivers::hal::Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// One round of the loop. Frames for the RoCE engine are lost if it is `deaf`.
    fn round(&mut self, deaf: bool) {
        let now = self.now();
        let mut worked = false;
        while let Some(frame) = self.port.receive() {
            worked = true;
            let bytes = self.port.bytes(&frame);
            match net::classify(bytes) {
                Class::Roce if deaf => (),
                Class::Roce => drop(self.roce.handle_frame(0, bytes, now)),
                _ => self.interface.handle_frame(bytes, now),
            }
            self.port.recycle(frame);
        }
        self.interface.poll(now);
        self.interface.transmit(&mut self.port, |_| ());
        if self.roce.poll_timeout().is_some_and(|at| at <= now) {
            self.roce.handle_timeout(now);
        }
        while self.tx_waits || self.roce.poll_transmit(0, now, &mut self.tx) {
            self.tx_waits = self.port.transmit(&self.tx.packet()).is_err();
            if self.tx_waits {
                break;
            }
            worked = true;
        }
        while let Some(event) = self.roce.poll_connection_event() {
            self.events.push_back(event);
        }
        if !worked {
            self.port.wait(Duration::from_millis(1));
        }
    }

    /// Runs the loop until `done` says what came of it.
    fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Stranger) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.round(false);
            if let Some(result) = done(self) {
                return Ok(result);
            }
            ensure!(Instant::now() < deadline, "{what}: nothing within {PATIENCE:?}");
        }
    }

    /// Goes on for a while without wanting anything.
    pub fn idle(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.round(false);
        }
    }

    /// Asks who has the appliance's address.
    fn meet(&mut self) -> Result<()> {
        if self.mac.is_none() {
            let server = self.server;
            let mac = self.until("looking for the appliance", |stranger| {
                let now = stranger.now();
                match stranger.interface.resolve(server, now) {
                    Resolution::Known(mac) => Some(mac),
                    _ => None,
                }
            })?;
            self.mac = Some(mac);
        }
        self.roce.learn_neighbour(self.server, self.mac.context("met")?);
        Ok(())
    }

    fn make_qp(&mut self) -> Result<QpId> {
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
        let qp = self.roce.create_qp(&init, &mut self.rng);
        qp.map_err(|error| anyhow!("no queue pair: {error:?}"))
    }

    fn ask(&mut self, qp: QpId, port: u16, private_data: &[u8]) -> Result<ConnectionId> {
        let (from, to, now) = (self.address, SocketAddr::new(self.server, port), self.now());
        let asked = self.roce.connect(qp, from, to, &PARAMETERS, private_data, now, &mut self.rng);
        asked.map_err(|error| anyhow!("no connection request: {error:?}"))
    }

    /// Asks for a connection with these private data; what the answer is, and the connection.
    pub fn knock(&mut self, port: u16, private_data: &[u8]) -> Result<(Knock, Option<Line>)> {
        self.meet()?;
        let qp = self.make_qp()?;
        let receives = INFO + (RECEIVES - 1) * SMALL;
        let receives = self.arena.alloc(receives, 64).context("memory")?;
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
        let _ = self.roce.destroy_qp(line.qp);
        self.arena.free(line.receives);
    }

    fn post_receive(&mut self, line: &Line, n: u64) -> Result<()> {
        let request = RecvRequest { id: n, into: &[line.receive(n)?] };
        self.roce.post_recv(line.qp, &request).map_err(|error| anyhow!("no receive: {error:?}"))
    }

    fn post(&mut self, line: &Line, operation: SendOperation<'_>) -> Result<()> {
        let request = SendRequest {
            id: SEND,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            unhurried: false,
        };
        self.roce.post_send(line.qp, &request).map_err(|error| anyhow!("no send: {error:?}"))
    }

    /// Asks for so many connections of sessions that do not exist, and never hears the answers; each
    /// engine that asks is gone soon.
    pub fn half_open(&mut self, count: usize) -> Result<()> {
        for n in 0..count {
            if n % REQUESTS == 0 {
                (self.roce, self.pd, self.cq) = engine(self.address, &mut self.rng)?;
                self.meet()?;
            }
            let request = ConnectRequest {
                cid: 0,
                cid_num: 2,
                recon_cnt: 1,
                path: Uuid(self.rng.random()),
                session: Uuid(self.rng.random()),
                first: true,
            };
            let qp = self.make_qp()?;
            self.ask(qp, 1234, &request.emit())?;
            self.round(true);
        }
        (self.roce, self.pd, self.cq) = engine(self.address, &mut self.rng)?;
        self.events.clear();
        Ok(())
    }
}

/// An engine as after a start, with a protection domain and a completion queue.
fn engine(address: IpAddr, rng: &mut StdRng) -> Result<(Roce, PdId, CqId)> {
    let config = PortConfig { mac: MAC, addresses: vec![address], mtu: MTU };
    let mut roce = Roce::new(config, Limits::default(), rng);
    let pd = roce.alloc_pd().map_err(|error| anyhow!("{error:?}"))?;
    let cq = roce.create_cq(4096).map_err(|error| anyhow!("{error:?}"))?;
    Ok((roce, pd, cq))
}
