//! The end of all connections at once, before the machine ends.

use super::super::Roce;
use super::{Connection, State};
use crate::verbs::{ConnectionId, ConnectionManager};
use alloc::vec::Vec;
use drivers::hal::Instant;

impl Roce {
    /// Disconnects every connection in order: each peer gets a DREQ (or a REJ where it is not made yet), again
    /// and again as usual until it has answered.
    pub fn disconnect_all(&mut self, now: Instant) {
        let places = 0..self.cm.connections.places();
        let names: Vec<u32> =
            places.filter_map(|place| self.cm.connections.name_at(place)).collect();
        for name in names {
            // It is there: nobody else has taken it away meanwhile.
            let _ = self.disconnect(ConnectionId(name), now);
        }
    }

    /// Whether every peer has answered that, or does not need to.
    pub fn is_disconnected(&self) -> bool {
        let over =
            |connection: &Connection| matches!(connection.state, State::TimeWait | State::Refused);
        self.cm.waiting == 0 && self.cm.connections.iter().all(over)
    }
}
