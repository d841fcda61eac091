//! Reads, writes and shutdown of connections, over SMC-R or TCP.

use super::{ConnectionId, Connections, State};
use crate::SmcDevice;
use crate::engine::{Engine, RecvError, SendError};
use crate::tcp::Tcp;
use crate::wire::is_decline;
use net::Interface;
use net::tcp::Closed;
use verbs::Ctx;

impl<T: Tcp> Connections<T> {
    /// Reads received bytes; 0 if there are none at present.
    pub fn read(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
        interface: &mut Interface,
        engine: &mut Engine,
    ) -> Result<usize, Closed> {
        let connection = self.connections.get_mut(id.key).filter(|c| c.generation == id.generation);
        let connection = connection.ok_or(Closed::Gone)?;
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) | State::GivenUp(_) => Ok(0),
            State::Smc(socket) => engine.recv(socket, into).map_err(closed),
            State::Tcp => {
                let count = if connection.unread.is_empty() {
                    self.tcp.read(interface, connection.name, into)?
                } else {
                    let count = connection.unread.len().min(into.len());
                    into[..count].copy_from_slice(&connection.unread[..count]);
                    connection.unread.drain(..count);
                    count
                };
                // Both sides declined: the peer's application reads our Decline as data, as we would read the peer's.
                let first = connection.awaits_first_read && count > 0;
                connection.awaits_first_read &= !first;
                if first && is_decline(&into[..count]) {
                    return Err(Closed::Gone);
                }
                Ok(count)
            }
        }
    }

    /// Echoes bytes received over SMC-R to their sender, as far as there is room; otherwise an `Event::Ready` follows.
    /// Returns None if the connection does not use SMC-R.
    pub fn turn_back<P: SmcDevice + ?Sized>(
        &self,
        id: ConnectionId,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Result<(), Closed>> {
        let State::Smc(socket) = self.get(id)?.state else { return None };
        Some(engine.turn_back(socket, ctx).map_err(closed))
    }

    /// Bytes that a write would accept now. If none, an `Event::Ready` follows.
    pub fn room(&self, id: ConnectionId, interface: &mut Interface, engine: &mut Engine) -> usize {
        let Some(connection) = self.get(id) else { return 0 };
        match connection.state {
            State::Opening | State::Refused | State::Handshake(_) | State::GivenUp(_) => 0,
            State::Smc(socket) => engine.room(socket),
            State::Tcp => self.tcp.room(interface, connection.name),
        }
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
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

    /// Ends our side behind the bytes written so far; reading remains possible.
    pub fn finish<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
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
