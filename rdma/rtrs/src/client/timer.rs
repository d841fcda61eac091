//! Timers of paths: heartbeats, probes, connection timeouts, and reconnects.

use super::path::Path;
use super::{Client, Ctx, DownReason, PathState};
use crate::Tick;
use drivers::hal::Instant;
use verbs::RdmaDevice;

impl Client {
    /// Schedules the timers for `deadline`, if not earlier.
    pub(super) fn wake_at(&mut self, deadline: Instant) {
        self.wake = Some(self.wake.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Runs expired timers.
    pub(super) fn run_timers<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        if self.wake.is_none_or(|wake| ctx.now < wake) {
            return;
        }
        self.wake = None;
        for key in 0..self.paths.capacity() {
            let Some(path) = self.paths.get_mut(key) else { continue };
            match path.state {
                PathState::Connecting if path.deadline <= ctx.now => {
                    self.fail_path(key, DownReason::Timeout, ctx);
                }
                PathState::Connected => {
                    let done = self.beat(key, ctx).and_then(|()| self.probe(key, ctx));
                    if let Err(reason) = done {
                        self.fail_path(key, reason, ctx);
                    }
                }
                PathState::Reconnecting if path.deadline <= ctx.now => {
                    path.attempts = path.attempts.saturating_add(1);
                    self.start_path(key, ctx);
                }
                PathState::Connecting | PathState::Reconnecting | PathState::Closed => {}
            }
        }
        let next = self.paths.iter().filter_map(|(_, path)| self.deadline(path)).min();
        if let Some(next) = next {
            self.wake_at(next);
        }
    }

    fn deadline(&self, path: &Path) -> Option<Instant> {
        match path.state {
            PathState::Connecting | PathState::Reconnecting => Some(path.deadline),
            PathState::Connected if path.in_flight > 0 => {
                Some(path.heartbeat.deadline().min(self.probe_deadline(path)))
            }
            PathState::Connected => Some(path.heartbeat.deadline()),
            PathState::Closed => None,
        }
    }

    fn probe_deadline(&self, path: &Path) -> Instant {
        match path.probed {
            Some(at) => at + self.config.probe_patience,
            None => path.last_rx + self.config.probe_after,
        }
    }

    fn beat<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        match self.paths[key].heartbeat.tick(ctx.now) {
            Tick::Nothing => Ok(()),
            Tick::Send => self.send_heartbeat(key, ctx),
            Tick::Dead => Err(DownReason::Silence),
        }
    }

    /// Probes a silent server with outstanding requests. Fails the path if the probe is not answered and another path
    /// is up.
    fn probe<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), DownReason> {
        let path = &self.paths[key];
        if path.in_flight == 0 || ctx.now < self.probe_deadline(path) {
            return Ok(());
        }
        // If the machine was paused meanwhile, the answer may be lost: probe again.
        let paused = !self.probe_deadline(path).standstill(ctx.now).is_zero();
        let other = self.paths.iter().any(|(other, path)| {
            other != key && path.state == PathState::Connected && path.probed.is_none()
        });
        if path.probed.is_some() && other && !paused {
            return Err(DownReason::Silence);
        }
        let path = &mut self.paths[key];
        let first = path.probed.replace(ctx.now).is_none();
        if first || paused {
            path.heartbeat.record_tx(ctx.now);
            return self.send_heartbeat(key, ctx);
        }
        Ok(())
    }
}
