//! A verbs provider in memory whose queue pairs are connected to each other. The test decides when work requests
//! are executed, from the memory as it then is. It is stricter than a real provider: a missing receive or an
//! overflow of a queue fails the test.

mod memory;

use core::net::{IpAddr, SocketAddr};
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use std::collections::{HashMap, VecDeque};
use std::vec::Vec;
use verbs::*;

#[derive(Debug)]
struct Qp {
    init: QpInit,
    peer: Option<QpId>,
    state: QpState,
    receives: VecDeque<(u64, Vec<Window>)>,
    outstanding: u32,
}

#[derive(Debug)]
struct Mr {
    pd: PdId,
    memory: Window,
    /// Bytes of a chunk, and the key of each; 0 for none.
    chunk: usize,
    keys: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Wire {
    Send { data: Vec<Window>, inline: Vec<u8>, with: SendWith },
    Write { data: Vec<Window>, to: RemoteAddress, immediate: Option<u32> },
}

#[derive(Debug)]
struct Posted {
    qp: QpId,
    id: u64,
    signaled: bool,
    wire: Wire,
}

#[derive(Debug)]
struct Link {
    qp: Option<QpId>,
    peer: ConnectionId,
    remote: SocketAddr,
}

/// Forged fields of a WRITE: another key, another immediate, other last bytes.
#[derive(Debug, Clone, Default)]
pub struct Forgery {
    pub key: Option<u32>,
    pub immediate: Option<u32>,
    pub bytes: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Change {
    request: KeyRequest,
    region: MrId,
    chunk: usize,
    key: u32,
}

/// The provider, with both ends of all links.
#[derive(Debug, Default)]
pub struct Loopback {
    next: u32,
    pds: HashMap<PdId, ()>,
    qps: HashMap<QpId, Qp>,
    mrs: HashMap<MrId, Mr>,
    cqs: HashMap<CqId, VecDeque<Completion>>,
    wire: VecDeque<Posted>,
    ports: Vec<u16>,
    links: HashMap<ConnectionId, Link>,
    events: VecDeque<ConnectionEvent>,
    /// SENDs executed.
    pub sends: u32,
    /// WRITEs without immediate executed.
    pub writes: u32,
    /// WRITEs with immediate executed.
    pub immediates: u32,
    /// Key of the last WRITE with immediate that had data.
    pub request_key: u32,
    /// Forged fields for the next such WRITE.
    pub forgery: Option<Forgery>,
    /// Responses to reads invalidate the client's key with a separate SEND, as in Linux.
    pub linux_answers: bool,
    /// The key that the last WRITE without immediate of a queue pair named.
    data_keys: HashMap<QpId, u32>,
    /// The next such WRITE is executed twice.
    pub repeat: bool,
    /// Forged payload of the next SEND.
    pub forged_send: Option<Vec<u8>>,
    /// Connections are numbered as in Linux: the next number, and the random number that it is XORed with.
    pub linux_ids: Option<(u32, u32)>,
    peer_ids: HashMap<ConnectionId, u32>,
    /// Keys change as on hardware: by a work request that completes later. Until then the old key is valid.
    pub late_keys: bool,
    /// While set, a region that was revoked is not released.
    pub lingers: bool,
    /// While set, no change of a key completes.
    pub holds_changes: bool,
    /// While set, `chunk_key` reports no key.
    pub hides_keys: bool,
    changes: VecDeque<Change>,
    /// Addresses that are cut off.
    pub cut: Vec<IpAddr>,
}

impl Loopback {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Objects that exist: protection domains, queue pairs, regions.
    pub fn objects(&self) -> (usize, usize, usize) {
        (self.pds.len(), self.qps.len(), self.mrs.len())
    }

    fn key_matches(&self, key: u32) -> Option<(MrId, usize)> {
        self.mrs.iter().find_map(|(id, mr)| {
            let chunk = mr.keys.iter().position(|&other| other == key && key != 0)?;
            Some((*id, chunk))
        })
    }

    fn complete(&mut self, cq: CqId, completion: Completion) {
        self.cqs.get_mut(&cq).unwrap().push_back(completion);
    }

    fn end(&mut self, posted: &Posted, status: Status) {
        let Some(qp) = self.qps.get_mut(&posted.qp) else { return };
        qp.outstanding -= 1;
        let cq = qp.init.send_cq;
        if posted.signaled || status != Status::Success {
            self.complete(
                cq,
                Completion {
                    id: posted.id,
                    qp: posted.qp,
                    status,
                    operation: CompletedOperation::Send,
                    datagram_from: None,
                },
            );
        }
        if status != Status::Success {
            let _ = self.fail_qp(posted.qp);
        }
    }

