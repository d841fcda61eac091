//! Paths come and go: connections one after the other, then INFO, as Linux does.

use super::table::{Call, Connection, Path, PathState, WorkId};
use super::{Client, Context, DownReason, Event, Outcome, Permit, Pool, Shape, uuid};
use crate::rtrs::Heartbeat;
use crate::rtrs::wire::{
    Addressing, ConnectRequest, ConnectResponse, Descriptor, InfoRequest, InfoResponse,
    RkeyResponse,
};
use crate::verbs::{
    Access, ConnectionEvent, ConnectionId, ConnectionParameters, Fabric, Payload, QpInit, QpType,
    RecvRequest, RejectReason, SendOperation, SendWith,
};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use drivers::hal::{Arena, Window};

/// Work requests of the service connection, and those of I/O connections before the queue depth
/// is known to be smaller.
const SERVICE_DEPTH: u32 = 64;
/// Longest INFO_RSP that is taken, with a key for each of 2048 chunks.
const MAX_INFO: usize = InfoResponse::message_size(2048);

impl Client {
    /// Starts to connect a path; its number. [`Event::PathUp`] or [`Event::PathDown`] follows.
    pub fn add_path<P: Fabric + ?Sized>(
        &mut self,
        from: IpAddr,
        to: SocketAddr,
        ctx: &mut Context<'_, P>,
    ) -> usize {
        let first = self.paths.iter().all(|path| path.state == PathState::Down);
        self.paths.push(Path {
            uuid: uuid(ctx.rng),
            from,
            to,
            recon_cnt: 0,
            first,
            state: PathState::Down,
            deadline: ctx.now,
            connections: Vec::new(),
            chunks: Vec::new(),
            info: Window::empty(),
            heartbeat: self.heartbeat(ctx),
        });
        self.reconnect(self.paths.len() - 1, ctx);
        self.paths.len() - 1
    }

