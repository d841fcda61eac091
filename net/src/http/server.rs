//! The server's TCP side: a limited number of connections to one port of an interface.

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
    listener: Listener,
    open: Vec<(Stream, Connection)>,
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
        Server { limits, listener, open, seen: None, deadline: None }
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
            // A connection has timers of its own.
            self.listener.stop_asking(interface, stream);
            self.open.push((stream, Connection::new(self.limits, now)));
        }
        let listener = &mut self.listener;
        self.open.retain_mut(|(stream, connection)| {
            let stays = serve(listener, interface, *stream, connection, handler, now);
            if !stays {
                connection.abandon(handler);
            }
            stays
        });
        self.make_room(interface, handler, now);
        let due = |(_, connection): &(Stream, Connection)| match connection.is_pending() {
            true => now + PENDING,
            false => connection.poll_timeout(),
        };
        let connections = self.open.iter().map(due).min();
        self.deadline = Instant::first([connections, self.listener.poll_timeout()]);
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
        if !self.listener.is_full() || self.listener.is_closing_one() {
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

/// Moves bytes between a TCP connection and what is said on it, as long as there are any and there is room;
/// whether it goes on.
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
        connection.poll(handler, now);
        let mut sent = 0;
        if listener.room(interface, stream) > 0 {
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
