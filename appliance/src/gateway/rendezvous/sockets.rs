//! What a port has of TCP for exchanges: listeners, and the connector by which others are asked.

use crate::gateway::network::Network;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::connector::{ConnectionHandle, Connector};
use net::tcp::{self, Closed, Listener};

/// How TCP has a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By the number of the listener.
    Accepted(usize, tcp::Stream),
    Made(ConnectionHandle),
}

/// How a port comes to connections.
#[derive(Default)]
pub(super) struct Sockets {
    pub listeners: Vec<Listener>,
    pub connector: Option<Connector>,
}

impl Sockets {
    /// Whether something has happened to a connection, or one waits to be accepted.
    pub fn hear(&mut self, network: &mut Network) -> bool {
        let interface = &mut network.interface;
        let mut any = false;
        for listener in &mut self.listeners {
            if interface.is_ready(listener.owner()) {
                any = true;
                while listener.next_news(interface).is_some() {}
            }
        }
        if let Some(connector) = &mut self.connector {
            let owner = connector.owner(interface);
            if interface.is_ready(owner) {
                any = true;
                while connector.next_news(interface).is_some() {}
            }
        }
        any
    }

    pub fn read(&self, network: &mut Network, way: Way, into: &mut [u8]) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (way, &self.connector) {
            (Way::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.read(interface, stream, into)
            }
            (Way::Made(made), Some(connector)) => connector.read(interface, made, into),
            (Way::Made(_), None) => Err(Closed::Gone),
        }
    }

    /// Writes what fits into the connection's buffer, which was empty: all of it.
    pub fn write(&self, network: &mut Network, way: Way, bytes: &[u8]) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (way, &self.connector) {
            (Way::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.write(interface, stream, bytes)
            }
            (Way::Made(made), Some(connector)) => connector.write(interface, made, bytes),
            (Way::Made(_), None) => Err(Closed::Gone),
        }
    }

    pub fn end(&mut self, network: &mut Network, way: Way, abort: bool, now: Instant) {
        let interface = &mut network.interface;
        match (way, &mut self.connector) {
            (Way::Accepted(number, stream), _) => {
                if let Some(listener) = self.listeners.get_mut(number) {
                    match abort {
                        true => listener.abort(interface, stream, now),
                        false => listener.close(interface, stream, now),
                    }
                }
            }
            (Way::Made(made), Some(connector)) => connector.close(interface, made, abort),
            (Way::Made(_), None) => {}
        }
    }

    /// The host at the other end, and our port, of a connection that was accepted.
    pub fn host(&self, network: &mut Network, way: Way) -> Option<(IpAddr, u16)> {
        let Way::Accepted(number, stream) = way else { return None };
        let listener = self.listeners.get(number)?;
        let (from, _) = listener.ends(&mut network.interface, stream)?;
        Some((from.ip(), listener.port()))
    }
}
