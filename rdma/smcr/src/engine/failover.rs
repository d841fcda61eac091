//! Failover: connections of a lost link continue over another link (Linux 6.12, smc_core.c, `smc_switch_conns`), or end
//! with the group.

use super::handshake::Refusal;
use super::table::{Group, Link, LinkState, Phase};
use super::{Ctx, Engine, Ready, Role};
use crate::SmcDevice;
use crate::wire::llc::{Body, DeleteReason, Token};
use crate::wire::{AcceptConfirm, MessageType, Reason};
use core::time::Duration;
use drivers::hal::Instant;

/// How often DELETE_LINK is sent before the longer pause.
const DELETE_ATTEMPTS: u8 = 3;
/// Shortest and longest pause before the peer is asked to send held-back data.
const NUDGES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Schedule of update requests to a peer that holds data back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nudge {
    pub at: Instant,
    /// Pause before `at`.
    pub pause: Duration,
    /// Bytes moved in both directions at the last nudge.
    pub moved: u64,
}

/// A DELETE_LINK that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingDelete {
    /// Number of the deleted link.
    pub number: u8,
    pub reason: DeleteReason,
    /// When it is sent again.
    pub resend_at: Instant,
    /// Attempts left.
    pub attempts_left: u8,
}

impl Group {
    /// As server: the link of the next connection. Connections take the first link and the next one that shares no port
    /// with it in turns (Linux 6.12, smc_core.c, `smcr_lgr_conn_assign_link`).
    pub fn link_for_next(&self) -> Option<usize> {
        let first = self.active_link()?;
        let one = self.links[first].as_ref()?;
        let apart = |link: &Option<Link>| {
            let link = link.as_ref().filter(|link| link.state == LinkState::Active);
            link.is_some_and(|link| one.is_apart(link.device.ip, link.peer.gid))
        };
        let next = self.links.iter().skip(first + 1).position(apart).map(|n| first + 1 + n);
        match self.members.len().is_multiple_of(2) {
            true => Some(first),
            false => next.or(Some(first)),
        }
    }

    /// Whether a link is active, and shares no port with another active one.
    pub fn balances(&self, at: usize) -> bool {
        let Some(link) = self.links.get(at).and_then(Option::as_ref) else { return false };
        let mut active = self.links.iter().flatten().filter(|one| one.state == LinkState::Active);
        link.state == LinkState::Active
            && active.any(|one| one.is_apart(link.device.ip, link.peer.gid))
    }
}

