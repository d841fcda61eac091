//! Arrival of requests: rotates the chunk's key, parses the headers, and decides whether a request can start.

use super::io::{ANSWER, answer, check_length, contents, count, describe};
use super::table::{Connection, Contents, Path, Session, Slot, SlotState, WorkId};
use super::{CloseReason, EngineContext, Execute, Execution, Request, RequestId, RequestKind};
use crate::wire::{IoHeader, WireError};
use drivers::hal::Window;
use verbs::{KeyChange, KeyRequest, MrId, RdmaDevice};

/// Result of the arrival of a request.
pub enum Arrival {
    /// The request is executed or executing, as most are.
    Executed,
    /// The user executes the request later.
    Started(Request),
    /// There is room for the response, but another condition may be missing.
    Admitted(RequestId),
    /// The request waits for room for its response, or for its chunk's next key.
    Parked,
}

/// Handles the request at `place`, received on a connection of a path of a session. Executes it and posts the response,
/// if no condition is missing.
#[expect(clippy::too_many_arguments, reason = "parts of a request, each looked up once")]
#[inline(always)]
pub fn handle_io<P: RdmaDevice + ?Sized>(
    place: u32,
    key: usize,
    connection: &mut Connection,
    path: &mut Path,
    session: &mut Session,
    new_keys: bool,
    execute: &mut impl Execute,
    ctx: &mut EngineContext<'_, P>,
) -> Result<Arrival, CloseReason> {
    let (chunk, offset) = session.addressing.split(place);
    let Some(slot) = path.requests.get(usize::from(chunk)) else {
        return Err(CloseReason::Protocol("a chunk beyond the queue depth"));
    };
    if offset >= session.chunk_size {
        return Err(CloseReason::Protocol("an offset beyond the chunk"));
    }
    if slot.state != SlotState::Idle {
        return Err(CloseReason::Protocol("a chunk reused before its response"));
    }
    let arrived = Slot::tick(ctx.now);
    let region = path.region.ok_or(CloseReason::Resources)?;
    let contents = written_contents(session, region, chunk, ctx)?;
    let header = header(&contents, offset)?;
    let (mut rkey, mut settled) = (0, true);
    if new_keys {
        // Data that is copied at once need not wait for the key change: a change by the client is as if the client had
        // written that data. Of a read, only the headers are used.
        let signaled = !session.copies_at_once && !matches!(header, Some(IoHeader::Read { .. }));
        let id = WorkId::key(key, chunk).to_bits();
        let by = KeyRequest { qp: connection.qp, id, signaled };
        match ctx.provider.rotate_chunk_key(region, chunk, by, ctx.rng) {
            Ok(KeyChange::Done(key)) => rkey = key,
            // The response is posted behind the key change: the client gets the next key when it is valid.
            Ok(KeyChange::Promised(key)) => {
                (rkey, settled) = (key, false);
                session.has_unsettled |= session.copies_at_once;
            }
            Ok(KeyChange::Posted) => {
                let Some(slot) = path.requests.get_mut(usize::from(chunk)) else {
                    return Err(CloseReason::Resources);
                };
                let (address, cid) = (offset.into(), connection.cid);
                *slot = Slot { address, cid, arrived, state: SlotState::AwaitsKey, ..Slot::IDLE };
                return Ok(Arrival::Parked);
            }
            Err(_) => return Err(CloseReason::Resources),
        }
    }
    let mut slot = Slot { rkey, cid: connection.cid, arrived, ..Slot::IDLE };
    // With memory on demand, a read may have to wait for memory.
    let is_free = matches!(&header, Some(header) if fill(&mut slot, header, offset, session.chunk_size))
        && (session.chunks.is_some() || slot.kind == RequestKind::Write && contents.start == 0)
        && connection.queued.is_none()
        && connection.has_room(ANSWER)
        && session.executing.get(usize::from(chunk)) == Some(&false);
    if !is_free {
        let found = (contents, header);
        return admit_arrival(chunk, offset, found, rkey, arrived, connection, path, session);
    }
    let id = RequestId { path: connection.path as u32, chunk };
    let request = describe(id, path.session, &slot, &contents, settled)
        .ok_or(CloseReason::Protocol("a request beyond the bytes written to its chunk"))?;
    let arrival = match execute.execute(&request) {
        Execution::Done(result) => {
            let result = check_length(&slot, result);
            count(&mut path.stats, &slot, &result, 0);
            let own = session.chunks.is_none().then_some(region);
            answer(chunk, &slot, result, own, key, connection, new_keys, ctx)?;
            return Ok(Arrival::Executed);
        }
        Execution::Pending => Arrival::Executed,
        Execution::Deferred => Arrival::Started(request),
    };
    slot.state = SlotState::Executing;
    if let Some(place) = path.requests.get_mut(usize::from(chunk)) {
        *place = slot;
    }
    if let Some(executing) = session.executing.get_mut(usize::from(chunk)) {
        *executing = true;
    }
    connection.reserved += ANSWER;
    path.in_flight += 1;
    Ok(arrival)
}

