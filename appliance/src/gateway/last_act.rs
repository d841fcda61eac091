//! The last act of a panic: peers are told that this is the end, so that none of them waits for somebody who is
//! not there. Rounds go on as at a reboot, but for disks, the console and the log.

use super::Gateway;
use super::ending::Ending;
use core::time::Duration;

/// How long all of it may take.
const LIMIT: Duration = Duration::from_millis(250);

impl Gateway {
    /// Tells everybody who is connected, and returns when they have acknowledged it, or [`LIMIT`] is over. To be
    /// called once, and nothing else afterwards: whatever was under way was left where it stood. It may panic, or
    /// never return.
    pub fn say_goodbye(&mut self) {
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
