//! Timers of paths: heartbeats and timeouts. Every path has one timer; only expired ones are examined.

use super::ServerDevice;
use super::{CloseReason, Ctx, PathState, Server};
use crate::Tick;
use core::time::Duration;
use drivers::hal::Instant;

/// Age in heartbeats of a written but unannounced chunk at which its path is ended, if memory on demand is short.
const MAX_UNANNOUNCED_AGE: u8 = 2;

/// Points in time per heartbeat interval at which heartbeats are handled, those of many paths together.
const TICKS_PER_INTERVAL: u32 = 5;

/// The first of these points at or after `at`.
fn next_common_tick(at: Instant, interval: Duration) -> Instant {
    let grid = (interval / TICKS_PER_INTERVAL).as_nanos().max(1) as u64;
    Instant::from_nanos(at.as_nanos().div_ceil(grid) * grid)
}

impl Server {
    /// Arms the timer of a path for its heartbeat.
    pub(super) fn set_heartbeat_timer(&mut self, path: usize) {
        let Some(it) = self.paths.get(path) else { return };
        let at = next_common_tick(it.heartbeat.deadline(), self.config.heartbeat_interval);
        self.set_timer(path, Some(at));
    }

    /// Replaces the timer of a path.
    pub(super) fn set_timer(&mut self, path: usize, at: Option<Instant>) {
        let Some(it) = self.paths.get_mut(path) else { return };
        let before = core::mem::replace(&mut it.timer, at);
        if let Some(before) = before {
            self.timers.remove(&(before, path));
        }
        if let Some(at) = at {
            self.timers.insert((at, path));
        }
    }

    /// Runs expired timers, and zeroes a piece of memory. Returns true if events may be pending.
    pub fn handle_timeout<P: ServerDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> bool {
        let mut moved = !self.zeroing.is_empty() && self.zero_piece(ctx);
        self.end_evicted(ctx);
        if self.retry_free_at.is_some_and(|at| at <= ctx.now) {
            self.free_retired(ctx);
        }
        while let Some(&(at, path)) = self.timers.first()
            && at <= ctx.now
        {
            self.run_timer(path, ctx);
            moved = true;
        }
        moved
    }

    fn run_timer<P: ServerDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        #[cfg(any(test, feature = "testing"))]
        {
            self.looked_at += 1;
        }
        self.set_timer(key, None);
        let Some(path) = self.paths.get_mut(key) else { return };
        match path.state {
            PathState::Connecting => self.close_path(key, CloseReason::Handshake, ctx),
            PathState::Connected => {
                let tick = path.heartbeat.tick(ctx.now);
                self.set_heartbeat_timer(key);
                let done = match tick {
                    Tick::Nothing => Ok(()),
                    Tick::Send => self.send_heartbeat(key, ctx),
                    Tick::Dead => Err(CloseReason::Silence),
                };
                if let Err(reason) = done.and_then(|()| self.check_unannounced(key, ctx)) {
                    self.close_path(key, reason, ctx);
                }
            }
            PathState::Closing | PathState::Closed => {}
        }
    }

    /// Ends a path with written but unannounced chunks, which hold memory on demand, while other requests wait for
    /// memory.
    fn check_unannounced<P: ServerDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), CloseReason> {
        let (Some(memory), Some(path)) = (ctx.provider.on_demand(), self.paths.get_mut(key)) else {
            return Ok(());
        };
        let age = path.region.map_or(0, |region| ctx.provider.age_chunks(region));
        let short = core::mem::replace(&mut path.shortages, memory.short) != memory.short;
        if short && age > MAX_UNANNOUNCED_AGE {
            return Err(CloseReason::Protocol("chunks written but never announced"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_of_many_paths_are_due_together() {
        let interval = Duration::from_secs(5);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let due = [5001, 5900, 6000, 6001].map(|millis| next_common_tick(at(millis), interval));
        assert_eq!(due, [6000, 6000, 6000, 7000].map(at));
        // The following ones are one interval apart.
        assert_eq!(next_common_tick(due[0] + interval, interval), due[0] + interval);
    }
}
