//! What a connection's user does with it: reads, writes, and ends its side, whatever carries the bytes.

use super::{ConnectionId, Connections, State};
use crate::engine::{Engine, RecvError, SendError};
use crate::tcp::Tcp;
use crate::wire::is_decline;
use net::Interface;
use net::tcp::Closed;
use verbs::{EngineContext, Provider};

impl<T: Tcp> Connections<T> {
    /// Reads what has arrived; 0 if there is nothing at present.
    pub fn read(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
        interface: &mut Interface,
        engine: &mut Engine,
    ) -> Result<usize, Closed> {
        let connection = self.connections.get_mut(id.key).filter(|c| c.turn == id.turn);
        let connection = connection.ok_or(Closed::Gone)?;
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) | State::GivenUp(_) => Ok(0),
            State::Smc(socket) => engine.recv(socket, into).map_err(closed),
            State::Tcp => {
                let count = if connection.rest.is_empty() {
                    self.tcp.read(interface, connection.name, into)?
                } else {
                    let count = connection.rest.len().min(into.len());
                    into[..count].copy_from_slice(&connection.rest[..count]);
                    connection.rest.drain(..count);
                    count
                };
                // Both have declined, and what the peer's user reads begins with our Decline.
                let first = connection.fresh && count > 0;
                connection.fresh &= !first;
                if first && is_decline(&into[..count]) {
                    return Err(Closed::Gone);
                }
                Ok(count)
            }
        }
    }

    /// Moves what has arrived over SMC-R back to where it came from, as far as there is room; an
    /// `Event::Ready` follows where there is too little. None if the connection does not go over SMC-R.
    pub fn turn_back<P: Provider + ?Sized>(
        &self,
        id: ConnectionId,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Result<(), Closed>> {
        let State::Smc(socket) = self.get(id)?.state else { return None };
        Some(engine.turn_back(socket, ctx).map_err(closed))
    }

    /// Bytes that a write would take now. If there are none, an `Event::Ready` follows.
    pub fn room(&self, id: ConnectionId, interface: &mut Interface, engine: &mut Engine) -> usize {
        let Some(connection) = self.get(id) else { return 0 };
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) | State::GivenUp(_) => 0,
            State::Smc(socket) => engine.room(socket),
            State::Tcp => self.tcp.room(interface, connection.name),
        }
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub fn write<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, Closed> {
        let connection = self.get(id).ok_or(Closed::Gone)?;
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) | State::GivenUp(_) => Ok(0),
            State::Smc(socket) => engine.send(socket, bytes, ctx).map_err(|error| match error {
                SendError::Closed => Closed::Finished,
                SendError::Aborted | SendError::NoMemory => Closed::Gone,
            }),
            State::Tcp => self.tcp.write(interface, connection.name, bytes),
        }
    }

    /// Ends our side after what was written; reading goes on.
    pub fn finish<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(connection) = self.get(id) else { return };
        match connection.state {
            State::Opening | State::Refused | State::GivenUp(_) => {}
            State::Handshake(socket) | State::Smc(socket) => engine.shutdown(socket, ctx),
            State::Tcp => self.tcp.finish(interface, connection.name),
        }
    }
}

fn closed(error: RecvError) -> Closed {
    match error {
        RecvError::Finished => Closed::Finished,
        RecvError::Aborted => Closed::Gone,
    }
}
