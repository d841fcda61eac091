//! rping, the ping of RDMA: the server's side of librdmacm's `examples/rping.c`.
//!
//! The client advertises a source buffer (SEND of address, key, size, 16 bytes big-endian); the
//! server fetches it by RDMA READ and says so by an empty-handed SEND of 16 bytes; the client
//! advertises a sink; the server writes what it fetched there by RDMA WRITE, and says so. The port
//! is 7174. One connection holds 64 KiB and a little.

use crate::verbs::{
    CompletedOperation, Completion, ConnectionEvent, ConnectionId, ConnectionManager,
    ConnectionParameters, CqId, Payload, PdId, Provider, QpId, QpInit, QpType, RecvRequest,
    RejectReason, RemoteAddress, SendOperation, SendRequest, SendWith, Status, VerbsError,
};
use alloc::vec::Vec;
use drivers::hal::{Arena, Instant, Window};
use rand_core::RngCore;

/// The port that `rping -s` listens on.
pub const PORT: u16 = 7174;
/// Largest buffer that `rping -S` takes.
const MAX_SIZE: usize = 64 * 1024;
/// Size of an advertisement.
const ADVERTISEMENT: usize = 16;
/// Receives that are kept posted: one advertisement at a time is in flight.
const RECEIVES: u32 = 4;
/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The advertisement of the source.
    Source,
    /// The READ of so many bytes.
    Fetching(usize),
    /// The advertisement of the sink, for so many bytes.
    Sink(usize),
    /// The WRITE.
    Storing,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    qp: QpId,
    phase: Phase,
    /// `MAX_SIZE` bytes of data, then the receives.
    memory: Window,
}

impl Connection {
    fn receive(&self, n: u64) -> Option<Window> {
        self.memory.slice(MAX_SIZE + n as usize * ADVERTISEMENT, ADVERTISEMENT)
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused for want of room.
    pub refused: u64,
    /// Pings answered.
    pub pings: u64,
    /// Connections ended because the peer did not keep to the protocol.
    pub protocol_errors: u64,
}

/// The rping server, over one provider.
#[derive(Debug)]
pub struct Server {
    pd: PdId,
    cq: CqId,
    connections: Vec<Connection>,
    /// What was counted.
    pub counters: Counters,
}

impl Server {
    /// Listens on [`PORT`].
    pub fn new<P: Provider + ConnectionManager>(provider: &mut P) -> Result<Self, VerbsError> {
        let pd = provider.alloc_pd()?;
        let cq = provider.create_cq(MAX_CONNECTIONS as u32 * (RECEIVES + 4))?;
        provider.listen(PORT)?;
        Ok(Server { pd, cq, connections: Vec::new(), counters: Counters::default() })
    }

