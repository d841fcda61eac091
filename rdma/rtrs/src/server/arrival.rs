//! Requests that arrive: their keys, their headers, and whether they can be started.

use super::io::{ANSWER, contents, describe};
use super::table::{Connection, Contents, Path, Session, Slot, SlotState, WorkId};
use super::{CloseReason, EngineContext, Request, RequestId, RequestKind};
use crate::wire::{IoHeader, WireError};
use drivers::hal::Window;
use verbs::{KeyChange, KeyRequest, RdmaDevice};

/// What becomes of a request.
pub enum Arrival {
    /// It is the user's, as most are.
    Started(Request),
    /// There is room for its answer, but something else may be in its way.
    Admitted(RequestId),
    /// It waits for room for its answer, or for its chunk's next key.
    Parked,
}

/// Takes the request at `place`, which came by a connection of a path of a session.
#[inline(always)]
pub fn handle_io<P: RdmaDevice + ?Sized>(
    place: u32,
    key: usize,
    connection: &mut Connection,
    path: &mut Path,
    session: &mut Session,
    new_keys: bool,
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
        return Err(CloseReason::Protocol("a chunk used again before its answer"));
    }
    let arrived = Slot::tick(ctx.now);
    let request = read_request(path, session, chunk, offset, ctx)?;
    let mut rkey = 0;
    if new_keys {
        // Data that is copied at once need not wait until the client cannot change the chunk: it would change what it
        // writes itself, as if it had written that. And of a read nothing but the headers is ever looked at.
        let signaled = !session.copies_at_once && !matches!(request.1, Ok(IoHeader::Read { .. }));
        let region = path.region.ok_or(CloseReason::Resources)?;
        let id = WorkId::key(key, chunk).to_bits();
        let by = KeyRequest { qp: connection.qp, id, signaled };
        match ctx.provider.rotate_chunk_key(region, chunk, by, ctx.rng) {
            Ok(KeyChange::Done(key)) => rkey = key,
            // The answer is posted behind it: the client learns of the next key when that is good.
            Ok(KeyChange::Promised(key)) => {
                rkey = key;
                session.was_promised |= session.copies_at_once;
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
    admit_arrival(chunk, offset, request, rkey, arrived, connection, path, session)
}

/// A request in a chunk: the contents, and the header, which was read once.
pub type Found = (Contents, Result<IoHeader, WireError>);

/// Reads the header of the request at an offset of a chunk.
#[inline(always)]
pub fn read_request<P: RdmaDevice + ?Sized>(
    path: &Path,
    session: &Session,
    chunk: u16,
    offset: u32,
    ctx: &mut EngineContext<'_, P>,
) -> Result<Found, CloseReason> {
    let region = path.region.ok_or(CloseReason::Resources)?;
    let contents = contents(session, region, chunk, ctx)
        .ok_or(CloseReason::Protocol("a request in a chunk without contents"))?;
    match read_header(&contents, offset as usize) {
        None => Err(CloseReason::Protocol("an offset beyond the chunk")),
        Some(Err(WireError::Type(_))) => Err(CloseReason::Protocol("a request of an unknown type")),
        Some(header) => Ok((contents, header)),
    }
}

/// Takes on the request in a chunk, whose key will be `rkey`.
#[expect(clippy::too_many_arguments, reason = "the second half of `handle_io`, inlined into it")]
#[inline(always)]
pub fn admit_arrival(
    chunk: u16,
    offset: u32,
    (contents, header): Found,
    rkey: u32,
    arrived: u32,
    connection: &mut Connection,
    path: &mut Path,
    session: &mut Session,
) -> Result<Arrival, CloseReason> {
    let Some(slot) = path.requests.get_mut(usize::from(chunk)) else {
        return Err(CloseReason::Protocol("a chunk beyond the queue depth"));
    };
    *slot = Slot { rkey, cid: connection.cid, arrived, ..Slot::IDLE };
    let sound = matches!(&header, Ok(header) if fill(slot, header, offset, session.chunk_size))
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
    let id = RequestId { path: connection.path as u32, chunk };
    // On demand, a read may have to wait for memory.
    let has_memory = session.chunks.is_some() || slot.kind == RequestKind::Write;
    let executing = session.executing.get_mut(usize::from(chunk)).filter(|executing| !**executing);
    let (Some(executing), true, true) = (executing, sound, has_memory) else {
        return Ok(Arrival::Admitted(id));
    };
    let request = describe(id, path.session, slot, &contents)
        .ok_or(CloseReason::Protocol("a request of more than was written to its chunk"))?;
    *executing = true;
    slot.state = SlotState::Executing;
    path.in_flight += 1;
    Ok(Arrival::Started(request))
}

/// The header of a request at an offset of a chunk; None if that is not within what is there.
#[inline(always)]
fn read_header(contents: &Contents, offset: usize) -> Option<Result<IoHeader, WireError>> {
    let at = offset.checked_sub(contents.start)?;
    match contents.window.read_array::<{ IoHeader::MAX_SIZE }>(at) {
        Ok(bytes) => Some(IoHeader::parse(&bytes)),
        Err(_) => read_header_at_end(&contents.window, at),
    }
}

/// At the end of a chunk there may be less than the largest header.
#[cold]
fn read_header_at_end(window: &Window, at: usize) -> Option<Result<IoHeader, WireError>> {
    let mut bytes = [0; IoHeader::MAX_SIZE];
    let bytes = bytes.get_mut(..window.len().checked_sub(at)?)?;
    window.read(at, bytes).ok()?;
    Some(IoHeader::parse(bytes))
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
