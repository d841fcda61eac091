//! Data path: requests and responses.

use super::arrival::{Arrival, admit_arrival, handle_io, header, written_contents};
use super::table::{Connection, Contents, Session, Slot, SlotState, WorkId};
use super::{
    CloseReason, EngineContext, Event, Execute, Execution, PathState, PathStats, Request,
    RequestId, RequestKind, Served, Server, SessionId,
};
use crate::Errno;
use crate::wire::{Immediate, RkeyResponse};
use drivers::hal::Window;
use verbs::{
    MrId, Payload, RdmaDevice, RemoteAddress, SendOperation, SendRequest, SendWith, VerbsError,
};

/// Most sends of a response.
pub(super) const ANSWER: u32 = 2;

/// An empty WRITE with immediate.
#[inline(always)]
fn bare(immediate: Immediate) -> SendOperation<'static> {
    SendOperation::Write {
        payload: Payload::Windows(&[]),
        to: RemoteAddress { address: 0, rkey: 0 },
        immediate: Some(immediate.emit()),
    }
}

impl Server {
    /// Handles a WRITE with immediate of the client: a request, or a heartbeat.
    #[inline(always)]
    pub(super) fn handle_immediate<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        immediate: u32,
        execute: &mut impl Execute,
        ctx: &mut EngineContext<'_, P>,
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
                let arrival =
                    handle_io(place, key, connection, path, session, new_keys, execute, ctx);
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
    pub(super) fn handle_key<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        chunk: u16,
        rkey: u32,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Event> {
        let connection = self.connections.get_mut(key)?;
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        let session = &mut self.sessions[path.session];
        let slot = path.requests.get(usize::from(chunk))?;
        if slot.state != SlotState::AwaitsKey || slot.cid != connection.cid {
            return None;
        }
        // In this state `address` is an offset.
        let (offset, arrived) = (slot.address as u32, slot.arrived);
        let found = path.region.ok_or(CloseReason::Resources).and_then(|region| {
            let contents = written_contents(session, region, chunk, ctx)?;
            Ok((contents, header(&contents, offset)?))
        });
        let arrival = found.and_then(|found| {
            admit_arrival(chunk, offset, found, rkey, arrived, connection, path, session)
        });
        self.finish_arrival(path_key, arrival, ctx)
    }

    /// Completes the arrival of a request.
    #[inline(always)]
    fn finish_arrival<P: RdmaDevice + ?Sized>(
        &mut self,
        path_key: usize,
        arrival: Result<Arrival, CloseReason>,
        ctx: &mut EngineContext<'_, P>,
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
    pub(super) fn send_heartbeat<P: RdmaDevice + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), CloseReason> {
        self.send_service(path_key, bare(Immediate::Heartbeat), ctx)
    }

