//! Requests and answers: the data path.

use super::arrival::{Arrival, admit_arrival, handle_io, read_request};
use super::table::{Connection, Contents, Path, Session, Slot, SlotState, WorkId};
use super::{
    CloseReason, EngineContext, PathState, Request, RequestId, RequestKind, Served, Server,
    SessionId,
};
use crate::Errno;
use crate::wire::{Immediate, RkeyResponse};
use drivers::hal::Window;
use slab::Slab;
use verbs::{
    MrId, Payload, RdmaDevice, RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith,
    VerbsError,
};

/// Sends that an answer takes at most.
pub(super) const ANSWER: u32 = 2;

/// A WRITE of nothing, for its immediate.
fn bare(immediate: Immediate) -> SendOperation<'static> {
    SendOperation::Write {
        payload: Payload::Windows(&[]),
        to: RemoteAddress { address: 0, rkey: 0 },
        immediate: Some(immediate.emit()),
    }
}

impl Server {
    /// Takes a WRITE with immediate of the client's: a request, or a heartbeat.
    pub(super) fn handle_immediate<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        immediate: u32,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let connection = &mut self.connections[key];
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        if path.state != PathState::Connected {
            let early = CloseReason::Protocol("a request before INFO_REQ");
            self.close_path(path_key, early, ctx);
            return None;
        }
        path.heartbeat.heard(ctx.now);
        let id = WorkId::receive(key).to_bits();
        if let Err(error) = ctx.provider.post_recv(connection.qp, &RecvRequest { id, into: &[] }) {
            self.close_path(path_key, error.into(), ctx);
            return None;
        }
        let done = match Immediate::parse(immediate) {
            Immediate::Request { place } => {
                let session = &mut self.sessions[path.session];
                let new_keys = self.config.always_invalidate;
                let arrival = handle_io(place, key, connection, path, session, new_keys, ctx);
                return self.go_on(path_key, arrival, ctx);
            }
            Immediate::Heartbeat => self.send_on(key, bare(Immediate::HeartbeatAck), ctx),
            Immediate::HeartbeatAck => {
                path.latency_nanos = path.heartbeat.answered(ctx.now).as_nanos() as u64;
                Ok(())
            }
            // Linux ignores what it does not know, too.
            Immediate::Response { .. } | Immediate::Unknown(_) => Ok(()),
        };
        if let Err(reason) = done {
            self.close_path(path_key, reason, ctx);
        }
        None
    }

    /// The client has lost its key of a chunk: the request that waits for that is looked at.
    #[cold]
    pub(super) fn handle_key<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        chunk: u16,
        rkey: u32,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let connection = self.connections.get_mut(key)?;
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        let session = &mut self.sessions[path.session];
        let slot = path.requests.get(usize::from(chunk))?;
        if slot.state != SlotState::AwaitsKey || slot.cid != connection.cid {
            return None;
        }
        // It was an offset.
        let (offset, arrived) = (slot.address as u32, slot.arrived);
        let arrival = read_request(path, session, chunk, offset, ctx).and_then(|request| {
            admit_arrival(chunk, offset, request, rkey, arrived, connection, path, session)
        });
        self.go_on(path_key, arrival, ctx)
    }

    /// What follows from an arrival.
    #[inline(always)]
    fn go_on<P: RdmaDevice + ?Sized>(
        &mut self,
        path_key: usize,
        arrival: Result<Arrival, CloseReason>,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        match arrival {
            Ok(Arrival::Started(request)) => return Some(request),
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

    /// A request for whose answer there is room. None if it waits for something else, or was
    /// answered with an error.
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

    /// Hands a request to the user, unless it has to wait for memory.
    fn start<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get_mut(id.path as usize)?;
        let session = self.sessions.get_mut(path.session)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        *session.executing.get_mut(usize::from(id.chunk))? = true;
        // With memory of its own the data is staged in the chunk.
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
        let contents = contents(session, path.region?, id.chunk, ctx)?;
        describe(id, path.session, slot, &contents)
    }

    /// The first request that waits for memory, if it gets it now.
    pub(super) fn feed<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Request> {
        let request = self.start(*self.awaiting_buffer.front()?, ctx)?;
        self.awaiting_buffer.pop_front();
        Some(request)
    }

    /// A request that waited for room or for its chunk, if it can go on.
    pub(super) fn release<P: RdmaDevice + ?Sized>(
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

    /// Says whether the user copies what clients of a session write when it is handed out, whatever they ask for. Else it is
    /// handed out once they cannot change it any more, if they have fresh keys.
    pub fn copies_at_once(&mut self, id: SessionId, copies: bool) {
        if let Some(session) = self.sessions.get_mut(id.0 as usize) {
            session.copies_at_once = copies;
        }
    }

    /// Whether the client cannot change what a request writes any more, or may do so at any time.
    pub fn is_settled<P: RdmaDevice + ?Sized>(
        &self,
        id: RequestId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let Some(path) = self.paths.get(id.path as usize) else { return false };
        if !self.sessions.get(path.session).is_some_and(|session| session.was_promised) {
            return true;
        }
        let slot = path.requests.get(usize::from(id.chunk));
        let (Some(slot), Some(region)) = (slot, path.region) else { return false };
        ctx.provider.chunk_key(region, id.chunk) == Ok(slot.rkey)
    }

    /// Address of the host that a request came from.
    pub fn host(&self, id: RequestId) -> Option<core::net::IpAddr> {
        self.paths.get(id.path as usize).map(|path| path.from)
    }

    /// A request that is being worked on once more, for users that could not do it at once. None
    /// if its path is ending: then it has to be given back with an error.
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
        let contents = contents(self.sessions.get(path.session)?, path.region?, id.chunk, ctx)?;
        describe(id, path.session, slot, &contents)
    }

    /// Answers a request. `result` holds the data of a read, at most as much as was asked for, to
    /// stay unchanged until it is sent (more is EIO); nothing of it is sent for writes. None if `id` names no request
    /// that is being worked on.
    #[inline(always)]
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
        // More than was asked for has no place at the client.
        let fits = |data: &Window| data.len() <= slot.data_len as usize;
        let result = result.and_then(|data| if fits(&data) { Ok(data) } else { Err(Errno::EIO) });
        let nanos = slot.age_nanos(ctx.now);
        let served = Served { kind: slot.kind, bytes: slot.data_len, nanos };
        match (result, slot.kind) {
            (Err(_), _) => path.stats.errors += 1,
            (Ok(_), RequestKind::Read) => {
                path.stats.reads += 1;
                path.stats.read_bytes += u64::from(slot.data_len);
                path.stats.read_latency.record(nanos);
            }
            (Ok(_), RequestKind::Write) => {
                path.stats.writes += 1;
                path.stats.write_bytes += u64::from(slot.data_len);
                path.stats.write_latency.record(nanos);
            }
        }
        slot.state = SlotState::Idle;
        path.in_flight -= 1;
        let session_key = path.session;
        let session = &mut self.sessions[session_key];
        if let Some(executing) = session.executing.get_mut(usize::from(id.chunk)) {
            *executing = false;
        }
        let several_paths = session.paths.len() > 1;
        let posted = match path.state {
            PathState::Connected => {
                let new_keys = self.config.always_invalidate;
                Some(answer(id.chunk, result, path, session, &mut self.connections, new_keys, ctx))
            }
            _ => None,
        };
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

    /// A chunk is free: the next path's request in it can start.
    pub(super) fn wake_chunk(&mut self, session: usize, chunk: u16) {
        for &path in &self.sessions[session].paths {
            let slot = self.paths[path].requests.get(usize::from(chunk));
            if slot.is_some_and(|slot| slot.state == SlotState::AwaitsChunk) {
                self.ready.push_back(RequestId { path: path as u32, chunk });
                return;
            }
        }
    }

    /// Answers a request that makes no sense, for whose answer there is room.
    #[cold]
    fn answer_malformed<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        errno: Errno,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let path = &mut self.paths[id.path as usize];
        path.requests[usize::from(id.chunk)].state = SlotState::Idle;
        let (session, new_keys) = (&self.sessions[path.session], self.config.always_invalidate);
        let connections = &mut self.connections;
        let posted = answer(id.chunk, Err(errno), path, session, connections, new_keys, ctx);
        if let Err(error) = posted {
            self.close_path(id.path as usize, error.into(), ctx);
        }
    }

    /// Sends of a connection are done: requests that waited for room go on.
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

