//! Ends of queues and controllers: by timeouts, by the target, and by the host.

use crate::queue::{Action, Queue, QueueId, Role};
use crate::request::State;
use crate::target::{Context, Target};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;
use net::refusal::Refusal;

/// How long a connection may take until its Connect has succeeded, and an admin queue until its controller is enabled.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a new connection may wait for its Connect while all places are taken.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);
/// Checks after which a connection is closed whose host does not read what it was sent before.
const CLOSING_CHECKS: u8 = 5;
/// Interval of the check of timeouts and of volumes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Target {
    pub(crate) fn check_soon(&mut self, now: Instant) {
        let at = now + CHECK_INTERVAL;
        self.check_at = Some(self.check_at.map_or(at, |due| due.min(at)));
    }

    /// Ends connections and controllers that have timed out, and finds the volumes of namespaces again. Runs once a second while there are queues.
    pub(crate) fn check(&mut self, ctx: &mut Context<'_>) {
        let now = ctx.now;
        let due = self.check_at.take();
        self.forgive_standstill(due.map_or(Duration::ZERO, |at| now.since(at)), now);
        self.check_volumes(ctx.volumes);
        self.busy.retain(|(_, list)| !list.is_empty());
        self.cut_unread();
        self.check_capsules(ctx.arena);
        self.check_authentications(now);
        let late = |opened: Instant| opened + CONNECT_TIMEOUT <= now;
        let fresh = self.queues.iter().filter(|(_, it)| it.role == Role::Fresh && late(it.opened));
        let fresh: Vec<QueueId> = fresh.map(|(_, queue)| queue.id).collect();
        for id in fresh {
            let Some(queue) = self.queue(id) else { continue };
            let ends = queue.ends;
            let is_held = queue.requests.iter().any(|one| one.state == State::Held);
            if !core::mem::replace(&mut queue.is_ending, true) {
                let (reason, advice) = match is_held {
                    false => {
                        let advice =
                            "the host opened a connection and sent no valid Connect for 30 s";
                        ("no_connect", advice)
                    }
                    true => {
                        let advice = "a volume has not ended requests of the host's former connection for 30 s; \
                            look at its disk";
                        ("former_requests", advice)
                    }
                };
                self.refuse(&ends, "queue", reason, advice);
            }
            self.end_queue(id);
        }
        let expired = self.controllers.iter().filter(|(_, one)| {
            let idle = !one.is_ready() && one.active + CONNECT_TIMEOUT <= now;
            !one.is_ending && (idle || one.expires().is_some_and(|at| at <= now))
        });
        let expired: Vec<usize> = expired.map(|(index, _)| index).collect();
        for index in expired {
            if let Some(one) = self.controllers.get(index) {
                let (nqn, address) = (one.host.nqn.clone(), one.host.address);
                self.refusals.push(Refusal {
                    who: Some(address),
                    what: "nvme",
                    asked: alloc::format!("controller {} of {nqn}", one.cntlid),
                    reason: "keep_alive_timeout",
                    advice: "the host has sent nothing for two keep alive periods; it reconnects when it is back"
                        .into(),
                });
            }
            self.end_controller(index);
        }
        if !self.queues.is_empty() {
            self.check_at = Some(now + CHECK_INTERVAL);
        }
    }

    /// Time in which the machine was stopped is not silence of the hosts: what they sent meanwhile is read next.
    fn forgive_standstill(&mut self, late: Duration, now: Instant) {
        if late < CHECK_INTERVAL {
            return;
        }
        for (_, one) in &mut self.controllers {
            one.active = (one.active + late).min(now);
        }
        for (_, queue) in &mut self.queues {
            queue.opened = (queue.opened + late).min(now);
            if let Some(auth) = &mut queue.auth {
                auth.since = (auth.since + late).min(now);
            }
        }
    }

    /// Closes connections that were to be closed some time ago, although their hosts have not read all.
    fn cut_unread(&mut self) {
        let mut late: Vec<QueueId> = Vec::new();
        for (_, queue) in self.queues.iter_mut().filter(|(_, it)| it.is_ending && !it.is_closed) {
            queue.ending_for = queue.ending_for.saturating_add(1);
            if queue.ending_for == CLOSING_CHECKS {
                queue.actions.push_back(Action::Cut);
                late.push(queue.id);
            }
        }
        late.into_iter().for_each(|id| self.list(id));
    }

    /// Takes the place of the connection that has waited for its Connect for the longest time. False if there is none.
    pub(crate) fn make_place(&mut self, now: Instant) -> bool {
        let waits = |queue: &Queue| queue.is_fresh() && queue.opened + CROWDED_TIMEOUT <= now;
        let fresh = self.queues.iter().filter(|(_, queue)| waits(queue));
        let Some((_, oldest)) = fresh.min_by_key(|(_, queue)| queue.opened) else { return false };
        let (id, ends) = (oldest.id, oldest.ends);
        let advice = "all places are taken, and the host sent no valid Connect, or did not authenticate, for 2 s";
        self.refuse(&ends, "queue", "no_connect", advice);
        self.end_queue(id);
        if let Some(queue) = self.queue(id) {
            queue.actions.push_back(Action::Cut);
        }
        true
    }

    /// Makes the transport close a queue's connection.
    pub(crate) fn end_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queue(id) else { return };
        queue.is_ending = true;
        if !matches!(queue.actions.back(), Some(Action::Close)) {
            queue.actions.push_back(Action::Close);
        }
        self.list(id);
    }

    /// Ends a controller: all its connections are closed.
    pub(crate) fn end_controller(&mut self, index: usize) {
        let Some(controller) = self.controllers.get_mut(index) else { return };
        controller.is_ending = true;
        let queues: Vec<QueueId> =
            controller.io.iter().flatten().copied().chain([controller.admin]).collect();
        queues.into_iter().for_each(|id| self.end_queue(id));
    }

    /// The connection of a queue has ended.
    pub fn close_queue(&mut self, id: QueueId, ctx: &mut Context<'_>) {
        let Some(queue) = self.queue(id) else { return };
        queue.is_closed = true;
        queue.is_ending = true;
        queue.actions.clear();
        queue.waiting.clear();
        for slot in 0..queue.requests.len() as u16 {
            // The device may still access the memory of those in execution.
            if queue.request(slot).is_some_and(|request| request.state != State::Executing) {
                queue.release(slot);
            }
        }
        let role = queue.role;
        self.forget_authentication(id);
        self.held.retain(|(of, _)| *of != id);
        self.reserving.forget(id);
        self.forget_throttled(id, ctx.now);
        self.forget_fused(id);
        if let Role::Admin { controller } = role {
            if let Some(one) = self.controllers.get_mut(controller) {
                // Their slots are free.
                one.events.requests.clear();
            }
            self.end_controller(controller);
        }
        self.remove_closed(id, ctx);
    }

    /// Removes a closed queue that no volume has requests of, and its controller with the last one.
    pub(crate) fn remove_closed(&mut self, id: QueueId, ctx: &mut Context<'_>) {
        let Some(queue) = self.queue(id).filter(|it| it.is_closed && it.in_volumes == 0) else {
            return;
        };
        queue.free_memory(ctx.arena);
        let role = queue.role;
        self.free_capsules(id, ctx.arena);
        self.queues.remove(usize::from(id.index));
        let (Role::Admin { controller } | Role::Io { controller }) = role else { return };
        let mut others = self.queues.iter().filter(|(_, queue)| {
            queue.role == Role::Admin { controller } || queue.role == Role::Io { controller }
        });
        if others.next().is_some() {
            if let Some(controller) = self.controllers.get_mut(controller) {
                let mut places = controller.io.iter_mut();
                if let Some(place) = places.find(|place| **place == Some(id)) {
                    *place = None;
                }
            }
            return self.continue_held(ctx);
        }
        if self.controllers.contains(controller) {
            self.controllers.remove(controller);
        }
        self.continue_held(ctx);
    }

    /// Retries Connects that wait for requests of older connections of their hosts.
    pub(crate) fn continue_held(&mut self, ctx: &mut Context<'_>) {
        let held: Vec<(QueueId, u16)> = core::mem::take(&mut self.held);
        for (id, slot) in held {
            if self.is_in(id, slot, State::Held) {
                self.execute(id, slot, ctx);
            }
        }
    }

    /// Makes the transport close all connections, before the machine ends.
    pub fn shut_down(&mut self) {
        let queues: Vec<QueueId> = self.queues.iter().map(|(_, queue)| queue.id).collect();
        queues.into_iter().for_each(|id| self.end_queue(id));
    }
}
