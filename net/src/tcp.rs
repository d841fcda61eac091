//! A TCP listener for protocols that are engines of their own: a limited number of connections on
//! one port of an interface, each with buffers of fixed size; bytes in, bytes out. What is not there
//! takes neither memory nor time.
//!
//! A connection is named by a [`Stream`] from [`Listener::accept`] until its user ends it by
//! [`Listener::close`] or [`Listener::abort`], whatever its peer does meanwhile. Which ones have news
//! says [`Listener::next_news`], so that nobody has to look at all. A peer that vanishes is noticed by
//! keep-alives. Does not connect to others.

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
    /// The peer has said everything, and all of it was read; or we have ended our side.
    Finished,
    /// The connection is gone: reset, timed out, or ended by its user.
    Gone,
}

/// A port that is listened on.
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

    /// Its name among those of [`Interface::ready`].
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Says whether SMC is offered to those who offer it (see [`crate::smc_option`]); at first it is not.
    pub fn offer_smc(&self, interface: &mut Interface, on: bool) {
        interface.connections().offer_smc(self.port, self.owner, on);
    }

    /// Whether both ends of a connection offer SMC.
    pub fn offers_smc(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().offers_smc(stream.0)
    }

    /// The next connection that has been opened, if any. To be called until there is none when
    /// [`Interface::activity`] has changed, or [`Interface::ready`] names this listener.
    pub fn accept(&mut self, interface: &mut Interface, _: Instant) -> Option<Stream> {
        interface.connections().accept(self.owner).map(Stream)
    }

    /// The next connection that has news: something has arrived, there is more room to write, or an end
    /// has come. It is said once for all that has happened since it was said last, so that its user is
    /// to read and write until nothing moves. Connections that were just accepted may be among them.
    pub fn next_news(&mut self, interface: &mut Interface) -> Option<Stream> {
        interface.connections().next_news(self.owner).map(Stream)
    }

    /// A host, as its frame has it, that found all places taken.
    pub fn next_turned_away(&mut self, interface: &mut Interface) -> Option<IpAddr> {
        interface.connections().next_turned_away(self.owner)
    }

    /// How many more there were, since this was asked last, than [`Listener::next_turned_away`] tells.
    pub fn more_turned_away(&mut self, interface: &mut Interface) -> u64 {
        interface.connections().more_turned_away(self.owner)
    }

    /// Whether all places are taken.
    pub fn is_full(&self, interface: &Interface) -> bool {
        interface.tcp().is_full(self.owner)
    }

    /// Whether a connection is being closed, so that its place will be free.
    pub fn is_closing_one(&self, interface: &Interface) -> bool {
        interface.tcp().is_closing_one(self.owner)
    }

    /// Both ends of a connection: the peer's, and our address.
    pub fn ends(&self, interface: &mut Interface, stream: Stream) -> Option<(SocketAddr, IpAddr)> {
        interface.tcp().ends(stream.0).map(|(peer, ours)| (peer, ours.ip()))
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        stream: Stream,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        read(interface, stream.0, into)
    }

    /// Has `take` look at what has arrived, which says how much of that it has taken; whether it took any.
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

    /// Whether the peer may still say something.
    pub(crate) fn may_read(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().socket(stream.0).is_some_and(tcp::Socket::may_recv)
    }

    /// Whether the connection is gone: reset or timed out.
    pub(crate) fn is_gone(&self, interface: &Interface, stream: Stream) -> bool {
        interface.tcp().socket(stream.0).is_none_or(|socket| !socket.is_open())
    }

    /// Bytes that a write would take now.
    pub fn room(&self, interface: &mut Interface, stream: Stream) -> usize {
        interface.tcp().socket(stream.0).map_or(0, room)
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write(
        &self,
        interface: &mut Interface,
        stream: Stream,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        write(interface, stream.0, bytes)
    }

    /// Asks a silent peer no more whether it is there: the user learns of that otherwise.
    pub fn stop_asking(&self, interface: &mut Interface, stream: Stream) {
        interface.connections().stop_asking(stream.0);
    }

    /// As [`Listener::stop_asking`], and hardly any data is expected, so that the connection does without its buffers
    /// once nothing is under way.
    pub fn make_idle(&self, interface: &mut Interface, stream: Stream) {
        interface.connections().make_idle(stream.0);
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish(&self, interface: &mut Interface, stream: Stream) {
        finish(interface, stream.0);
    }

    /// Gives a connection up in order: what was written still arrives.
    pub fn close(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        interface.connections().leave(stream.0, false, now);
    }

    /// Gives a connection up by a reset.
    pub fn abort(&mut self, interface: &mut Interface, stream: Stream, now: Instant) {
        interface.connections().leave(stream.0, true, now);
    }

    /// When there is something to do though nothing arrives: never, the interface has the timers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Has other limits from the next connection on. What there is keeps its buffers, and stays.
    pub fn set_limits(&mut self, interface: &mut Interface, limits: Limits) {
        interface.connections().set_limits(self.owner, limits);
    }

    /// Listens no more: the port is free. Connections go on.
    pub fn stop_listening(&mut self, interface: &mut Interface) {
        interface.connections().close_port(self.port, self.owner);
    }

    /// Ends everything: connections are reset, with the interface's next polls.
    pub fn stop(self, interface: &mut Interface) {
        let now = interface.now();
        let connections = interface.connections();
        connections.close_port(self.port, self.owner);
        connections.close_owner(self.owner, now);
    }
}

/// Bytes that a socket would take now.
pub(crate) fn room(socket: &tcp::Socket<'_>) -> usize {
    if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
}

pub(crate) fn read(
    interface: &mut Interface,
    name: Name,
    into: &mut [u8],
) -> Result<usize, Closed> {
    // What has nothing to read is not touched: only who reads opens the window.
    let socket = interface.tcp().socket(name).ok_or(Closed::Gone)?;
    if socket.recv_queue() == 0 && socket.may_recv() {
        return Ok(0);
    }
    let socket = interface.connections().socket_mut(name).ok_or(Closed::Gone)?;
    socket.recv_slice(into).map_err(|error| match error {
        RecvError::Finished => Closed::Finished,
        // Before the end, or without any: a reset.
        RecvError::InvalidState => Closed::Gone,
    })
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
