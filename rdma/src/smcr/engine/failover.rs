//! What becomes of connections whose link is lost: they go on over another (Linux 6.12,
//! smc_core.c, `smc_switch_conns`), or end with the group.

use super::table::Flow;
use super::{Context, Engine, Role};
use crate::smcr::wire::Reason;
use crate::smcr::wire::llc::{Body, DeleteReason, Token};
use crate::verbs::Provider;

impl Engine {
    /// The link that was at `at` is gone. `tell`: its number, if the peer is to hear of it.
    pub(super) fn fail_over<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        tell: Option<u8>,
        ctx: &mut Context<'_, P>,
    ) {
        let Some(to) = self.groups.get(group_key).and_then(|group| group.active_link()) else {
            return self.end_group(group_key, DeleteReason::LOST_PATH, tell.is_none(), ctx);
        };
        for key in 0..self.sockets.capacity() {
            let Some(socket) = self.sockets.get(key) else { continue };
            if socket.group != Some(group_key) || socket.link != at {
                continue;
            }
            if !socket.established {
                // Its handshake has named the link that is gone.
                self.decline(key, Reason::NO_ACTIVE_LINK, false, ctx);
            } else if self.switch(key, group_key, at, to).is_none() {
                self.lose(key, ctx);
            }
        }
        let group = &mut self.groups[group_key];
        // Others end by themselves, or when their time is over.
        if let Some((Flow::AddLink { link } | Flow::ConfirmLink { link }, _)) = group.flow
            && link == at
        {
            group.flow = None;
        }
        for on in &mut group.tokens {
            on[at] = None;
        }
        if let Some(link) = tell {
            let reason = DeleteReason::LOST_PATH;
            let body = Body::DeleteLink { link, all: false, orderly: false, reason };
            self.send_llc(group_key, to, false, body, ctx);
        }
        self.link_missing(group_key, ctx.now);
        self.next_flow(group_key, ctx);
    }

    /// Has a socket go on over another link; None if the peer's buffer is not known there.
    fn switch(&mut self, key: usize, group: usize, at: usize, to: usize) -> Option<()> {
        let socket = &mut self.sockets[key];
        let known =
            Token { rkey: socket.peer.rkey, address: socket.peer.address - socket.peer.offset };
        let tokens = &self.groups[group].tokens;
        let there = tokens.iter().find(|on| on[at] == Some(known))?[to]?;
        socket.peer.rkey = there.rkey;
        socket.peer.address = there.address.checked_add(socket.peer.offset)?;
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
        Some(())
    }

    /// The peer ends a link, or all of them.
    pub(super) fn handle_delete_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        body: &Body,
        ctx: &mut Context<'_, P>,
    ) {
        let &Body::DeleteLink { link: number, all, reason, .. } = body else { return };
        if all {
            // The answer is the same, as a request.
            return self.end_group(group_key, reason, true, ctx);
        }
        let group = &self.groups[group_key];
        let has = |link: &Option<super::table::Link>| {
            link.as_ref().is_some_and(|link| link.number == number)
        };
        let Some(gone) = group.links.iter().position(has) else {
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
