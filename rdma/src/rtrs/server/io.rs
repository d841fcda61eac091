//! Requests and answers: the data path.

use super::table::{Connection, Contents, Path, Session, Slot, SlotState, WorkId};
use super::{
    CloseReason, Context, PathState, Request, RequestId, RequestKind, Served, Server, SessionId,
};
use crate::rtrs::Errno;
use crate::rtrs::wire::{Immediate, IoHeader, RkeyResponse, WireError};
use crate::verbs::{
    Fabric, MrId, Payload, RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith,
    VerbsError,
};
use drivers::hal::Window;

/// Sends that an answer takes at most.
const ANSWER: u32 = 2;

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
    pub(super) fn handle_immediate<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        immediate: u32,
        ctx: &mut Context<'_, P>,
    ) -> Option<Request> {
        let connection = &self.connections[key];
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        if path.state != PathState::Connected {
            let early = CloseReason::Protocol("a request before INFO_REQ");
            self.close_path(path_key, early, ctx);
            return None;
        }
        path.heartbeat.heard();
        let id = WorkId::receive(key).to_bits();
        if let Err(error) = ctx.provider.post_recv(connection.qp, &RecvRequest { id, into: &[] }) {
            self.close_path(path_key, error.into(), ctx);
            return None;
        }
        let done = match Immediate::parse(immediate) {
            Immediate::Request { place } => match self.handle_io(key, place, ctx) {
                Ok(request) => return request,
                Err(reason) => Err(reason),
            },
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

    /// Sends a heartbeat.
    pub(super) fn send_heartbeat<P: Fabric + ?Sized>(
        &mut self,
        path_key: usize,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), CloseReason> {
        self.send_service(path_key, bare(Immediate::Heartbeat), ctx)
    }

    /// Takes the request at `place`; None if it has to wait, or was answered with an error.
    fn handle_io<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        place: u32,
        ctx: &mut Context<'_, P>,
    ) -> Result<Option<Request>, CloseReason> {
        let connection = &mut self.connections[key];
        let path_key = connection.path;
        let path = &mut self.paths[path_key];
        let session = &self.sessions[path.session];
        let (chunk, offset) = session.addressing.split(place);
        let Some(slot) = path.requests.get_mut(usize::from(chunk)) else {
            return Err(CloseReason::Protocol("a chunk beyond the queue depth"));
        };
        if offset >= session.chunk_size {
            return Err(CloseReason::Protocol("an offset beyond the chunk"));
        }
        if slot.state != SlotState::Idle {
            return Err(CloseReason::Protocol("a chunk used again before its answer"));
        }
        let region = path.region.ok_or(CloseReason::Resources)?;
        let mut rkey = 0;
        if self.config.always_invalidate {
            // From here on the client cannot change the chunk: nobody knows its new key yet.
            rkey = ctx
                .provider
                .rotate_chunk_key(region, chunk, ctx.rng)
                .map_err(|_| CloseReason::Resources)?;
        }
        let contents = contents(session, region, chunk, ctx)
            .ok_or(CloseReason::Protocol("a request in a chunk without contents"))?;
        let mut bytes = [0; IoHeader::MAX_SIZE];
        let Some(rest) = contents.from(offset as usize) else {
            return Err(CloseReason::Protocol("an offset beyond the chunk"));
        };
        let bytes = bytes.get_mut(..rest.len().min(IoHeader::MAX_SIZE)).unwrap_or_default();
        let header = match rest.read(0, bytes).map(|()| IoHeader::parse(bytes)) {
            Err(_) => return Err(CloseReason::Protocol("an offset beyond the chunk")),
            Ok(Err(WireError::Type(_))) => {
                return Err(CloseReason::Protocol("a request of an unknown type"));
            }
            Ok(header) => header,
        };
        let arrived = Slot::tick(ctx.now);
        *slot = Slot { rkey, cid: connection.cid, arrived, ..Slot::IDLE };
        let sound = header.is_ok_and(|header| fill(slot, &header, offset, session.chunk_size))
            && (slot.kind == RequestKind::Read || slot.data_len == 0 || contents.start == 0);
        self.counters.malformed += u64::from(!sound);
        slot.state = if sound { SlotState::Queued } else { SlotState::Malformed };
        if connection.queued.is_some() || !connection.has_room(ANSWER) {
            path.stats.parked += 1;
            if let Some((_, last)) = &mut connection.queued {
                let before = core::mem::replace(last, chunk);
                path.requests[usize::from(before)].next = chunk;
            } else {
                connection.queued = Some((chunk, chunk));
            }
            return Ok(None);
        }
        connection.reserved += ANSWER;
        Ok(self.admit(RequestId { path: path_key as u32, chunk }, ctx))
    }

    /// A request for whose answer there is room. None if it waits for something else, or was
    /// answered with an error.
    #[inline]
    fn admit<P: Fabric + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Context<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get_mut(id.path as usize)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        if slot.state == SlotState::Malformed {
            self.answer(id, Err(Errno::EINVAL), ctx);
            return None;
        }
        if self.sessions[path.session].executing.get(usize::from(id.chunk)) == Some(&true) {
            slot.state = SlotState::Waiting;
            path.stats.chunk_waits += 1;
            return None;
        }
        self.start(id, ctx)
    }

    /// Hands a request to the user, unless it has to wait for memory.
    fn start<P: Fabric + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Context<'_, P>,
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
            if slot.state != SlotState::Hungry {
                slot.state = SlotState::Hungry;
                path.stats.memory_waits += 1;
                self.hungry.push_back(id);
            }
            return None;
        }
        slot.state = SlotState::Executing;
        path.in_flight += 1;
        describe(id, path, session, ctx)
    }

    /// The first request that waits for memory, if it gets it now.
    pub(super) fn feed<P: Fabric + ?Sized>(&mut self, ctx: &mut Context<'_, P>) -> Option<Request> {
        let request = self.start(*self.hungry.front()?, ctx)?;
        self.hungry.pop_front();
        Some(request)
    }

    /// A request that waited for room or for its chunk, if it can go on.
    pub(super) fn release<P: Fabric + ?Sized>(
        &mut self,
        id: RequestId,
        ctx: &mut Context<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        match path.requests.get(usize::from(id.chunk))?.state {
            SlotState::Queued | SlotState::Malformed | SlotState::Waiting => self.admit(id, ctx),
            SlotState::Idle | SlotState::Hungry | SlotState::Executing => None,
        }
    }

    /// A request that is being worked on once more, for users that could not do it at once. None
    /// if its path is ending: then it has to be given back with an error.
    pub fn request<P: Fabric + ?Sized>(
        &self,
        id: RequestId,
        ctx: &mut Context<'_, P>,
    ) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let slot = path.requests.get(usize::from(id.chunk))?;
        if path.state != PathState::Connected || slot.state != SlotState::Executing {
            return None;
        }
        describe(id, path, self.sessions.get(path.session)?, ctx)
    }

    /// Answers a request. `result` holds the data of a read, at most as much as was asked for, to
    /// stay unchanged until it is sent; it is ignored for writes. None if `id` names no request
    /// that is being worked on.
    pub fn respond<P: Fabric + ?Sized>(
        &mut self,
        id: RequestId,
        result: Result<Window, Errno>,
        ctx: &mut Context<'_, P>,
    ) -> Option<Served> {
        let path = self.paths.get_mut(id.path as usize)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        if slot.state != SlotState::Executing {
            return None;
        }
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
        let (session_key, closing) = (path.session, path.state != PathState::Connected);
        let session = &mut self.sessions[session_key];
        if let Some(executing) = session.executing.get_mut(usize::from(id.chunk)) {
            *executing = false;
        }
        if session.paths.len() > 1 {
            self.wake_chunk(session_key, id.chunk);
        }
        if closing {
            self.reap_path(id.path as usize, ctx);
        } else {
            self.answer(id, result, ctx);
        }
        Some(served)
    }

    /// A chunk is free: the next path's request in it can start.
    pub(super) fn wake_chunk(&mut self, session: usize, chunk: u16) {
        for &path in &self.sessions[session].paths {
            let slot = self.paths[path].requests.get(usize::from(chunk));
            if slot.is_some_and(|slot| slot.state == SlotState::Waiting) {
                self.ready.push_back(RequestId { path: path as u32, chunk });
                return;
            }
        }
    }

    /// Posts the answer to a request, for which there is room.
    fn answer<P: Fabric + ?Sized>(
        &mut self,
        id: RequestId,
        result: Result<Window, Errno>,
        ctx: &mut Context<'_, P>,
    ) {
        let path = &mut self.paths[id.path as usize];
        let slot = &mut path.requests[usize::from(id.chunk)];
        // Of one that was malformed; the others are since they were responded to.
        slot.state = SlotState::Idle;
        let connection = path.connections.get(usize::from(slot.cid)).copied().flatten();
        let Some((key, connection)) =
            connection.and_then(|key| Some((key, self.connections.get_mut(key)?)))
        else {
            return;
        };
        connection.reserved -= ANSWER;
        let data = match result {
            Ok(data) if slot.kind == RequestKind::Read => data,
            _ => Window::empty(),
        };
        let mut carries = None;
        if let (None, Some(region)) = (self.sessions[path.session].chunks, path.region) {
            let own = ctx.provider.take_chunk(region, id.chunk);
            carries = own.filter(|(_, own)| own.contains(&data)).map(|_| (region, id.chunk));
            if carries.is_none() {
                ctx.provider.release_chunk(region, id.chunk);
            }
        }
        let answer = Answer { chunk: id.chunk, slot, result: result.map(|_| data), carries };
        if let Err(error) = answer.post(key, connection, self.config.always_invalidate, ctx) {
            self.close_path(id.path as usize, error.into(), ctx);
        }
    }

    /// Sends of a connection are done: requests that waited for room go on.
    pub(super) fn make_room<P: Fabric + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
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
#[inline]
fn describe<P: Fabric + ?Sized>(
    id: RequestId,
    path: &Path,
    session: &Session,
    ctx: &mut Context<'_, P>,
) -> Option<Request> {
    let slot = path.requests.get(usize::from(id.chunk))?;
    let contents = contents(session, path.region?, id.chunk, ctx)?;
    let length = slot.data_len as usize;
    let data = contents.part(0, length)?;
    let user = contents.part(length, usize::from(slot.user_len))?;
    let session = SessionId(path.session as u32);
    Some(Request { id, session, kind: slot.kind, data, user })
}

