//! The stream of a socket: what users read and write, and the WRITEs and CDC messages that carry
//! it (Linux 6.12, smc_tx.c, smc_rx.c).

use super::ids::WorkId;
use super::table::{CDC_SLOTS, Link, LinkState, Pending, Socket};
use super::{Engine, EngineContext, SocketId, State};
use crate::wire::cdc::{Cdc, Cursor, End, Producer};
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::Window;
use verbs::{Payload, Provider, RemoteAddress, SendOperation, SendRequest, SendWith};

/// Consumed bytes that are not worth a message of their own, however small the buffer.
const LEAST_UPDATE: u64 = 2304;
/// Data behind which a CDC message goes at the latest, so that the peer can begin to read.
const MAX_WRITE: u64 = 32 << 10;

/// CDC messages of a link behind which one asks for an ACK, however little their senders wait for it.
const UNHURRIED: usize = CDC_SLOTS / 2;

/// Why nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The socket is not established, or its user has ended this side.
    Closed,
    /// The connection is lost, or the peer does not read any more.
    Aborted,
    /// There is no memory for a send buffer.
    NoMemory,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Closed => "the socket is not open for writing",
            SendError::Aborted => "the connection is lost, or the peer has stopped reading",
            SendError::NoMemory => "there is no memory for a send buffer: give the machine more, or lower the number of connections",
        })
    }
}

impl core::error::Error for SendError {}

/// Why nothing can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// The peer has said everything, and all of it was read.
    Finished,
    /// The connection is lost.
    Aborted,
}

impl RecvError {
    /// Why nothing is read where nothing can be written.
    fn of(error: SendError) -> RecvError {
        match error {
            SendError::Closed => RecvError::Finished,
            SendError::Aborted | SendError::NoMemory => RecvError::Aborted,
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecvError::Finished => "the peer has ended its side",
            RecvError::Aborted => "the connection is lost",
        })
    }
}

impl core::error::Error for RecvError {}

impl Engine {
    /// Takes as much of `bytes` as there is room for; how much that was. If not all, a `WRITABLE`
    /// follows. It is sent by the next [`Engine::flush`].
    pub fn send<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, SendError> {
        self.take(id, bytes, false, ctx)
    }

    /// As [`Engine::send`]; if all is taken, its last byte is urgent.
    pub fn send_urgent<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, SendError> {
        self.take(id, bytes, true, ctx)
    }

    fn take<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        urgent: bool,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, SendError> {
        let [start, wrapped] = self.reserve(id, bytes.len(), ctx)?;
        let (first, count) = (start.len(), start.len() + wrapped.len());
        let written =
            start.write(0, &bytes[..first]).and_then(|()| wrapped.write(0, &bytes[first..count]));
        debug_assert!(written.is_ok(), "no more is reserved than there are bytes");
        if urgent && count == bytes.len() {
            let socket = &mut self.sockets[id.key()];
            socket.tx_urgent = Some(socket.accepted);
        }
        Ok(count)
    }

    /// Where the next `wanted` bytes to be sent belong, as far as there is room: they count as written.
    fn reserve<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        wanted: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<[Window; 2], SendError> {
        let Engine { spare, config, sockets, counters, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id);
        let socket = socket.ok_or(SendError::Closed)?;
        let parts = reserve(socket, wanted, spare, config.send_buffer, ctx)?;
        let count = parts[0].len() + parts[1].len();
        counters.bytes_sent += count as u64;
        if count > 0 {
            socket.touch(dirty);
        }
        Ok(parts)
    }

    /// Reads what has arrived into `into`; 0 if there is nothing at present.
    pub fn recv(&mut self, id: SocketId, into: &mut [u8]) -> Result<usize, RecvError> {
        let [start, wrapped] = self.arrived(id, into.len())?;
        let (first, count) = (start.len(), start.len() + wrapped.len());
        let read = start
            .read(0, &mut into[..first])
            .and_then(|()| wrapped.read(0, &mut into[first..count]));
        debug_assert!(read.is_ok(), "no more has arrived than is asked for");
        self.consume(id, count as u64);
        Ok(count)
    }

    /// Moves what has arrived on to `to`, as far as that has room: a `WRITABLE` of it follows if there is too
    /// little. Finished too when `to` has ended.
    pub fn forward<P: Provider + ?Sized>(
        &mut self,
        from: SocketId,
        to: SocketId,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), RecvError> {
        loop {
            // What wraps is in the second part, which is the first the next time.
            let [piece, _] = self.arrived(from, usize::MAX)?;
            if piece.is_empty() {
                return Ok(());
            }
            let parts = self.reserve(to, piece.len(), ctx).map_err(RecvError::of)?;
            let count = copy(&piece, parts);
            self.consume(from, count as u64);
            if count < piece.len() {
                return Ok(());
            }
        }
    }

