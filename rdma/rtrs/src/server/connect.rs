//! Connection requests (rtrs-srv.c, `rtrs_rdma_connect`): finds or creates session and path, creates the connection, or
//! refuses.

use super::ServerDevice;
use super::config::MIN_INLINE;
use super::refuse::{Door, Refused};
use super::table::{ChunkState, Connection, Path, Session, WorkId};
use super::{CloseReason, Config, Ctx, Directory, PathState, PathStats, Server, SessionId};
use crate::wire::{
    Addressing, ConnectRequest, ConnectResponse, InfoRequest, MAX_HEADER, WireError,
};
use crate::{Errno, Heartbeat, Name};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;
use drivers::hal::Window;
use net::hosts::accountable;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionParameters, QpInit, QpType, RecvRequest, RejectReason,
};

/// Receives of the service connection.
const SERVICE_RECEIVES: u32 = 64;
/// Receives that are reposted together.
const RECEIVES_AT_ONCE: u32 = 8;
/// Sends of the service connection.
const SERVICE_SENDS: u32 = 32;
/// Most outstanding sends on an I/O connection; requests with further responses wait.
pub(super) const MAX_SENDS: u32 = 128;

/// Largest I/O that is offered with any chunk size. Linux clients cut larger ones to the 128 pages that they can
/// register, and then fail to register exactly 128.
const MAX_IO: u32 = 127 * 4096;

/// Receives that are reposted late, because receives are reposted in batches.
const LATE: u32 = RECEIVES_AT_ONCE - 1;

/// Parameters with which connections are accepted.
const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: 0,
    initiator_depth: 0,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

const fn refused(errno: Errno, reason: &'static str, advice: &'static str) -> Refused {
    Refused { errno, reason, advice }
}

const OTHER_CORE: Refused = refused(
    Errno::EPERM,
    "session_elsewhere",
    "the session's other paths come to another core; configure one common `core` for these ports, or one path \
     on the client",
);

/// The path of a connection request.
enum Found {
    /// It exists.
    Path(usize),
    /// It is new, and replaces this one.
    Stale(Option<usize>),
}