    /// Reports the end of a link to the other end, if it is reachable.
    fn disconnect_peer(&mut self, link: &Link) {
        let Some(other) = self.links.get(&link.peer) else { return };
        if !self.cut.contains(&link.remote.ip()) && !self.cut.contains(&other.remote.ip()) {
            self.links.remove(&link.peer);
            let connection = link.peer;
            self.events.push_back(ConnectionEvent::Disconnected { connection });
        }
    }

    /// Splits the response to a read into the messages that Linux sends; None for other requests.
    fn as_linux(&mut self, posted: &Posted) -> Option<Vec<Wire>> {
        const ANSWER: u32 = 1 << 28;
        let with_invalidation = |immediate: u32| (immediate >> 28 == 1).then(|| immediate + ANSWER);
        match &posted.wire {
            Wire::Write { to, immediate: None, .. } => {
                self.data_keys.insert(posted.qp, to.rkey);
                None
            }
            Wire::Write { data, to, immediate: Some(immediate) } if !data.is_empty() => {
                let immediate = Some(with_invalidation(*immediate)?);
                let with = SendWith::Invalidate(to.rkey);
                Some(std::vec![
                    Wire::Write { data: data.clone(), to: *to, immediate: None },
                    Wire::Send { data: Vec::new(), inline: Vec::new(), with },
                    Wire::Write { data: Vec::new(), to: *to, immediate },
                ])
            }
            Wire::Send { data, inline, with: SendWith::Immediate(immediate) } => {
                let with = SendWith::Immediate(with_invalidation(*immediate)?);
                let key = self.data_keys.remove(&posted.qp)?;
                let (data, inline) = (data.clone(), inline.clone());
                let invalidate = SendWith::Invalidate(key);
                Some(std::vec![
                    Wire::Send { data: Vec::new(), inline: Vec::new(), with: invalidate },
                    Wire::Send { data, inline, with },
                ])
            }
            _ => None,
        }
    }

    /// Completes the next change of a key whose queue pair still exists.
    fn change_key(&mut self) -> bool {
        if self.holds_changes {
            return false;
        }
        let Some(Change { request, region, chunk, key }) = self.changes.pop_front() else {
            return false;
        };
        let Some(qp) = self.qps.get(&request.qp).filter(|qp| qp.state == QpState::Rts) else {
            return true;
        };
        let cq = qp.init.send_cq;
        if let Some(mr) = self.mrs.get_mut(&region) {
            mr.keys[chunk] = key;
        }
        let operation = CompletedOperation::KeyChanged { rkey: key };
        let (id, qp, status) = (request.id, request.qp, Status::Success);
        self.complete(cq, Completion { id, qp, status, operation, datagram_from: None });
        true
    }

