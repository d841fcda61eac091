//! Set-up of a path: its connections one after the other, then INFO, as in Linux.

use super::path::{Connection, WorkId};
use super::pool::Pool;
use super::{Client, Ctx, DownReason, Input, PathState, Shape};
use crate::Errno;
use crate::wire::{ConnectRequest, ConnectResponse, RkeyResponse};
use drivers::hal::Window;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionParameters, QpInit, QpType, RdmaDevice, RejectReason,
    VerbsError,
};

/// Receives of the service connection, which has half as many requests.
const SERVICE_RECEIVES: u32 = 64;
/// Most sends outstanding on a connection; requests beyond them wait.
const MAX_SENDS: u32 = 256;

impl Client {
    /// Starts to connect a path that is down.
    pub(super) fn start_path<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let up = self.is_up();
        let path = &mut self.paths[key];
        let Some(next) = path.state.next(Input::Connect) else { return };
        path.state = next;
        path.recon_cnt = path.recon_cnt.wrapping_add(1);
        path.deadline = ctx.now + self.config.connect_timeout;
        // If another path is up, the server must know the session: otherwise it was restarted. Linux sets `first_conn`
        // again after a success, and then mistakes the restarted server for the old one.
        path.may_create_session = !up;
        let deadline = path.deadline;
        self.wake_at(deadline);
        if let Err(reason) = self.connect_next(key, ctx) {
            self.fail_path(key, reason, ctx);
        }
    }

    /// Restarts other connecting paths that may create the session, now that the first path is up: a server that was
    /// restarted meanwhile must not create it.
    pub(super) fn restart_session_creators<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) {
        for key in 0..self.paths.capacity() {
            let Some(path) = self.paths.get(key) else { continue };
            if path.state == PathState::Connecting && path.may_create_session {
                self.restart_path(key, ctx);
            }
        }
    }

    /// Handles an event of the connection manager. Returns false if the connection does not belong to this client.
    pub fn handle_connection_event<P: RdmaDevice + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Ctx<'_, P>,
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
        if outcome == Err(DownReason::Peer) && ctx.provider.failed_by_itself(connection.qp) {
            // Our queue pair failed: its pending completions have the reason.
            return true;
        }
        if let Err(reason) = &outcome {
            connection.id = None;
            let unknown = *reason == DownReason::Refused(Errno::ENXIO);
            if unknown && !self.paths[path].may_create_session {
                self.fail_others(path, DownReason::Forgotten, ctx);
            }
        }
        let done = outcome.and_then(|response| self.handle_accepted(path, *id, response, ctx));
        if let Err(reason) = done {
            self.fail_path(path, reason, ctx);
        }
        true
    }

    /// Continues with the next connection or INFO after a connection is established.
    fn handle_accepted<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        connection: ConnectionId,
        response: &[u8],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let path = &mut self.paths[key];
        if path.state != PathState::Connecting {
            return Ok(());
        }
        let response = ConnectResponse::parse(response);
        let Ok(ConnectResponse::Accepted {
            queue_depth,
            max_io_size,
            max_header,
            new_rkey,
            incarnation,
        }) = response
        else {
            return Err(DownReason::Protocol("CON_RSP"));
        };
        path.established += 1;
        let previous = self.identity.incarnation;
        self.update_identity(connection, incarnation, ctx.provider);
        let path = &self.paths[key];
        // As in Linux, only the first connection's answer counts.
        if path.established == 1 {
            let shape = Shape { queue_depth, max_io_size, max_header, new_rkey };
            self.adopt(key, shape, previous == incarnation, ctx)?;
        }
        if self.paths[key].established <= self.config.connections {
            return self.connect_next(key, ctx);
        }
        self.send_info(key, ctx)
    }

    /// Adopts the server's parameters for the session. If they differ from the previous ones, the server was restarted,
    /// and all other paths are dead.
    fn adopt<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        shape: Shape,
        same_incarnation: bool,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let pd = ctx.provider.pd_on(self.pd, self.paths[key].from);
        let same = |pool: &Pool| pool.shape == shape && pool.pd == pd;
        let same_shape = self.pool.as_ref().is_some_and(same);
        if same_shape && same_incarnation {
            return Ok(());
        }
        self.fail_others(key, DownReason::Anew, ctx);
        if same_shape {
            return Ok(());
        }
        if let Some(pool) = self.pool.take() {
            pool.end(ctx);
        }
        self.fresh = true;
        self.pools_made = self.pools_made.wrapping_add(1);
        self.pool = Some(Pool::new(&self.config, shape, self.pools_made, pd, ctx)?);
        Ok(())
    }

    /// Requests the path's next connection.
    fn connect_next<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let no_resources = |_| DownReason::Resources;
        let cid = self.paths[key].established;
        let permits = self.pool.as_ref().map_or(0, |pool| pool.calls.len() as u32);
        let most = ctx.provider.attributes().max_wr;
        // A response with invalidation consumes two receives. INFO_RSP consumes one more.
        let (receives, sends) = match cid {
            0 => (SERVICE_RECEIVES.min(most - 1), SERVICE_RECEIVES.min(most)),
            _ => ((2 * permits).min(most - 1), (permits + permits / 2).min(MAX_SENDS).min(most)),
        };
        let memory = ctx
            .arena
            .alloc(receives as usize * RkeyResponse::SIZE, 64)
            .ok_or(DownReason::Resources)?;
        let init = QpInit {
            kind: QpType::Rc,
            pd: ctx.provider.pd_on(self.pd, self.paths[key].from),
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: sends,
            max_recv_wr: receives + 1,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = match ctx.provider.create_qp(&init, ctx.rng) {
            Ok(qp) => qp,
            Err(_) => {
                ctx.arena.free(memory);
                return Err(DownReason::Resources);
            }
        };
        // The data of a read precedes its response.
        ctx.provider.writes_precede_send(qp);
        let number = self.connections.insert(Connection {
            path: key,
            qp,
            id: None,
            send_room: sends,
            posted: 0,
            completed: 0,
            in_flight: 0,
            max_in_flight: receives / 2,
            receives: memory,
        });
        self.paths[key].connections.push(number);
        if cid > 0 {
            self.post_receives(number, ctx)?;
        }
        let path = &self.paths[key];
        let request = ConnectRequest {
            cid,
            cid_num: self.config.connections + 1,
            recon_cnt: path.recon_cnt,
            path: path.uuid,
            session: self.session,
            first: path.may_create_session,
        };
        let parameters = ConnectionParameters {
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
        };
        let id = ctx
            .provider
            .connect(qp, path.from, path.to, &parameters, &request.emit(), ctx.now, ctx.rng)
            .map_err(|error| match error {
                VerbsError::Unreachable => DownReason::Unreachable,
                VerbsError::Invalid => DownReason::NoAddress,
                error => no_resources(error),
            })?;
        self.connections[number].id = Some(id);
        Ok(())
    }

    /// Posts all receives of a connection.
    pub(super) fn post_receives<P: RdmaDevice + ?Sized>(
        &mut self,
        number: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let count = 2 * self.connections[number].max_in_flight;
        (0..count).try_for_each(|n| self.post_receive(number, n, ctx))
    }

    pub(super) fn post_receive<P: RdmaDevice + ?Sized>(
        &mut self,
        number: usize,
        n: u32,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let connection = &self.connections[number];
        let at = n as usize * RkeyResponse::SIZE;
        let into = connection.receives.slice(at, RkeyResponse::SIZE).unwrap_or(Window::empty());
        let id = WorkId::new(number, n).to_bits();
        ctx.provider
            .post_recv(connection.qp, &verbs::RecvRequest { id, into: &[into] })
            .map_err(DownReason::from_verbs)
    }
}