/// A request in a chunk: the contents, and the header, which is read only once.
pub type ParsedRequest = (Contents, Option<IoHeader>);

/// The contents of the chunk of an announced request.
#[inline(always)]
pub fn written_contents<P: RdmaDevice + ?Sized>(
    session: &Session,
    region: MrId,
    chunk: u16,
    ctx: &mut EngineContext<'_, P>,
) -> Result<Contents, CloseReason> {
    contents(session, region, chunk, ctx)
        .ok_or(CloseReason::Protocol("a request in an unwritten chunk"))
}

/// The header of the request at an offset of a chunk; None if it is malformed.
#[inline(always)]
pub fn header(contents: &Contents, offset: u32) -> Result<Option<IoHeader>, CloseReason> {
    match read_header(contents, offset as usize) {
        None => Err(CloseReason::Protocol("an offset beyond the chunk")),
        Some(Ok(header)) => Ok(Some(header)),
        Some(Err(WireError::Type(_))) => Err(CloseReason::Protocol("a request of an unknown type")),
        Some(Err(_)) => Ok(None),
    }
}

/// Stores the request in a chunk, whose next key is `rkey`, and which may have to wait.
#[expect(clippy::too_many_arguments, reason = "parts of a request, each looked up once")]
pub fn admit_arrival(
    chunk: u16,
    offset: u32,
    (contents, header): ParsedRequest,
    rkey: u32,
    arrived: u32,
    connection: &mut Connection,
    path: &mut Path,
    session: &Session,
) -> Result<Arrival, CloseReason> {
    let Some(slot) = path.requests.get_mut(usize::from(chunk)) else {
        return Err(CloseReason::Protocol("a chunk beyond the queue depth"));
    };
    *slot = Slot { rkey, cid: connection.cid, arrived, ..Slot::IDLE };
    let sound = matches!(&header, Some(header) if fill(slot, header, offset, session.chunk_size))
        && (slot.kind == RequestKind::Read || contents.start == 0);
    slot.state = if sound { SlotState::AwaitsSendCredit } else { SlotState::Malformed };
    if connection.queued.is_some() || !connection.has_room(ANSWER) {
        path.stats.parked += 1;
        if let Some((_, last)) = &mut connection.queued {
            let before = core::mem::replace(last, chunk);
            path.requests[usize::from(before)].next = chunk;
        } else {
            connection.queued = Some((chunk, chunk));
        }
        return Ok(Arrival::Parked);
    }
    connection.reserved += ANSWER;
    Ok(Arrival::Admitted(RequestId { path: connection.path as u32, chunk }))
}

/// Reads the header of a request at an offset of a chunk; None if the offset is outside of the contents.
#[inline(always)]
fn read_header(contents: &Contents, offset: usize) -> Option<Result<IoHeader, WireError>> {
    let at = offset.checked_sub(contents.start)?;
    match contents.window.read_array::<{ IoHeader::MAX_SIZE }>(at) {
        Ok(bytes) => Some(IoHeader::parse(&bytes)),
        Err(_) => read_header_at_end(&contents.window, at),
    }
}

/// Reads a header at the end of a chunk, where less than the largest header may remain.
#[cold]
fn read_header_at_end(window: &Window, at: usize) -> Option<Result<IoHeader, WireError>> {
    let mut bytes = [0; IoHeader::MAX_SIZE];
    let bytes = bytes.get_mut(..window.len().checked_sub(at)?)?;
    window.read(at, bytes).ok()?;
    Some(IoHeader::parse(bytes))
}

/// Fills a slot from the client's header, and checks it against the size of the chunk.
#[inline(always)]
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
