//! The interface between rendezvous and an engine.

use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use usnic::wire::rendezvous::LENGTH;

/// Reply to a host's request.
pub(in crate::gateway) struct Answer {
    pub bytes: Vec<u8>,
    /// The host is a peer now, as long as the connection stays open.
    pub stays: bool,
}

/// An engine that exchanges records with its peers. Connections have names that are never reused.
pub(in crate::gateway) trait Exchange {
    /// Its listeners: indices of ports, and TCP ports.
    fn listen_ports(&self) -> Vec<(usize, u16)>;
    /// A peer to connect to now, over a connection with this name: index of the port, and address.
    fn next_peer(&mut self, connection: u64, now: Instant) -> Option<(usize, SocketAddr)>;
    /// When to call [`Exchange::next_peer`] again.
    fn deadline(&self) -> Option<Instant>;
    /// The request to send over such a connection.
    fn request(&mut self, connection: u64) -> Option<[u8; LENGTH]>;
    /// Handles a request of a host, at an index of a port and TCP port. Returns the reply.
    fn handle_request(
        &mut self,
        connection: u64,
        at: (usize, u16),
        from: IpAddr,
        record: &[u8; LENGTH],
        now: Instant,
    ) -> Answer;
    /// Handles the reply of a peer, with text if it refuses. Returns whether the connection stays open.
    fn handle_reply(
        &mut self,
        connection: u64,
        record: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> bool;
    /// A connection has ended.
    fn connection_ended(&mut self, connection: u64, now: Instant);
    /// Whether there are new connections to open or to close since the last call.
    fn take_changed(&mut self) -> bool;
    /// Connections to close.
    fn take_closed(&mut self) -> Vec<u64>;
}
