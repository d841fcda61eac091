//! The server's TCP side: a fixed number of sockets that listen on one port of an interface.

use super::{Connection, Handler, Limits};
use crate::Interface;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, State};

/// Receive and transmit buffer of a socket.
const RECEIVE: usize = 4 << 10;
const TRANSMIT: usize = 16 << 10;
/// How long an opening handshake may take, and a closing one in which the client takes nothing any more.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a client that does not complete the opening handshake keeps others out.
const HALF_OPEN: Duration = Duration::from_secs(1);
/// When to ask again for bytes that the handler did not have.
const PENDING: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Slot {
    socket: SocketHandle,
    connection: Option<Connection>,
    /// Since when it is being opened, closed or reset.
    shaking: Option<Instant>,
    /// Bytes that the client had not acknowledged when that was looked at.
    unacknowledged: usize,
}

/// An HTTP server on one interface.
#[derive(Debug)]
pub struct Server {
    port: u16,
    limits: Limits,
    slots: Vec<Slot>,
    /// The interface's activity that was seen last.
    seen: Option<u64>,
    deadline: Option<Instant>,
}

impl Server {
    /// A server on `port` (not 0) of all addresses of the interface.
    pub fn new(interface: &mut Interface, port: u16, limits: Limits) -> Self {
        assert!(port != 0, "the configuration has a real port");
        let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
        let slots = (0..limits.connections).map(|_| {
            let mut socket = tcp::Socket::new(buffer(RECEIVE), buffer(TRANSMIT));
            socket.set_nagle_enabled(false);
            let socket = interface.sockets().add(socket);
            Slot { socket, connection: None, shaking: None, unacknowledged: 0 }
        });
        Server { port, limits, slots: slots.collect(), seen: None, deadline: None }
    }

    /// Serves what has arrived; returns at once if nothing has and nothing is due. Must be given
    /// the interface that it was made on.
    pub fn poll(&mut self, interface: &mut Interface, handler: &mut dyn Handler, now: Instant) {
        let seen = Some(interface.activity());
        if self.seen == seen && self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.seen = seen;
        for slot in &mut self.slots {
            let socket = interface.sockets().get_mut::<tcp::Socket>(slot.socket);
            slot.serve(socket, self.port, self.limits, handler, now);
        }
        self.make_room(interface, now);
        self.deadline = self.slots.iter().filter_map(|slot| slot.timeout(now)).min();
    }

    /// When [`Server::poll`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// The port that it serves.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections that are open at present.
    pub fn connections(&self) -> usize {
        self.slots.iter().filter(|slot| slot.connection.is_some()).count()
    }

    /// Ends the server: connections are reset, sockets given back.
    pub fn stop(self, interface: &mut Interface, handler: &mut dyn Handler) {
        for slot in self.slots {
            if let Some(mut connection) = slot.connection {
                connection.abandon(handler);
            }
            interface.sockets().remove(slot.socket);
        }
    }

    /// If no socket listens any more, frees one: of a connection that is over but for the wait,
    /// or else of the client that has been quiet for longest.
    fn make_room(&mut self, interface: &mut Interface, now: Instant) {
        let sockets = interface.sockets();
        let mut quiet: Option<&mut Slot> = None;
        for slot in &mut self.slots {
            let socket = sockets.get_mut::<tcp::Socket>(slot.socket);
            match socket.state() {
                State::Listen => return,
                State::SynReceived if slot.shaking.is_some_and(|at| at + HALF_OPEN <= now) => {
                    socket.abort();
                    listen(socket, self.port);
                    return;
                }
                // Everything we said was taken; what is missing is only the client's farewell.
                State::TimeWait | State::FinWait2 => {
                    socket.abort();
                    listen(socket, self.port);
                    return;
                }
                // Room is being made already.
                State::FinWait1 | State::Closing | State::LastAck => return,
                _ => (),
            }
            let since = |slot: &Slot| slot.connection.as_ref().map(Connection::since);
            let is_quiet = slot.connection.as_ref().is_some_and(|c| c.is_quiet(now));
            if is_quiet && quiet.as_ref().is_none_or(|other| since(slot) < since(other)) {
                quiet = Some(slot);
            }
        }
        if let Some(slot) = quiet {
            sockets.get_mut::<tcp::Socket>(slot.socket).close();
        }
    }
}

impl Slot {
    fn serve(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        port: u16,
        limits: Limits,
        handler: &mut dyn Handler,
        now: Instant,
    ) {
        let shaking = self.shaking.take();
        let mut aborted = false;
        match socket.state() {
            State::Closed => listen(socket, port),
            State::Listen | State::TimeWait => (),
            State::Established | State::CloseWait => {
                let connection =
                    self.connection.get_or_insert_with(|| Connection::new(limits, now));
                exchange(connection, socket, handler, now);
                aborted = connection.is_broken();
                if connection.is_finished() {
                    socket.close();
                }
            }
            // SYN received, or closing: what still arrives is of no interest.
            _ => {
                let _ = socket.recv(|bytes| (bytes.len(), ()));
                let left = socket.send_queue();
                let moved = core::mem::replace(&mut self.unacknowledged, left) > left;
                let since = shaking.filter(|_| !moved).unwrap_or(now);
                self.shaking = Some(since);
                aborted = since + HANDSHAKE <= now;
            }
        }
        if aborted {
            // The reset goes out with the interface's next poll; then the socket listens again.
            socket.abort();
            self.shaking = Some(now);
        }
        if !matches!(socket.state(), State::Established | State::CloseWait)
            && let Some(mut connection) = self.connection.take()
        {
            connection.abandon(handler);
            self.shaking = Some(now);
        }
    }

    fn timeout(&self, now: Instant) -> Option<Instant> {
        match &self.connection {
            Some(connection) if connection.is_pending() => Some(now + PENDING),
            Some(connection) => Some(connection.poll_timeout()),
            None => self.shaking.map(|since| since + HANDSHAKE),
        }
    }
}

/// Moves bytes between socket and connection as long as there are any, and there is room.
fn exchange(
    connection: &mut Connection,
    socket: &mut tcp::Socket<'_>,
    handler: &mut dyn Handler,
    now: Instant,
) {
    loop {
        let received = socket.recv(|bytes| {
            let taken = connection.handle_input(bytes, now);
            (taken, taken)
        });
        connection.poll(handler, now);
        let mut sent = 0;
        if socket.can_send() {
            sent = socket.send_slice(connection.output(handler, now)).unwrap_or(0);
            connection.consume(sent, now);
        }
        // The socket's buffers bound how often this goes round.
        if received.unwrap_or(0) == 0 && sent == 0 {
            break;
        }
    }
    if !socket.may_recv() {
        connection.handle_end();
    }
}

fn listen(socket: &mut tcp::Socket<'_>, port: u16) {
    socket.listen(port).expect("the socket is closed and the port is not 0");
}
