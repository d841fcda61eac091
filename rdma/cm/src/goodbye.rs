//! The end of all connections at once, before the machine ends.

use super::connection::{Connection, State};
use super::{Cm, Manager, Transport};
use drivers::hal::Instant;

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// Disconnects every connection in order: each peer gets a DREQ (or a REJ where it is not made yet), again
    /// and again as usual until it has answered.
    pub fn disconnect_all(&mut self, now: Instant) {
        for id in self.cm().table.names() {
            // It is there: nobody else has taken it away meanwhile.
            let _ = self.disconnect(id, now);
        }
    }
}

impl Cm {
    /// Whether every peer has answered that, or does not need to.
    pub fn is_disconnected(&self) -> bool {
        let over =
            |connection: &Connection| matches!(connection.state, State::TimeWait | State::Refused);
        !self.has_messages() && self.table.connections().all(over)
    }
}
