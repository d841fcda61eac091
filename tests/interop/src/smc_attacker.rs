//! Malicious SMC-R clients: the project's RoCE and IP engines in this process, on a network of their own with the
//! appliance, with CLC, LLC and CDC messages of any content above them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use drivers::hal::Window;
use net::connector::{ConnectionHandle, Progress};
use rand::RngExt;
use smcr::wire::cdc::{Cdc, Cursor, End, Producer};
use smcr::wire::llc::{Body, LinkEnd, Llc, Order, Token};
use smcr::wire::{
    AcceptConfirm, Eid, FirstContact, MessageType, Negotiated, Os, PathType, PeerId, Proposal,
    ProposalV2, frame_length,
};
use verbs::{
    Access, AddressVector, CompletedOperation, GidType, MemoryVerbs, PathMtu, Payload, Provider,
    QpId, QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest, Region, RemoteAddress,
    SendOperation, SendRequest, SendWith, Status,
};

use crate::host::{Host, HostLoop};
use crate::port::DgramPort;

/// Receives of a queue pair.
const RECEIVES: usize = 128;
/// Bytes of a receive, because some messages are longer than 44.
const RECEIVE: usize = 128;
/// Size code of the receive buffer, and its bytes.
const RMB: (u8, usize) = (0, 16 << 10);
/// Alert token of the client's RMB element.
const TOKEN: u32 = 0x11a1;

/// An attack that a client repeats.
#[derive(Clone, Copy, Debug)]
pub enum Attack {
    /// Bytes that are not CLC, and Proposals with a few bytes changed.
    Garbage,
    /// Handshakes that stop at any stage.
    HalfHandshakes,
    /// CDC messages with impossible cursors.
    Cursors,
    /// RDMA WRITEs with the key of a closed connection, and beyond the buffer of an open one.
    StaleKeys,
    /// LLC requests, valid, invalid and unknown, as fast as possible.
    Floods,
}

/// The client, 10.0.N.2 on network N.
pub struct Attacker {
    host: Host,
    server_mac: [u8; 6],
}

/// A queue pair with its memory.
struct Pair {
    qp: QpId,
    qpn: u32,
    psn: u32,
    receives: Window,
    rmb: Region,
}

/// An established connection.
struct Session {
    link: ConnectionHandle,
    pair: Pair,
    /// The appliance's receive buffer.
    to: RemoteAddress,
    token: u32,
}

impl HostLoop for Attacker {
    const PATIENCE: Duration = Duration::from_secs(10);

    fn host(&mut self) -> &mut Host {
        &mut self.host
    }
}

impl Attacker {
    /// A client on network N. The appliance is at the other end of `port`.
    pub fn new(network: usize, port: DgramPort) -> Result<Attacker> {
        let mut attacker = Attacker { host: Host::new(network, port)?, server_mac: [0; 6] };
        attacker.server_mac = attacker.find_server()?;
        Ok(attacker)
    }

    /// Repeats an attack for a while, and returns how often it was carried out.
    pub fn repeat(&mut self, attack: Attack, time: Duration) -> Result<u32> {
        let end = Instant::now() + time;
        let mut times = 0;
        while Instant::now() < end {
            let done = match attack {
                Attack::Garbage => self.send_garbage(),
                Attack::HalfHandshakes => self.stop_handshake(),
                Attack::Cursors => self.send_invalid_cursor(),
                Attack::StaleKeys => self.use_stale_keys(),
                Attack::Floods => self.flood(),
            };
            // The appliance may refuse this client at any stage.
            times += u32::from(done.is_ok());
            self.idle(Duration::from_millis(5));
        }
        ensure!(times > 0, "{attack:?}: no attempt was carried out");
        Ok(times)
    }

    /// Opens a TCP connection to the echo service, on which both sides offer SMC.
    fn connect(&mut self) -> Result<ConnectionHandle> {
        let to = self.host.service(7);
        let link =
            self.host.connector.connect(&mut self.host.interface, to, true).context("no room")?;
        let open = self.until("connecting", |this| {
            match this.host.connector.progress(&this.host.interface, link) {
                Progress::Opening => None,
                Progress::Open { smc } => Some(smc),
                Progress::Gone => Some(false),
            }
        });
        if !matches!(open, Ok(true)) {
            self.hang_up(link);
        }
        ensure!(open?, "refused");
        Ok(link)
    }

    fn hang_up(&mut self, link: ConnectionHandle) {
        self.host.connector.close(&mut self.host.interface, link, true);
    }

