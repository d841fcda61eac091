//! The stream of a socket: user reads and writes, and the WRITEs and CDC messages that carry them (Linux 6.12,
//! smc_tx.c, smc_rx.c).

use super::ids::WorkId;
use super::spare::Spare;
use super::stats::Traffic;
use super::table::{CDC_SLOTS, Link, LinkState, Pending, Socket};
use super::{Ctx, Engine, SocketId, State};
use crate::SmcDevice;
use crate::wire::cdc::{Cdc, Cursor, End, Producer};
use core::fmt;
use drivers::hal::Window;
use verbs::{Payload, RemoteAddress, SendOperation, SendRequest, SendWith};

/// Consumed bytes up to which no window update is sent, however small the buffer.
const MIN_UPDATE: u64 = 2304;
/// Most data before a CDC message, so that the peer can begin to read.
const MAX_WRITE: u64 = 32 << 10;

/// CDC messages of a link after which one requests an ACK, even if no socket waits for it.
const LAZY_ACKS: usize = CDC_SLOTS / 2;

/// Why a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The socket is not established, or its user has ended this side.
    Closed,
    /// The connection is lost, or the peer has stopped reading.
    Aborted,
    /// No memory for a send buffer.
    NoMemory,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Closed => "the socket is not open for writing",
            SendError::Aborted => "the connection is lost, or the peer has stopped reading",
            SendError::NoMemory => {
                "no memory for a send buffer: add memory, or reduce the number of connections"
            }
        })
    }
}

impl core::error::Error for SendError {}

/// Why a read fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// The peer has ended its side, and all data was read.
    Finished,
    /// The connection is lost.
    Aborted,
}

impl RecvError {
    /// Maps a write error to a read error.
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
    /// Accepts as many of `bytes` as there is room for, and returns their number. If not all, a `WRITABLE` follows. The
    /// next [`Engine::flush`] sends them.
    pub fn send<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, SendError> {
        self.take(id, bytes, false, ctx)
    }

    /// As [`Engine::send`]; if all bytes are accepted, the last one is urgent.
    pub fn send_urgent<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, SendError> {
        self.take(id, bytes, true, ctx)
    }

    fn take<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        urgent: bool,
        ctx: &mut Ctx<'_, P>,
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

    /// Reserves send buffer space for up to `wanted` bytes, which count as written.
    fn reserve<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        wanted: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<[Window; 2], SendError> {
        let Engine { spare, sockets, counters, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id);
        let socket = socket.ok_or(SendError::Closed)?;
        let parts = reserve(socket, wanted, spare, &mut counters.tx, ctx)?;
        let count = parts[0].len() + parts[1].len();
        counters.bytes_sent += count as u64;
        if count > 0 {
            socket.touch(dirty);
        }
        Ok(parts)
    }

    /// Reads received bytes into `into`; 0 if there are none at present.
    pub fn recv(&mut self, id: SocketId, into: &mut [u8]) -> Result<usize, RecvError> {
        let [start, wrapped] = self.arrived(id, into.len())?;
        let (first, count) = (start.len(), start.len() + wrapped.len());
        let read = start
            .read(0, &mut into[..first])
            .and_then(|()| wrapped.read(0, &mut into[first..count]));
        debug_assert!(read.is_ok(), "no more has arrived than is asked for");
        self.consume(id, count as u64);
        if count > 0 {
            self.counters.rx.count_request(count as u64, false);
        }
        Ok(count)
    }

