//! Data path: requests and responses.

use super::ServerDevice;
use super::answer::{ANSWER, answer, bare, check_length, count};
use super::arrival::{
    Arrival, admit_arrival, check_request, describe, handle_io, header, written_contents,
};
use super::table::{Origin, Slot, SlotState, WorkId};
use super::{
    CloseReason, Ctx, Event, Execute, Execution, PathState, Request, RequestId, RequestKind,
    Served, Server, SessionId,
};
use crate::Errno;
use crate::wire::Immediate;
use drivers::hal::Window;
use verbs::VerbsError;

impl Server {
    /// Handles a WRITE with immediate of the client: a request, or a heartbeat.
    // Part of answering a request where it is found, which saved 240 of 1,560 instructions a read (`bench mlx5`).
    #[inline(always)]
    pub(super) fn handle_immediate<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        immediate: u32,
        execute: &mut impl Execute,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Event> {
        let connection = &mut self.connections[key];
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        if path.state != PathState::Connected {
            let early = CloseReason::Protocol("a request before INFO_REQ");
            self.close_path(path_key, early, ctx);
            return None;
        }
        path.heartbeat.record_rx(ctx.now);
        connection.consumed += 1;
        if connection.consumed == connection.posted_at_once {
            let (id, count) =
                (WorkId::receive(key).to_bits(), core::mem::take(&mut connection.consumed));
            if let Err(error) = ctx.provider.post_empty_recvs(connection.qp, id, count) {
                self.close_path(path_key, error.into(), ctx);
                return None;
            }
        }
        let done = match Immediate::parse(immediate) {
            Immediate::Request { place } => {
                let session = &mut self.sessions[path.session];
                let new_keys = self.config.always_invalidate;
                let mut origin = Origin { key, connection, path, session, new_keys };
                let arrival = handle_io(place, &mut origin, execute, ctx);
                return self.finish_arrival(path_key, arrival, ctx);
            }
            Immediate::Heartbeat => self.send_on(key, bare(Immediate::HeartbeatAck), ctx),
            Immediate::HeartbeatAck => {
                path.latency_nanos = path.heartbeat.latency(ctx.now).as_nanos() as u64;
                Ok(())
            }
            // Ignored, as in Linux.
            Immediate::Response { .. } | Immediate::Unknown(_) => Ok(()),
        };
        if let Err(reason) = done {
            self.close_path(path_key, reason, ctx);
        }
        None
    }

    /// Continues with a request whose chunk's old key is now revoked.
    #[cold]
    pub(super) fn handle_key<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        chunk: u16,
        rkey: u32,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Event> {
        let connection = self.connections.get_mut(key)?;
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let slot = path.requests.get(usize::from(chunk))?;
        if slot.state != SlotState::AwaitsKey || slot.cid != connection.cid {
            return None;
        }
        // In this state `address` is an offset.
        let (offset, arrived) = (slot.address as u32, slot.arrived);
        let slot = Slot { rkey, cid: connection.cid, arrived, ..Slot::IDLE };
        let slot = path.region.ok_or(CloseReason::Resources).and_then(|region| {
            let contents = written_contents(session, region, chunk, ctx)?;
            let header = header(&contents, offset)?;
            Ok(check_request(slot, header, offset, &contents, session))
        });
        let arrival = slot.and_then(|slot| admit_arrival(chunk, slot, connection, path));
        self.finish_arrival(path_key, arrival, ctx)
    }

    /// Completes the arrival of a request.
    // Part of answering a request where it is found, which saved 240 of 1,560 instructions a read (`bench mlx5`).
    #[inline(always)]
    fn finish_arrival<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        arrival: Result<Arrival, CloseReason>,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Event> {
        match arrival {
            Ok(Arrival::Executed) => return Some(Event::Executed),
            Ok(Arrival::Started(request)) => return Some(Event::Request(request)),
            Ok(Arrival::Admitted(id)) => self.ready.push_back(id),
            Ok(Arrival::Parked) => {}
            Err(reason) => self.close_path(path_key, reason, ctx),
        }
        None
    }