    /// Connections that stand.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Takes an event of the connection manager; false if it is not about this server.
    pub fn handle_connection_event<P: Provider + ConnectionManager>(
        &mut self,
        event: &ConnectionEvent,
        provider: &mut P,
        arena: &mut Arena,
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> bool {
        match event {
            ConnectionEvent::Request { connection, port: PORT, parameters, .. } => {
                let accepted = self.accept(*connection, parameters, provider, arena, now, rng);
                if accepted.is_err() {
                    self.counters.refused += 1;
                    // It may be gone already, which is as good as refused.
                    let _ = provider.reject(*connection, RejectReason::NO_RESOURCES, &[]);
                }
                true
            }
            ConnectionEvent::Disconnected { connection } => {
                let Some(at) = self.connections.iter().position(|c| c.id == *connection) else {
                    return false;
                };
                let ended = self.connections.swap_remove(at);
                let _ = provider.destroy_qp(ended.qp);
                arena.free(ended.memory);
                true
            }
            ConnectionEvent::Established { connection, .. } => {
                self.connections.iter().any(|c| c.id == *connection)
            }
            _ => false,
        }
    }

    fn accept<P: Provider + ConnectionManager>(
        &mut self,
        id: ConnectionId,
        offered: &ConnectionParameters,
        provider: &mut P,
        arena: &mut Arena,
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> Result<(), VerbsError> {
        if self.connections.len() >= MAX_CONNECTIONS {
            return Err(VerbsError::NoRoom);
        }
        let size = MAX_SIZE + RECEIVES as usize * ADVERTISEMENT;
        let memory = arena.alloc(size, 4096).ok_or(VerbsError::NoRoom)?;
        let init = QpInit {
            kind: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: 4,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: ADVERTISEMENT,
        };
        let qp = match provider.create_qp(&init, rng) {
            Ok(qp) => qp,
            Err(error) => {
                arena.free(memory);
                return Err(error);
            }
        };
        let connection = Connection { id, qp, phase: Phase::Source, memory };
        let begun = (0..u64::from(RECEIVES))
            .try_for_each(|n| post_receive(provider, &connection, n))
            .and_then(|()| provider.accept(id, qp, offered, &[], now));
        match begun {
            Ok(()) => {
                self.connections.push(connection);
                self.counters.accepted += 1;
            }
            Err(_) => {
                let _ = provider.destroy_qp(qp);
                arena.free(connection.memory);
            }
        }
        begun
    }

    /// Handles what has completed; how many completions.
    pub fn poll<P: Provider + ConnectionManager>(
        &mut self,
        provider: &mut P,
        now: Instant,
    ) -> usize {
        let mut handled = 0;
        while let Some(completion) = provider.poll_cq(self.cq) {
            handled += 1;
            let Some(c) = self.connections.iter_mut().find(|c| c.qp == completion.qp) else {
                continue;
            };
            let went_on = step(c, &completion, provider, &mut self.counters);
            if went_on.is_err() {
                self.counters.protocol_errors += u64::from(completion.status == Status::Success);
                // If it is ending already, `Disconnected` is on its way.
                let _ = provider.disconnect(c.id, now);
            }
        }
        handled
    }
}

/// One completion on a connection; an error ends it.
fn step<P: Provider>(
    connection: &mut Connection,
    completion: &Completion,
    provider: &mut P,
    counters: &mut Counters,
) -> Result<(), VerbsError> {
    if completion.status != Status::Success {
        return Err(VerbsError::WrongState);
    }
    match (completion.operation, connection.phase) {
        (CompletedOperation::Recv { length, .. }, phase) => {
            let (at, size) = advertisement(connection, completion.id, length)?;
            post_receive(provider, connection, completion.id)?;
            match phase {
                Phase::Source => {
                    let into = connection.memory.slice(0, size).ok_or(VerbsError::Invalid)?;
                    connection.phase = Phase::Fetching(size);
                    send(provider, connection, SendOperation::Read { into: &[into], from: at })
                }
                Phase::Sink(fetched) if size >= fetched => {
                    let from = connection.memory.slice(0, fetched).ok_or(VerbsError::Invalid)?;
                    connection.phase = Phase::Storing;
                    let payload = Payload::Windows(&[from]);
                    let write = SendOperation::Write { payload, to: at, immediate: None };
                    send(provider, connection, write)
                }
                _ => Err(VerbsError::WrongState),
            }
        }
        (_, Phase::Fetching(size)) => {
            connection.phase = Phase::Sink(size);
            go_ahead(provider, connection)
        }
        (_, Phase::Storing) => {
            connection.phase = Phase::Source;
            counters.pings += 1;
            go_ahead(provider, connection)
        }
        _ => Ok(()),
    }
}

/// What the client advertises in receive `n`: where, and how many bytes.
fn advertisement(
    connection: &Connection,
    n: u64,
    length: u32,
) -> Result<(RemoteAddress, usize), VerbsError> {
    let window = connection.receive(n).ok_or(VerbsError::Invalid)?;
    let mut bytes = [0; ADVERTISEMENT];
    window.read(0, &mut bytes).map_err(|_| VerbsError::Invalid)?;
    let [a, b, c, d, e, f, g, h, rkey @ .., w, x, y, z] = bytes;
    let size = u32::from_be_bytes([w, x, y, z]) as usize;
    if length as usize != ADVERTISEMENT || size == 0 || size > MAX_SIZE {
        return Err(VerbsError::Invalid);
    }
    let address = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    Ok((RemoteAddress { address, rkey: u32::from_be_bytes(rkey) }, size))
}

fn post_receive<P: Provider>(
    provider: &mut P,
    connection: &Connection,
    n: u64,
) -> Result<(), VerbsError> {
    let into = connection.receive(n).ok_or(VerbsError::Invalid)?;
    provider.post_recv(connection.qp, &RecvRequest { id: n, into: &[into] })
}

fn go_ahead<P: Provider>(provider: &mut P, connection: &Connection) -> Result<(), VerbsError> {
    let payload = Payload::Inline(&[0; ADVERTISEMENT]);
    let operation = SendOperation::Send { payload, with: SendWith::Nothing };
    let request = SendRequest {
        id: 0,
        operation,
        signaled: false,
        solicited: false,
        datagram: None,
        carries: None,
    };
    provider.post_send(connection.qp, &request)
}

fn send<P: Provider>(
    provider: &mut P,
    connection: &Connection,
    operation: SendOperation<'_>,
) -> Result<(), VerbsError> {
    let request = SendRequest {
        id: 0,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
    };
    provider.post_send(connection.qp, &request)
}
