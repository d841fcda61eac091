//! Heartbeats, and the end of patience. Every path has one timer; only those that are due are looked at.

use super::{CloseReason, EngineContext, PathState, Server};
use crate::Tick;
use core::time::Duration;
use drivers::hal::Instant;
use verbs::RdmaDevice;

/// Heartbeats after which a chunk that a peer wrote to and never announced ends its path, if memory on
/// demand is short.
const UNANNOUNCED: u8 = 2;

/// Heartbeats are looked at at so many moments in an interval, those of many paths together.
const MOMENTS: u32 = 5;

/// The first of these moments that is not before `at`.
fn together(at: Instant, interval: Duration) -> Instant {
    let grid = (interval / MOMENTS).as_nanos().max(1) as u64;
    Instant::from_nanos(at.as_nanos().div_ceil(grid) * grid)
}

impl Server {
    /// Has a path looked at when its heartbeat is due.
    pub(super) fn set_heartbeat_timer(&mut self, path: usize) {
        let Some(it) = self.paths.get(path) else { return };
        let at = together(it.heartbeat.deadline(), self.config.heartbeat_interval);
        self.set_timer(path, Some(at));
    }

    /// Sets the timer of a path, in place of the one that it had.
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

    /// Runs the timers that have expired, and zeroes memory that somebody waits for; true if that left
    /// anybody something to do.
    pub fn handle_timeout<P: RdmaDevice + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let mut moved = !self.zeroing.is_empty() && self.zero_piece(ctx);
        self.end_evicted(ctx);
        if self.look_again.is_some_and(|at| at <= ctx.now) {
            self.free_left(ctx);
        }
        while let Some(&(at, path)) = self.timers.first()
            && at <= ctx.now
        {
            self.run_timer(path, ctx);
            moved = true;
        }
        moved
    }

    fn run_timer<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut EngineContext<'_, P>) {
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
                if let Err(reason) = done.and_then(|()| self.look_for_hoards(key, ctx)) {
                    self.close_path(key, reason, ctx);
                }
            }
            PathState::Closing | PathState::Closed => {}
        }
    }

    /// Chunks on demand that were written and never announced hold memory. While others wait for it, a path
    /// that goes on so is ended.
    fn look_for_hoards<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), CloseReason> {
        let (Some(memory), Some(path)) = (ctx.provider.on_demand(), self.paths.get_mut(key)) else {
            return Ok(());
        };
        let age = path.region.map_or(0, |region| ctx.provider.age_chunks(region));
        let short = core::mem::replace(&mut path.shortages, memory.short) != memory.short;
        if short && age > UNANNOUNCED {
            return Err(CloseReason::Protocol("chunks that were written, and never announced"));
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
        let due = [5001, 5900, 6000, 6001].map(|millis| together(at(millis), interval));
        assert_eq!(due, [6000, 6000, 6000, 7000].map(at));
        // Those that follow are an interval apart.
        assert_eq!(together(due[0] + interval, interval), due[0] + interval);
    }
}