    /// Starts to connect a path that is down.
    pub fn reconnect<P: Fabric + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
        let Some(path) = self.paths.get_mut(key) else { return };
        if path.state != PathState::Down {
            return;
        }
        path.recon_cnt = path.recon_cnt.wrapping_add(1);
        path.state = PathState::Connecting { cid: 0 };
        path.deadline = ctx.now + self.config.connect_timeout;
        if let Err(reason) = self.connect_next(key, ctx) {
            self.end_path(key, reason, ctx);
        }
    }

    /// Takes a path down.
    pub fn disconnect<P: Fabric + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
        if key < self.paths.len() {
            self.end_path(key, DownReason::User, ctx);
        }
    }

    fn heartbeat<P: ?Sized>(&self, ctx: &Context<'_, P>) -> Heartbeat {
        Heartbeat::new(self.config.heartbeat_interval, self.config.heartbeat_misses, ctx.now)
    }

    /// Takes an event of the connection manager; false if it is none of this client's.
    pub fn handle_connection_event<P: Fabric + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Context<'_, P>,
    ) -> bool {
        let (id, outcome) = match event {
            ConnectionEvent::Request { .. } => return false,
            ConnectionEvent::Established { connection, private_data } => {
                (connection, Ok(private_data.as_slice()))
            }
            ConnectionEvent::Rejected { connection, reason, private_data } => {
                let refused = ConnectResponse::parse(private_data.as_slice());
                let reason = match (*reason, refused) {
                    (RejectReason::CONSUMER, Ok(ConnectResponse::Refused(errno))) => {
                        DownReason::Refused(errno)
                    }
                    (reason, _) => DownReason::Rejected(reason),
                };
                (connection, Err(reason))
            }
            ConnectionEvent::Disconnected { connection } => (connection, Err(DownReason::Peer)),
        };
        let found = self.connections.iter_mut().find(|(_, connection)| connection.id == Some(*id));
        let Some((_, connection)) = found else { return false };
        let path = connection.path;
        if outcome.is_err() {
            connection.id = None;
        }
        let done = outcome.and_then(|response| self.handle_accepted(path, response, ctx));
        if let Err(reason) = done {
            self.end_path(path, reason, ctx);
        }
        true
    }

    fn handle_accepted<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        response: &[u8],
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let path = &mut self.paths[key];
        let PathState::Connecting { cid } = path.state else { return Ok(()) };
        let Ok(ConnectResponse::Accepted { queue_depth, max_io_size, max_header, new_rkey }) =
            ConnectResponse::parse(response)
        else {
            return Err(DownReason::Protocol("CON_RSP"));
        };
        path.state = PathState::Connecting { cid: cid + 1 };
        let shape = Shape { queue_depth, max_io_size, max_header, new_rkey };
        match &self.pool {
            Some(pool) if pool.shape != shape => {
                return Err(DownReason::Protocol("the session has another shape than before"));
            }
            Some(_) => {}
            None => self.pool = Some(self.make_pool(shape, ctx)?),
        }
        if cid < self.config.connections {
            return self.connect_next(key, ctx);
        }
        // INFO_REQ is sent from the memory that INFO_RSP does not reach.
        let request = InfoRequest { name: self.name }.emit();
        let info = self.paths[key].info;
        let message = info
            .slice(MAX_INFO, request.len())
            .filter(|message| message.write(0, &request).is_ok())
            .ok_or(DownReason::Resources)?;
        let payload = Payload::Windows(&[message]);
        self.post(key, 0, SendOperation::Send { payload, with: SendWith::Nothing }, ctx)
    }

    /// Asks for the path's next connection.
    fn connect_next<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        let path = &self.paths[key];
        let PathState::Connecting { cid } = path.state else { return Ok(()) };
        let no_resources = |_| DownReason::Resources;
        let depth = self
            .pool
            .as_ref()
            .map_or(SERVICE_DEPTH, |pool| u32::from(pool.shape.queue_depth).max(SERVICE_DEPTH / 4));
        // An answer with invalidation consumes two receives.
        let (receives, sends) = match cid {
            0 => (SERVICE_DEPTH, SERVICE_DEPTH),
            _ => (2 * depth, 2 * depth),
        };
        let init = QpInit {
            kind: QpType::Rc,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: sends,
            max_recv_wr: receives + 1,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let memory = ctx
            .arena
            .alloc(receives as usize * RkeyResponse::SIZE, 64)
            .ok_or(DownReason::Resources)?;
        let qp = ctx.provider.create_qp(&init, ctx.rng).map_err(no_resources)?;
        let number = self.connections.insert(Connection {
            path: key,
            qp,
            id: None,
            send_room: sends,
            posted: 0,
            completed: 0,
            receives: memory,
        });
        self.paths[key].connections.push(number);
        if cid == 0 {
            let size = MAX_INFO + InfoRequest::SIZE;
            let path = &mut self.paths[key];
            path.info = ctx.arena.alloc(size, 64).ok_or(DownReason::Resources)?;
            let into = path.info.slice(0, MAX_INFO).unwrap_or(Window::empty());
            let id = WorkId::new(number, u32::MAX).to_bits();
            ctx.provider.post_recv(qp, &RecvRequest { id, into: &[into] }).map_err(no_resources)?;
        }
        for n in 0..receives {
            self.post_receive(number, n, ctx)?;
        }
        let path = &self.paths[key];
        let request = ConnectRequest {
            cid,
            cid_num: self.config.connections + 1,
            recon_cnt: path.recon_cnt,
            path: path.uuid,
            session: self.session,
            first: path.first,
        };
        let parameters = ConnectionParameters {
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
        };
        let id: ConnectionId = ctx
            .provider
            .connect(qp, path.from, path.to, &parameters, &request.emit(), ctx.now, ctx.rng)
            .map_err(no_resources)?;
        self.connections[number].id = Some(id);
        Ok(())
    }

    fn make_pool<P: Fabric + ?Sized>(
        &self,
        shape: Shape,
        ctx: &mut Context<'_, P>,
    ) -> Result<Pool, DownReason> {
        let sane = shape.queue_depth >= 2
            && shape.max_header >= 512
            && shape
                .max_io_size
                .checked_add(shape.max_header)
                .is_some_and(|chunk| Addressing::new(shape.queue_depth).reaches(chunk));
        if !sane {
            return Err(DownReason::Protocol("impossible queue depth or sizes in CON_RSP"));
        }
        let (depth, size) = (usize::from(shape.queue_depth), shape.chunk_size() as usize);
        let memory = ctx.arena.alloc(depth * size, 4096).ok_or(DownReason::Resources)?;
        let mut regions = Vec::with_capacity(depth);
        for n in 0..depth {
            let data =
                memory.slice(n * size, shape.max_io_size as usize).ok_or(DownReason::Resources)?;
            let region = ctx
                .provider
                .register(self.pd, data, Access::REMOTE_WRITE, ctx.rng)
                .map_err(|_| DownReason::Resources)?;
            // Nobody may write there until a read asks for it.
            ctx.provider.revoke_key(region.id).map_err(|_| DownReason::Resources)?;
            regions.push((region.id, region.address));
        }
        Ok(Pool {
            shape,
            addressing: Addressing::new(shape.queue_depth),
            memory,
            regions,
            free: (0..shape.queue_depth).rev().collect(),
            calls: alloc::vec![Call::Idle; depth],
        })
    }

    /// INFO_RSP: the server's chunks.
    pub(super) fn handle_info<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        length: u32,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), DownReason> {
        const BAD: DownReason = DownReason::Protocol("INFO_RSP");
        let (Some(path), Some(pool)) = (self.paths.get_mut(key), &self.pool) else {
            return Err(BAD);
        };
        let mut message = alloc::vec![0; (length as usize).min(path.info.len())];
        path.info.read(0, &mut message).map_err(|_| BAD)?;
        InfoResponse::parse(&message).map_err(|_| BAD)?;
        let chunk_size = pool.shape.chunk_size();
        path.chunks.clear();
        for descriptor in InfoResponse::descriptors(&message) {
            if descriptor.length == 0 || descriptor.length % chunk_size != 0 {
                return Err(BAD);
            }
            let pieces = (descriptor.length / chunk_size) as usize;
            if path.chunks.len() + pieces > usize::from(pool.shape.queue_depth) {
                return Err(BAD);
            }
            path.chunks.extend((0..pieces as u64).map(|n| Descriptor {
                address: descriptor.address.wrapping_add(n * u64::from(chunk_size)),
                key: descriptor.key,
                length: chunk_size,
            }));
        }
        if path.chunks.len() != usize::from(pool.shape.queue_depth) {
            return Err(BAD);
        }
        path.state = PathState::Connected;
        path.first = true;
        let heartbeat = self.heartbeat(ctx);
        self.paths[key].heartbeat = heartbeat;
        self.events.push_back(Event::PathUp(key));
        Ok(())
    }

    /// Ends a path: its requests are lost.
    pub(super) fn end_path<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        reason: DownReason,
        ctx: &mut Context<'_, P>,
    ) {
        let path = &mut self.paths[key];
        if path.state == PathState::Down {
            return;
        }
        path.state = PathState::Down;
        release(ctx.arena, core::mem::replace(&mut path.info, Window::empty()));
        for number in path.connections.drain(..) {
            let connection = self.connections.remove(number);
            // Disconnects, too. Fails only if the provider has dropped the queue pair already.
            let _ = ctx.provider.destroy_qp(connection.qp);
            release(ctx.arena, connection.receives);
        }
        if let Some(pool) = &mut self.pool {
            for (n, call) in pool.calls.iter_mut().enumerate() {
                if matches!(call, Call::Outstanding { path, .. } if *path == key) {
                    *call = Call::Idle;
                    // The server must not write late answers into a buffer that is used again.
                    let _ = ctx.provider.revoke_key(pool.regions[n].0);
                    self.events.push_back(Event::Done(Permit(n as u16), Outcome::Lost));
                }
            }
        }
        self.events.push_back(Event::PathDown(key, reason));
    }
}

fn release(arena: &mut Arena, window: Window) {
    if !window.is_empty() {
        arena.free(window);
    }
}
