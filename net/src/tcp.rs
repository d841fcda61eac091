//! A TCP listener for protocols that are engines of their own: a limited number of connections on
//! one port of an interface, each with buffers of fixed size; bytes in, bytes out. What is not there
//! takes neither memory nor time.
//!
//! TCP itself (RFC 9293) is smoltcp's. A connection is named by a [`Stream`] from
//! [`Listener::accept`] until its user ends it by [`Listener::close`] or [`Listener::abort`],
//! whatever its peer does meanwhile. A peer that vanishes is noticed by keep-alives. Does not
//! connect to others.

use crate::Interface;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use slab::Slab;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, RecvError, State};

/// How long the opening handshake may take: our SYN has been sent four times by then.
const OPENING: Duration = Duration::from_secs(15);
/// How long a client that does not complete it keeps others out.
const HALF_OPEN: Duration = Duration::from_millis(3500);
/// How long the peer's farewell is waited for; and how long a connection that is closed and still has
/// something to say may keep others out.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);
/// How long a peer may take nothing of that. Over a network that loses frames, a segment is sent again after
/// 1, 3, 7 and 15 seconds.
const STUCK: Duration = Duration::from_secs(30);
/// How long the last segment of a connection has for its way out.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(10);
/// How often a silent peer is asked whether it is there.
pub(crate) const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// How long a peer may leave us without an answer.
pub(crate) const PATIENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(30);

/// What a listener may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, those being opened and closed among them.
    pub connections: usize,
    /// Bytes of each that have arrived and were not read.
    pub receive: usize,
    /// Bytes of each that were written and not acknowledged.
    pub transmit: usize,
}

/// Name of a connection of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    slot: usize,
    turn: u32,
}

/// The end of a connection, or of one direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer has said everything, and all of it was read; or we have ended our side.
    Finished,
    /// The connection is gone: reset, timed out, or ended by its user.
    Gone,
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Nobody's yet: it is being opened.
    Opening,
    /// The listener's user.
    User,
    /// It is being closed.
    Leaving,
    /// The last that there is to say goes out.
    Over,
}

#[derive(Debug)]
struct Slot {
    socket: SocketHandle,
    owner: Owner,
    /// Since when it is that owner's, and since when the peer has taken nothing of what is left to say.
    since: Instant,
    moved: Instant,
    /// Bytes of that, and one for our end; 0 if only the peer's is missing.
    left: usize,
    turn: u32,
}

/// A port that is listened on.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    limits: Limits,
    slots: Slab<Slot>,
    /// Those that are not their user's.
    shaking: Vec<usize>,
    turn: u32,
}

