//! What the users of an interface's sockets and connections ask it for.

use super::Interface;
use crate::connections::{Connections, Name, Owner};
use core::net::SocketAddr;
use drivers::hal::Instant;
use smoltcp::iface::SocketSet;

impl Interface {
    /// Begins to connect to `peer`, for a connector.
    pub(crate) fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
    ) -> Option<Name> {
        self.attention = true;
        let (connections, mut outside) = self.outside(self.now);
        connections.connect(owner, peer, port, smc, &mut outside)
    }

    /// Changes whenever sockets or connections may have something new for their users.
    pub fn activity(&self) -> u64 {
        self.activity.wrapping_add(self.connections.activity())
    }

    /// The listeners and connectors that have connections to accept or news of some
    /// ([`crate::tcp::Listener::next_news`]), in no order.
    pub fn ready(&self) -> &[Owner] {
        self.connections.ready()
    }

    /// Whether any listener or connector is among [`Interface::ready`].
    pub fn has_news(&self) -> bool {
        !self.connections.ready().is_empty()
    }

    /// Whether a listener or connector is among [`Interface::ready`].
    pub fn is_ready(&self, owner: Owner) -> bool {
        self.connections.is_ready(owner)
    }

    /// The time that it was told last.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// The TCP connections, to look at.
    pub(crate) fn tcp(&self) -> &Connections {
        &self.connections
    }

    /// Whether somebody listens on a TCP port.
    pub fn is_listened_on(&self, port: u16) -> bool {
        self.connections.is_listened_on(port)
    }

    /// The TCP connections; what they want is seen to with the next poll.
    pub(crate) fn connections(&mut self) -> &mut Connections {
        self.attention = true;
        &mut self.connections
    }

    /// The other sockets, for the services; what they want is seen to with the next poll.
    pub(crate) fn sockets(&mut self) -> &mut SocketSet<'static> {
        self.attention = true;
        self.sockets_due = Some(self.now);
        &mut self.sockets
    }
}

#[cfg(test)]
impl Interface {
    /// Whether the opening of a connection between these ends is remembered.
    pub fn remembers_call(&self, ends: crate::segment::Ends) -> bool {
        self.connections.remembers(ends)
    }

    /// Neighbours that are in the table.
    pub fn neighbours_known(&self) -> usize {
        self.neighbours.len()
    }
}