    fn write(&mut self, link: ConnectionHandle, bytes: &[u8]) {
        // The buffer has room. If the connection is gone, the next read fails.
        let _ = self.host.connector.write(&mut self.host.interface, link, bytes);
    }

    /// Reads the next CLC message.
    fn read_clc(&mut self, link: ConnectionHandle) -> Result<Vec<u8>> {
        let mut message = Vec::new();
        self.until("a CLC message", |this| {
            let mut piece = [0; 512];
            match this.host.connector.read(&mut this.host.interface, link, &mut piece) {
                Ok(count) => message.extend_from_slice(&piece[..count]),
                Err(_) => return Some(()),
            }
            let length = frame_length(&message).ok().flatten();
            length.filter(|&length| message.len() >= length).map(drop)
        })?;
        Ok(message)
    }

    /// A Proposal with a new peer ID.
    fn proposal(&mut self) -> Vec<u8> {
        let proposal = Proposal {
            version: 2,
            v1_type: PathType::None,
            v2_type: PathType::R,
            peer_id: PeerId(self.host.rng.random()),
            gid: Ipv4Addr::UNSPECIFIED.to_ipv6_compatible(),
            mac: [0; 6],
            prefixes: None,
            v2: Some(ProposalV2 {
                eids: Eid::new("LAB.SMC.EID").into_iter().collect(),
                release: 1,
                gid: self.host.address.to_ipv6_mapped(),
                max_conns: 255,
                max_links: 1,
                features: 0,
            }),
        };
        proposal.emit()
    }

    fn make_pair(&mut self) -> Result<Pair> {
        let init = QpInit {
            kind: QpType::Rc,
            pd: self.host.pd,
            send_cq: self.host.cq,
            recv_cq: self.host.cq,
            max_send_wr: 64,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
        };
        let receives = self.host.arena.alloc(RECEIVES * RECEIVE, 64).context("memory")?;
        let memory = self.host.arena.alloc(RMB.1, 4096).context("memory")?;
        let Host { roce, pd, rng, .. } = &mut self.host;
        let fail = |error| anyhow!("{error:?}");
        let rmb = roce.register(*pd, memory, Access::REMOTE_WRITE, rng).map_err(fail)?;
        let qp = roce.create_qp(&init, rng).map_err(fail)?;
        let qpn = roce.qp_number(qp).map_err(fail)?;
        let pair = Pair { qp, qpn, psn: rng.random::<u32>() & 0xff_ffff, receives, rmb };
        for n in 0..RECEIVES {
            self.receive(&pair, n)?;
        }
        Ok(pair)
    }

    fn receive(&mut self, pair: &Pair, n: usize) -> Result<()> {
        let into = [pair.receives.slice(n * RECEIVE, RECEIVE).context("a receive")?];
        let request = RecvRequest { id: n as u64, into: &into };
        self.host.roce.post_recv(pair.qp, &request).map_err(|error| anyhow!("{error:?}"))
    }

    fn drop_pair(&mut self, pair: Pair) {
        let _ = self.host.roce.destroy_qp(pair.qp);
        let _ = self.host.roce.deregister(pair.rmb.id);
        self.host.arena.free(pair.receives);
        self.host.arena.free(pair.rmb.memory);
        while self.host.roce.poll_cq(self.host.cq).is_some() {}
    }

    /// Connects a queue pair to the one in an Accept.
    fn connect_pair(&mut self, pair: &Pair, accept: &AcceptConfirm) -> Result<()> {
        let to = ReadyToReceive {
            remote_qpn: accept.qpn,
            rq_psn: accept.psn,
            path_mtu: PathMtu::Mtu1024,
            address: AddressVector {
                local: IpAddr::V4(self.host.address),
                remote: IpAddr::V4(self.host.server),
                gid_type: GidType::RoceV2,
                remote_mac: self.server_mac,
                source_port: 0xc000,
                traffic_class: 0,
                hop_limit: 64,
            },
            max_dest_rd_atomic: 1,
            min_rnr_timer: 5,
        };
        let fail = |error| anyhow!("{error:?}");
        self.host.roce.ready_to_receive(pair.qp, &to).map_err(fail)?;
        let to = ReadyToSend {
            sq_psn: pair.psn,
            max_rd_atomic: 1,
            ack_timeout: 14,
            retry_count: 3,
            rnr_retry: 7,
        };
        self.host.roce.ready_to_send(pair.qp, &to).map_err(fail)
    }