impl Listener {
    /// Listens on `port` (not 0) of all addresses of the interface.
    pub fn new(interface: &mut Interface, port: u16, limits: Limits) -> Self {
        assert!(port != 0, "a port to listen on is not 0");
        let Limits { connections, receive, transmit } = limits;
        interface.doors().open(port, connections, receive, transmit);
        Listener { port, limits, slots: Slab::new(), shaking: Vec::new(), turn: 0 }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next connection that has been opened, if any. To be called after each poll of the
    /// interface, until there is none: it also makes room for new peers.
    #[inline(never)]
    pub fn accept(&mut self, interface: &mut Interface, now: Instant) -> Option<Stream> {
        while let Some(socket) = interface.doors().next(self.port) {
            self.turn = self.turn.wrapping_add(1);
            let (owner, since, turn) = (Owner::Opening, now, self.turn);
            let slot = Slot { socket, owner, since, moved: now, left: 0, turn };
            self.shaking.push(self.slots.insert(slot));
        }
        self.make_room(interface, now);
        let mut at = 0;
        while let Some(&key) = self.shaking.get(at) {
            let slot = &mut self.slots[key];
            let socket = interface.sockets().get_mut::<tcp::Socket>(slot.socket);
            match (slot.owner, socket.state()) {
                (Owner::Over, _) if slot.since < now => {
                    let socket = interface.sockets().remove(slot.socket);
                    interface.doors().give_back(self.port, socket);
                    self.slots.remove(key);
                    self.shaking.swap_remove(at);
                    continue;
                }
                (Owner::Over, _) => {}
                (Owner::Opening, State::Established | State::CloseWait) => {
                    slot.owner = Owner::User;
                    self.shaking.swap_remove(at);
                    return Some(Stream { slot: key, turn: slot.turn });
                }
                (Owner::Opening, State::SynReceived) if now < slot.since + OPENING => {}
                // All is said; to wait for stray packets of the past is not worth a place.
                (Owner::Leaving, State::TimeWait) => slot.becomes(Owner::Over, now),
                (Owner::Leaving, state)
                    if state != State::Closed && !slot.is_stuck(socket, now) =>
                {
                    // What still arrives is of no interest.
                    let _ = socket.recv(|bytes| (bytes.len(), ()));
                }
                // Likewise. A reset could cost the peer what it has not read yet.
                (Owner::Leaving, State::FinWait2) => slot.becomes(Owner::Over, now),
                _ => {
                    socket.abort();
                    slot.becomes(Owner::Over, now);
                }
            }
            at += 1;
        }
        let room = self.limits.connections - self.slots.len();
        interface.doors().set_room(self.port, room);
        None
    }

    /// If there is no place left, takes that of a connection of which only the peer's farewell is missing,
    /// or else of the one that has been opening or closing for longest, if that is long.
    fn make_room(&mut self, interface: &mut Interface, now: Instant) {
        if !self.is_full() || self.shaking.iter().any(|&key| self.slots[key].owner == Owner::Over) {
            return;
        }
        let mut slowest: Option<(Instant, usize)> = None;
        for &key in &self.shaking {
            let slot = &mut self.slots[key];
            let state = interface.sockets().get::<tcp::Socket>(slot.socket).state();
            if slot.owner == Owner::Leaving && state == State::FinWait2 {
                return slot.becomes(Owner::Over, now);
            }
            let late = slot.patience().is_some_and(|end| end <= now);
            if late && slowest.is_none_or(|(since, _)| slot.since < since) {
                slowest = Some((slot.since, key));
            }
        }
        if let Some((_, key)) = slowest {
            let slot = &mut self.slots[key];
            interface.sockets().get_mut::<tcp::Socket>(slot.socket).abort();
            slot.becomes(Owner::Over, now);
        }
    }

    /// Whether all places are taken.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.limits.connections
    }

    /// Whether a connection is being closed, so that its place will be free.
    pub fn is_closing_one(&self) -> bool {
        let closing = |&key: &usize| matches!(self.slots[key].owner, Owner::Leaving | Owner::Over);
        self.shaking.iter().any(closing)
    }

    /// Both ends of a connection: the peer's, and our address.
    pub fn ends(&self, interface: &mut Interface, stream: Stream) -> Option<(SocketAddr, IpAddr)> {
        let socket = self.socket(interface, stream)?;
        let (peer, ours) = (socket.remote_endpoint()?, socket.local_endpoint()?);
        Some((SocketAddr::new(peer.addr.into(), peer.port), ours.addr.into()))
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        stream: Stream,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        let socket = self.socket(interface, stream).ok_or(Closed::Gone)?;
        match socket.recv_slice(into) {
            Ok(count) => Ok(count),
            Err(RecvError::Finished) => Err(Closed::Finished),
            // Before the end, or without any: a reset.
            Err(RecvError::InvalidState) => Err(Closed::Gone),
        }
    }