impl Server {
    /// Handles an event of the connection manager. Returns false if the connection does not belong to this server. For
    /// connection requests, `door` checks whether their host is admitted.
    pub fn handle_connection_event<P: ServerDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        door: Door<'_>,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        match *event {
            ConnectionEvent::Request { connection, port, from, to, ref private_data, .. } => {
                if port != self.config.port {
                    return false;
                }
                let private_data = private_data.as_slice();
                let from = from.ip().to_canonical();
                if let Err(why) = self.handle_request(connection, from, to, private_data, door, ctx)
                {
                    self.counters.refused += 1;
                    self.refuse(from, "connection", alloc::format!("{to} port {port}"), why);
                    let response = ConnectResponse::Refused(why.errno).emit();
                    // Fails only if the peer has cancelled meanwhile.
                    let _ = ctx.provider.reject(connection, RejectReason::CONSUMER, &response);
                }
                true
            }
            ConnectionEvent::Established { connection, .. } => match self.by_id.get(&connection) {
                Some(&key) => {
                    let path = self.connections[key].path;
                    let session = self.paths[path].session;
                    self.sessions[session].validated = true;
                    true
                }
                None => false,
            },
            ConnectionEvent::Rejected { connection, .. }
            | ConnectionEvent::Disconnected { connection } => {
                let known = self.by_id.contains_key(&connection);
                if known {
                    self.ended.push_back(connection);
                }
                known
            }
        }
    }

    fn handle_request<P: ServerDevice + ?Sized>(
        &mut self,
        connection: ConnectionId,
        from: IpAddr,
        to: IpAddr,
        private_data: &[u8],
        door: Door<'_>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let request = ConnectRequest::parse(private_data).map_err(|error| {
            let (reason, advice) = match error {
                WireError::Magic(_) => {
                    ("not_rtrs", "not an RTRS client: another protocol uses this port")
                }
                WireError::Version(_) => ("version", "RTRS major version is not 2"),
                WireError::Field(_) | WireError::Short { .. } | WireError::Type(_) => {
                    ("malformed", "malformed private data: faulty RTRS client")
                }
            };
            refused(Errno::ECONNRESET, reason, advice)
        })?;
        if request.cid_num > self.config.max_connections {
            let advice =
                "more connections than a path may have; configure fewer queues on the client";
            return Err(refused(Errno::ECONNRESET, "connections_of_path", advice));
        }
        let known = self.uuids.get(&request.session).copied();
        door(from, known.map(|key| SessionId(key as u32)))?;
        let elsewhere = |(directory, core): &(Arc<Directory>, usize)| {
            known.is_none() && directory.is_elsewhere(*core, request.session)
        };
        if self.directory.as_ref().is_some_and(elsewhere) {
            return Err(OTHER_CORE);
        }
        let session = match known {
            Some(key) => key,
            None if !request.first => {
                let advice = "unknown session UUID: the server has lost the client's session; unmap \
                              and map again";
                return Err(refused(Errno::ENXIO, "unknown_session", advice));
            }
            None => self.make_session(&request, from, ctx)?,
        };
        let path = self.join_path(session, &request, from, to, ctx);
        let made = path.and_then(|path| self.make_connection(path, request.cid, connection, ctx));
        if made.is_err() {
            self.reap_session(session, ctx);
        }
        made
    }

    fn make_session<P: ServerDevice + ?Sized>(
        &mut self,
        request: &ConnectRequest,
        from: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, Refused> {
        let owner = accountable(from);
        let of_host = self.sessions.iter().filter(|(_, s)| accountable(s.host) == owner).count();
        if of_host + self.share_elsewhere(from).sessions >= self.config.sessions_per_host {
            let advice = "the host has limits.sessions_per_host sessions already; raise it, or end \
                          some (session list, session disconnect)";
            return Err(refused(Errno::ENOMEM, "sessions_per_host", advice));
        }
        if self.sessions.len() >= self.config.max_sessions && !self.evict_half_open(ctx) {
            let advice = "all sessions of the gateway are in use; end some (session list, session \
                          disconnect)";
            return Err(refused(Errno::ENOMEM, "sessions", advice));
        }
        self.check_memory(from, ctx)?;
        let Ok(pd) = ctx.provider.alloc_pd() else {
            let advice = "no protection domain is free; end other sessions";
            return Err(refused(Errno::ENOMEM, "resources", advice));
        };
        if let Some((directory, core)) = &self.directory
            && !directory.enter(*core, request.session, from)
        {
            // Cannot fail: the domain is empty.
            let _ = ctx.provider.dealloc_pd(pd);
            return Err(OTHER_CORE);
        }
        let (queue_depth, chunk_size) = (self.config.queue_depth, self.config.chunk_size);
        let key = self.sessions.insert(Session {
            uuid: request.session,
            host: from,
            validated: false,
            since: ctx.now,
            name: Name::default(),
            pd,
            chunks: None,
            chunk_state: ChunkState::Unrequested,
            chunk_size,
            queue_depth,
            addressing: Addressing::new(queue_depth),
            paths: Vec::new(),
            up: false,
            executing: Vec::new(),
            copies_at_once: false,
            has_unsettled: false,
        });
        self.uuids.insert(request.session, key);
        Ok(key)
    }

    /// Evicts a half-open session for a new one: of the host with most half-open sessions, whose clients have not yet
    /// shown that they receive our messages, the oldest one. Returns false if there is none.
    fn evict_half_open<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> bool {
        let half_open = || self.sessions.iter().filter(|(_, session)| !session.validated);
        let mut of_hosts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (_, session) in half_open() {
            *of_hosts.entry(accountable(session.host)).or_default() += 1;
        }
        let rank =
            |session: &Session| (Reverse(of_hosts.get(&accountable(session.host))), session.since);
        let Some((oldest, _)) = half_open().min_by_key(|(_, session)| rank(session)) else {
            return false;
        };
        self.counters.displaced += 1;
        for path in self.sessions[oldest].paths.clone() {
            self.close_path(path, CloseReason::Displaced, ctx);
        }
        true
    }

    /// Finds the path of a connection. Otherwise returns the stale path, if any, that a new path replaces.
    fn find_path(
        &self,
        session: usize,
        request: &ConnectRequest,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<Found, Refused> {
        let mut stale = None;
        for &key in &self.sessions[session].paths {
            let path = &self.paths[key];
            if path.state == PathState::Closing {
                continue;
            }
            if path.uuid == request.path && path.recon_cnt == request.recon_cnt {
                if path.state != PathState::Connecting {
                    let advice = "the path is connected already";
                    return Err(refused(Errno::ECONNRESET, "path_in_use", advice));
                }
                let free = path.connections.get(usize::from(request.cid)) == Some(&None);
                let same = path.connections.len() == usize::from(request.cid_num);
                if !free || !same || path.from != from {
                    let advice = "duplicate cid, or another cid_num or host than before";
                    return Err(refused(Errno::ECONNRESET, "path_in_use", advice));
                }
                return Ok(Found::Path(key));
            }
            if path.uuid == request.path {
                if request.cid != 0 || path.from != from {
                    let advice =
                        "in use from another address; heartbeats will end it if that host is gone";
                    return Err(refused(Errno::ECONNRESET, "path_in_use", advice));
                }
                stale = Some(key);
            } else if path.from == from && path.to == to {
                let advice = "the session has a path between these addresses";
                return Err(refused(Errno::EEXIST, "path_exists", advice));
            }
        }
        Ok(Found::Stale(stale))
    }

    /// Finds or creates the path of a connection.
    fn join_path<P: ServerDevice + ?Sized>(
        &mut self,
        session: usize,
        request: &ConnectRequest,
        from: IpAddr,
        to: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, Refused> {
        let stale = match self.find_path(session, request, from, to)? {
            Found::Path(key) => return Ok(key),
            Found::Stale(key) => key,
        };
        let others = self.sessions[session].paths.len() - usize::from(stale.is_some());
        if others >= self.config.max_paths {
            let advice = "the session has the most paths allowed";
            return Err(refused(Errno::ECONNRESET, "paths", advice));
        }
        let info = ctx.arena.alloc(InfoRequest::SIZE, 64).ok_or(refused(
            Errno::ENOMEM,
            "memory",
            "no memory for a path (show memory)",
        ))?;
        let path = self.paths.insert(Path {
            session,
            uuid: request.path,
            from,
            to,
            recon_cnt: request.recon_cnt,
            state: PathState::Connecting,
            connections: alloc::vec![None; usize::from(request.cid_num)],
            region: None,
            requests: Vec::new(),
            in_flight: 0,
            info_requested: false,
            info: Some(info),
            info_sent: 0,
            heartbeat: Heartbeat::for_server(
                self.config.heartbeat_interval,
                self.config.heartbeat_misses,
                ctx.now,
            ),
            timer: None,
            shortages: 0,
            latency_nanos: 0,
            stats: PathStats::default(),
        });
        self.sessions[session].paths.push(path);
        self.publish_session(session);
        self.set_timer(path, Some(ctx.now + self.config.handshake_timeout));
        // Last, so that the session always has a path.
        if let Some(stale) = stale {
            self.close_path(stale, CloseReason::Replaced, ctx);
        }
        Ok(path)
    }

    /// Creates the queue pair, and accepts the connection. A failure ends the path.
    fn make_connection<P: ServerDevice + ?Sized>(
        &mut self,
        path: usize,
        cid: u16,
        id: ConnectionId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let refused = self.try_make_connection(path, cid, id, ctx);
        if refused.is_err() {
            self.close_path(path, CloseReason::Resources, ctx);
        }
        refused
    }

    fn try_make_connection<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        cid: u16,
        id: ConnectionId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refused> {
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let most = ctx.provider.attributes().max_wr;
        let (receives, sends) = queue_sizes(cid, session.queue_depth, &self.config);
        let (receives, sends) = (receives.min(most), sends.min(most));
        let init = QpInit {
            kind: QpType::Rc,
            pd: ctx.provider.pd_on(session.pd, path.to),
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: usize::from(cid == 0),
            max_inline: MIN_INLINE,
        };
        let no_resources = |_| {
            let advice = "no queue pair or memory for a connection; end other sessions";
            refused(Errno::ENOMEM, "resources", advice)
        };
        let qp = ctx.provider.create_qp(&init, ctx.rng).map_err(no_resources)?;
        if cid != 0 {
            // ACKs of responses may be late: only the client waits for a response, and signaled ones make room. Our
            // ACKs of requests may not: Linux's client completes a request only with both.
            ctx.provider.coalesce_acks(qp);
        }
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let response = accepted(session, &self.config).emit();
        let info = path.info.unwrap_or(Window::empty());
        let prepared = (0..receives).try_for_each(|n| {
            let (id, into): (_, &[Window]) = match (cid, n) {
                (0, 0) => (WorkId::info(key), &[info]),
                _ => (WorkId::receive(key), &[]),
            };
            ctx.provider.post_recv(qp, &RecvRequest { id: id.to_bits(), into })
        });
        let accepted =
            prepared.and_then(|()| ctx.provider.accept(id, qp, &PARAMETERS, &response, ctx.now));
        if let Err(error) = accepted {
            // Cannot fail: the queue pair is new and not connected.
            let _ = ctx.provider.destroy_qp(qp);
            return Err(no_resources(error));
        }
        entry.insert(Connection {
            path: path_key,
            cid,
            qp,
            id,
            consumed: 0,
            posted_at_once: if receives > 2 * LATE { RECEIVES_AT_ONCE } else { 1 },
            send_room: sends,
            signal_interval: (sends / 4).max(1),
            posted: 0,
            completed: 0,
            signaled: 0,
            reserved: 0,
            queued: None,
        });
        if let Some(place) = path.connections.get_mut(usize::from(cid)) {
            *place = Some(key);
        }
        self.by_id.insert(id, key);
        self.counters.accepted += 1;
        Ok(())
    }
}

/// Receives and sends of a connection.
fn queue_sizes(cid: u16, queue_depth: u16, config: &Config) -> (u32, u32) {
    let depth = u32::from(queue_depth);
    match cid {
        0 => (SERVICE_RECEIVES, SERVICE_SENDS),
        _ => ((depth + LATE).min(u32::from(config.receives)), (2 * depth + 2).min(MAX_SENDS)),
    }
}

/// The response to the request of a session's connection.
fn accepted(session: &Session, config: &Config) -> ConnectResponse {
    // The client computes the chunk size as the sum of both.
    let max_io_size = (session.chunk_size - MAX_HEADER).min(MAX_IO);
    ConnectResponse::Accepted {
        queue_depth: session.queue_depth,
        max_io_size,
        max_header: session.chunk_size - max_io_size,
        new_rkey: config.always_invalidate,
        incarnation: config.incarnation,
    }
}
