//! Requests and answers: the data path.

use super::table::{Connection, Slot, SlotState, WorkId};
use super::{
    CloseReason, Context, PathState, Request, RequestId, RequestKind, Served, Server, SessionId,
};
use crate::rtrs::Errno;
use crate::rtrs::wire::{Descriptor, Immediate, IoHeader, RkeyResponse, WireError};
use crate::verbs::{
    Fabric, Payload, RecvRequest, RemoteAddress, SendOperation, SendRequest, SendWith, VerbsError,
};
use drivers::hal::Window;

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
        let path_key = self.connections[key].path;
        let path = &mut self.paths[path_key];
        let session = &mut self.sessions[path.session];
        let (chunk, offset) = session.addressing.split(place);
        let Some(slot) = path.requests.get_mut(usize::from(chunk)) else {
            return Err(CloseReason::Protocol("a chunk beyond the queue depth"));
        };
        if slot.state != SlotState::Idle {
            return Err(CloseReason::Protocol("a chunk used again before its answer"));
        }
        let memory = session.chunk(chunk).ok_or(CloseReason::Resources)?;
        let mut rkey = 0;
        if self.config.always_invalidate {
            // From here on the client cannot change the chunk: nobody knows its new key yet.
            let region = path.regions.get(usize::from(chunk)).ok_or(CloseReason::Resources)?;
            rkey = ctx.provider.rotate_key(*region, ctx.rng).map_err(|_| CloseReason::Resources)?;
        }
        let mut bytes = [0; IoHeader::MAX_SIZE];
        let have = memory.len().saturating_sub(offset as usize).min(bytes.len());
        let bytes = bytes.get_mut(..have).unwrap_or_default();
        let header = match memory.read(offset as usize, bytes).map(|()| IoHeader::parse(bytes)) {
            Err(_) => return Err(CloseReason::Protocol("an offset beyond the chunk")),
            Ok(Err(WireError::Type(_))) => {
                return Err(CloseReason::Protocol("a request of an unknown type"));
            }
            Ok(header) => header,
        };
        *slot = Slot { rkey, connection: key as u32, arrived: ctx.now, ..Slot::IDLE };
        let sound = header.is_ok_and(|header| fill(slot, &header, offset, session.chunk_size));
        let id = RequestId { path: path_key as u32, chunk };
        if !sound {
            self.counters.malformed += 1;
            slot.state = SlotState::Parked;
            slot.answer = Err(Errno::EINVAL);
            self.answer(id, ctx);
            return Ok(None);
        }
        if session.executing.get(usize::from(chunk)) == Some(&true) {
            slot.state = SlotState::Waiting;
            path.stats.chunk_waits += 1;
            return Ok(None);
        }
        Ok(self.start(id))
    }

    /// Hands a request to the user.
    fn start(&mut self, id: RequestId) -> Option<Request> {
        let path = self.paths.get_mut(id.path as usize)?;
        let session = self.sessions.get_mut(path.session)?;
        let slot = path.requests.get_mut(usize::from(id.chunk))?;
        let memory = session.chunk(id.chunk)?;
        let data = memory.slice(0, slot.data_len as usize)?;
        let user = memory.slice(slot.data_len as usize, usize::from(slot.user_len))?;
        *session.executing.get_mut(usize::from(id.chunk))? = true;
        slot.state = SlotState::Executing;
        path.in_flight += 1;
        let session = SessionId(path.session as u32);
        Some(Request { id, session, kind: slot.kind, data, user })
    }

    /// A request that waited for its chunk, if it still does.
    pub(super) fn release(&mut self, id: RequestId) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let slot = path.requests.get(usize::from(id.chunk))?;
        let session = self.sessions.get(path.session)?;
        let free = session.executing.get(usize::from(id.chunk)) == Some(&false);
        (slot.state == SlotState::Waiting && free).then(|| self.start(id)).flatten()
    }

    /// A request that is being worked on once more, for users that could not do it at once. None
    /// if its path is ending: then it has to be given back with an error.
    pub fn request(&self, id: RequestId) -> Option<Request> {
        let path = self.paths.get(id.path as usize)?;
        let slot = path.requests.get(usize::from(id.chunk))?;
        if path.state != PathState::Connected || slot.state != SlotState::Executing {
            return None;
        }
        let memory = self.sessions.get(path.session)?.chunk(id.chunk)?;
        let data = memory.slice(0, slot.data_len as usize)?;
        let user = memory.slice(slot.data_len as usize, usize::from(slot.user_len))?;
        let session = SessionId(path.session as u32);
        Some(Request { id, session, kind: slot.kind, data, user })
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
        let latency = ctx.now.since(slot.arrived);
        let served = Served { kind: slot.kind, bytes: slot.data_len, latency };
        match (result, slot.kind) {
            (Err(_), _) => path.stats.errors += 1,
            (Ok(_), RequestKind::Read) => {
                path.stats.reads += 1;
                path.stats.read_bytes += u64::from(slot.data_len);
                path.stats.read_latency.record(latency);
            }
            (Ok(_), RequestKind::Write) => {
                path.stats.writes += 1;
                path.stats.write_bytes += u64::from(slot.data_len);
                path.stats.write_latency.record(latency);
            }
        }
        slot.answer = result;
        slot.state = SlotState::Parked;
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
            self.answer(id, ctx);
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

    /// Posts the answer in a slot, or parks it behind others.
    fn answer<P: Fabric + ?Sized>(&mut self, id: RequestId, ctx: &mut Context<'_, P>) {
        let path = &mut self.paths[id.path as usize];
        let slot = &mut path.requests[usize::from(id.chunk)];
        let key = slot.connection as usize;
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some((_, last)) = &mut connection.parked {
            let before = core::mem::replace(last, id.chunk);
            path.requests[usize::from(before)].next = id.chunk;
            path.stats.parked += 1;
            return;
        }
        match post_answer(key, connection, id.chunk, slot, self.config.always_invalidate, ctx) {
            Ok(true) => slot.state = SlotState::Idle,
            Ok(false) => {
                connection.parked = Some((id.chunk, id.chunk));
                path.stats.parked += 1;
            }
            Err(error) => self.close_path(id.path as usize, error.into(), ctx),
        }
    }

    /// Posts parked answers, as far as there is room.
    pub(super) fn unpark<P: Fabric + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
        let connection = &mut self.connections[key];
        let path_key = connection.path;
        let requests = &mut self.paths[path_key].requests;
        while let Some((first, last)) = connection.parked {
            let slot = &mut requests[usize::from(first)];
            match post_answer(key, connection, first, slot, self.config.always_invalidate, ctx) {
                Ok(true) => slot.state = SlotState::Idle,
                Ok(false) => return,
                Err(error) => {
                    self.close_path(path_key, error.into(), ctx);
                    return;
                }
            }
            connection.parked = (first != last).then_some((slot.next, last));
        }
    }
}

