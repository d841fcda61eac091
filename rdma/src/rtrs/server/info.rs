//! The INFO exchange (rtrs-srv.c, `process_info_req`), which completes a path.

use super::table::{Slot, WorkId};
use super::{CloseReason, Context, Event, Input, Notice, PathState, Server, SessionId};
use crate::rtrs::wire::{Descriptor, InfoRequest, InfoResponse};
use crate::rtrs::{Heartbeat, Name};
use crate::verbs::{Access, Fabric, Payload, SendOperation, SendRequest, SendWith};

impl Server {
    /// Takes a SEND of the client's. There is only one that means anything.
    pub(super) fn handle_message<P: Fabric + ?Sized>(
        &mut self,
        connection: usize,
        work: WorkId,
        length: u32,
        ctx: &mut Context<'_, P>,
    ) {
        let path = self.connections[connection].path;
        let done = if work.is_info() {
            self.handle_info(path, length, ctx)
        } else {
            Err(CloseReason::Protocol("an unexpected message"))
        };
        if let Err(reason) = done {
            self.close_path(path, reason, ctx);
        }
    }

    fn handle_info<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        length: u32,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), CloseReason> {
        let path = &self.paths[path_key];
        let Some(next) = path.state.next(Input::InfoAccepted) else { return Ok(()) };
        if path.connections.iter().any(Option::is_none) {
            return Err(CloseReason::Protocol("INFO_REQ before all connections stand"));
        }
        let mut bytes = [0; InfoRequest::SIZE];
        if length as usize != bytes.len() || path.info.read(0, &mut bytes).is_err() {
            return Err(CloseReason::Protocol("INFO_REQ of another size"));
        }
        let request = InfoRequest::parse(&bytes)
            .map_err(|_| CloseReason::Protocol("INFO_REQ with an impossible name or type"))?;
        self.claim_name(path_key, request.name, ctx)?;
        let message = self.register_chunks(path_key, ctx)?;
        let path = &mut self.paths[path_key];
        let session = &mut self.sessions[path.session];
        session.name = request.name;
        path.requests = alloc::vec![Slot::IDLE; usize::from(session.queue_depth)];
        path.state = next;
        path.heartbeat =
            Heartbeat::new(self.config.heartbeat_interval, self.config.heartbeat_misses, ctx.now);
        if !session.up {
            session.up = true;
            self.links.push_back(Event::LinkUp(SessionId(path.session as u32)));
        }
        let notice = Notice::PathUp { session: request.name, from: path.from, to: path.to };
        let deadline = path.heartbeat.deadline();
        let response = path.info.slice(0, message).ok_or(CloseReason::Resources)?;
        self.ready.reserve(usize::from(session.queue_depth));
        self.counters.paths_up += 1;
        self.notice(notice);
        self.wake_at(deadline);
        self.send_service(
            path_key,
            SendOperation::Send { payload: Payload::Windows(&[response]), with: SendWith::Nothing },
            ctx,
        )
    }

    /// A name belongs to one session. A client that was started anew comes with a new session
    /// under its old name and address: its old session ends.
    fn claim_name<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        name: Name,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), CloseReason> {
        let (session, from) = (self.paths[path_key].session, self.paths[path_key].from);
        let own = &self.sessions[session].name;
        if *own != Name::default() && *own != name {
            return Err(CloseReason::Protocol("another name than the session's"));
        }
        loop {
            let other = self.paths.iter().find(|(_, path)| {
                path.session != session
                    && path.state != PathState::Closing
                    && self.sessions[path.session].name == name
            });
            match other {
                None => return Ok(()),
                Some((key, path)) if path.from == from => {
                    self.close_path(key, CloseReason::Replaced, ctx);
                }
                Some(_) => {
                    return Err(CloseReason::Protocol("a session name that another host uses"));
                }
            }
        }
    }

    /// Registers the chunks for a path, and writes INFO_RSP. Its length.
    fn register_chunks<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<usize, CloseReason> {
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let count = if self.config.always_invalidate { session.queue_depth } else { 1 };
        let size = session.chunks.len() / usize::from(count);
        path.regions.reserve_exact(usize::from(count));
        let head = InfoResponse { count }.emit();
        path.info.write(0, &head).map_err(|_| CloseReason::Resources)?;
        for n in 0..usize::from(count) {
            let memory = session.chunks.slice(n * size, size).ok_or(CloseReason::Resources)?;
            let region = ctx
                .provider
                .register(session.pd, memory, Access::REMOTE_WRITE, ctx.rng)
                .map_err(|_| CloseReason::Resources)?;
            path.regions.push(region.id);
            let descriptor =
                Descriptor { address: region.address, key: region.rkey, length: size as u32 };
            let at = InfoResponse::SIZE + n * Descriptor::SIZE;
            path.info.write(at, &descriptor.emit()).map_err(|_| CloseReason::Resources)?;
        }
        Ok(InfoResponse::message_size(count))
    }

    /// Posts a send on the service connection of a path.
    pub(super) fn send_service<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        operation: SendOperation<'_>,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), CloseReason> {
        let Some(&Some(key)) = self.paths[path_key].connections.first() else { return Ok(()) };
        self.send_on(key, operation, ctx)
    }

    /// Posts a send that nothing waits for, if there is room; else it is left out (a heartbeat is
    /// asked for again, and the client's answers keep the path alive).
    pub(super) fn send_on<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        operation: SendOperation<'_>,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), CloseReason> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        if !connection.has_room(1) {
            return Ok(());
        }
        let (sequence, signaled) = connection.number_send();
        let request = SendRequest {
            id: WorkId::send(key, sequence).to_bits(),
            operation,
            signaled,
            solicited: false,
            datagram: None,
        };
        ctx.provider.post_send(connection.qp, &request).map_err(CloseReason::from)
    }
}
