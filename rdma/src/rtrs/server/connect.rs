//! Connection requests (rtrs-srv.c, `rtrs_rdma_connect`): which session and path they belong to,
//! or why they are refused.

use super::config::{MIN_INLINE, MIN_OFFERED_DEPTH};
use super::table::{Connection, Path, Session, WorkId};
use super::{CloseReason, Context, Notice, PathState, PathStats, Server};
use crate::rtrs::wire::{
    Addressing, ConnectRequest, ConnectResponse, InfoRequest, MAX_HEADER, WireError,
};
use crate::rtrs::{Errno, Heartbeat, Name};
use crate::verbs::{
    ConnectionEvent, ConnectionId, ConnectionParameters, Fabric, QpInit, QpType, RecvRequest,
    RejectReason,
};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Window;

/// Receives of the service connection.
const SERVICE_RECEIVES: u32 = 64;
/// Its sends.
const SERVICE_SENDS: u32 = 32;
/// Most sends outstanding on an I/O connection; requests whose answers would be more wait.
pub(super) const MAX_SENDS: u32 = 128;

/// Largest I/O that is offered, however large the chunks are. Linux clients cut larger ones to the
/// 128 pages that they can register, and then fail to register just 128.
const MAX_IO: u32 = 127 * 4096;

/// Why a connection is refused, for the client and for the log.
type Refusal = (Errno, &'static str);

impl Server {
    /// Takes an event of the connection manager; false if it is none of this server's.
    pub fn handle_connection_event<P: Fabric + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Context<'_, P>,
    ) -> bool {
        match *event {
            ConnectionEvent::Request { connection, port, from, to, ref private_data, .. } => {
                if port != self.config.port {
                    return false;
                }
                let private_data = private_data.as_slice();
                if let Err((errno, why)) =
                    self.handle_request(connection, from.ip(), to, private_data, ctx)
                {
                    self.counters.refused += 1;
                    self.notice(Notice::Refused { from: from.ip(), errno, why });
                    let response = ConnectResponse::Refused(errno).emit();
                    // Fails only if the peer has given up meanwhile.
                    let _ = ctx.provider.reject(connection, RejectReason::CONSUMER, &response);
                }
                true
            }
            ConnectionEvent::Established { connection, .. } => self.find(connection).is_some(),
            ConnectionEvent::Rejected { connection, .. }
            | ConnectionEvent::Disconnected { connection } => match self.find(connection) {
                Some(key) => {
                    self.handle_disconnected(key, ctx);
                    true
                }
                None => false,
            },
        }
    }

    fn find(&self, id: ConnectionId) -> Option<usize> {
        self.connections.iter().find(|(_, c)| c.id == id).map(|(key, _)| key)
    }

    fn handle_request<P: Fabric + ?Sized>(
        &mut self,
        connection: ConnectionId,
        from: IpAddr,
        to: IpAddr,
        private_data: &[u8],
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Refusal> {
        let request = ConnectRequest::parse(private_data).map_err(|error| {
            let why = match error {
                WireError::Magic(_) => "not an RTRS client",
                WireError::Version(_) => "RTRS of another major version",
                WireError::Field(field) => field,
                WireError::Short { .. } | WireError::Type(_) => "malformed private data",
            };
            (Errno::ECONNRESET, why)
        })?;
        if request.cid_num > self.config.max_connections {
            return Err((Errno::ECONNRESET, "more connections than max_connections"));
        }
        let session = match self.sessions.iter().find(|(_, s)| s.uuid == request.session) {
            Some((key, _)) => key,
            None if !request.first => return Err((Errno::ENXIO, "unknown session")),
            None => self.make_session(&request, from, ctx)?,
        };
        let path = self.join_path(session, &request, from, to, ctx);
        let made = path.and_then(|path| self.make_connection(path, request.cid, connection, ctx));
        if made.is_err() {
            self.reap_session(session, ctx);
        }
        made
    }

    fn make_session<P: Fabric + ?Sized>(
        &mut self,
        request: &ConnectRequest,
        from: IpAddr,
        ctx: &mut Context<'_, P>,
    ) -> Result<usize, Refusal> {
        if self.sessions.len() >= self.config.max_sessions {
            return Err((Errno::ENOMEM, "as many sessions as max_sessions"));
        }
        let uuid = request.session;
        let chunk_size = self.config.chunk_size;
        let (wanted, least) = self.depths(request);
        let (queue_depth, chunks) = match self.shared {
            None => reserve(wanted, least, |depth| {
                ctx.arena.alloc(usize::from(depth) * chunk_size as usize, 4096).map(Some)
            }),
            Some(shared) => reserve(wanted, least, |depth| {
                let promise = u64::from(depth) * u64::from(chunk_size);
                (self.promised() + promise <= shared).then_some(None)
            }),
        }
        .ok_or((Errno::ENOMEM, "not enough memory for a queue depth that the client takes"))?;
        let Ok(pd) = ctx.provider.alloc_pd() else {
            chunks.into_iter().for_each(|chunks| ctx.arena.free(chunks));
            return Err((Errno::ENOMEM, "no protection domain left"));
        };
        if queue_depth < self.config.queue_depth {
            self.counters.reduced += 1;
            self.notice(Notice::Reduced { from, queue_depth });
        }
        Ok(self.sessions.insert(Session {
            uuid,
            name: Name::default(),
            pd,
            chunks,
            chunk_size,
            queue_depth,
            addressing: Addressing::new(queue_depth),
            paths: Vec::new(),
            up: false,
            executing: alloc::vec![false; usize::from(queue_depth)],
        }))
    }

    /// The queue depth that a session gets, and the least that is offered. A client that comes back
    /// has to get what it had: Linux's gives up for good if it is another.
    fn depths(&self, request: &ConnectRequest) -> (u16, u16) {
        let had = self.reduced.iter().find(|(session, _)| *session == request.session);
        match had {
            Some(&(_, depth)) => (depth, depth),
            None if request.recon_cnt > 1 => (self.config.queue_depth, self.config.queue_depth),
            None => (self.config.queue_depth, MIN_OFFERED_DEPTH),
        }
    }

    /// The path that the connection belongs to, made if it is new.
    fn join_path<P: Fabric + ?Sized>(
        &mut self,
        session: usize,
        request: &ConnectRequest,
        from: IpAddr,
        to: IpAddr,
        ctx: &mut Context<'_, P>,
    ) -> Result<usize, Refusal> {
        let mut stale = None;
        for &key in &self.sessions[session].paths {
            let path = &self.paths[key];
            if path.state == PathState::Closing {
                continue;
            }
            if path.uuid == request.path && path.recon_cnt == request.recon_cnt {
                if path.state != PathState::Connecting {
                    return Err((Errno::ECONNRESET, "the path is connected already"));
                }
                let free = path.connections.get(usize::from(request.cid)) == Some(&None);
                if !free || path.connections.len() != usize::from(request.cid_num) {
                    return Err((Errno::ECONNRESET, "cid twice, or another cid_num than before"));
                }
                return Ok(key);
            }
            if path.uuid == request.path {
                if request.cid != 0 || path.from != from {
                    return Err((Errno::ECONNRESET, "the path is in use"));
                }
                stale = Some(key);
            } else if path.from == from && path.to == to {
                return Err((Errno::EEXIST, "the session has a path between these addresses"));
            }
        }
        let others = self.sessions[session].paths.len() - usize::from(stale.is_some());
        if others >= self.config.max_paths {
            return Err((Errno::ECONNRESET, "as many paths as max_paths"));
        }
        let info = ctx
            .arena
            .alloc(InfoRequest::SIZE, 64)
            .ok_or((Errno::ENOMEM, "no memory for the path"))?;
        let deadline = ctx.now + self.config.handshake_timeout;
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
            info: Some(info),
            info_sent: 0,
            heartbeat: Heartbeat::new(
                self.config.heartbeat_interval,
                self.config.heartbeat_misses,
                ctx.now,
            ),
            deadline,
            latency_nanos: 0,
            stats: PathStats::default(),
        });
        self.sessions[session].paths.push(path);
        self.wake_at(deadline);
        // Only now, so that the session always has a path.
        if let Some(stale) = stale {
            self.close_path(stale, CloseReason::Replaced, ctx);
        }
        Ok(path)
    }

    /// Makes the queue pair, and accepts. A failure ends the path.
    fn make_connection<P: Fabric + ?Sized>(
        &mut self,
        path: usize,
        cid: u16,
        id: ConnectionId,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Refusal> {
        let refused = self.try_make_connection(path, cid, id, ctx);
        if refused.is_err() {
            self.close_path(path, CloseReason::Resources, ctx);
        }
        refused
    }

    fn try_make_connection<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        cid: u16,
        id: ConnectionId,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Refusal> {
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let depth = u32::from(session.queue_depth);
        let (receives, sends) = match cid {
            0 => (SERVICE_RECEIVES, SERVICE_SENDS),
            _ => (depth.min(u32::from(self.config.receives)), (2 * depth + 2).min(MAX_SENDS)),
        };
        let most = ctx.provider.attributes().max_wr;
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
        let no_resources = |_| (Errno::ENOMEM, "the provider has no resources left");
        let qp = ctx.provider.create_qp(&init, ctx.rng).map_err(no_resources)?;
        if cid != 0 {
            // Answers are waited for by their client alone, and room is made by those that are signaled. Not so
            // ACKs of the client's requests: Linux's client has done with one only when it has both.
            ctx.provider.share_acks(qp);
        }
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        // The client takes the sum of both for the size of a chunk.
        let max_io_size = (session.chunk_size - MAX_HEADER).min(MAX_IO);
        let response = ConnectResponse::Accepted {
            queue_depth: session.queue_depth,
            max_io_size,
            max_header: session.chunk_size - max_io_size,
            new_rkey: self.config.always_invalidate,
            incarnation: self.config.incarnation,
        };
        let parameters = ConnectionParameters {
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
        };
        let info = path.info.unwrap_or(Window::empty());
        let prepared = (0..receives).try_for_each(|n| {
            let (id, into): (_, &[Window]) = match (cid, n) {
                (0, 0) => (WorkId::info(key), &[info]),
                _ => (WorkId::receive(key), &[]),
            };
            ctx.provider.post_recv(qp, &RecvRequest { id: id.to_bits(), into })
        });
        let accepted = prepared
            .and_then(|()| ctx.provider.accept(id, qp, &parameters, &response.emit(), ctx.now));
        if let Err(error) = accepted {
            // A queue pair that was just made and is not connected can be destroyed.
            let _ = ctx.provider.destroy_qp(qp);
            return Err(no_resources(error));
        }
        entry.insert(Connection {
            path: path_key,
            cid,
            qp,
            id,
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
        self.counters.accepted += 1;
        Ok(())
    }
}

/// A queue depth for a session: as wanted, or less where memory is short, but not below `least`;
/// `take` takes the memory.
fn reserve<T>(wanted: u16, least: u16, mut take: impl FnMut(u16) -> Option<T>) -> Option<(u16, T)> {
    let mut depth = wanted;
    loop {
        if let Some(taken) = take(depth) {
            return Some((depth, taken));
        }
        if depth <= least {
            return None;
        }
        depth = (depth / 2).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_memory_is_short_fewer_chunks_are_offered_but_not_below_eight() {
        let mut left = 100;
        let mut take = |wanted| {
            reserve(wanted, MIN_OFFERED_DEPTH, |depth| {
                left = u16::checked_sub(left, depth)?;
                Some(())
            })
        };
        assert_eq!(take(128), Some((64, ())));
        assert_eq!(take(128), Some((32, ())));
        assert_eq!(take(128), None, "only four chunks are left");
        assert_eq!(take(3), Some((3, ())), "but so few were asked for");
    }
}