/// Checks what the client says about its request against the size of the chunk.
fn fill(slot: &mut Slot, header: &IoHeader, offset: u32, chunk_size: u32) -> bool {
    let user_len = match *header {
        IoHeader::Write { user_len } => user_len,
        IoHeader::Read { user_len, into: None, .. } => user_len,
        IoHeader::Read { user_len, into: Some(into), .. } => {
            if into.length == 0 || into.length > chunk_size {
                return false;
            }
            slot.into = into;
            slot.kind = RequestKind::Read;
            user_len
        }
    };
    let Some(data_len) = offset.checked_sub(u32::from(user_len)) else { return false };
    if slot.kind == RequestKind::Read && data_len > slot.into.length {
        slot.into.length = 0;
        return false;
    }
    slot.user_len = user_len;
    slot.data_len = data_len;
    true
}

/// Posts an answer in as few messages as the mode allows; false if the send queue has no room.
fn post_answer<P: Fabric + ?Sized>(
    key: usize,
    connection: &mut Connection,
    chunk: u16,
    slot: &Slot,
    new_rkey: bool,
    ctx: &mut Context<'_, P>,
) -> Result<bool, VerbsError> {
    let immediate = Immediate::Response {
        message: u32::from(chunk),
        result: slot.answer.map(|_| ()),
        invalidated: false,
    };
    let data = match slot.answer {
        Ok(data) if slot.kind == RequestKind::Read => data,
        _ => Window::empty(),
    };
    let Descriptor { address, key: rkey, .. } = slot.into;
    let to = RemoteAddress { address, rkey };
    let windows = [data];
    let payload = Payload::Windows(if data.is_empty() { &[] } else { &windows });
    if !connection.has_room(2) {
        return Ok(false);
    }
    let mut post = |operation| {
        let (sequence, signaled) = connection.number_send();
        let id = WorkId::send(key, sequence).to_bits();
        let request = SendRequest { id, operation, signaled, solicited: false, datagram: None };
        ctx.provider.post_send(connection.qp, &request)
    };
    if !new_rkey {
        let immediate = Some(immediate.emit());
        post(SendOperation::Write { payload, to, immediate })?;
        return Ok(true);
    }
    if !data.is_empty() {
        post(SendOperation::Write { payload, to, immediate: None })?;
    }
    let message = RkeyResponse { buffer: chunk, rkey: slot.rkey }.emit();
    post(SendOperation::Send {
        payload: Payload::Inline(&message),
        with: SendWith::Immediate(immediate.emit()),
    })?;
    Ok(true)
}
