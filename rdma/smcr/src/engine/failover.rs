//! What becomes of connections whose link is lost: they go on over another (Linux 6.12,
//! smc_core.c, `smc_switch_conns`), or end with the group.

use super::handshake::Refusal;
use super::table::{Farewell, Link, LinkState, Nudge, Phase};
use super::{Engine, EngineContext, Ready, Role};
use crate::wire::llc::{Body, DeleteReason, Token};
use crate::wire::{AcceptConfirm, MessageType, Reason};
use core::time::Duration;
use drivers::hal::Instant;
use verbs::Provider;

/// How often the peer is told that a link goes.
const FAREWELLS: u8 = 3;
/// The shortest and the longest pause before a peer is asked for what it holds back.
const NUDGES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

impl Engine {
    /// The link that was at `at` is gone. `tell`: its number, if the peer is to hear of it.
    pub(super) fn fail_over<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        tell: Option<u8>,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(to) = self.groups.get(group_key).and_then(|group| group.active_link()) else {
            return self.end_group(group_key, DeleteReason::LOST_PATH, tell.is_none(), ctx);
        };
        self.move_connections(group_key, at, to, ctx);
        let group = &mut self.groups[group_key];
        // Others end by themselves, or when their time is over.
        if let Some((flow, _)) = &group.flow
            && flow.link() == Some(at)
        {
            group.flow = None;
        }
        group.buffers.forget_link(at);
        if let Some(link) = tell {
            self.say_farewell(group_key, link, DeleteReason::LOST_PATH, ctx);
            self.begin_nudges(group_key, ctx.now);
        }
        self.link_missing(group_key, ctx.now);
        self.next_flow(group_key, ctx);
    }

    /// Connections of one link go on over another.
    #[inline(never)]
    pub(super) fn move_connections<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        to: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        for key in self.members(group_key) {
            let Some(socket) = self.sockets.get(key) else { continue };
            if socket.group != Some(group_key) || socket.link != at {
                continue;
            }
            if !socket.established {
                self.move_handshake(key, group_key, to, ctx);
            } else if self.switch(key, group_key, at, to).is_none() {
                // There is no way to write to the peer's buffer, but one to say so.
                self.abort_socket(key, ctx);
                self.announce(key, Ready::ABORTED);
            }
        }
    }

    /// A handshake that goes by a link that is gone.
    fn move_handshake<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        group_key: usize,
        to: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let socket = &self.sockets[key];
        let id = socket.id;
        if self.awaits_confirm(key) {
            self.sockets[key].link = to;
            if let Some(handshake) = &mut self.sockets[key].handshake {
                handshake.link_lost = true;
            }
        } else if socket.role == Role::Server && socket.phase() == Some(Phase::Key) {
            // The Accept is not said yet, and names the other link.
            self.sockets[key].link = to;
            let accept = self.describe(key, MessageType::Accept);
            if let (Some(handshake), Some(accept)) = (&mut self.sockets[key].handshake, accept) {
                handshake.held_back = accept.emit();
            }
            let group = &mut self.groups[group_key];
            if !group.new_keys.contains(&id) && !group.late_keys.contains(&id) {
                // It was being told on the link that is gone.
                group.flow = None;
                group.new_keys.push_front(id);
            }
        } else {
            self.decline(key, Reason::NO_ACTIVE_LINK, false, ctx);
        }
    }

    /// Whether a socket has said an Accept, which nobody but the peer can make undone.
    pub(super) fn awaits_confirm(&self, key: usize) -> bool {
        let socket = &self.sockets[key];
        socket.role == Role::Server && socket.phase() == Some(Phase::Confirm)
    }

    /// A peer says Confirm when the link that our Accept named is gone: where its buffer is on the other one
    /// it has told before, and the address is the same there.
    pub(super) fn confirmed_late(&mut self, key: usize, of: &AcceptConfirm) -> Result<(), Refusal> {
        let socket = &self.sockets[key];
        let group = socket.group.and_then(|group| self.groups.get(group)).ok_or(Refusal::Broken)?;
        let there = group.buffers.at_address(socket.link, of.address).ok_or(Refusal::Broken)?;
        self.learn_peer(key, &AcceptConfirm { rkey: there.rkey, ..of.clone() })
    }

    /// Has a socket go on over another link; None if the peer's buffer is not known there.
    fn switch(&mut self, key: usize, group: usize, at: usize, to: usize) -> Option<()> {
        let socket = &mut self.sockets[key];
        socket.link = to;
        // Back to what is known to have arrived; the peer takes no cursor that goes back.
        socket.completed = socket.completed.max(socket.peer_consumed);
        socket.sent = socket.completed;
        socket.in_flight = 0;
        socket.waiting = false;
        socket.validate = true;
        socket.speak = true;
        self.counters.failovers += 1;
        self.touch(key);
        let peer = &mut self.sockets[key].peer;
        let known = Token { rkey: peer.rkey, address: peer.address - peer.offset };
        let there = self.groups[group].buffers.moved(at, known, to)?;
        let address = there.address.checked_add(peer.offset)?;
        // As in `learn_peer`: its last byte has an address, too.
        address.checked_add(peer.size.into())?;
        (peer.rkey, peer.address) = (there.rkey, address);
        Some(())
    }

    /// As client: a Linux server that has not seen the loss goes on once what it sent over the link
    /// has arrived, with soft-RoCE never; until then it holds small writes back ("autocorking"),
    /// unless it is asked for something. It has been seen to do so after it answered that the link is gone,
    /// too: connections that had to move are asked for once a second for as long as they last.
    fn begin_nudges(&mut self, group_key: usize, now: Instant) {
        for key in self.members(group_key) {
            let Some(socket) = self.sockets.get(key) else { continue };
            if socket.group == Some(group_key) && socket.role == Role::Client && socket.validate {
                self.nudge_after(key, NUDGES.0, now);
            }
        }
    }

    /// Has a peer asked for what it holds back, after a pause.
    fn nudge_after(&mut self, key: usize, pause: Duration, now: Instant) {
        let socket = &mut self.sockets[key];
        let moved = socket.produced.wrapping_add(socket.accepted);
        let at = now + pause;
        socket.nudge = Some(Nudge { at, pause, moved });
        self.arm_socket(key, at);
    }

    /// Nudges the peer if that is due: until it has answered that a link is gone, soon after something has
    /// moved, then in ever longer pauses.
    pub(super) fn nudge(&mut self, key: usize, now: Instant) {
        let socket = &mut self.sockets[key];
        let Some(Nudge { at, pause, moved }) = socket.nudge else { return };
        if now < at {
            return self.arm_socket(key, at);
        }
        let same = moved == socket.produced.wrapping_add(socket.accepted);
        socket.speak = true;
        socket.asks = true;
        let group = socket.group.and_then(|group| self.groups.get(group));
        let heard = group.is_none_or(|group| group.farewells.iter().all(Option::is_none));
        let pause = match (heard, same) {
            (false, false) => NUDGES.0,
            (false, true) => NUDGES.1.min(2 * pause),
            (true, _) => NUDGES.1,
        };
        self.touch(key);
        self.nudge_after(key, pause, now);
    }

    /// Tells the peer that a link goes, until it has answered.
    #[inline(never)]
    pub(super) fn say_farewell<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        number: u8,
        reason: DeleteReason,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let same = |farewell: &Option<Farewell>| farewell.is_some_and(|one| one.number == number);
        if !group.farewells.iter().any(same)
            && let Some(free) = group.farewells.iter_mut().find(|farewell| farewell.is_none())
        {
            *free = Some(Farewell { number, reason, again: ctx.now, left: FAREWELLS });
            self.say_farewells(group_key, ctx);
        }
    }

    /// Says what farewells are due.
    #[inline(never)]
    pub(super) fn say_farewells<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let now = ctx.now;
        while let Some(group) = self.groups.get_mut(group_key)
            && let Some(on) = group.active_link()
            && let Some(due) =
                group.farewells.iter_mut().flatten().min_by_key(|farewell| farewell.again)
        {
            if due.again > now {
                let again = due.again;
                return self.arm_group(group_key, again);
            }
            let Farewell { number: link, reason, left, .. } = *due;
            if left == 0 && group.role == Role::Server {
                self.farewell_answered(group_key, link, ctx);
                continue;
            }
            due.left = left.saturating_sub(1);
            due.again = now + if left > 1 { self.config.llc_wait } else { self.config.remake.1 };
            let orderly = reason == DeleteReason::ASYMMETRIC;
            let body = Body::DeleteLink { link, all: false, orderly, reason };
            self.send_llc(group_key, on, false, body, ctx);
        }
    }

    /// The peer knows that a link goes, or does not answer.
    #[inline(never)]
    pub(super) fn farewell_answered<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        number: u8,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        for farewell in &mut group.farewells {
            *farewell = farewell.filter(|farewell| farewell.number != number);
        }
        let leaving = |link: &Option<Link>| {
            link.as_ref().is_some_and(|l| l.number == number && l.state == LinkState::Leaving)
        };
        if let Some(at) = group.links.iter().position(leaving) {
            group.buffers.forget_link(at);
            self.remove_link(group_key, at, ctx);
        }
    }

    /// The peer ends a link, or all of them.
    pub(super) fn handle_delete_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        body: &Body,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let &Body::DeleteLink { link: number, all, reason, .. } = body else { return };
        if all {
            // The answer is the same, as a request.
            return self.end_group(group_key, reason, true, ctx);
        }
        let group = &self.groups[group_key];
        let has = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.number == number);
        let Some(gone) = group.links.iter().position(has) else {
            // As client: what we asked for.
            self.farewell_answered(group_key, number, ctx);
            let reason = DeleteReason::NO_SUCH_LINK;
            let body = Body::DeleteLink { link: number, all, orderly: false, reason };
            self.send_llc(group_key, at, true, body, ctx);
            return;
        };
        // A client only asks; it is the server that says so.
        match group.role {
            Role::Client => {
                self.send_llc(group_key, at, true, body.clone(), ctx);
                self.remove_link(group_key, gone, ctx);
                self.fail_over(group_key, gone, None, ctx);
            }
            Role::Server => {
                self.remove_link(group_key, gone, ctx);
                self.fail_over(group_key, gone, Some(number), ctx);
            }
        }
    }
}
