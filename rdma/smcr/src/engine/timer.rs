//! Timers: handshakes, LLC responses, silent links, idle groups, slow closes. A socket or group has one timer, for the
//! earliest of its deadlines, so that only expired ones are examined.

use super::table::{GroupState, LinkState, Phase};
use super::{BATCH, Ctx, Engine, Ready, Role};
use crate::SmcDevice;
use crate::wire::Reason;
use crate::wire::cdc::End;
use crate::wire::llc::DeleteReason;
use drivers::hal::{self, Instant};
use net::Neighbours;

/// Timers of sockets and of groups.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pub sockets: hal::Timers,
    pub groups: hal::Timers,
}

impl Engine {
    /// Arms the timer of a socket for `at`, if it is not due earlier.
    pub(super) fn arm_socket(&mut self, key: usize, at: Instant) {
        if self.sockets.contains(key) {
            self.timers.sockets.make_room(key);
            self.timers.sockets.put(key, at);
        }
    }

    /// Arms the timer of a group for `at`, if it is not due earlier.
    pub(super) fn arm_group(&mut self, key: usize, at: Instant) {
        if self.groups.contains(key) {
            self.timers.groups.make_room(key);
            self.timers.groups.put(key, at);
        }
    }

    /// When `handle_timeout` is to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let Timers { sockets, groups } = &self.timers;
        Instant::first([sockets.first(), groups.first(), self.sweep, self.spare.trim_at])
    }

    /// Runs expired timers, a bounded number per call. Returns false if there were none.
    pub fn handle_timeout<P: SmcDevice + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> bool {
        let mut ran = false;
        // Timers that are armed meanwhile run in the next call.
        for _ in 0..self.timers.sockets.len().min(BATCH) {
            let Some(key) = self.timers.sockets.take_due(ctx.now) else { break };
            ran = true;
            self.socket_timers(key, ctx, neighbours);
        }
        for _ in 0..self.timers.groups.len().min(BATCH) {
            let Some(key) = self.timers.groups.take_due(ctx.now) else { break };
            ran = true;
            self.group_timers(key, ctx);
        }
        if self.sweep.is_some_and(|at| at <= ctx.now) {
            ran = true;
            self.sweep_buffers(ctx);
        }
        if self.spare.trim_at.is_some_and(|at| at <= ctx.now) {
            ran = true;
            self.spare.trim(ctx);
        }
        ran
    }

    fn socket_timers<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        self.nudge(key, ctx.now);
        if self.abort_if_end_missing(key, ctx) {
            return;
        }
        let socket = &self.sockets[key];
        if let Some(linger) = socket.linger {
            if !linger.standstill(ctx.now).is_zero() {
                // The machine was paused: the peer may still take the rest.
                let linger = ctx.now + self.config.linger;
                self.sockets[key].linger = Some(linger);
                self.arm_socket(key, linger);
            } else if linger <= ctx.now {
                self.sockets[key].linger = None;
                self.abort_socket(key, ctx);
            } else {
                self.arm_socket(key, linger);
            }
            return;
        }
        let (role, remote) = (socket.role, socket.remote);
        let Some(handshake) = socket.handshake.as_ref().filter(|_| !socket.established) else {
            return;
        };
        let (phase, deadline, retry) = (handshake.phase, handshake.deadline, handshake.retry);
        if matches!(phase, Phase::Fallback(_) | Phase::Failed) {
            return;
        }
        if deadline <= ctx.now {
            let late = handshake.opened + self.config.accept_wait.1;
            let answered = handshake.answered;
            if phase == Phase::Accept && retry.is_none() && deadline < late {
                // A server with other handshakes of ours may still answer this one.
                if self.groups_with(remote).any(|(_, group)| group.role == Role::Client) {
                    return self.set_phase(key, phase, late);
                }
            }
            if role == Role::Client {
                self.note_roce_timeout(remote, ctx.now);
            }
            match phase {
                Phase::Link if answered => self.fail(key, ctx),
                // Linux waits only once for the next message on TCP.
                Phase::Link => self.decline(key, Reason::TIMEOUT_CONFIRM_LINK, false, ctx),
                Phase::Key => self.decline(key, Reason::REGISTER_BUFFER, false, ctx),
                _ if retry.is_some() => self.decline(key, Reason::NO_ROUTE, false, ctx),
                _ => self.fail(key, ctx),
            }
            return;
        }
        self.arm_socket(key, deadline);
        if let Some(retry) = retry {
            if retry <= ctx.now {
                self.advance(key, ctx, neighbours);
                self.announce(key, Ready::CLC);
            } else {
                self.arm_socket(key, retry);
            }
        }
    }

    /// Aborts a socket whose peer has sent a FIN on TCP and then no CLOSED or ABORT in time. Returns true if it did.
    fn abort_if_end_missing<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let wait = self.config.end_wait;
        let socket = &mut self.sockets[key];
        let Some((until, last_seqno)) = socket.tcp_finished else { return false };
        if socket.rx_end.is_closed() {
            socket.tcp_finished = None;
            return false;
        }
        // After SENDING_DONE the peer may read on as long as we have not closed.
        let reads = socket.rx_end.contains(End::SENDING_DONE) && !socket.tx_end.is_closed();
        if until <= ctx.now && !reads && socket.rx_seqno == last_seqno {
            socket.tcp_finished = None;
            socket.end_missed = true;
            let ready = self.handle_end(key, End::ABORT);
            self.announce(key, ready);
            self.reap(key, ctx);
            return true;
        }
        let next = if until <= ctx.now { ctx.now + wait } else { until };
        let last_seqno = if until <= ctx.now { socket.rx_seqno } else { last_seqno };
        socket.tcp_finished = Some((next, last_seqno));
        self.arm_socket(key, next);
        false
    }

    fn group_timers<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let group = &mut self.groups[key];
        match group.state {
            GroupState::Ending(until) if until <= ctx.now => return self.drop_group(key, ctx),
            GroupState::Ending(until) => return self.arm_group(key, until),
            // The handshake has its own timer.
            GroupState::Making(_) => return,
            GroupState::Active => {}
        }
        if let Some((flow, deadline)) = &group.flow {
            let deadline = *deadline;
            if deadline <= ctx.now {
                let link = flow.link();
                group.flow = None;
                // A socket that waits for CONFIRM_RKEY has its own timer.
                if let Some(link) = link {
                    // The additional link failed. The client may not have noticed.
                    self.link_failed(key, link, ctx);
                }
                self.next_flow(key, ctx);
            } else {
                self.arm_group(key, deadline);
            }
        }
        self.send_due_deletes(key, ctx);
        let Some(group) = self.groups.get(key) else { return };
        if let Some(idle) = group.idle {
            let keep =
                if group.role == Role::Server { self.config.keep.0 } else { self.config.keep.1 };
            let keep = group.keeps(keep);
            if idle + keep <= ctx.now {
                return self.end_group(key, DeleteReason::PROGRAM, false, ctx);
            }
            self.arm_group(key, idle + keep);
        }
        for at in 0..super::table::LINKS {
            self.link_timers(key, at, ctx);
        }
        self.remake_link(key, ctx);
    }

    fn link_timers<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let (test_link, timeout) = (self.config.test_link, self.config.confirm_wait.1);
        let Some(link) = self.groups.get_mut(group).and_then(|g| g.links[at].as_mut()) else {
            return;
        };
        match link.test {
            // An additional link: the server has its flow, the client waits for CONFIRM_LINK.
            _ if link.state == LinkState::Making => {
                let deadline = link.last_rx + timeout;
                if deadline <= ctx.now {
                    return self.link_failed(group, at, ctx);
                }
                self.arm_group(group, deadline);
            }
            _ if link.state == LinkState::Leaving => {}
            Some(deadline) if deadline > ctx.now => self.arm_group(group, deadline),
            Some(deadline) => {
                link.test = None;
                if link.last_rx + self.config.llc_wait <= deadline {
                    // If the machine was paused meanwhile, the answer may be lost: test again.
                    return match deadline.standstill(ctx.now).is_zero() {
                        true => self.link_failed(group, at, ctx),
                        false => self.test_link(group, at, ctx),
                    };
                }
                let next = link.last_rx + test_link;
                self.arm_group(group, next);
            }
            None if link.last_rx + test_link <= ctx.now => self.test_link(group, at, ctx),
            None => {
                let next = link.last_rx + test_link;
                self.arm_group(group, next);
            }
        }
    }
}
