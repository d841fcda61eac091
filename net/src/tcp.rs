//! A TCP listener for protocol engines: a limited number of connections on one port of an interface, with buffers of
//! fixed size; bytes in, bytes out. Unused places take neither memory nor time.
//!
//! A [`Stream`] from [`Listener::accept`] names a connection until its user calls [`Listener::close`] or
//! [`Listener::abort`], also after the peer has closed it. [`Listener::next_news`] returns connections with events, so
//! no user has to iterate over all. Keep-alives detect peers that vanish. [`crate::connector`] opens outgoing
//! connections.

use crate::Interface;
use crate::connections::Name;
pub use crate::connections::{Limits, Owner};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use smoltcp::socket::tcp::{self, RecvError};

/// Name of a connection of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub(crate) Name);

/// The end of a connection, or of one direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer has sent its FIN and all data was read; or our side is closed.
    Finished,
    /// The connection was reset, timed out, or was closed by its user.
    Gone,
}

/// A listening port.
#[derive(Debug)]
pub struct Listener {
    port: u16,
    owner: Owner,
}

impl Listener {
    /// Listens on `port` (not 0) of all addresses of the interface.
    ///
    /// # Panics
    /// If `port` is 0.
    pub fn new(interface: &mut Interface, port: u16, limits: Limits) -> Self {
        assert!(port != 0, "a port to listen on is not 0");
        let connections = interface.connections();
        let owner = connections.open_owner(limits);
        connections.listen(port, owner);
        Listener { port, owner }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its entry in [`Interface::ready`].
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Sets whether SMC is offered to clients that offer it (see `smoltcp_gaps::smc_option`). The default is off.
    pub fn offer_smc(&self, interface: &mut Interface, on: bool) {
        interface.connections().offer_smc(self.port, self.owner, on);
    }

    /// Whether both ends of a connection offer SMC.
    pub fn offers_smc(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().offers_smc(stream.0)
    }

    /// The next new connection. When [`Interface::activity`] has changed or [`Interface::ready`] has this listener,
    /// call it until it returns None.
    pub fn accept(&mut self, interface: &mut Interface, _: Instant) -> Option<Stream> {
        interface.connections().accept(self.owner).map(Stream)
    }

    /// The next connection with an event: data has arrived, there is more room to write, or it was closed. All changes
    /// since the last call are one event, so read and write until both block. May return connections that were just
    /// accepted.
    pub fn next_news(&mut self, interface: &mut Interface) -> Option<Stream> {
        interface.connections().next_news(self.owner).map(Stream)
    }

    /// The source address of the next connection for which all places were taken.
    pub fn next_turned_away(&mut self, interface: &mut Interface) -> Option<IpAddr> {
        interface.connections().next_turned_away(self.owner)
    }

    /// Number of further connections without a place, beyond [`Listener::next_turned_away`], since the last call.
    pub fn more_turned_away(&mut self, interface: &mut Interface) -> u64 {
        interface.connections().more_turned_away(self.owner)
    }

    /// Whether all places are taken.
    pub fn is_full(&self, interface: &Interface) -> bool {
        interface.tcp().is_full(self.owner)
    }

    /// Whether a connection is being closed, so that its place becomes free.
    pub fn has_closing(&self, interface: &Interface) -> bool {
        interface.tcp().has_closing(self.owner)
    }

    /// The peer's end of a connection, and our address.
    pub fn ends(&self, interface: &mut Interface, stream: Stream) -> Option<(SocketAddr, IpAddr)> {
        interface.tcp().ends(stream.0).map(|(peer, ours)| (peer, ours.ip()))
    }

    /// Reads received data. Returns the number of bytes, 0 if there are none at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        stream: Stream,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        read(interface, stream.0, into)
    }

