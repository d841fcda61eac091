//! The INFO exchange (rtrs-srv.c, `process_info_req`), the last step of a path's set-up.

use super::ServerDevice;
use super::connect::MAX_SENDS;
use super::refuse::Refused;
use super::table::{ChunkState, Slot, WorkId};
use super::{CloseReason, Ctx, Directory, Event, Input, Notice, PathState, Server, SessionId};
use crate::wire::{Descriptor, InfoRequest, InfoResponse};
use crate::{Errno, Heartbeat, Name};
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::Window;
use verbs::{Payload, SendOperation, SendRequest, SendWith};

const NAME_TAKEN: Refused = Refused {
    errno: Errno::EPERM,
    reason: "name_taken",
    advice: "a host of another address has a session of that name; give the client another sessname, or \
             end that session (session list, session disconnect)",
};

impl Server {
    /// Handles a SEND of the client. Only INFO_REQ is valid.
    pub(super) fn handle_message<P: ServerDevice + ?Sized>(
        &mut self,
        connection: usize,
        work: WorkId,
        length: u32,
        ctx: &mut Ctx<'_, P>,
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

    fn handle_info<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        length: u32,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        let path = &self.paths[path_key];
        if path.state.next(Input::InfoAccepted).is_none() || path.info_requested {
            return Ok(());
        }
        if path.connections.iter().any(Option::is_none) {
            return Err(CloseReason::Protocol("INFO_REQ before all connections are established"));
        }
        let mut bytes = [0; InfoRequest::SIZE];
        let read = path.info.is_some_and(|info| info.read(0, &mut bytes).is_ok());
        if length as usize != bytes.len() || !read {
            return Err(CloseReason::Protocol("INFO_REQ of wrong size"));
        }
        let request = InfoRequest::parse(&bytes)
            .map_err(|_| CloseReason::Protocol("INFO_REQ with an invalid name or type"))?;
        self.claim_name(path_key, request.name, ctx)?;
        let path = &mut self.paths[path_key];
        path.info_requested = true;
        let (session, from) = (path.session, path.from);
        self.sessions[session].name = request.name;
        self.sessions[session].validated = true;
        if let Err(why) = self.allocate_memory(session, ctx) {
            self.refuse(from, "session", request.name.as_str().into(), why);
            return Err(CloseReason::Memory);
        }
        if self.sessions[session].chunk_state == ChunkState::Ready {
            self.complete_path(path_key, ctx)?;
        }
        Ok(())
    }

    /// Answers INFO_REQ on all paths of a session whose memory is ready.
    pub(super) fn answer_info<P: ServerDevice + ?Sized>(
        &mut self,
        session: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        for path in self.sessions[session].paths.clone() {
            let info_requested = self.paths.get(path).is_some_and(|path| path.info_requested);
            if info_requested && let Err(reason) = self.complete_path(path, ctx) {
                self.close_path(path, reason, ctx);
            }
        }
    }