/// What is known of the bytes of a chunk that a path's client has written to.
#[inline]
fn contents<P: Fabric + ?Sized>(
    session: &Session,
    region: MrId,
    chunk: u16,
    ctx: &mut Context<'_, P>,
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

/// Checks what the client says about its request against the size of the chunk.
fn fill(slot: &mut Slot, header: &IoHeader, offset: u32, chunk_size: u32) -> bool {
    let (user_len, most) = match *header {
        IoHeader::Write { user_len } => (user_len, chunk_size),
        IoHeader::Read { user_len, into: None, .. } => (user_len, chunk_size),
        IoHeader::Read { user_len, into: Some(into), .. } => {
            if into.length == 0 || into.length > chunk_size {
                return false;
            }
            slot.address = into.address;
            slot.key = into.key;
            slot.kind = RequestKind::Read;
            (user_len, into.length)
        }
    };
    let Some(data_len) = offset.checked_sub(u32::from(user_len)) else { return false };
    slot.user_len = user_len;
    slot.data_len = data_len;
    data_len <= most
}

/// An answer.
struct Answer<'a> {
    chunk: u16,
    slot: &'a Slot,
    /// The data of a read.
    result: Result<Window, Errno>,
    /// The chunk on demand that the data lies in.
    carries: Option<(MrId, u16)>,
}

