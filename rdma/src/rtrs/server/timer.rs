//! Heartbeats, and the end of patience.

use super::{CloseReason, Context, PathState, Server};
use crate::rtrs::Tick;
use crate::verbs::Fabric;
use drivers::hal::Instant;

impl Server {
    /// Makes sure that the timers run at `deadline`.
    pub(super) fn wake_at(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Runs the timers that have expired; false if there are none.
    pub fn handle_timeout<P: Fabric + ?Sized>(&mut self, ctx: &mut Context<'_, P>) -> bool {
        if self.deadline.is_none_or(|deadline| ctx.now < deadline) {
            return false;
        }
        for key in 0..self.paths.capacity() {
            let Some(path) = self.paths.get_mut(key) else { continue };
            match path.state {
                PathState::Connected => {
                    let done = match path.heartbeat.tick(ctx.now) {
                        Tick::Nothing => Ok(()),
                        Tick::Send => self.send_heartbeat(key, ctx),
                        Tick::Dead => Err(CloseReason::Silence),
                    };
                    if let Err(reason) = done {
                        self.close_path(key, reason, ctx);
                    }
                }
                PathState::Connecting if path.deadline <= ctx.now => {
                    self.close_path(key, CloseReason::Handshake, ctx);
                }
                PathState::Connecting | PathState::Closing | PathState::Closed => {}
            }
        }
        self.deadline = self
            .paths
            .iter()
            .filter_map(|(_, path)| match path.state {
                PathState::Connecting => Some(path.deadline),
                PathState::Connected => Some(path.heartbeat.deadline()),
                PathState::Closing | PathState::Closed => None,
            })
            .min();
        true
    }
}
