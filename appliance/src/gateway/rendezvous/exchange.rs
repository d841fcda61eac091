//! What rendezvous asks of an engine.

use core::net::{IpAddr, SocketAddr};
use drivers::hal::Instant;
use usnic::wire::rendezvous::LENGTH;

/// What a host is answered.
pub(in crate::gateway) struct Answer {
    pub bytes: Vec<u8>,
    /// The host is a peer now, as long as the connection stays.
    pub stays: bool,
}

/// What an engine does with records. Connections have names, which are given here and never twice.
pub(in crate::gateway) trait Exchange {
    /// Where it listens: places of ports, and TCP ports.
    fn listens(&self) -> Vec<(usize, u16)>;
    /// A peer that is to be asked now, over a connection of this name: the place of a port, and where.
    fn wants(&mut self, connection: u64, now: Instant) -> Option<(usize, SocketAddr)>;
    /// When to ask that again.
    fn deadline(&self) -> Option<Instant>;
    /// What the peer is asked over such a connection.
    fn request(&mut self, connection: u64) -> Option<[u8; LENGTH]>;
    /// A host has asked, at the port of a place; what is answered.
    fn asked(
        &mut self,
        connection: u64,
        at: (usize, u16),
        from: IpAddr,
        record: &[u8; LENGTH],
        now: Instant,
    ) -> Answer;
    /// A peer that was asked has answered, with text if it refuses; whether the connection stays.
    fn answered(
        &mut self,
        connection: u64,
        record: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> bool;
    /// A connection has ended.
    fn ended(&mut self, connection: u64, now: Instant);
    /// Whether it wants a connection, or the end of one, that it did not want before.
    fn take_news(&mut self) -> bool;
    /// Connections that it wants to be ended.
    fn take_over(&mut self) -> Vec<u64>;
}