impl Answer<'_> {
    /// Posts it in as few messages as the mode allows.
    fn post<P: Fabric + ?Sized>(
        &self,
        key: usize,
        connection: &mut Connection,
        new_rkey: bool,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), VerbsError> {
        let immediate = Immediate::Response {
            message: u32::from(self.chunk),
            result: self.result.map(|_| ()),
            invalidated: false,
        };
        let data = self.result.unwrap_or(Window::empty());
        let to = RemoteAddress { address: self.slot.address, rkey: self.slot.key };
        let windows = [data];
        let payload = Payload::Windows(if data.is_empty() { &[] } else { &windows });
        let mut post = |operation, carries| {
            let (sequence, signaled) = connection.number_send();
            let id = WorkId::send(key, sequence).to_bits();
            let request = SendRequest {
                id,
                operation,
                signaled,
                solicited: false,
                datagram: None,
                carries,
                unhurried: false,
            };
            ctx.provider.post_send(connection.qp, &request)
        };
        if !new_rkey {
            let immediate = Some(immediate.emit());
            return post(SendOperation::Write { payload, to, immediate }, self.carries);
        }
        if !data.is_empty() {
            post(SendOperation::Write { payload, to, immediate: None }, self.carries)?;
        }
        let message = RkeyResponse { buffer: self.chunk, rkey: self.slot.rkey }.emit();
        let payload = Payload::Inline(&message);
        let with = SendWith::Immediate(immediate.emit());
        post(SendOperation::Send { payload, with }, None)
    }
}
