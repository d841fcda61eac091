//! The server's TCP side: a limited number of connections to one port of an interface.

use super::access::Doors;
use super::{Connection, Handler, Limits};
use crate::Interface;
use crate::tcp::{self, Listener, Stream};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;

/// Receive and transmit buffer of a connection.
const RECEIVE: usize = 4 << 10;
const TRANSMIT: usize = 16 << 10;
/// When to ask again for bytes that the handler did not have.
const PENDING: Duration = Duration::from_millis(20);

/// An HTTP server on one interface.
#[derive(Debug)]
pub struct Server {
    limits: Limits,
    doors: Doors,
    listener: Listener,
    open: Vec<(Stream, Connection)>,
    /// Which connection is served first the next time.
    first: usize,
    /// The interface's activity that was seen last.
    seen: Option<u64>,
    deadline: Option<Instant>,
}

impl Server {
    /// A server on `port` (not 0) of all addresses of the interface.
    pub fn new(interface: &mut Interface, port: u16, limits: Limits) -> Self {
        let connections = limits.connections;
        let of_each = tcp::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        let listener = Listener::new(interface, port, of_each);
        let open = Vec::with_capacity(connections);
        let doors = Doors::default();
        Server { limits, doors, listener, open, first: 0, seen: None, deadline: None }
    }

    /// Serves these hosts on these addresses of ours from now on. Connections of others are reset.
    pub fn set_doors(&mut self, doors: Doors) {
        if self.doors != doors {
            self.doors = doors;
            self.seen = None;
        }
    }

    /// Serves what has arrived; returns at once if nothing has and nothing is due. Must be given
    /// the interface that it was made on.
    pub fn poll(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        let seen = Some(interface.activity());
        if self.seen == seen && self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.seen = seen;
        while let Some(stream) = self.listener.accept(interface, now) {
            let Some((from, to)) = self.listener.ends(interface, stream) else {
                self.listener.abort(interface, stream, now);
                continue;
            };
            if let Err(refusal) = self.doors.admit(from.ip(), to) {
                handler.refused(refusal);
                self.listener.abort(interface, stream, now);
                continue;
            }
            // A connection has timers of its own.
            self.listener.stop_asking(interface, stream);
            self.open.push((stream, Connection::new(self.limits, from, now)));
        }
        let doors = &self.doors;
        let listener = &mut self.listener;
        let mut waits = false;
        let count = self.open.len();
        self.open.rotate_left(if self.first < count { self.first } else { 0 });
        let (mut place, mut first) = (0, 0);
        self.open.retain_mut(|(stream, connection)| {
            place += 1;
            if !doors.hosts.admits(connection.from().ip()) {
                listener.abort(interface, *stream, now);
                connection.abandon(handler);
                return false;
            }
            let turns = connection.turns();
            let stays = serve(listener, interface, *stream, connection, handler, now);
            if !stays {
                connection.abandon(handler);
            } else {
                waits |= connection.wants_turn() && !connection.is_pending() && stuck(handler);
            }
            if connection.turns() != turns {
                first = place;
            }
            stays
        });
        self.first = first;
        self.make_room(interface, handler, now);
        let due = |(_, connection): &(Stream, Connection)| match connection.is_pending() {
            true => now + PENDING,
            false => connection.poll_timeout(),
        };
        let connections = self.open.iter().map(due).min();
        let waits = waits.then_some(now);
        self.deadline = Instant::first([waits, connections, self.listener.poll_timeout()]);
    }

    /// When [`Server::poll`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// The port that it serves.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Connections that are open at present.
    pub fn connections(&self) -> usize {
        self.open.len()
    }

    /// Ends the server: connections are reset, sockets given back.
    pub fn stop(self, interface: &mut Interface, handler: &mut dyn Handler) {
        for (_, mut connection) in self.open {
            connection.abandon(handler);
        }
        self.listener.stop(interface);
    }

    /// If all places are taken, and none is about to be free, closes the connection whose client has been
    /// quiet for longest.
    fn make_room(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        if !self.listener.is_full(interface) || self.listener.is_closing_one(interface) {
            return;
        }
        let quiet = self.open.iter().enumerate().filter(|(_, (_, c))| c.is_quiet(now));
        if let Some((at, _)) = quiet.min_by_key(|(_, (_, connection))| connection.since()) {
            let (stream, mut connection) = self.open.swap_remove(at);
            self.listener.close(interface, stream, now);
            connection.abandon(handler);
        }
    }
}

/// Whether what a connection waits for is the handler's time.
fn stuck(handler: &dyn Handler) -> bool {
    !handler.has_time()
}

/// Moves bytes between a TCP connection and what is said on it, as long as there are any, there is room, and
/// the handler has time; whether it goes on.
fn serve(
    listener: &mut Listener,
    interface: &mut Interface,
    stream: Stream,
    connection: &mut Connection,
    handler: &mut dyn Handler,
    now: Instant,
) -> bool {
    loop {
        let taken = listener.take(interface, stream, |bytes| connection.handle_input(bytes, now));
        if handler.has_time() || !connection.wants_turn() {
            connection.poll(handler, now);
        }
        let mut sent = 0;
        if listener.room(interface, stream) > 0 && (handler.has_time() || !connection.wants_turn())
        {
            let written = listener.write(interface, stream, connection.output(handler, now));
            sent = written.unwrap_or(0);
            connection.consume(sent, now);
        }
        // The buffers bound how often this goes round.
        if !taken && sent == 0 {
            break;
        }
    }
    if !listener.may_read(interface, stream) {
        connection.handle_end();
    }
    if connection.is_broken() || listener.is_gone(interface, stream) {
        listener.abort(interface, stream, now);
    } else if connection.is_finished() {
        listener.close(interface, stream, now);
    } else {
        return true;
    }
    false
}