/// A request, as the user gets it.
#[inline(always)]
pub(super) fn describe(
    id: RequestId,
    session: usize,
    slot: &Slot,
    contents: &Contents,
) -> Option<Request> {
    let length = slot.data_len as usize;
    let data = contents.part(0, length)?;
    let user = contents.part(length, usize::from(slot.user_len))?;
    Some(Request { id, session: SessionId(session as u32), kind: slot.kind, data, user })
}

/// What is known of the bytes of a chunk that a path's client has written to.
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

/// Posts the answer to the request in a chunk, for which there is room, in as few messages as the mode
/// allows. Nothing, if its connection is gone.
#[inline(always)]
fn answer<P: RdmaDevice + ?Sized>(
    chunk: u16,
    result: Result<Window, Errno>,
    path: &Path,
    session: &Session,
    connections: &mut Slab<Connection>,
    new_keys: bool,
    ctx: &mut EngineContext<'_, P>,
) -> Result<(), VerbsError> {
    let slot = &path.requests[usize::from(chunk)];
    let key = path.connections.get(usize::from(slot.cid)).copied().flatten();
    let Some((key, connection)) = key.and_then(|key| Some((key, connections.get_mut(key)?))) else {
        return Ok(());
    };
    connection.reserved -= ANSWER;
    // Only a read's answer has data.
    let data = match result {
        Ok(data) if slot.kind == RequestKind::Read => data,
        _ => Window::empty(),
    };
    let mut carries = None;
    if let (None, Some(region)) = (session.chunks, path.region) {
        let own = ctx.provider.take_chunk(region, chunk);
        carries = own.filter(|(_, own)| own.contains(&data)).map(|_| (region, chunk));
        if carries.is_none() {
            ctx.provider.release_chunk(region, chunk);
        }
    }
    let immediate = Immediate::Response {
        message: u32::from(chunk),
        result: result.map(|_| ()),
        invalidated: false,
    };
    let to = RemoteAddress { address: slot.address, rkey: slot.key };
    let windows = [data];
    let payload = Payload::Windows(if data.is_empty() { &[] } else { &windows });
    if !new_keys {
        let immediate = Some(immediate.emit());
        let operation = SendOperation::Write { payload, to, immediate };
        return post(key, connection, operation, carries, ctx);
    }
    if !data.is_empty() {
        let operation = SendOperation::Write { payload, to, immediate: None };
        post(key, connection, operation, carries, ctx)?;
    }
    let message = RkeyResponse { buffer: chunk, rkey: slot.rkey }.emit();
    let with = SendWith::Immediate(immediate.emit());
    let operation = SendOperation::Send { payload: Payload::Inline(&message), with };
    post(key, connection, operation, None, ctx)
}

/// Posts a part of an answer.
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