    fn confirm(&self, pair: &Pair, accept: &AcceptConfirm) -> Result<Vec<u8>> {
        let v2 = accept.v2.as_ref().context("version 2")?;
        let contact = v2.first_contact.context("first contact")?;
        let first_contact = FirstContact { os: Os::LINUX, hostname: [b'x'; 32], ..contact };
        let confirm = AcceptConfirm {
            kind: MessageType::Confirm,
            gid: self.host.address.to_ipv6_mapped(),
            mac: self.host.mac(),
            qpn: pair.qpn,
            rkey: pair.rmb.rkey,
            rmbe_index: 1,
            token: TOKEN,
            rmbe_size: RMB.0,
            path_mtu: PathMtu::Mtu1024 as u8,
            address: pair.rmb.address,
            psn: pair.psn,
            v2: Some(Negotiated {
                eid: v2.eid,
                first_contact: Some(first_contact),
                gids: vec![self.host.address.to_ipv6_mapped()],
            }),
            ..accept.clone()
        };
        Ok(confirm.emit())
    }

    /// Performs a valid handshake.
    fn handshake(&mut self) -> Result<Session> {
        let link = self.connect()?;
        let pair = self.make_pair()?;
        match self.handshake_on(link, &pair) {
            Ok(accept) => {
                let to = RemoteAddress { address: accept.address, rkey: accept.rkey };
                Ok(Session { link, pair, to, token: accept.token })
            }
            Err(error) => {
                self.hang_up(link);
                self.drop_pair(pair);
                Err(error)
            }
        }
    }

    fn handshake_on(&mut self, link: ConnectionHandle, pair: &Pair) -> Result<AcceptConfirm> {
        let proposal = self.proposal();
        self.write(link, &proposal);
        let accept = self.read_clc(link)?;
        let accept = AcceptConfirm::parse(&accept).map_err(|error| anyhow!("{error}"))?;
        self.connect_pair(pair, &accept)?;
        let confirm = self.confirm(pair, &accept)?;
        self.write(link, &confirm);
        let request = self.until("CONFIRM_LINK", |this| this.next_message(pair))??;
        let request = Llc::parse(&request[..44]).map_err(|error| anyhow!("{error}"))?;
        let Body::ConfirmLink { link, uid, max_links, max_conns, .. } = request.body else {
            return Err(anyhow!("not CONFIRM_LINK"));
        };
        let gid = self.host.address.to_ipv6_mapped();
        let end = LinkEnd { mac: self.host.mac(), gid, qpn: pair.qpn };
        let body = Body::ConfirmLink { end, link, uid, max_links, max_conns, no_eyecatcher: true };
        self.send(pair, &llc(true, body));
        Ok(accept)
    }

    /// The next received message, or the error of the queue pair.
    fn next_message(&mut self, pair: &Pair) -> Option<Result<Vec<u8>>> {
        loop {
            let done = self.host.roce.poll_cq(self.host.cq)?;
            if done.qp != pair.qp {
                continue;
            }
            if done.status != Status::Success {
                return Some(Err(anyhow!("{:?}", done.status)));
            }
            let CompletedOperation::Recv { .. } = done.operation else { continue };
            let n = done.id as usize;
            let mut bytes = vec![0; RECEIVE];
            let window = pair.receives.slice(n * RECEIVE, RECEIVE)?;
            window.read(0, &mut bytes).ok()?;
            return Some(self.receive(pair, n).map(|()| bytes));
        }
    }