    /// Sends a heartbeat.
    pub(super) fn send_heartbeat<P: ServerDevice + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        self.send_service(path_key, bare(Immediate::Heartbeat), ctx)
    }

    /// Starts a request with room for its response. Returns None if it waits for another condition, or was answered
    /// with an error.
    fn admit<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get_mut(id.path as usize)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        if slot.state == SlotState::Malformed {
            self.counters.malformed += 1;
            self.answer_malformed(id, Errno::EINVAL, ctx);
            return None;
        }
        if self.sessions[path.session].executing.get(usize::from(id.chunk)) == Some(&true) {
            slot.state = SlotState::AwaitsChunk;
            path.stats.chunk_waits += 1;
            return None;
        }
        self.start(id, ctx)
    }

    /// Starts a request for the user, unless it has to wait for memory.
    fn start<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get_mut(id.path as usize)?;
        let session = self.sessions.get_mut(path.session)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        *session.executing.get_mut(usize::from(id.chunk))? = true;
        // A session with its own memory stages the data in the chunk.
        if session.chunks.is_none()
            && slot.kind == RequestKind::Read
            && ctx.provider.back_chunk(path.region?, id.chunk).is_none()
        {
            if slot.state != SlotState::AwaitsBuffer {
                slot.state = SlotState::AwaitsBuffer;
                path.stats.memory_waits += 1;
                self.awaiting_buffer.push_back(id);
            }
            return None;
        }
        slot.state = SlotState::Executing;
        path.in_flight += 1;
        let slot = *slot;
        self.describe(id, &slot, ctx)
    }

    /// Starts the first request that waits for memory, if memory is available.
    pub(super) fn start_awaiting_buffer<P: ServerDevice + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let request = self.start(*self.awaiting_buffer.front()?, ctx)?;
        self.awaiting_buffer.pop_front();
        Some(request)
    }

    /// Continues with a request that waited for room or for its chunk.
    pub(super) fn resume<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        match path.requests.get(usize::from(id.chunk))?.state {
            SlotState::AwaitsSendCredit | SlotState::Malformed | SlotState::AwaitsChunk => {
                self.admit(id, ctx)
            }
            SlotState::Idle
            | SlotState::AwaitsKey
            | SlotState::AwaitsBuffer
            | SlotState::Executing => None,
        }
    }

    /// Sets whether the user copies the data of a session's writes at once, for all its devices. Otherwise, with
    /// `always_invalidate`, a write starts only after the client's key is revoked.
    pub fn copies_at_once(&mut self, id: SessionId, copies: bool) {
        if let Some(session) = self.sessions.get_mut(id.0 as usize) {
            session.copies_at_once = copies;
        }
    }

    /// Describes an executing request.
    fn describe<P: ServerDevice + ?Sized>(
        &self,
        id: RequestId,
        slot: &Slot,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let (session, region) = (self.sessions.get(path.session)?, path.region?);
        let settled = !session.has_unsettled
            || ctx.provider.chunk_key(region, id.chunk).is_ok_and(|key| key == slot.rkey);
        let contents = session.contents(region, id.chunk, ctx)?;
        describe(id, path.session, slot, &contents, settled)
    }

    /// Address of the host that a request came from.
    pub fn host(&self, id: RequestId) -> Option<core::net::IpAddr> {
        self.paths.get(id.path as usize).map(|path| path.from)
    }

    /// Describes an executing request again, for users that could not complete it at once. Returns None if its path is
    /// ending: then it must be answered with an error.
    pub fn request<P: ServerDevice + ?Sized>(
        &self,
        id: RequestId,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let slot = path.requests.get(usize::from(id.chunk))?;
        if path.state != PathState::Connected || slot.state != SlotState::Executing {
            return None;
        }
        self.describe(id, slot, ctx)
    }

    /// Executes a request that had to wait.
    #[inline(never)]
    pub(super) fn execute_delayed<P: ServerDevice + ?Sized>(
        &mut self,
        request: Request,
        execute: &mut impl Execute,
        ctx: &mut Ctx<'_, P>,
    ) -> Event {
        match execute.execute(&request) {
            Execution::Done(result) => {
                self.respond(request.id, result, ctx);
                Event::Executed
            }
            Execution::Pending => Event::Executed,
            Execution::Deferred => Event::Request(request),
        }
    }

    /// Answers a request. `result`: the data of a read, at most as long as requested (otherwise EIO), which must remain
    /// unchanged until it is sent; ignored for writes. Returns None if `id` is not an executing request.
    pub fn respond<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        result: Result<Window, Errno>,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Served> {
        let path = self.paths.get_mut(id.path as usize)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        if slot.state != SlotState::Executing {
            return None;
        }
        slot.state = SlotState::Idle;
        let (slot, nanos) = (*slot, slot.age_nanos(ctx.now));
        let result = check_length(&slot, result);
        let served = Served { kind: slot.kind, bytes: slot.data_len, nanos };
        count(&mut path.stats, &slot, &result, nanos);
        path.in_flight -= 1;
        let session_key = path.session;
        let session = &mut self.sessions[session_key];
        if let Some(executing) = session.executing.get_mut(usize::from(id.chunk)) {
            *executing = false;
        }
        let (several_paths, connected) =
            (session.paths.len() > 1, path.state == PathState::Connected);
        let posted = connected.then(|| self.answer(id, &slot, result, ctx));
        if several_paths {
            self.wake_chunk(session_key, id.chunk);
        }
        match posted {
            Some(Ok(())) => (),
            Some(Err(error)) => self.close_path(id.path as usize, error.into(), ctx),
            None => self.reap_path(id.path as usize, ctx),
        }
        Some(served)
    }

    /// Posts the response of a slot's request, for which room is reserved. Does nothing if its connection is gone.
    fn answer<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        slot: &Slot,
        result: Result<Window, Errno>,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), VerbsError> {
        let Some(path) = self.paths.get_mut(id.path as usize) else { return Ok(()) };
        let key = path.connections.get(usize::from(slot.cid)).copied().flatten();
        let Some(key) = key else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.reserved -= ANSWER;
        let session = &mut self.sessions[path.session];
        let new_keys = self.config.always_invalidate;
        let mut origin = Origin { key, connection, path, session, new_keys };
        answer(&mut origin, id.chunk, slot, result, ctx)
    }

    /// Marks the next path's request in a free chunk as ready.
    pub(super) fn wake_chunk(&mut self, session: usize, chunk: u16) {
        for &path in &self.sessions[session].paths {
            let slot = self.paths[path].requests.get(usize::from(chunk));
            if slot.is_some_and(|slot| slot.state == SlotState::AwaitsChunk) {
                self.ready.push_back(RequestId { path: path as u32, chunk });
                return;
            }
        }
    }

    /// Answers a malformed request with an error; there is room for the response.
    #[cold]
    fn answer_malformed<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        errno: Errno,
        ctx: &mut Ctx<'_, P>,
    ) {
        let slot = &mut self.paths[id.path as usize].requests[usize::from(id.chunk)];
        slot.state = SlotState::Idle;
        let slot = *slot;
        if let Err(error) = self.answer(id, &slot, Err(errno), ctx) {
            self.close_path(id.path as usize, error.into(), ctx);
        }
    }

    /// Continues with requests that waited for room, after sends of a connection have completed.
    pub(super) fn make_room<P: ServerDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let connection = &mut self.connections[key];
        let path_key = connection.path;
        if connection.cid == 0 {
            let completed = connection.completed;
            self.free_info(path_key, completed, ctx);
        }
        let connection = &mut self.connections[key];
        while let Some((first, last)) = connection.queued
            && connection.has_room(ANSWER)
        {
            connection.reserved += ANSWER;
            let next = self.paths[path_key].requests[usize::from(first)].next;
            connection.queued = (first != last).then_some((next, last));
            self.ready.push_back(RequestId { path: path_key as u32, chunk: first });
        }
    }
}