    /// Forwards received bytes to the socket `to`, as far as it has room; otherwise a `WRITABLE` of `to` follows.
    /// Returns `Finished` also when `to` has ended.
    pub fn forward<P: SmcDevice + ?Sized>(
        &mut self,
        from: SocketId,
        to: SocketId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), RecvError> {
        loop {
            // Wrapped bytes are in the second part, which becomes the first one in the next turn.
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

    /// Echoes received bytes to their sender: [`Engine::forward`] from a socket to itself.
    pub fn turn_back<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), RecvError> {
        let Engine { spare, sockets, counters, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id);
        let socket = socket.ok_or(RecvError::Aborted)?;
        loop {
            let [piece, wraps] = arrived(socket, usize::MAX)?;
            if piece.is_empty() {
                return Ok(());
            }
            let parts = reserve(socket, piece.len(), spare, &mut counters.tx, ctx);
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

    /// Memory of the readable bytes, `limit` at most.
    fn arrived(&self, id: SocketId, limit: usize) -> Result<[Window; 2], RecvError> {
        arrived(self.socket(id).ok_or(RecvError::Aborted)?, limit)
    }

    /// Number of unread bytes up to and including the peer's urgent byte. None if there is none to be read.
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
        let Some(socket) = self.socket_mut(id) else { return 0 };
        let size = u64::from(socket.sizes.send);
        let room = size - (socket.accepted - socket.completed);
        socket.wants_room |= room == 0;
        room as usize
    }

    /// Bytes that can be written.
    pub fn writable(&self, id: SocketId) -> u64 {
        let room =
            |socket: &Socket| u64::from(socket.sizes.send) - (socket.accepted - socket.completed);
        self.socket(id).map_or(0, room)
    }

    /// Counts bytes as read, and sends a window update if one is due.
    fn consume(&mut self, id: SocketId, count: u64) {
        let Engine { sockets, dirty, .. } = self;
        let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == id && count > 0);
        if let Some(socket) = socket
            && consume(socket, count)
        {
            socket.touch(dirty);
        }
    }

    /// Sends a socket's pending data, cursors and end flags.
    pub(super) fn push<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        loop {
            let Some(mut socket) = self.sockets.get_mut(key) else { return };
            if socket.returns.is_some() && socket.sent == socket.completed {
                self.go_back(key);
                continue;
            }
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
                // One CDC message must have its cursor directly behind the urgent byte.
                length = length.min(urgent - socket.sent);
            }
            if socket.returns.is_some() {
                // Until the data under way is acknowledged.
                length = 0;
            }
            if length == unsent && (socket.wants_close || socket.wants_shutdown) {
                self.settle(key);
                let Some(settled) = self.sockets.get_mut(key) else { return };
                socket = settled;
            }
            if length == 0 && !socket.cdc_due && !socket.validate {
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
                // The queue pair has failed: its completions report that.
                return;
            };
            let is_blocked = unsent >= window && unsent > 0;
            self.counters.tx.full_at_peer += u64::from(is_blocked);
            let cdc = compose(socket, length, is_blocked);
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

/// Reserves send buffer space for up to `wanted` bytes, which count as written.
#[inline]
fn reserve<P: SmcDevice + ?Sized>(
    socket: &mut Socket,
    wanted: usize,
    spare: &mut Spare,
    counters: &mut Traffic,
    ctx: &mut Ctx<'_, P>,
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
            let (buffer, is_reused) =
                spare.take(socket.sizes.send, ctx).ok_or(SendError::NoMemory)?;
            counters.count_buffer(buffer.len(), is_reused);
            *socket.buffer.insert(buffer)
        }
    };
    // Up to the oldest byte that may have to be retransmitted.
    let room = buffer.len() as u64 - (socket.accepted - socket.completed);
    let count = room.min(wanted as u64);
    let parts = ring(&buffer, socket.accepted, count);
    socket.accepted += count;
    let is_full = count < wanted as u64;
    socket.wants_room |= is_full;
    counters.count_request(count, is_full);
    Ok(parts)
}

/// Memory of the readable bytes, `limit` at most.
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

/// Counts bytes as read. Returns whether a window update is due.
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
    if unconfirmed > (size / 10).max(MIN_UPDATE) {
        let senders = size - (socket.produced - socket.confirmed);
        let blocked = socket.rx_producer.contains(Producer::WRITE_BLOCKED);
        wanted |= senders <= size / 2 || blocked;
    }
    socket.cdc_due |= wanted;
    wanted
}

/// Copies the beginning of a piece into two parts, and returns the number of bytes.
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

/// Prepares the WRITEs for the next `length` bytes. Returns the last one, to be posted together with the CDC message.
/// If the peer's buffer wraps, posts the one before it here.
#[inline]
fn write<P: SmcDevice + ?Sized>(
    socket: &Socket,
    qp: verbs::QpId,
    id: u64,
    length: u64,
    ctx: &mut Ctx<'_, P>,
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

/// Builds a WRITE request.
#[inline]
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

/// Whether the ACK of a CDC message may be late: the socket has enough room to continue, in its buffer and on the link.
fn may_ack_lazily(socket: &Socket, link: &Link, cdc: &Cdc) -> bool {
    let size = socket.buffer.map_or(0, |buffer| buffer.len() as u64);
    !(link.cdc_under_way + 1).is_multiple_of(LAZY_ACKS)
        && 2 * (socket.accepted - socket.completed) <= size
        && !socket.wants_room
        && socket.returns.is_none()
        && cdc.end.is_empty()
        && !cdc.producer.contains(Producer::FAILOVER)
}

/// Posts a CDC message behind the WRITE that it announces.
fn post_cdc<P: SmcDevice + ?Sized>(
    socket: &mut Socket,
    link: &mut Link,
    id: u64,
    announced: Option<Announced>,
    cdc: &Cdc,
    ctx: &mut Ctx<'_, P>,
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
    // Separate inlined calls, so that the compiler knows the shape of the common request.
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

/// The failover validation message, the first one on the new link.
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

/// Builds the CDC message behind `length` bytes, which count as sent from here on.
#[inline]
fn compose(socket: &mut Socket, length: u64, blocked: bool) -> Cdc {
    socket.sent += length;
    socket.furthest = socket.furthest.max(socket.sent);
    socket.confirmed = socket.consumed;
    socket.tx_seqno = socket.tx_seqno.wrapping_add(1);
    socket.cdc_due = false;
    let mut producer = Producer::empty();
    producer.set(Producer::WRITE_BLOCKED, blocked);
    producer.set(Producer::UPDATE_REQUESTED, core::mem::take(&mut socket.requests_update));
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