    /// Has `take` look at what has arrived, which says how much of that it has taken; whether it took any.
    pub(crate) fn take(
        &self,
        interface: &mut Interface,
        stream: Stream,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> bool {
        let Some(socket) = self.socket(interface, stream) else { return false };
        let taken = socket.recv(|bytes| {
            let taken = take(bytes);
            (taken, taken)
        });
        taken.is_ok_and(|taken| taken > 0)
    }

    /// Whether the peer may still say something.
    pub(crate) fn may_read(&self, interface: &mut Interface, stream: Stream) -> bool {
        self.socket(interface, stream).is_some_and(|socket| socket.may_recv())
    }

    /// Whether the connection is gone: reset or timed out.
    pub(crate) fn is_gone(&self, interface: &mut Interface, stream: Stream) -> bool {
        self.socket(interface, stream).is_none_or(|socket| !socket.is_open())
    }

    /// Bytes that a write would take now.
    pub fn room(&self, interface: &mut Interface, stream: Stream) -> usize {
        self.socket(interface, stream).map_or(0, |socket| room(socket))
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write(
        &self,
        interface: &mut Interface,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        let socket = self.socket(interface, stream).ok_or(Closed::Gone)?;
        let gone = if socket.is_open() { Closed::Finished } else { Closed::Gone };
        socket.send_slice(bytes).map_err(|_| gone)
    }

    /// Asks a silent peer no more whether it is there: the user learns of that otherwise.
    pub fn stop_asking(&self, interface: &mut Interface, stream: Stream) {
        if let Some(socket) = self.socket(interface, stream) {
            stop_asking(socket);
        }
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish(&self, interface: &mut Interface, stream: Stream) {
        if let Some(socket) = self.socket(interface, stream) {
            socket.close();
        }
    }

    /// Gives a connection up in order: what was written still arrives.
    pub fn close(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        self.finish(interface, stream);
        self.leave(stream, Owner::Leaving, now);
    }

    /// Gives a connection up by a reset.
    pub fn abort(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        if let Some(socket) = self.socket(interface, stream) {
            socket.abort();
        }
        self.leave(stream, Owner::Over, now);
    }

    fn leave(&mut self, stream: Stream, owner: Owner, now: Instant) {
        if let Some(slot) = self.slots.get_mut(stream.slot).filter(|slot| slot.is(stream)) {
            slot.becomes(owner, now);
            slot.left = usize::MAX; // not counted yet
            self.shaking.push(stream.slot);
        }
    }

    /// When [`Listener::accept`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let full = self.is_full();
        let due = |&key: &usize| {
            let slot = &self.slots[key];
            let end = match slot.owner {
                Owner::Opening => Some(slot.since + OPENING),
                Owner::Leaving => Some(slot.stuck_at()),
                Owner::Over => Some(slot.since + LAST_WORDS),
                Owner::User => None,
            };
            Instant::first([end, slot.patience().filter(|_| full)])
        };
        self.shaking.iter().filter_map(due).min()
    }

    /// Ends everything: connections are reset, sockets given back.
    pub fn stop(self, interface: &mut Interface) {
        let unknown = interface.doors().close(self.port);
        for socket in self.slots.into_iter().map(|(_, slot)| slot.socket).chain(unknown) {
            interface.sockets().remove(socket);
        }
    }

    fn socket<'a>(
        &self,
        interface: &'a mut Interface,
        stream: Stream,
    ) -> Option<&'a mut tcp::Socket<'static>> {
        let slot = self.slots.get(stream.slot).filter(|slot| slot.is(stream))?;
        Some(interface.sockets().get_mut(slot.socket))
    }
}

impl Slot {
    fn becomes(&mut self, owner: Owner, now: Instant) {
        (self.owner, self.since, self.moved) = (owner, now, now);
    }

    /// Until when it may keep others out.
    fn patience(&self) -> Option<Instant> {
        match self.owner {
            Owner::Opening => Some(self.since + HALF_OPEN),
            Owner::Leaving => Some(self.since + FAREWELL),
            Owner::User | Owner::Over => None,
        }
    }

    /// Whether the peer has taken nothing for long of what there is left to say.
    fn is_stuck(&mut self, socket: &tcp::Socket<'_>, now: Instant) -> bool {
        let left = match socket.state() {
            State::FinWait2 => 0,
            // Our end of the connection is something to say, too.
            _ => socket.send_queue() + 1,
        };
        if core::mem::replace(&mut self.left, left) > left {
            self.moved = now;
        }
        self.stuck_at() <= now
    }

    /// When it will be stuck, if nothing moves.
    fn stuck_at(&self) -> Instant {
        self.moved + if self.left == 0 { FAREWELL } else { STUCK }
    }

    fn is(&self, stream: Stream) -> bool {
        self.owner == Owner::User && self.turn == stream.turn
    }
}

/// Bytes that a socket would take now.
pub(crate) fn room(socket: &tcp::Socket<'_>) -> usize {
    if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
}

/// Has a socket send no keep-alives.
pub(crate) fn stop_asking(socket: &mut tcp::Socket<'_>) {
    socket.set_keep_alive(None);
    socket.set_timeout(None);
}