    /// Starts a request with room for its response. Returns None if it waits for another condition, or was answered
    /// with an error.
    fn admit<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
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
    fn start<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
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
    pub(super) fn start_awaiting_buffer<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let request = self.start(*self.awaiting_buffer.front()?, ctx)?;
        self.awaiting_buffer.pop_front();
        Some(request)
    }

    /// Continues with a request that waited for room or for its chunk.
    pub(super) fn resume<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
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
    fn describe<P: RdmaDevice + ?Sized>(
        &self,
        id: RequestId,
        slot: &Slot,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let (session, region) = (self.sessions.get(path.session)?, path.region?);
        let settled = !session.has_unsettled
            || ctx.provider.chunk_key(region, id.chunk).is_ok_and(|key| key == slot.rkey);
        let contents = contents(session, region, id.chunk, ctx)?;
        describe(id, path.session, slot, &contents, settled)
    }

    /// Address of the host that a request came from.
    pub fn host(&self, id: RequestId) -> Option<core::net::IpAddr> {
        self.paths.get(id.path as usize).map(|path| path.from)
    }

    /// Describes an executing request again, for users that could not complete it at once. Returns None if its path is
    /// ending: then it must be answered with an error.
    pub fn request<P: RdmaDevice + ?Sized>(
        &self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
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
    pub(super) fn execute_delayed<P: RdmaDevice + ?Sized>(
        &mut self,
        request: Request,
        execute: &mut impl Execute,
        ctx: &mut EngineContext<'_, P>,
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
    pub fn respond<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        result: Result<Window, Errno>,
        ctx: &mut EngineContext<'_, P>,
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
    fn answer<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        slot: &Slot,
        result: Result<Window, Errno>,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), VerbsError> {
        let Some(path) = self.paths.get(id.path as usize) else { return Ok(()) };
        let key = path.connections.get(usize::from(slot.cid)).copied().flatten();
        let Some(key) = key else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.reserved -= ANSWER;
        let session = &self.sessions[path.session];
        let own = path.region.filter(|_| session.chunks.is_none());
        let new_keys = self.config.always_invalidate;
        answer(id.chunk, slot, result, own, key, connection, new_keys, ctx)
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
    fn answer_malformed<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        errno: Errno,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let slot = &mut self.paths[id.path as usize].requests[usize::from(id.chunk)];
        slot.state = SlotState::Idle;
        let slot = *slot;
        if let Err(error) = self.answer(id, &slot, Err(errno), ctx) {
            self.close_path(id.path as usize, error.into(), ctx);
        }
    }

    /// Continues with requests that waited for room, after sends of a connection have completed.
    pub(super) fn make_room<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
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

/// Builds the request for the user.
#[inline(always)]
pub(super) fn describe(
    id: RequestId,
    session: usize,
    slot: &Slot,
    contents: &Contents,
    settled: bool,
) -> Option<Request> {
    let length = slot.data_len as usize;
    let data = contents.part(0, length)?;
    let user = contents.part(length, usize::from(slot.user_len))?;
    let session = SessionId(session as u32);
    Some(Request { id, session, kind: slot.kind, data, user, settled })
}

/// The contents of a chunk that a path's client has written.
#[inline(always)]
pub(super) fn contents<P: RdmaDevice + ?Sized>(
    session: &Session,
    region: MrId,
    chunk: u16,
    ctx: &mut EngineContext<'_, P>,
) -> Option<Contents> {
    let size = session.chunk_size as usize;
    match session.chunks {
        Some(chunks) => {
            let window = chunks.slice(usize::from(chunk) * size, size)?;
            Some(Contents { start: 0, window })
        }
        None => {
            let (start, window) = ctx.provider.take_chunk(region, chunk)?;
            Some(Contents { start, window })
        }
    }
}

/// Turns a result that is longer than requested into EIO.
#[inline(always)]
pub(super) fn check_length(slot: &Slot, result: Result<Window, Errno>) -> Result<Window, Errno> {
    match result {
        Ok(data) if data.len() > slot.data_len as usize => Err(Errno::EIO),
        result => result,
    }
}

/// Counts an answered request; `nanos`: time since its arrival.
#[inline(always)]
pub(super) fn count(
    stats: &mut PathStats,
    slot: &Slot,
    result: &Result<Window, Errno>,
    nanos: u64,
) {
    let bytes = u64::from(slot.data_len);
    match (result, slot.kind) {
        (Err(_), _) => stats.errors += 1,
        (Ok(_), RequestKind::Read) => {
            stats.reads += 1;
            stats.read_bytes += bytes;
            stats.read_latency.record(nanos);
        }
        (Ok(_), RequestKind::Write) => {
            stats.writes += 1;
            stats.write_bytes += bytes;
            stats.write_latency.record(nanos);
        }
    }
}

/// Posts the response to the request in a chunk on the connection of the request, which has room, with as few messages
/// as the mode allows. `own`: the region whose chunks have memory on demand.
#[expect(clippy::too_many_arguments, reason = "parts of a response, each looked up once")]
#[inline(always)]
pub(super) fn answer<P: RdmaDevice + ?Sized>(
    chunk: u16,
    slot: &Slot,
    result: Result<Window, Errno>,
    own: Option<MrId>,
    key: usize,
    connection: &mut Connection,
    new_keys: bool,
    ctx: &mut EngineContext<'_, P>,
) -> Result<(), VerbsError> {
    // Only the response to a read has data.
    let data = result.ok().filter(|data| slot.kind == RequestKind::Read && !data.is_empty());
    let mut carries = None;
    if let Some(region) = own {
        let own = ctx.provider.take_chunk(region, chunk);
        let lies_there = |own: &Window| data.is_some_and(|data| own.contains(&data));
        carries = own.filter(|(_, own)| lies_there(own)).map(|_| (region, chunk));
        if carries.is_none() {
            ctx.provider.release_chunk(region, chunk);
        }
    }
    let immediate = Immediate::Response {
        message: u32::from(chunk),
        result: result.map(|_| ()),
        invalidated: false,
    };
    // Separate inlined calls, so that the compiler knows the shape of each.
    let to = RemoteAddress { address: slot.address, rkey: slot.key };
    match (data, new_keys) {
        (None, false) => return post(key, connection, bare(immediate), None, ctx),
        (None, true) => {}
        (Some(data), _) => {
            let payload = Payload::Windows(&[data]);
            let immediate = if new_keys { None } else { Some(immediate.emit()) };
            let operation = SendOperation::Write { payload, to, immediate };
            post(key, connection, operation, carries, ctx)?;
            if !new_keys {
                return Ok(());
            }
        }
    }
    let message = RkeyResponse { buffer: chunk, rkey: slot.rkey }.emit();
    let with = SendWith::Immediate(immediate.emit());
    let operation = SendOperation::Send { payload: Payload::Inline(&message), with };
    post(key, connection, operation, None, ctx)
}

/// Posts one send of a response.
#[inline(always)]
fn post<P: RdmaDevice + ?Sized>(
    key: usize,
    connection: &mut Connection,
    operation: SendOperation<'_>,
    carries: Option<(MrId, u16)>,
    ctx: &mut EngineContext<'_, P>,
) -> Result<(), VerbsError> {
    let (sequence, signaled) = connection.number_send();
    let request = SendRequest {
        id: WorkId::send(key, sequence).to_bits(),
        operation,
        signaled,
        solicited: false,
        datagram: None,
        carries,
        ack_lazily: connection.is_roomy(),
    };
    ctx.provider.post_send(connection.qp, &request)
}