    /// Executes the next work request; false if there is none. Keys change when no other request is left.
    pub fn step(&mut self) -> bool {
        let Some(posted) = self.wire.pop_front() else { return self.change_key() };
        let Some(peer) = self.qps.get(&posted.qp).and_then(|qp| qp.peer) else { return true };
        let silent = self.links.values().any(|link| {
            link.qp.is_some_and(|qp| qp == posted.qp || qp == peer)
                && self.cut.contains(&link.remote.ip())
        });
        if silent {
            return true;
        }
        if !self.qps.contains_key(&peer) {
            self.end(&posted, Status::RetryExceeded);
            return true;
        }
        let pd = self.qps[&peer].init.pd;
        if self.linux_answers
            && let Some(parts) = self.as_linux(&posted)
        {
            self.qps.get_mut(&posted.qp).unwrap().outstanding += parts.len() as u32 - 1;
            for wire in parts.into_iter().rev() {
                let Posted { qp, id, signaled, .. } = posted;
                self.wire.push_front(Posted { qp, id, signaled, wire });
            }
            return true;
        }
        let request = matches!(&posted.wire, Wire::Write { data, immediate: Some(_), .. } if !data.is_empty());
        if request && core::mem::take(&mut self.repeat) {
            let Posted { qp, id, ref wire, .. } = posted;
            self.qps.get_mut(&qp).unwrap().outstanding += 1;
            self.wire.push_front(Posted { qp, id, signaled: false, wire: wire.clone() });
        }
        let (completed, data, into) = match posted.wire.clone() {
            Wire::Send { data, inline, with } => {
                self.sends += 1;
                if let SendWith::Invalidate(key) = with {
                    let (mr, chunk) = self.key_matches(key).expect("the client's key is valid");
                    self.mrs.get_mut(&mr).unwrap().keys[chunk] = 0;
                }
                let mut bytes: Vec<u8> = gather(&data);
                bytes.extend(inline);
                bytes = self.forged_send.take().unwrap_or(bytes);
                let operation = CompletedOperation::Recv { length: bytes.len() as u32, with };
                (Some(operation), bytes, None)
            }
            Wire::Write { data, mut to, mut immediate } => {
                let mut bytes = gather(&data);
                if immediate.is_some()
                    && !bytes.is_empty()
                    && let Some(forgery) = self.forgery.take()
                {
                    to.rkey = forgery.key.unwrap_or(to.rkey);
                    immediate = forgery.immediate.or(immediate);
                    if let Some(forged) = forgery.bytes {
                        let from = bytes.len().saturating_sub(forged.len());
                        let tail = &mut bytes[from..];
                        let len = tail.len();
                        tail.copy_from_slice(&forged[forged.len() - len..]);
                    }
                }
                let mut into = None;
                if !bytes.is_empty() {
                    // A region's address is a function of its id here.
                    let mr = self.key_matches(to.rkey).map(|(id, n)| (id, n, &self.mrs[&id]));
                    into = mr.filter(|(_, _, mr)| mr.pd == pd).and_then(|(id, chunk, mr)| {
                        let start = chunk * mr.chunk;
                        let at = to.address.checked_sub(address(id) + start as u64)?;
                        mr.memory.slice(start, mr.chunk)?.slice(at as usize, bytes.len())
                    });
                    if into.is_none() {
                        self.end(&posted, Status::RemoteAccess);
                        let _ = self.fail_qp(peer);
                        return true;
                    }
                }
                match immediate {
                    Some(_) => self.immediates += 1,
                    None => self.writes += 1,
                }
                let operation = immediate.map(|immediate| CompletedOperation::RecvWriteImmediate {
                    length: bytes.len() as u32,
                    immediate,
                });
                (operation, bytes, into)
            }
        };
        if let Some(into) = into {
            into.write(0, &data).unwrap();
        }
        if let Some(operation) = completed {
            let qp = self.qps.get_mut(&peer).unwrap();
            let (id, windows) = qp.receives.pop_front().expect("the peer has posted a receive");
            let cq = qp.init.recv_cq;
            let mut status = Status::Success;
            if matches!(operation, CompletedOperation::Recv { .. }) {
                match windows.first().and_then(|window| window.slice(0, data.len())) {
                    Some(window) => window.write(0, &data).unwrap(),
                    None if data.is_empty() => {}
                    None => status = Status::LocalLength,
                }
            }
            self.complete(cq, Completion { id, qp: peer, status, operation, datagram_from: None });
        }
        self.end(&posted, Status::Success);
        true
    }
}

fn gather(windows: &[Window]) -> Vec<u8> {
    let mut all = Vec::new();
    for window in windows {
        let mut bytes = alloc::vec![0; window.len()];
        window.read(0, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

fn address(region: MrId) -> u64 {
    u64::from(region.0) << 32
}

impl Provider for Loopback {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            guid: 1,
            max_wr: 4096,
            max_sge: 4,
            max_inline: 64,
            max_rd_atomic: 0,
            max_message: 1 << 30,
            max_path_mtu: PathMtu::Mtu1024,
            atomics: false,
            send_with_invalidate: true,
        }
    }
    fn create_cq(&mut self, _: u32) -> Result<CqId, VerbsError> {
        let cq = CqId(self.fresh());
        self.cqs.insert(cq, VecDeque::new());
        Ok(cq)
    }
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.cqs.remove(&cq).map(|_| ()).ok_or(VerbsError::NoSuchObject)
    }
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.cqs.get_mut(&cq)?.pop_front()
    }
    fn watch_cq(&mut self, _: CqId, _: u32) {}

    fn next_watched(&mut self) -> Option<u32> {
        None
    }

