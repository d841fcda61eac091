//! Best-effort disconnect after a panic, so that peers do not wait for timeouts. Rounds run as for a reboot, without
//! disks, console and log, for [`LIMIT`] at most. `appliance/image/src/platform/last_act.rs` calls it and describes
//! when.

use super::Gateway;
use super::ending::Ending;
use core::time::Duration;

/// Time limit of the disconnect.
const LIMIT: Duration = Duration::from_millis(250);

impl Gateway {
    /// Disconnects all peers. Returns when all have acknowledged, or after `LIMIT`. Call it once, and nothing else
    /// afterwards, because the panic has left operations unfinished. It may panic, or never return.
    pub fn disconnect_all(&mut self) {
        let begun = self.machine.now();
        self.ending = Some(Ending::of_panic(&mut self.state, &mut self.networks, begun));
        let mut now = begun;
        while now.since(begun) < LIMIT && !self.state.is_shut_down(&self.networks) {
            self.round(now);
            now = self.machine.now();
        }
        self.state.plane.leave_bridges();
    }
}
