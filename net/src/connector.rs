//! Outgoing TCP connections, for protocol engines: bytes in, bytes out.
//!
//! A [`ConnectionHandle`] from [`Connector::connect`] names a connection until its user closes it.
//! [`Connector::next_news`] returns connections with events. A SYN may offer SMC (see `smoltcp_gaps::smc_option`).

use crate::Interface;
pub use crate::connections::Limits;
use crate::connections::Name;
pub use crate::connections::Owner;
use crate::tcp::{self, Closed};
use core::net::SocketAddr;
use drivers::hal::Instant;
use smoltcp::socket::tcp::State;

/// First of the local ports, which are used in turn.
const PORTS: u16 = 49152;

/// Name of a connection of a connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionHandle(Name);

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer has not answered yet.
    Opening,
    /// Established.
    Open {
        /// Both ends offer SMC.
        smc: bool,
    },
    /// Refused, reset or timed out.
    Gone,
}

/// Outgoing connections over one interface.
#[derive(Debug)]
pub struct Connector {
    limits: Limits,
    next: u16,
    owner: Option<Owner>,
}

impl Connector {
    /// A connector without connections. `seed` selects the first local port; it should not be predictable.
    pub fn new(limits: Limits, seed: u16) -> Self {
        Connector { limits, next: PORTS | seed, owner: None }
    }

    /// Its entry in [`Interface::ready`].
    pub fn owner(&mut self, interface: &mut Interface) -> Owner {
        let limits = self.limits;
        *self.owner.get_or_insert_with(|| interface.connections().open_owner(limits))
    }

    /// Changes the limits. Existing connections stay and keep their buffers.
    pub fn set_limits(&mut self, interface: &mut Interface, limits: Limits) {
        self.limits = limits;
        if let Some(owner) = self.owner {
            interface.connections().set_limits(owner, limits);
        }
    }

    /// Starts to connect to `peer`; `smc` offers SMC. None without a free place or a route.
    pub fn connect(
        &mut self,
        interface: &mut Interface,
        peer: SocketAddr,
        smc: bool,
    ) -> Option<ConnectionHandle> {
        let owner = self.owner(interface);
        interface.connect(owner, peer, &mut self.next, smc).map(ConnectionHandle)
    }

    /// The next connection with an event: it was opened or refused, data has arrived, there is more room to write, or
    /// it was closed. All changes since the last call are one event, so read and write until both block.
    pub fn next_news(&mut self, interface: &mut Interface) -> Option<ConnectionHandle> {
        interface.connections().next_news(self.owner?).map(ConnectionHandle)
    }

    /// State of a connection.
    pub fn progress(&self, interface: &Interface, link: ConnectionHandle) -> Progress {
        let socket = interface.tcp().socket(link.0);
        match socket.map_or(State::Closed, |socket| socket.state()) {
            State::SynSent | State::SynReceived => Progress::Opening,
            State::Closed => Progress::Gone,
            _ => Progress::Open { smc: interface.tcp().offers_smc(link.0) },
        }
    }

    /// Our end of a connection.
    pub fn local(&self, interface: &mut Interface, link: ConnectionHandle) -> Option<SocketAddr> {
        interface.tcp().ends(link.0).map(|(_, ours)| ours)
    }

    /// Free bytes in the send buffer.
    pub fn room(&self, interface: &mut Interface, link: ConnectionHandle) -> usize {
        interface.tcp().socket(link.0).map_or(0, tcp::room)
    }

    /// Reads received data. Returns the number of bytes, 0 if there are none at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        tcp::read(interface, link.0, into)
    }

    /// Writes as many bytes as there is room for. Returns their number.
    pub fn write(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        tcp::write(interface, link.0, bytes)
    }

    /// As [`crate::tcp::Listener::read_with`].
    pub fn read_with(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        take: impl FnOnce(&[u8]) -> usize,
    ) -> Result<usize, Closed> {
        tcp::read_with(interface, link.0, take)
    }

    /// As [`crate::tcp::Listener::write_with`].
    pub fn write_with(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, Closed> {
        tcp::write_with(interface, link.0, fill)
    }

    /// As [`crate::tcp::Listener::make_idle`].
    pub fn make_idle(&self, interface: &mut Interface, link: ConnectionHandle) {
        interface.connections().make_idle(link.0);
    }

    /// Sends a FIN after the written data. Reading remains possible.
    pub fn finish(&self, interface: &mut Interface, link: ConnectionHandle) {
        tcp::finish(interface, link.0);
    }

    /// Closes a connection after the written data, or resets it if `abort`.
    pub fn close(&mut self, interface: &mut Interface, link: ConnectionHandle, abort: bool) {
        let now = interface.now();
        interface.connections().release(link.0, abort, now);
    }

    /// Does nothing: the interface polls its connections.
    pub fn poll(&mut self, _: &mut Interface, _: Instant) {}

    /// Always None: the interface has the timers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Resets all connections, with the interface's next polls.
    pub fn stop(self, interface: &mut Interface) {
        if let Some(owner) = self.owner {
            let now = interface.now();
            interface.connections().close_owner(owner, now);
        }
    }
}