    /// Passes received data to `take`, which returns the number of bytes it consumed. Returns that number, 0 if there is
    /// no data at present. More data may follow in the next call.
    pub fn read_with(
        &self,
        interface: &mut Interface,
        stream: Stream,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Result<usize, Closed> {
        read_with(interface, stream.0, take)
    }

    /// Passes free space of the send buffer to `fill`, which returns the number of bytes it wrote there. Returns that
    /// number, 0 if there is no space at present. There may be more space in the next call.
    pub fn write_with(
        &self,
        interface: &mut Interface,
        stream: Stream,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, Closed> {
        write_with(interface, stream.0, fill)
    }

    /// Passes received data to `take`, which returns the number of bytes it consumed. Returns whether it consumed any.
    pub(crate) fn take(
        &self,
        interface: &mut Interface,
        stream: Stream,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> bool {
        let Some(socket) = interface.connections().socket_mut(stream.0) else { return false };
        let taken = socket.recv(|bytes| {
            let taken = take(bytes);
            (taken, taken)
        });
        taken.is_ok_and(|taken| taken > 0)
    }

    /// Whether the peer may still send data, or received data is unread.
    pub(crate) fn may_read(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().socket(stream.0).is_some_and(tcp::Socket::may_recv)
    }

    /// Whether the connection is gone: reset or timed out.
    pub(crate) fn is_gone(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().socket(stream.0).is_none_or(|socket| !socket.is_open())
    }

    /// Whether the peer has closed or reset the connection, also while received data is unread.
    pub fn is_closed_by_peer(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().socket(stream.0).is_none_or(|socket| {
            use tcp::State::{CloseWait, Closed, Closing, LastAck, TimeWait};
            matches!(socket.state(), CloseWait | Closed | Closing | LastAck | TimeWait)
        })
    }

    /// Free bytes in the send buffer.
    pub fn room(&self, interface: &mut Interface, stream: Stream) -> usize {
        interface.tcp().socket(stream.0).map_or(0, room)
    }

    /// Writes as many bytes as there is room for. Returns their number.
    pub fn write(
        &self,
        interface: &mut Interface,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        write(interface, stream.0, bytes)
    }

    /// Stops keep-alives: the user detects a silent peer by other means.
    pub fn disable_keep_alive(&self, interface: &mut Interface, stream: Stream) {
        interface.connections().disable_keep_alive(stream.0);
    }

    /// Stops keep-alives, and releases the connection's buffers once no data is under way. For connections on which
    /// hardly any data is expected.
    pub fn make_idle(&self, interface: &mut Interface, stream: Stream) {
        interface.connections().make_idle(stream.0);
    }

    /// Sends a FIN after the written data. Reading remains possible.
    pub fn finish(&self, interface: &mut Interface, stream: Stream) {
        finish(interface, stream.0);
    }

    /// Closes a connection after the written data.
    pub fn close(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        interface.connections().release(stream.0, false, now);
    }

    /// Resets a connection.
    pub fn abort(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        interface.connections().release(stream.0, true, now);
    }

    /// Always None: the interface has the timers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Changes the limits. Existing connections stay and keep their buffers.
    pub fn set_limits(&mut self, interface: &mut Interface, limits: Limits) {
        interface.connections().set_limits(self.owner, limits);
    }

    /// Stops listening and frees the port. Existing connections continue.
    pub fn stop_listening(&mut self, interface: &mut Interface) {
        interface.connections().close_port(self.port, self.owner);
    }

    /// Stops listening and resets all connections, with the interface's next polls.
    pub fn stop(self, interface: &mut Interface) {
        let now = interface.now();
        let connections = interface.connections();
        connections.close_port(self.port, self.owner);
        connections.close_owner(self.owner, now);
    }
}

/// Free bytes in the send buffer of a socket.
pub(crate) fn room(socket: &tcp::Socket<'_>) -> usize {
    if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
}

pub(crate) fn read(
    interface: &mut Interface,
    name: Name,
    into: &mut [u8],
) -> Result<usize, Closed> {
    // Without data the socket is not scheduled for a poll: only a read can open the window.
    let socket = interface.tcp().socket(name).ok_or(Closed::Gone)?;
    if socket.recv_queue() == 0 && socket.may_recv() {
        return Ok(0);
    }
    let socket = interface.connections().socket_mut(name).ok_or(Closed::Gone)?;
    socket.recv_slice(into).map_err(|error| match error {
        RecvError::Finished => Closed::Finished,
        // No FIN was received: a reset.
        RecvError::InvalidState => Closed::Gone,
    })
}

/// As [`Listener::read_with`].
pub(crate) fn read_with(
    interface: &mut Interface,
    name: Name,
    take: impl FnOnce(&[u8]) -> usize,
) -> Result<usize, Closed> {
    let socket = interface.tcp().socket(name).ok_or(Closed::Gone)?;
    if socket.recv_queue() == 0 && socket.may_recv() {
        return Ok(0);
    }
    let socket = interface.connections().socket_mut(name).ok_or(Closed::Gone)?;
    let taken = socket.recv(|bytes| {
        let taken = take(bytes);
        (taken, taken)
    });
    taken.map_err(|error| match error {
        RecvError::Finished => Closed::Finished,
        RecvError::InvalidState => Closed::Gone,
    })
}

/// As [`Listener::write_with`].
pub(crate) fn write_with(
    interface: &mut Interface,
    name: Name,
    fill: impl FnOnce(&mut [u8]) -> usize,
) -> Result<usize, Closed> {
    let socket = interface.tcp().socket(name).ok_or(Closed::Gone)?;
    if socket.may_send() && room(socket) == 0 {
        return Ok(0);
    }
    let socket = interface.connections().socket_mut(name).ok_or(Closed::Gone)?;
    let gone = if socket.is_open() { Closed::Finished } else { Closed::Gone };
    let filled = socket.send(|space| {
        let filled = fill(space);
        (filled, filled)
    });
    filled.map_err(|_| gone)
}

pub(crate) fn write(interface: &mut Interface, name: Name, bytes: &[u8]) -> Result<usize, Closed> {
    let socket = interface.connections().socket_mut(name).ok_or(Closed::Gone)?;
    let gone = if socket.is_open() { Closed::Finished } else { Closed::Gone };
    socket.send_slice(bytes).map_err(|_| gone)
}

pub(crate) fn finish(interface: &mut Interface, name: Name) {
    if let Some(socket) = interface.connections().socket_mut(name) {
        socket.close();
    }
}
