//! The TCP sockets of a port for rendezvous: listeners and a connector.

use crate::gateway::network::Network;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::connector::{ConnectionHandle, Connector};
use net::tcp::{self, Closed, Listener};

/// ID of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionId {
    /// Number of the listener, and the connection.
    Accepted(usize, tcp::Stream),
    Made(ConnectionHandle),
}

/// The sockets of a port.
#[derive(Default)]
pub(super) struct Sockets {
    pub listeners: Vec<Listener>,
    pub connector: Option<Connector>,
}

impl Sockets {
    /// Whether there are connection events. Consumes them.
    pub fn take_events(&mut self, network: &mut Network) -> bool {
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

    pub fn read(
        &self,
        network: &mut Network,
        id: ConnectionId,
        into: &mut [u8],
    ) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (id, &self.connector) {
            (ConnectionId::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.read(interface, stream, into)
            }
            (ConnectionId::Made(made), Some(connector)) => connector.read(interface, made, into),
            (ConnectionId::Made(_), None) => Err(Closed::Gone),
        }
    }

    /// Writes. The connection's buffer is empty and large enough for all bytes.
    pub fn write(
        &self,
        network: &mut Network,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<usize, Closed> {
        let interface = &mut network.interface;
        match (id, &self.connector) {
            (ConnectionId::Accepted(number, stream), _) => {
                let listener = self.listeners.get(number).ok_or(Closed::Gone)?;
                listener.write(interface, stream, bytes)
            }
            (ConnectionId::Made(made), Some(connector)) => connector.write(interface, made, bytes),
            (ConnectionId::Made(_), None) => Err(Closed::Gone),
        }
    }

    pub fn end(&mut self, network: &mut Network, id: ConnectionId, abort: bool, now: Instant) {
        let interface = &mut network.interface;
        match (id, &mut self.connector) {
            (ConnectionId::Accepted(number, stream), _) => {
                if let Some(listener) = self.listeners.get_mut(number) {
                    match abort {
                        true => listener.abort(interface, stream, now),
                        false => listener.close(interface, stream, now),
                    }
                }
            }
            (ConnectionId::Made(made), Some(connector)) => connector.close(interface, made, abort),
            (ConnectionId::Made(_), None) => {}
        }
    }

    /// The host, and our port, of an accepted connection.
    pub fn host(&self, network: &mut Network, id: ConnectionId) -> Option<(IpAddr, u16)> {
        let ConnectionId::Accepted(number, stream) = id else { return None };
        let listener = self.listeners.get(number)?;
        let (from, _) = listener.ends(&mut network.interface, stream)?;
        Some((from.ip(), listener.port()))
    }
}