    /// Moves what has arrived back to where it came from: [`Engine::forward`] to itself.
    pub fn turn_back<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), RecvError> {
        let Engine { spare, config, sockets, counters, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id);
        let socket = socket.ok_or(RecvError::Aborted)?;
        loop {
            let [piece, wraps] = arrived(socket, usize::MAX)?;
            if piece.is_empty() {
                return Ok(());
            }
            let parts = reserve(socket, piece.len(), spare, config.send_buffer, ctx);
            let count = copy(&piece, parts.map_err(RecvError::of)?);
            counters.bytes_sent += count as u64;
            if count > 0 {
                consume(socket, count as u64);
                socket.touch(dirty);
            }
            let ended = !socket.rx_end.is_empty() || socket.state == State::Closed;
            if count < piece.len() || (wraps.is_empty() && !ended) {
                return Ok(());
            }
        }
    }

    /// Where the bytes are that can be read, `limit` of them at most.
    fn arrived(&self, id: SocketId, limit: usize) -> Result<[Window; 2], RecvError> {
        arrived(self.socket(id).ok_or(RecvError::Aborted)?, limit)
    }

    /// Bytes before the end of the peer's urgent byte, which is the last of them; None if there is
    /// none to be read.
    pub fn urgent_mark(&self, id: SocketId) -> Option<u64> {
        let socket = self.socket(id)?;
        socket.rx_urgent.map(|at| at - socket.consumed)
    }

    /// Bytes that can be read.
    pub fn readable(&self, id: SocketId) -> u64 {
        self.socket(id).map_or(0, |socket| socket.produced - socket.consumed)
    }

    /// Bytes that can be written now; if there is no room, a `WRITABLE` follows.
    pub fn room(&mut self, id: SocketId) -> usize {
        let size = u64::from(self.config.send_buffer);
        let Some(socket) = self.socket_mut(id) else { return 0 };
        let room = size - (socket.accepted - socket.completed);
        socket.wants_room |= room == 0;
        room as usize
    }

    /// Bytes that can be written.
    pub fn writable(&self, id: SocketId) -> u64 {
        let size = u64::from(self.config.send_buffer);
        self.socket(id).map_or(0, |socket| size - (socket.accepted - socket.completed))
    }

    /// Counts bytes as read, and has the peer told if that is worth a message.
    fn consume(&mut self, id: SocketId, count: u64) {
        let Engine { sockets, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id && count > 0);
        if let Some(socket) = socket
            && consume(socket, count)
        {
            socket.touch(dirty);
        }
    }

    /// Sends what a socket has to send: data, cursors, its end.
    pub(super) fn push<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        loop {
            let Some(mut socket) = self.sockets.get_mut(key) else { return };
            let Some(group_key) = socket.group.filter(|_| socket.established) else { return };
            let at = socket.link;
            let link = self.groups.get_mut(group_key).and_then(|g| g.links.get_mut(at)?.as_mut());
            let Some(link) = link.filter(|link| link.state == LinkState::Active) else { return };
            if socket.validate && link.cdc_under_way < CDC_SLOTS {
                socket.validate = false;
                let cdc = validation(socket);
                let id = WorkId::new(group_key, at, link.next_send().into()).to_bits();
                if post_cdc(socket, link, id, None, &cdc, ctx).is_err() {
                    return;
                }
            }
            let unsent = socket.accepted - socket.sent;
            let window = socket.window();
            let mut length = unsent.min(window).min(MAX_WRITE);
            if let Some(urgent) = socket.tx_urgent {
                // The cursor has to stop behind the urgent byte once.
                length = length.min(urgent - socket.sent);
            }
            if length == unsent && (socket.wants_close || socket.wants_shutdown) {
                self.settle(key);
                let Some(settled) = self.sockets.get_mut(key) else { return };
                socket = settled;
            }
            if length == 0 && !socket.speak && !socket.validate {
                break;
            }
            let link = self.groups.get_mut(group_key).and_then(|g| g.links.get_mut(at)?.as_mut());
            let Some(link) = link else { return };
            if link.cdc_under_way >= CDC_SLOTS {
                if !socket.waiting {
                    socket.waiting = true;
                    link.waiting.push_back(key);
                }
                return;
            }
            let id = WorkId::new(group_key, at, link.next_send().into()).to_bits();
            let Ok(last) = write(socket, link.qp, id, length, ctx) else {
                // The queue pair has failed; its completions say so.
                return;
            };
            let cdc = compose(socket, length, unsent >= window && unsent > 0);
            if post_cdc(socket, link, id, last, &cdc, ctx).is_err() {
                return;
            }
            self.counters.cdc_sent += 1;
            self.counters.updates_sent += u64::from(length == 0);
            if length == unsent && !socket.validate && !socket.wants_close && !socket.wants_shutdown
            {
                break;
            }
        }
        self.reap(key, ctx);
    }
}

