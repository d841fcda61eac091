//! Timers: handshakes, LLC answers, silent links, idle groups, slow closes.

use super::table::{GroupState, LinkState, Phase};
use super::{Context, Engine, Role};
use crate::services::Neighbours;
use crate::smcr::wire::Reason;
use crate::smcr::wire::llc::DeleteReason;
use crate::verbs::Provider;
use drivers::hal::Instant;

impl Engine {
    /// Makes sure that the timers run at `at`.
    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// When `handle_timeout` wants to be called, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// Runs the timers that have expired; false if there are none.
    pub fn handle_timeout<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut Context<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> bool {
        if self.wake.is_none_or(|at| ctx.now < at) {
            return false;
        }
        self.wake = None;
        for key in 0..self.sockets.capacity() {
            if self.sockets.contains(key) {
                self.socket_timers(key, ctx, neighbours);
            }
        }
        self.sweep_buffers(ctx);
        for key in 0..self.groups.capacity() {
            if self.groups.contains(key) {
                self.group_timers(key, ctx);
            }
        }
        true
    }

    fn socket_timers<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Context<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        self.nudge(key, ctx.now);
        let socket = &self.sockets[key];
        if let Some(linger) = socket.linger {
            if linger <= ctx.now {
                self.sockets[key].linger = None;
                self.abort_socket(key, ctx);
            } else {
                self.wake_at(linger);
            }
            return;
        }
        let Some(handshake) = socket.handshake.as_ref().filter(|_| !socket.established) else {
            return;
        };
        let (phase, deadline, retry) = (handshake.phase, handshake.deadline, handshake.retry);
        if matches!(phase, Phase::Fallback(_) | Phase::Failed) {
            return;
        }
        if deadline <= ctx.now {
            match phase {
                // Whatever Linux waits for on TCP, it waits for in vain only once.
                Phase::Link => self.decline(key, Reason::TIMEOUT_CONFIRM_LINK, false, ctx),
                Phase::Key => self.decline(key, Reason::REGISTER_BUFFER, false, ctx),
                _ if retry.is_some() => self.decline(key, Reason::NO_ROUTE, false, ctx),
                _ => self.fail(key, ctx),
            }
            return;
        }
        self.wake_at(deadline);
        if let Some(retry) = retry {
            if retry <= ctx.now {
                self.advance(key, ctx, neighbours);
            } else {
                self.wake_at(retry);
            }
        }
    }

    fn group_timers<P: Provider + ?Sized>(&mut self, key: usize, ctx: &mut Context<'_, P>) {
        let group = &mut self.groups[key];
        match group.state {
            GroupState::Ending(until) if until <= ctx.now => return self.drop_group(key, ctx),
            GroupState::Ending(until) => return self.wake_at(until),
            // The handshake has its own timers.
            GroupState::Making(_) => return,
            GroupState::Active => {}
        }
        if let Some((flow, deadline)) = &group.flow {
            let deadline = *deadline;
            if deadline <= ctx.now {
                let link = flow.link();
                group.flow = None;
                // Who waits for a key's answer has a timer of its own.
                if let Some(link) = link {
                    // The further link came to nothing, which the client may not have noticed.
                    self.link_failed(key, link, ctx);
                }
                self.next_flow(key, ctx);
            } else {
                self.wake_at(deadline);
            }
        }
        self.say_farewells(key, ctx);
        let Some(group) = self.groups.get(key) else { return };
        if let Some(idle) = group.idle {
            let keep =
                if group.role == Role::Server { self.config.keep.0 } else { self.config.keep.1 };
            if idle + keep <= ctx.now {
                return self.end_group(key, DeleteReason::PROGRAM, false, ctx);
            }
            self.wake_at(idle + keep);
        }
        for at in 0..super::table::LINKS {
            self.link_timers(key, at, ctx);
        }
        self.remake_link(key, ctx);
    }

    fn link_timers<P: Provider + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        ctx: &mut Context<'_, P>,
    ) {
        let (test_link, patience) = (self.config.test_link, self.config.confirm_wait.1);
        let Some(link) = self.groups.get_mut(group).and_then(|g| g.links[at].as_mut()) else {
            return;
        };
        match link.test {
            // A further one: the server has its flow, the client waits for CONFIRM_LINK.
            _ if link.state == LinkState::Making => {
                let deadline = link.heard + patience;
                if deadline <= ctx.now {
                    return self.link_failed(group, at, ctx);
                }
                self.wake_at(deadline);
            }
            _ if link.state == LinkState::Leaving => {}
            Some(deadline) if deadline > ctx.now => self.wake_at(deadline),
            Some(deadline) => {
                link.test = None;
                if link.heard + self.config.llc_wait <= deadline {
                    return self.link_failed(group, at, ctx);
                }
                let next = link.heard + test_link;
                self.wake_at(next);
            }
            None if link.heard + test_link <= ctx.now => self.test_link(group, at, ctx),
            None => {
                let next = link.heard + test_link;
                self.wake_at(next);
            }
        }
    }
}
