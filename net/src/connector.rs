//! TCP connections to others, for protocols that are engines of their own: bytes in, bytes out.
//!
//! A connection is named by a [`ConnectionHandle`] from [`Connector::connect`] until its user gives it up. Which ones
//! have news says [`Connector::next_news`]. It may offer SMC in its SYN (see [`crate::smc_option`]).

use crate::Interface;
pub use crate::connections::Limits;
use crate::connections::{Name, Owner};
use crate::tcp::{self, Closed};
use core::net::SocketAddr;
use drivers::hal::Instant;
use smoltcp::socket::tcp::State;

/// The first of the ports that are used in turn.
const PORTS: u16 = 49152;

/// Name of a connection of a connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionHandle(Name);

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer has not answered yet.
    Opening,
    /// It is open.
    Open {
        /// Both offer SMC.
        smc: bool,
    },
    /// Refused, reset, or without an answer.
    Gone,
}

/// Connections to others, all over the same interface.
#[derive(Debug)]
pub struct Connector {
    limits: Limits,
    next: u16,
    owner: Option<Owner>,
}

impl Connector {
    /// Without any connection. `seed` says which local port comes first; it should not be
    /// predictable.
    pub fn new(limits: Limits, seed: u16) -> Self {
        Connector { limits, next: PORTS | seed, owner: None }
    }

    /// Its name among those of [`Interface::ready`].
    pub fn owner(&mut self, interface: &mut Interface) -> Owner {
        let limits = self.limits;
        *self.owner.get_or_insert_with(|| interface.connections().open_owner(limits))
    }

    /// Has other limits from the next connection on. What there is keeps its buffers, and stays.
    pub fn set_limits(&mut self, interface: &mut Interface, limits: Limits) {
        self.limits = limits;
        if let Some(owner) = self.owner {
            interface.connections().set_limits(owner, limits);
        }
    }

    /// Begins to connect to `peer`; `smc` offers SMC. None if there is no room or no way.
    pub fn connect(
        &mut self,
        interface: &mut Interface,
        peer: SocketAddr,
        smc: bool,
    ) -> Option<ConnectionHandle> {
        let owner = self.owner(interface);
        interface.connect(owner, peer, &mut self.next, smc).map(ConnectionHandle)
    }

    /// The next connection that has news: it was opened or refused, something has arrived, there is more
    /// room to write, or an end has come. As [`crate::tcp::Listener::next_news`].
    pub fn next_news(&mut self, interface: &mut Interface) -> Option<ConnectionHandle> {
        interface.connections().next_news(self.owner?).map(ConnectionHandle)
    }

    /// Where a connection stands.
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

    /// Bytes that a write would take now.
    pub fn room(&self, interface: &mut Interface, link: ConnectionHandle) -> usize {
        interface.tcp().socket(link.0).map_or(0, tcp::room)
    }

    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        tcp::read(interface, link.0, into)
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write(
        &self,
        interface: &mut Interface,
        link: ConnectionHandle,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        tcp::write(interface, link.0, bytes)
    }

    /// As [`crate::tcp::Listener::make_idle`].
    pub fn make_idle(&self, interface: &mut Interface, link: ConnectionHandle) {
        interface.connections().make_idle(link.0);
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish(&self, interface: &mut Interface, link: ConnectionHandle) {
        tcp::finish(interface, link.0);
    }

    /// Gives a connection up: in order, or by a reset.
    pub fn close(&mut self, interface: &mut Interface, link: ConnectionHandle, abort: bool) {
        let now = interface.now();
        interface.connections().leave(link.0, abort, now);
    }

    /// What is to be done after each poll of the interface: nothing, it sees to its connections itself.
    pub fn poll(&mut self, _: &mut Interface, _: Instant) {}

    /// When there is something to do though nothing arrives: never, the interface has the timers.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Ends everything: connections are reset, with the interface's next polls.
    pub fn stop(self, interface: &mut Interface) {
        if let Some(owner) = self.owner {
            let now = interface.now();
            interface.connections().close_owner(owner, now);
        }
    }
}