/// Where the next `wanted` bytes to be sent belong, as far as there is room: they count as written.
#[inline]
fn reserve<P: Provider + ?Sized>(
    socket: &mut Socket,
    wanted: usize,
    spare: &mut Vec<Window>,
    size: u32,
    ctx: &mut EngineContext<'_, P>,
) -> Result<[Window; 2], SendError> {
    if socket.rx_end.is_closed() || socket.state == State::Closed {
        return Err(SendError::Aborted);
    }
    let ended = socket.wants_shutdown || socket.wants_close;
    if !socket.established || ended || !socket.tx_end.is_empty() {
        return Err(SendError::Closed);
    }
    let buffer = match socket.buffer {
        Some(buffer) => buffer,
        None => {
            let fresh = spare.pop().or_else(|| ctx.arena.alloc(size as usize, 64));
            *socket.buffer.insert(fresh.ok_or(SendError::NoMemory)?)
        }
    };
    // Up to the oldest byte that may have to be sent again.
    let room = buffer.len() as u64 - (socket.accepted - socket.completed);
    let count = room.min(wanted as u64);
    let parts = ring(&buffer, socket.accepted, count);
    socket.accepted += count;
    socket.wants_room |= count < wanted as u64;
    Ok(parts)
}

/// Where the bytes are that can be read, `limit` of them at most.
#[inline]
fn arrived(socket: &Socket, limit: usize) -> Result<[Window; 2], RecvError> {
    if socket.rx_end.contains(End::ABORT) {
        return Err(RecvError::Aborted);
    }
    let there = socket.produced - socket.consumed;
    let Some(rmb) = socket.rmb.as_ref().filter(|_| there > 0) else {
        return match socket.state {
            _ if !socket.rx_end.is_empty() => Err(RecvError::Finished),
            State::Closed => Err(RecvError::Aborted),
            _ => Ok([Window::empty(); 2]),
        };
    };
    if !socket.established {
        return Ok([Window::empty(); 2]);
    }
    Ok(ring(&rmb.memory, socket.consumed, there.min(limit as u64)))
}

/// Counts bytes as read; whether the peer is to be told of it.
#[inline]
fn consume(socket: &mut Socket, count: u64) -> bool {
    socket.consumed += count;
    let mut wanted = false;
    if socket.rx_urgent.is_some_and(|at| at <= socket.consumed) {
        socket.rx_urgent = None;
        wanted = true;
    }
    if socket.rx_end.is_closed() {
        return false;
    }
    let size = u64::from(socket.rmb_size);
    let unconfirmed = socket.consumed - socket.confirmed;
    if unconfirmed > (size / 10).max(LEAST_UPDATE) {
        let senders = size - (socket.produced - socket.confirmed);
        let blocked = socket.rx_producer.contains(Producer::WRITE_BLOCKED);
        wanted |= senders <= size / 2 || blocked;
    }
    socket.speak |= wanted;
    wanted
}

/// Copies the beginning of a piece into two parts; how much.
#[inline]
fn copy(piece: &Window, [start, wrapped]: [Window; 2]) -> usize {
    let put = |into: Window, at| {
        let part = piece.slice(at, into.len()).unwrap_or(Window::empty());
        let copied = into.write_window(0, &part);
        debug_assert!(copied.is_ok(), "no more is reserved than has arrived");
    };
    put(start, 0);
    if !wrapped.is_empty() {
        put(wrapped, start.len());
    }
    start.len() + wrapped.len()
}

/// A WRITE of parts of a socket's buffer, the second of which may be empty.
struct Announced {
    parts: [Window; 2],
    to: RemoteAddress,
}

/// The WRITEs for the next `length` bytes: the last one, behind which the CDC message goes, and where the peer's buffer
/// wraps one more, which is posted here.
#[inline]
fn write<P: Provider + ?Sized>(
    socket: &Socket,
    qp: verbs::QpId,
    id: u64,
    length: u64,
    ctx: &mut EngineContext<'_, P>,
) -> Result<Option<Announced>, ()> {
    let Some(buffer) = socket.buffer.filter(|_| length > 0) else { return Ok(None) };
    let size = u64::from(socket.peer.size);
    let there = socket.sent % size;
    let to = |there| RemoteAddress { address: socket.peer.address + there, rkey: socket.peer.rkey };
    if length <= size - there {
        let parts = ring(&buffer, socket.sent, length);
        return Ok(Some(Announced { parts, to: to(there) }));
    }
    let first = size - there;
    let parts = ring(&buffer, socket.sent, first);
    let parts = if parts[1].is_empty() { &parts[..1] } else { &parts[..] };
    ctx.provider.post_send(qp, &write_request(id, parts, to(there))).map_err(|_| ())?;
    let parts = ring(&buffer, socket.sent + first, length - first);
    Ok(Some(Announced { parts, to: to(0) }))
}