impl Engine {
    /// Handles the loss of the link at `at`. `notify`: its number, if the peer is to be notified.
    pub(super) fn fail_over<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        notify: Option<u8>,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(to) = self.groups.get(group_key).and_then(|group| group.active_link()) else {
            return self.end_group(group_key, DeleteReason::LOST_PATH, notify.is_none(), ctx);
        };
        self.move_connections(group_key, at, to, true, ctx);
        let group = &mut self.groups[group_key];
        // Other flows end by themselves or time out.
        if let Some((flow, _)) = &group.flow
            && flow.link() == Some(at)
        {
            group.flow = None;
        }
        group.buffers.forget_link(at);
        if let Some(link) = notify {
            self.begin_delete_link(group_key, link, DeleteReason::LOST_PATH, ctx);
            self.begin_nudges(group_key, ctx.now);
        }
        self.schedule_link_attempt(group_key, ctx.now);
        self.next_flow(group_key, ctx);
    }

    /// Moves all connections of one link to another. `is_loss`: they come back when another link is up.
    #[inline(never)]
    pub(super) fn move_connections<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        to: usize,
        is_loss: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        for key in self.members(group_key) {
            let Some(socket) = self.sockets.get(key) else { continue };
            if socket.group != Some(group_key) || socket.link != at {
                continue;
            }
            if !socket.established {
                self.move_handshake(key, group_key, to, ctx);
            } else if self.switch(key, group_key, at, to).is_none() {
                // The peer's buffer has no known key there, but CDC can carry the abort.
                self.abort_socket(key, ctx);
                self.announce(key, Ready::ABORTED);
            } else {
                self.sockets[key].moved |= is_loss;
            }
        }
    }

    /// Moves or declines a handshake whose link is lost.
    fn move_handshake<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        group_key: usize,
        to: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let socket = &self.sockets[key];
        let id = socket.id;
        if self.awaits_confirm(key) {
            self.sockets[key].link = to;
            if let Some(handshake) = &mut self.sockets[key].handshake {
                handshake.link_lost = true;
            }
        } else if socket.role == Role::Server && socket.phase() == Some(Phase::Key) {
            // The Accept is not sent yet: it names the other link.
            self.sockets[key].link = to;
            let accept = self.describe(key, MessageType::Accept);
            if let (Some(handshake), Some(accept)) = (&mut self.sockets[key].handshake, accept) {
                handshake.held_back = accept.emit();
            }
            let group = &mut self.groups[group_key];
            if !group.new_keys.contains(&id) && !group.late_keys.contains(&id) {
                // CONFIRM_RKEY was under way on the lost link.
                group.flow = None;
                group.new_keys.push_front(id);
            }
        } else {
            self.decline(key, Reason::NO_ACTIVE_LINK, false, ctx);
        }
    }

    /// Whether a socket has sent an Accept, which only the peer can undo.
    pub(super) fn awaits_confirm(&self, key: usize) -> bool {
        let socket = &self.sockets[key];
        socket.role == Role::Server && socket.phase() == Some(Phase::Confirm)
    }

    /// Handles a Confirm after the link of our Accept was lost. The peer has sent the buffer's key on the other link
    /// before, and the address is the same there.
    pub(super) fn learn_peer_on_other_link(
        &mut self,
        key: usize,
        of: &AcceptConfirm,
    ) -> Result<(), Refusal> {
        let socket = &self.sockets[key];
        let group = socket.group.and_then(|group| self.groups.get(group)).ok_or(Refusal::Broken)?;
        let there = group.buffers.at_address(socket.link, of.address).ok_or(Refusal::Broken)?;
        self.learn_peer(key, &AcceptConfirm { rkey: there.rkey, ..of.clone() })
    }

    /// Switches a socket to another link. Returns None if the peer's buffer is not known there.
    fn switch(&mut self, key: usize, group: usize, at: usize, to: usize) -> Option<()> {
        let socket = &mut self.sockets[key];
        // A link that is being replaced still completes messages.
        if let Some(old) = &mut self.groups[group].links[at] {
            old.disown(socket.id);
        }
        socket.link = to;
        socket.moved |= socket.returns.take().is_some();
        // Back to the last acknowledged byte. The peer accepts no cursor that goes back.
        socket.completed = socket.completed.max(socket.peer_consumed);
        socket.sent = socket.completed;
        socket.in_flight = 0;
        socket.waiting = false;
        socket.validate = true;
        socket.cdc_due = true;
        self.counters.failovers += 1;
        self.touch(key);
        let peer = &mut self.sockets[key].peer;
        let known = Token { rkey: peer.rkey, address: peer.address - peer.offset };
        let there = self.groups[group].buffers.moved(at, known, to)?;
        let address = there.address.checked_add(peer.offset)?;
        // As in `learn_peer`: the end of the buffer has an address, too.
        address.checked_add(peer.size.into())?;
        (peer.rkey, peer.address) = (there.rkey, address);
        Some(())
    }

    /// A link is up again: the connections that a failover has moved are to use it.
    pub(super) fn call_back(&mut self, group_key: usize, link: usize) {
        if !self.groups.get(group_key).is_some_and(|group| group.balances(link)) {
            return;
        }
        for key in self.members(group_key) {
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            if socket.group == Some(group_key)
                && socket.established
                && core::mem::take(&mut socket.moved)
                && socket.link != link
            {
                socket.returns = Some(link);
                // Requests the ACK of the data under way.
                socket.cdc_due = true;
                socket.touch(&mut self.dirty);
            }
        }
    }

    /// Moves a connection to the link that is up again. It has no data under way: a late WRITE on the other link could
    /// overwrite newer bytes. Without a key of the peer's buffer there it stays.
    ///
    /// There is nothing to validate: all messages with data are acknowledged. A peer that polls its links separately
    /// (Linux: a tasklet for each device) could read the validation message before them, and abort the connection.
    #[cold]
    pub(super) fn go_back(&mut self, key: usize) {
        let socket = &mut self.sockets[key];
        let (at, to) = (socket.link, socket.returns.take());
        let group = socket.group.and_then(|group| self.groups.get_mut(group));
        let (Some(to), Some(group)) = (to, group) else { return };
        let peer = &mut socket.peer;
        let known = Token { rkey: peer.rkey, address: peer.address - peer.offset };
        let there = group.buffers.moved(at, known, to).filter(|_| group.balances(to));
        let Some(Token { rkey, address }) = there else { return };
        // As in `learn_peer`: the end of the buffer has an address, too.
        let address = address.checked_add(peer.offset);
        let address = address.filter(|from| from.checked_add(peer.size.into()).is_some());
        let Some(address) = address else { return };
        (peer.rkey, peer.address) = (rkey, address);
        if let Some(old) = &mut group.links[at] {
            old.disown(socket.id);
        }
        socket.link = to;
        socket.in_flight = 0;
        socket.waiting = false;
        socket.cdc_due = true;
        self.counters.returned += 1;
    }

    /// As client, asks the server for CDC messages after a failover. A Linux server that has not noticed the loss
    /// continues only when its messages on the lost link are completed, with soft-RoCE never. Until then it holds small
    /// writes back ("autocorking"), unless it is asked for an update. It was observed to do so even after it had
    /// answered DELETE_LINK: so all connections of the group are nudged once a second for their lifetime. That includes
    /// those that send on another link here: the server may have sent theirs on the lost one.
    fn begin_nudges(&mut self, group_key: usize, now: Instant) {
        for key in self.members(group_key) {
            let Some(socket) = self.sockets.get(key) else { continue };
            if socket.group == Some(group_key) && socket.role == Role::Client && socket.established
            {
                self.nudge_after(key, NUDGES.0, now);
            }
        }
    }

    /// Schedules the next nudge of a peer.
    fn nudge_after(&mut self, key: usize, pause: Duration, now: Instant) {
        let socket = &mut self.sockets[key];
        let moved = socket.produced.wrapping_add(socket.accepted);
        let at = now + pause;
        socket.nudge = Some(Nudge { at, pause, moved });
        self.arm_socket(key, at);
    }

    /// Nudges the peer if that is due. Until it has answered DELETE_LINK: soon after data has moved, then with
    /// increasing pauses.
    pub(super) fn nudge(&mut self, key: usize, now: Instant) {
        let socket = &mut self.sockets[key];
        let Some(Nudge { at, pause, moved }) = socket.nudge else { return };
        if now < at {
            return self.arm_socket(key, at);
        }
        let same = moved == socket.produced.wrapping_add(socket.accepted);
        socket.cdc_due = true;
        socket.requests_update = true;
        let group = socket.group.and_then(|group| self.groups.get(group));
        let answered = group.is_none_or(|group| group.pending_deletes.iter().all(Option::is_none));
        let pause = match (answered, same) {
            (false, false) => NUDGES.0,
            (false, true) => NUDGES.1.min(2 * pause),
            (true, _) => NUDGES.1,
        };
        self.touch(key);
        self.nudge_after(key, pause, now);
    }

    /// Starts to send DELETE_LINK for a link, until the peer answers.
    #[inline(never)]
    pub(super) fn begin_delete_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        number: u8,
        reason: DeleteReason,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let same = |delete: &Option<PendingDelete>| delete.is_some_and(|one| one.number == number);
        if !group.pending_deletes.iter().any(same)
            && let Some(free) = group.pending_deletes.iter_mut().find(|delete| delete.is_none())
        {
            *free = Some(PendingDelete {
                number,
                reason,
                resend_at: ctx.now,
                attempts_left: DELETE_ATTEMPTS,
            });
            self.send_due_deletes(group_key, ctx);
        }
    }

    /// Sends the DELETE_LINK messages that are due.
    #[inline(never)]
    pub(super) fn send_due_deletes<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let now = ctx.now;
        while let Some(group) = self.groups.get_mut(group_key)
            && let Some(on) = group.active_link()
            && let Some(due) =
                group.pending_deletes.iter_mut().flatten().min_by_key(|delete| delete.resend_at)
        {
            if due.resend_at > now {
                let resend_at = due.resend_at;
                return self.arm_group(group_key, resend_at);
            }
            let PendingDelete { number: link, reason, attempts_left, .. } = *due;
            if attempts_left == 0 && group.role == Role::Server {
                self.finish_delete_link(group_key, link, ctx);
                continue;
            }
            due.attempts_left = attempts_left.saturating_sub(1);
            due.resend_at =
                now + if attempts_left > 1 { self.config.llc_wait } else { self.config.remake.1 };
            let orderly = reason == DeleteReason::ASYMMETRIC;
            let body = Body::DeleteLink { link, all: false, orderly, reason };
            self.send_llc(group_key, on, false, body, ctx);
        }
    }

    /// Finishes a DELETE_LINK: the peer has answered, or attempts are used up.
    #[inline(never)]
    pub(super) fn finish_delete_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        number: u8,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        for delete in &mut group.pending_deletes {
            *delete = delete.filter(|delete| delete.number != number);
        }
        let leaving = |link: &Option<Link>| {
            link.as_ref().is_some_and(|l| l.number == number && l.state == LinkState::Leaving)
        };
        if let Some(at) = group.links.iter().position(leaving) {
            group.buffers.forget_link(at);
            self.remove_link(group_key, at, ctx);
        }
    }

    /// Handles DELETE_LINK for one link or all.
    pub(super) fn handle_delete_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        body: &Body,
        ctx: &mut Ctx<'_, P>,
    ) {
        let &Body::DeleteLink { link: number, all, reason, .. } = body else { return };
        if all {
            // The answer is a DELETE_LINK request for all links.
            return self.end_group(group_key, reason, true, ctx);
        }
        let group = &self.groups[group_key];
        let has = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.number == number);
        let Some(gone) = group.links.iter().position(has) else {
            // As client: the server confirms our request.
            self.finish_delete_link(group_key, number, ctx);
            let reason = DeleteReason::NO_SUCH_LINK;
            let body = Body::DeleteLink { link: number, all, orderly: false, reason };
            self.send_llc(group_key, at, true, body, ctx);
            return;
        };
        // A client requests the deletion; the server decides it.
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
