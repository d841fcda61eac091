//! Heartbeats, and the end of patience. Every path has one timer; only those that are due are looked at.

use super::{CloseReason, Context, PathState, Server};
use crate::rtrs::Tick;
use crate::verbs::Fabric;
use drivers::hal::Instant;

/// Heartbeats after which a chunk that a peer wrote to and never announced ends its path, if memory on
/// demand is short.
const UNANNOUNCED: u8 = 2;

impl Server {
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
    pub fn handle_timeout<P: Fabric + ?Sized>(&mut self, ctx: &mut Context<'_, P>) -> bool {
        let mut moved = !self.zeroing.is_empty() && self.zero_piece(ctx);
        while let Some(&(at, path)) = self.timers.first()
            && at <= ctx.now
        {
            self.run_timer(path, ctx);
            moved = true;
        }
        moved
    }

    fn run_timer<P: Fabric + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
        self.set_timer(key, None);
        let Some(path) = self.paths.get_mut(key) else { return };
        match path.state {
            PathState::Connecting => self.close_path(key, CloseReason::Handshake, ctx),
            PathState::Connected => {
                let tick = path.heartbeat.tick(ctx.now);
                let next = path.heartbeat.deadline();
                self.set_timer(key, Some(next));
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
    fn look_for_hoards<P: Fabric + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Context<'_, P>,
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