/// A WRITE.
#[inline(always)]
fn write_request(id: u64, parts: &[Window], to: RemoteAddress) -> SendRequest<'_> {
    SendRequest {
        id,
        operation: SendOperation::Write { payload: Payload::Windows(parts), to, immediate: None },
        signaled: false,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

/// Whether nobody waits to hear that a CDC message has arrived: its socket goes on with what room there is,
/// in its own buffer and on the link.
fn may_ack_lazily(socket: &Socket, link: &Link, cdc: &Cdc) -> bool {
    let size = socket.buffer.map_or(0, |buffer| buffer.len() as u64);
    !(link.cdc_under_way + 1).is_multiple_of(UNHURRIED)
        && 2 * (socket.accepted - socket.completed) <= size
        && !socket.wants_room
        && cdc.end.is_empty()
        && !cdc.producer.contains(Producer::FAILOVER)
}

/// Sends a CDC message, behind what it announces.
fn post_cdc<P: Provider + ?Sized>(
    socket: &mut Socket,
    link: &mut Link,
    id: u64,
    announced: Option<Announced>,
    cdc: &Cdc,
    ctx: &mut EngineContext<'_, P>,
) -> Result<(), ()> {
    let payload = Payload::Inline(&cdc.emit());
    let request = SendRequest {
        id,
        operation: SendOperation::Send { payload, with: SendWith::Nothing },
        signaled: true,
        solicited: true,
        datagram: None,
        carries: None,
        ack_lazily: may_ack_lazily(socket, link, cdc),
    };
    // Separate calls, inlined: the compiler knows the shape of the usual one.
    let posted = match announced {
        Some(Announced { parts: [all, rest], to }) if rest.is_empty() => {
            ctx.provider.post_announced(link.qp, &write_request(id, &[all], to), &request)
        }
        Some(Announced { parts, to }) => {
            ctx.provider.post_announced(link.qp, &write_request(id, &parts, to), &{ request })
        }
        None => ctx.provider.post_send(link.qp, &{ request }),
    };
    posted.map_err(|_| ())?;
    let (sent, seqno) = (socket.sent, cdc.seqno);
    link.pending.push_back(Pending::Cdc { socket: socket.id, sent, seqno });
    link.cdc_under_way += 1;
    socket.in_flight += 1;
    Ok(())
}

/// The message that goes first after a failover.
fn validation(socket: &Socket) -> Cdc {
    Cdc {
        seqno: socket.completed_seqno,
        token: socket.peer.token,
        produced: Cursor::default(),
        consumed: Cursor::default(),
        producer: Producer::FAILOVER,
        end: End::empty(),
    }
}

/// The bytes from `position` of a ring, in two parts at most.
#[inline]
fn ring(buffer: &Window, position: u64, count: u64) -> [Window; 2] {
    let at = (position % buffer.len() as u64) as usize;
    let part = |from, len| buffer.slice(from, len).unwrap_or(Window::empty());
    let first = buffer.len() - at;
    if count as usize <= first {
        return [part(at, count as usize), Window::empty()];
    }
    [part(at, first), part(0, count as usize - first)]
}

/// The CDC message behind `length` bytes, which count as sent from here on.
#[inline]
fn compose(socket: &mut Socket, length: u64, blocked: bool) -> Cdc {
    socket.sent += length;
    socket.furthest = socket.furthest.max(socket.sent);
    socket.confirmed = socket.consumed;
    socket.tx_seqno = socket.tx_seqno.wrapping_add(1);
    socket.speak = false;
    let mut producer = Producer::empty();
    producer.set(Producer::WRITE_BLOCKED, blocked);
    producer.set(Producer::UPDATE_REQUESTED, core::mem::take(&mut socket.asks));
    if let Some(urgent) = socket.tx_urgent {
        producer |= Producer::URGENT_PENDING;
        if socket.sent == urgent {
            producer |= Producer::URGENT_PRESENT;
            socket.tx_urgent = None;
        }
    }
    Cdc {
        seqno: socket.tx_seqno,
        token: socket.peer.token,
        produced: Cursor::at(socket.sent, socket.peer.size),
        consumed: Cursor::at(socket.consumed, socket.rmb_size),
        producer,
        end: socket.tx_end,
    }
}
