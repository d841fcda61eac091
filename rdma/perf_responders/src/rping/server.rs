//! The server: answers the pings of up to 64 connections. Each connection holds a little more than 64 KiB.

use super::{Advertisement, MAX_SIZE, MESSAGE, PORT, RECEIVES, post, post_receive};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::{Arena, Instant, Window};
use rand_core::Rng;
use verbs::{
    CompletedOperation, Completion, ConnectionEvent, ConnectionId, ConnectionManager,
    ConnectionParameters, CqId, Payload, PdId, Provider, QpId, QpInit, QpType, RejectReason,
    RemoteAddress, SendOperation, SendWith, Status, VerbsError,
};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// Connections of one host at a time, so that a host leaves some to others.
const MAX_CONNECTIONS_PER_HOST: usize = 48;

/// The event that a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The client's advertisement of the source.
    Source,
    /// Completion of the READ of this many bytes.
    Fetching(usize),
    /// The client's advertisement of the sink, for this many bytes.
    Sink(usize),
    /// Completion of the WRITE.
    Storing,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    /// The peer, as it counts for its share.
    host: IpAddr,
    qp: QpId,
    phase: Phase,
    /// `MAX_SIZE` bytes of data, then the receive buffers.
    memory: Window,
}

impl Connection {
    /// The receive buffers.
    fn inbox(&self) -> Result<Window, VerbsError> {
        self.memory.slice(MAX_SIZE, RECEIVES as usize * MESSAGE).ok_or(VerbsError::Invalid)
    }

    fn post_receive<P: Provider>(&self, provider: &mut P, n: u64) -> Result<(), VerbsError> {
        post_receive(provider, self.qp, self.inbox()?, n)
    }
}

/// Event counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused because connections, memory or queue pairs were exhausted.
    pub refused: u64,
    /// Pings answered.
    pub pings: u64,
    /// Connections ended because the peer violated the protocol.
    pub protocol_errors: u64,
}

/// The rping server, over one provider.
#[derive(Debug)]
pub struct Server {
    pd: PdId,
    cq: CqId,
    connections: Vec<Connection>,
    /// Event counters.
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

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Handles an event of the connection manager; false if its connection is not of this server.
    pub fn handle_connection_event<P: Provider + ConnectionManager>(
        &mut self,
        event: &ConnectionEvent,
        provider: &mut P,
        arena: &mut Arena,
        now: Instant,
        rng: &mut dyn Rng,
    ) -> bool {
        match event {
            ConnectionEvent::Request { connection, port: PORT, parameters, from, to, .. } => {
                let host = net::hosts::accountable(from.ip());
                let pd = provider.pd_on(self.pd, *to);
                let accepted =
                    self.accept((*connection, pd, host), parameters, provider, arena, now, rng);
                if accepted.is_err() {
                    self.counters.refused += 1;
                    // An error means that the peer has already dropped the connection.
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
        (id, pd, host): (ConnectionId, PdId, IpAddr),
        offered: &ConnectionParameters,
        provider: &mut P,
        arena: &mut Arena,
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<(), VerbsError> {
        let of_host = self.connections.iter().filter(|connection| connection.host == host).count();
        if self.connections.len() >= MAX_CONNECTIONS || of_host >= MAX_CONNECTIONS_PER_HOST {
            return Err(VerbsError::NoRoom);
        }
        let size = MAX_SIZE + RECEIVES as usize * MESSAGE;
        let memory = arena.alloc(size, 4096).ok_or(VerbsError::NoRoom)?;
        let init = QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: 4,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MESSAGE,
        };
        let qp = match provider.create_qp(&init, rng) {
            Ok(qp) => qp,
            Err(error) => {
                arena.free(memory);
                return Err(error);
            }
        };
        let connection = Connection { id, host, qp, phase: Phase::Source, memory };
        let accepted = (0..u64::from(RECEIVES))
            .try_for_each(|n| connection.post_receive(provider, n))
            .and_then(|()| provider.accept(id, qp, offered, &[], now));
        match accepted {
            Ok(()) => {
                self.connections.push(connection);
                self.counters.accepted += 1;
            }
            Err(_) => {
                let _ = provider.destroy_qp(qp);
                arena.free(connection.memory);
            }
        }
        accepted
    }

    /// Handles completions and returns how many.
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
            let result = step(c, &completion, provider, &mut self.counters);
            if result.is_err() {
                self.counters.protocol_errors += u64::from(completion.status == Status::Success);
                // An error means that the connection is already ending: `Disconnected` will follow.
                let _ = provider.disconnect(c.id, now);
            }
        }
        handled
    }
}

/// Handles one completion of a connection; an error ends the connection.
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
            connection.post_receive(provider, completion.id)?;
            match phase {
                Phase::Source => {
                    let into = connection.memory.slice(0, size).ok_or(VerbsError::Invalid)?;
                    connection.phase = Phase::Fetching(size);
                    post(
                        provider,
                        connection.qp,
                        SendOperation::Read { into: &[into], from: at },
                        true,
                    )
                }
                Phase::Sink(fetched) if size >= fetched => {
                    let from = connection.memory.slice(0, fetched).ok_or(VerbsError::Invalid)?;
                    connection.phase = Phase::Storing;
                    let payload = Payload::Windows(&[from]);
                    let write = SendOperation::Write { payload, to: at, immediate: None };
                    post(provider, connection.qp, write, true)
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

/// Parses the client's advertisement in receive `n`: address and size in bytes.
fn advertisement(
    connection: &Connection,
    n: u64,
    length: u32,
) -> Result<(RemoteAddress, usize), VerbsError> {
    let mut bytes = [0; MESSAGE];
    let read = connection.inbox()?.read(n as usize * MESSAGE, &mut bytes);
    read.map_err(|_| VerbsError::Invalid)?;
    let Advertisement { at, size } = Advertisement::parse(&bytes);
    let size = size as usize;
    if length as usize != MESSAGE || size == 0 || size > MAX_SIZE {
        return Err(VerbsError::Invalid);
    }
    Ok((at, size))
}

fn go_ahead<P: Provider>(provider: &mut P, connection: &Connection) -> Result<(), VerbsError> {
    let payload = Payload::Inline(&[0; MESSAGE]);
    post(provider, connection.qp, SendOperation::Send { payload, with: SendWith::Nothing }, false)
}