    /// Sends INFO_RSP with the chunks, and connects the path.
    fn complete_path<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        let Some(next) = self.paths[path_key].state.next(Input::InfoAccepted) else {
            return Ok(());
        };
        let response = self.register_chunks(path_key, ctx)?;
        let path = &mut self.paths[path_key];
        let session = &mut self.sessions[path.session];
        path.requests = alloc::vec![Slot::IDLE; usize::from(session.queue_depth)];
        path.state = next;
        path.heartbeat = Heartbeat::for_server(
            self.config.heartbeat_interval,
            self.config.heartbeat_misses,
            ctx.now,
        );
        if !session.up {
            session.up = true;
            self.links.push_back(Event::LinkUp(SessionId(path.session as u32)));
        }
        let notice = Notice::PathUp { session: session.name, from: path.from, to: path.to };
        let connections = path.connections.len();
        self.ready.reserve(usize::from(session.queue_depth));
        self.awaiting_buffer.reserve(connections * MAX_SENDS as usize);
        self.counters.paths_up += 1;
        self.notice(notice);
        self.set_heartbeat_timer(path_key);
        let Some(&Some(key)) = self.paths[path_key].connections.first() else { return Ok(()) };
        let payload = Payload::Windows(&[response]);
        self.connections[key].signal_next();
        self.send_on(key, SendOperation::Send { payload, with: SendWith::Nothing }, ctx)?;
        self.paths[path_key].info_sent = self.connections[key].posted;
        Ok(())
    }

    /// Frees the memory of INFO_RSP once the client has received it.
    pub(super) fn free_info<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        completed: u32,
        ctx: &mut Ctx<'_, P>,
    ) {
        let path = &mut self.paths[path_key];
        if path.state == PathState::Connected
            && completed.wrapping_sub(path.info_sent) < 1 << 31
            && let Some(info) = path.info.take()
        {
            ctx.arena.free(info);
        }
    }

    /// Claims a name for a session. A name belongs to one session, and to the addresses of its paths until they are
    /// gone. A restarted client returns with a new session under its old name from one of those addresses: its old
    /// session ends, with all its paths.
    fn claim_name<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        name: Name,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        let (session, from) = (self.paths[path_key].session, self.paths[path_key].from);
        let own = &self.sessions[session].name;
        if *own != Name::default() && *own != name {
            return Err(CloseReason::Protocol("another name than the session's"));
        }
        let others =
            self.sessions.iter().filter(|&(key, other)| key != session && other.name == name);
        let keys: Vec<usize> = others.flat_map(|(_, other)| other.paths.iter().copied()).collect();
        let uuid = self.sessions[session].uuid;
        let elsewhere =
            |(directory, core): &(Arc<Directory>, usize)| !directory.name(*core, uuid, name, from);
        if self.directory.as_ref().is_some_and(elsewhere) {
            self.refuse(from, "session", name.as_str().into(), NAME_TAKEN);
            return Err(CloseReason::NameTaken);
        }
        if keys.is_empty() {
            return Ok(());
        }
        if keys.iter().all(|&key| self.paths[key].from != from) {
            self.refuse(from, "session", name.as_str().into(), NAME_TAKEN);
            return Err(CloseReason::NameTaken);
        }
        for key in keys {
            self.close_path(key, CloseReason::Replaced, ctx);
        }
        Ok(())
    }

    /// Registers the chunks for a path, and writes INFO_RSP in place of INFO_REQ.
    fn register_chunks<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Window, CloseReason> {
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let (count, size) = (session.queue_depth, session.chunk_size);
        let length = InfoResponse::message_size(count);
        let memory = ctx.arena.alloc(length, 64).ok_or(CloseReason::Resources)?;
        if let Some(request) = path.info.replace(memory) {
            ctx.arena.free(request);
        }
        let pd = ctx.provider.pd_on(session.pd, path.to);
        let region = ctx
            .provider
            .register_chunks(pd, count, size, session.chunks, ctx.rng)
            .map_err(|_| CloseReason::Resources)?;
        path.region = Some(region.id);
        let head = InfoResponse { count }.emit();
        memory.write(0, &head).map_err(|_| CloseReason::Resources)?;
        for chunk in 0..count {
            let key = ctx.provider.chunk_key(region.id, chunk);
            let key = key.map_err(|_| CloseReason::Resources)?;
            let address = region.address.wrapping_add(u64::from(chunk) * u64::from(size));
            let descriptor = Descriptor { address, key, length: size };
            let at = InfoResponse::SIZE + usize::from(chunk) * Descriptor::SIZE;
            memory.write(at, &descriptor.emit()).map_err(|_| CloseReason::Resources)?;
        }
        memory.slice(0, length).ok_or(CloseReason::Resources)
    }

    /// Posts a send on the service connection of a path.
    pub(super) fn send_service<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        operation: SendOperation<'_>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        let Some(&Some(key)) = self.paths[path_key].connections.first() else { return Ok(()) };
        self.send_on(key, operation, ctx)
    }

    /// Posts a send without a waiter if there is room, otherwise drops it (heartbeats are repeated, and the client's
    /// answers keep the path alive).
    pub(super) fn send_on<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        operation: SendOperation<'_>,
        ctx: &mut Ctx<'_, P>,
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
            carries: None,
            ack_lazily: false,
        };
        ctx.provider.post_send(connection.qp, &request).map_err(CloseReason::from)
    }
}