    fn post(&mut self, pair: &Pair, operation: SendOperation<'_>) -> bool {
        let request = SendRequest {
            id: 0,
            operation,
            signaled: true,
            solicited: true,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        self.host.roce.post_send(pair.qp, &request).is_ok()
    }

    fn send(&mut self, pair: &Pair, bytes: &[u8]) -> bool {
        let payload = Payload::Inline(bytes);
        self.post(pair, SendOperation::Send { payload, with: SendWith::Nothing })
    }

    /// Discards messages until the queue pair fails. Returns false if it does not fail in time.
    fn fails(&mut self, pair: &Pair, within: Duration) -> bool {
        let end = Instant::now() + within;
        while Instant::now() < end {
            self.round();
            while let Some(message) = self.next_message(pair) {
                if message.is_err() {
                    return true;
                }
            }
        }
        false
    }

    fn leave(&mut self, session: Session) {
        self.hang_up(session.link);
        self.drop_pair(session.pair);
    }

    fn send_garbage(&mut self) -> Result<()> {
        let link = self.connect()?;
        let mut bytes = self.proposal();
        match self.host.rng.random_range(0..3) {
            0 => {
                bytes = (0..self.host.rng.random_range(1..400))
                    .map(|_| self.host.rng.random())
                    .collect()
            }
            1 => {
                for _ in 0..self.host.rng.random_range(1..8) {
                    let at = self.host.rng.random_range(0..bytes.len());
                    bytes[at] = self.host.rng.random();
                }
            }
            _ => bytes.extend((0..200).map(|_| self.host.rng.random::<u8>())),
        }
        self.write(link, &bytes);
        self.idle(Duration::from_millis(20));
        self.hang_up(link);
        Ok(())
    }

    /// Stops a handshake at a random stage. Half of the TCP connections stay open, for the appliance to time out.
    fn stop_handshake(&mut self) -> Result<()> {
        let link = self.connect()?;
        let proposal = self.proposal();
        match self.host.rng.random_range(0..4) {
            0 => {}
            1 => self.write(link, &proposal[..50]),
            2 => self.write(link, &proposal),
            _ => {
                self.write(link, &proposal);
                let accept = self.read_clc(link)?;
                let accept = AcceptConfirm::parse(&accept).map_err(|error| anyhow!("{error}"))?;
                let pair = self.make_pair()?;
                // The CONFIRM_LINK of the appliance stays unanswered.
                let said =
                    self.connect_pair(&pair, &accept).and_then(|()| self.confirm(&pair, &accept));
                if let Ok(confirm) = said {
                    self.write(link, &confirm);
                    self.idle(Duration::from_millis(50));
                }
                self.drop_pair(pair);
            }
        }
        if self.host.rng.random() {
            self.hang_up(link);
        }
        Ok(())
    }

    fn send_invalid_cursor(&mut self) -> Result<()> {
        let session = self.handshake()?;
        let cursor = |wrap, count| Cursor { wrap, count };
        let (produced, consumed) = match self.host.rng.random_range(0..5) {
            0 => (cursor(0, 0x7fff_ffff), cursor(0, 0)),
            1 => (cursor(1, 1), cursor(0, 0)),
            2 => (cursor(0x7000, 0), cursor(0, 0)),
            3 => (cursor(0, 0), cursor(0, 1)),
            // Announces a byte that was never written.
            _ => (cursor(0, 1), cursor(0, 0)),
        };
        let (producer, end) = (Producer::empty(), End::empty());
        let invalid = Cdc { seqno: 1, token: session.token, produced, consumed, producer, end };
        self.send(&session.pair, &invalid.emit());
        // The appliance announces the end of the links, and drops the queue pair a moment later.
        let message = self.until("the end", |this| this.next_message(&session.pair));
        self.leave(session);
        message?.map(drop)
    }

    fn use_stale_keys(&mut self) -> Result<()> {
        let session = self.handshake()?;
        let mut to = session.to;
        if self.host.rng.random() {
            let zero = Cursor::default();
            let (producer, end) = (Producer::empty(), End::CLOSED);
            let token = session.token;
            let closed = Cdc { seqno: 1, token, produced: zero, consumed: zero, producer, end };
            self.send(&session.pair, &closed.emit());
            self.idle(Duration::from_millis(50));
        } else {
            to.address += 1 << 20;
        }
        let payload = Payload::Inline(b"12345678");
        self.post(&session.pair, SendOperation::Write { payload, to, immediate: None });
        let failed = self.fails(&session.pair, Self::PATIENCE);
        self.leave(session);
        ensure!(failed, "the appliance accepted the WRITE");
        Ok(())
    }

    fn flood(&mut self) -> Result<()> {
        let session = self.handshake()?;
        for n in 0..400u32 {
            let key = self.host.rng.random();
            let body = match n % 4 {
                0 | 1 => Body::TestLink { data: [n as u8; 16] },
                2 => {
                    let token = Token { rkey: key, address: u64::from(n) << 20 };
                    Body::ConfirmKey { token, others: Vec::new(), negative: false, retry: false }
                }
                _ => Body::DeleteKey { keys: vec![key; 8], unknown: 0, negative: false },
            };
            let mut bytes = llc(false, body);
            if n % 10 == 9 {
                bytes[0] = self.host.rng.random_range(0x30..0xf0);
            }
            while !self.send(&session.pair, &bytes) {
                self.round();
                while let Some(message) = self.next_message(&session.pair) {
                    if let Err(error) = message {
                        self.leave(session);
                        return Err(error);
                    }
                }
            }
        }
        self.fails(&session.pair, Duration::from_millis(100));
        self.leave(session);
        Ok(())
    }
}

fn llc(response: bool, body: Body) -> Vec<u8> {
    Llc { version: 2, response, order: Order::Little, body }.emit()
}