    fn create_qp(&mut self, init: &QpInit, _: &mut dyn Rng) -> Result<QpId, VerbsError> {
        let qp = QpId(self.fresh());
        self.qps.insert(
            qp,
            Qp {
                init: *init,
                peer: None,
                state: QpState::Init,
                receives: VecDeque::new(),
                outstanding: 0,
            },
        );
        Ok(qp)
    }
    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        Ok(qp.0)
    }
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(&qp).map(|qp| qp.state).ok_or(VerbsError::NoSuchObject)
    }
    fn ready_to_receive(&mut self, _: QpId, _: &ReadyToReceive) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid)
    }
    fn ready_to_send(&mut self, _: QpId, _: &ReadyToSend) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid)
    }
    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let it = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
        it.state = QpState::Error;
        let cq = it.init.recv_cq;
        for (id, _) in core::mem::take(&mut it.receives) {
            self.complete(
                cq,
                Completion {
                    id,
                    qp,
                    status: Status::Flushed,
                    operation: CompletedOperation::Recv { length: 0, with: SendWith::Nothing },
                    datagram_from: None,
                },
            );
        }
        Ok(())
    }
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.qps.remove(&qp).ok_or(VerbsError::NoSuchObject)?;
        let connection = self.links.iter().find(|(_, link)| link.qp == Some(qp)).map(|(id, _)| *id);
        if let Some(connection) = connection {
            let link = self.links.remove(&connection).unwrap();
            self.disconnect_peer(&link);
        }
        for cq in self.cqs.values_mut() {
            cq.retain(|completion| completion.qp != qp);
        }
        Ok(())
    }
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let it = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
        assert!(it.outstanding < it.init.max_send_wr, "the send queue overflows");
        if it.state != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        it.outstanding += 1;
        let wire = match request.operation {
            SendOperation::Send { payload: Payload::Windows(data), with } => {
                Wire::Send { data: data.to_vec(), inline: Vec::new(), with }
            }
            SendOperation::Send { payload: Payload::Inline(inline), with } => {
                Wire::Send { data: Vec::new(), inline: inline.to_vec(), with }
            }
            SendOperation::Write { payload: Payload::Windows(data), to, immediate } => {
                if immediate.is_some() && !data.is_empty() {
                    self.request_key = to.rkey;
                }
                Wire::Write { data: data.to_vec(), to, immediate }
            }
            _ => unreachable!("RTRS posts nothing else"),
        };
        self.wire.push_back(Posted { qp, id: request.id, signaled: request.signaled, wire });
        Ok(())
    }
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        let it = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
        assert!(it.receives.len() < it.init.max_recv_wr as usize, "the receive queue overflows");
        it.receives.push_back((request.id, request.into.to_vec()));
        Ok(())
    }
    fn failed_by_itself(&self, qp: QpId) -> bool {
        self.qps.get(&qp).is_some_and(|qp| qp.state == QpState::Error)
    }
    fn poll_event(&mut self) -> Option<AsyncEvent> {
        None
    }
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    fn handle_timeout(&mut self, _: Instant) {}
}

impl ConnectionManager for Loopback {
    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.ports.push(port);
        Ok(())
    }
    fn unlisten(&mut self, port: u16) {
        self.ports.retain(|&other| other != port);
    }
    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        _: Instant,
        _: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError> {
        let active = ConnectionId(self.fresh());
        let passive = ConnectionId(self.fresh());
        if self.cut.contains(&from) {
            return Ok(active);
        }
        self.links.insert(active, Link { qp: Some(qp), peer: passive, remote: to });
        let from = SocketAddr::new(from, 4000);
        self.links.insert(passive, Link { qp: None, peer: active, remote: from });
        self.events.push_back(ConnectionEvent::Request {
            connection: passive,
            port: to.port(),
            from,
            to: to.ip(),
            parameters: *parameters,
            path_mtu: PathMtu::Mtu1024,
            private_data: PrivateData::new(private_data).unwrap(),
        });
        Ok(active)
    }
    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        _: &ConnectionParameters,
        private_data: &[u8],
        _: Instant,
    ) -> Result<(), VerbsError> {
        let link = self.links.get_mut(&connection).ok_or(VerbsError::NoSuchObject)?;
        link.qp = Some(qp);
        let active = link.peer;
        let other = self.links[&active].qp.unwrap();
        for (qp, peer) in [(qp, other), (other, qp)] {
            let it = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
            it.peer = Some(peer);
            it.state = QpState::Rts;
        }
        if let Some((count, mask)) = &mut self.linux_ids {
            *count += 1;
            self.peer_ids.insert(active, (*count ^ *mask).swap_bytes());
        }
        let private_data = PrivateData::new(private_data).unwrap();
        self.events.push_back(ConnectionEvent::Established { connection: active, private_data });
        let private_data = PrivateData::empty();
        self.events.push_back(ConnectionEvent::Established { connection, private_data });
        Ok(())
    }
    fn reject(
        &mut self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let link = self.links.remove(&connection).ok_or(VerbsError::NoSuchObject)?;
        self.links.remove(&link.peer);
        self.events.push_back(ConnectionEvent::Rejected {
            connection: link.peer,
            reason,
            private_data: PrivateData::new(private_data).unwrap(),
        });
        Ok(())
    }
    fn disconnect(&mut self, connection: ConnectionId, _: Instant) -> Result<(), VerbsError> {
        let link = self.links.remove(&connection).ok_or(VerbsError::NoSuchObject)?;
        self.events.push_back(ConnectionEvent::Disconnected { connection });
        self.disconnect_peer(&link);
        Ok(())
    }
    fn peer_id(&self, connection: ConnectionId) -> Option<u32> {
        self.peer_ids.get(&connection).copied()
    }
    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }
}
