//! Disconnects all connections at once, before the machine halts.

use super::connection::{Connection, State};
use super::{Cm, Manager, Transport};
use drivers::hal::Instant;

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// Disconnects all connections in order: each peer gets a DREQ (or a REJ while its connection is being made),
    /// retransmitted as usual until it answers.
    pub fn disconnect_all(&mut self, now: Instant) {
        for id in self.cm().table.names() {
            // The handle is valid: nothing else removes connections meanwhile.
            let _ = self.disconnect(id, now);
        }
    }
}

impl Cm {
    /// Whether all peers have answered, or need not answer.
    pub fn is_disconnected(&self) -> bool {
        let over =
            |connection: &Connection| matches!(connection.state, State::TimeWait | State::Refused);
        !self.has_messages() && self.table.connections().all(over)
    }
}
