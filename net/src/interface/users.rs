//! Access of services to the sockets and connections of an interface.

use super::Interface;
use crate::connections::{Connections, Name, Owner};
use core::net::SocketAddr;
use drivers::hal::Instant;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::udp;

impl Interface {
    /// Starts to connect to `peer`, for a connector.
    pub(crate) fn connect(
        &mut self,
        owner: Owner,
        peer: SocketAddr,
        port: &mut u16,
        smc: bool,
    ) -> Option<Name> {
        self.attention = true;
        let (connections, mut context) = self.context(self.now);
        connections.connect(owner, peer, port, smc, &mut context)
    }

    /// A counter that changes whenever sockets or connections may have events for their users.
    pub fn activity(&self) -> u64 {
        self.activity.wrapping_add(self.connections.activity())
    }

    /// Listeners and connectors with connections to accept or events ([`crate::tcp::Listener::next_news`]), unordered.
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

    /// Time of the last call.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// The TCP connections, read-only.
    pub(crate) fn tcp(&self) -> &Connections {
        &self.connections
    }

    /// Whether a listener has a TCP port.
    pub fn is_listened_on(&self, port: u16) -> bool {
        self.connections.is_listened_on(port)
    }

    /// The TCP connections. The next poll serves changed ones.
    pub(crate) fn connections(&mut self) -> &mut Connections {
        self.attention = true;
        &mut self.connections
    }

    /// Whether a UDP socket has a received datagram.
    pub(crate) fn has_datagram(&self, socket: SocketHandle) -> bool {
        self.sockets.get::<udp::Socket>(socket).can_recv()
    }

    /// The UDP and ICMP sockets. The next poll serves them.
    pub(crate) fn sockets(&mut self) -> &mut SocketSet<'static> {
        self.attention = true;
        self.sockets_due = Some(self.now);
        &mut self.sockets
    }
}

#[cfg(test)]
impl Interface {
    /// Whether the SYN of a connection between these ends is stored.
    pub fn has_stored_handshake(&self, ends: crate::segment::Ends) -> bool {
        self.connections.has_stored_handshake(ends)
    }

    /// Number of entries in the neighbour table.
    pub fn neighbours_known(&self) -> usize {
        self.neighbours.len()
    }
}
