//! End of a path, and failover of its requests (rtrs-clt.c, `rtrs_clt_err_recovery_work`).

use super::path::Path;
use super::pool::CallState;
use super::{Client, Ctx, DownReason, Event, Input, Outcome, PathId, PathState, Permit};
use crate::server::RequestKind;
use core::time::Duration;
use drivers::hal::{Arena, Window};
use verbs::RdmaDevice;

impl Client {
    /// Handles the failure of a path: its requests move to another one, and it is retried after a pause, up to the most
    /// attempts.
    pub(super) fn fail_path<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: DownReason,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(path) = self.paths.get_mut(key) else { return };
        if path.state == PathState::Connecting {
            path.stats.reconnects_failed += u64::from(path.was_up || path.attempts > 0);
        }
        let enough = self.config.max_reconnect_attempts.is_some_and(|most| path.attempts >= most);
        let input = if enough { Input::Close } else { Input::Fail };
        let jitter = self.config.reconnect_jitter.as_millis() as u32;
        let jitter = Duration::from_millis(u64::from(ctx.rng.next_u32() % (jitter + 1)));
        path.deadline = ctx.now + self.config.reconnect_delay + jitter;
        self.end_path(key, input, reason, ctx);
    }

    /// Restarts the set-up of a connecting path.
    pub(super) fn restart_path<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.drop_connections(key, ctx);
        let path = &mut self.paths[key];
        if let Some(next) = path.state.next(Input::Fail) {
            path.state = next;
            self.start_path(key, ctx);
        }
    }

    /// Takes back an unfinished request: its memory is in no send queue any more, and out of the server's reach. The
    /// permit stays held, and no event follows. If the request was sent, its path fails, and other requests of the path
    /// move to another one. The server may execute the request until it has answered another request with this permit.
    pub fn take_back<P: RdmaDevice + ?Sized>(&mut self, permit: Permit, ctx: &mut Ctx<'_, P>) {
        let call = self.pool.as_mut().and_then(|pool| pool.call(permit));
        if let Some(CallState::Sent { path, .. } | CallState::Answered { path, .. }) =
            call.map(|call| call.state)
        {
            self.fail_path(path, DownReason::GivenUp, ctx);
        }
        let Some(call) = self.pool.as_mut().and_then(|pool| pool.call(permit)) else { return };
        if matches!(call.state, CallState::Queued { .. }) {
            call.state = CallState::Held;
            self.queued.retain(|index| *index != permit.index);
        }
        // If its path was the last one, the request was reported as lost.
        self.events.retain(|event| !matches!(event, Event::Done(other, _) if *other == permit));
    }

    /// Closes a path.
    pub(super) fn close_path<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        self.end_path(key, Input::Close, DownReason::Operator, ctx);
    }

    fn end_path<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        input: Input,
        reason: DownReason,
        ctx: &mut Ctx<'_, P>,
    ) {
        let path = &mut self.paths[key];
        let Some(next) = path.state.next(input) else { return };
        path.state = next;
        path.last_failure = Some(reason);
        let deadline = path.deadline;
        self.drop_connections(key, ctx);
        if next == PathState::Reconnecting {
            self.wake_at(deadline);
        }
        if let Some(pool) = &mut self.pool {
            for (n, call) in pool.calls.iter_mut().enumerate() {
                if matches!(call.state, CallState::Sent { path, .. } if path == key) {
                    // Late responses must not write to memory with another use.
                    let _ = ctx.provider.revoke_key(call.region);
                    call.state = CallState::Queued { failover: true };
                    self.queued.push_back(n as u16);
                } else if let CallState::Answered { path, result, .. } = call.state
                    && path == key
                    && call.kind == RequestKind::Read
                {
                    // Without its queue pair the server cannot write to the data.
                    call.state = CallState::Held;
                    let permit = Permit { index: n as u16, pool: pool.generation };
                    self.events.push_back(Event::Done(permit, Outcome::Answered(result)));
                }
            }
        }
        self.events.push_back(Event::PathDown(PathId(key as u32), reason));
        if self.link_up && !self.is_up() {
            self.link_up = false;
            self.events.push_back(Event::LinkDown);
            self.lose_queued();
        }
    }

    fn drop_connections<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let path = &mut self.paths[key];
        path.established = 0;
        path.in_flight = 0;
        path.probed = None;
        path.chunks.clear();
        release(ctx.arena, core::mem::replace(&mut path.info, Window::empty()));
        for number in path.connections.drain(..) {
            let connection = self.connections.remove(number);
            // Also disconnects. Fails only if the provider has dropped the queue pair already.
            let _ = ctx.provider.destroy_qp(connection.qp);
            release(ctx.arena, connection.receives);
        }
        // Their sends are not retransmitted any more.
        self.end_acknowledged();
    }

    /// Reports queued requests as lost when no path is up.
    fn lose_queued(&mut self) {
        let Some(pool) = &mut self.pool else { return };
        while let Some(n) = self.queued.pop_front() {
            if let Some(call) = pool.calls.get_mut(usize::from(n)) {
                call.state = CallState::Held;
                self.events.push_back(Event::Done(pool.permit(n), Outcome::Lost));
            }
        }
    }

    /// Fails all other paths, which belong to a server that no longer exists.
    pub(super) fn fail_others<P: RdmaDevice + ?Sized>(
        &mut self,
        but: usize,
        reason: DownReason,
        ctx: &mut Ctx<'_, P>,
    ) {
        for key in 0..self.paths.capacity() {
            let connected = |path: &Path| path.established > 0;
            if key != but && self.paths.get(key).is_some_and(connected) {
                self.fail_path(key, reason, ctx);
            }
        }
    }
}

pub(super) fn release(arena: &mut Arena, window: Window) {
    if !window.is_empty() {
        arena.free(window);
    }
}
