//! LLC messages: receives and answers the peer's, and runs our own exchanges (Linux 6.12, smc_llc.c).
//!
//! A group has one exchange of ours under way at a time, as with Linux. Requests of the peer are answered at once.

use super::flow::Flow;
use super::ids::{SocketId, WorkId};
use super::table::{GroupState, LLC_SLOTS, Link, LinkState, Pending, Phase};
use super::{Ctx, Engine, Ready, Role};
use crate::SmcDevice;
use crate::wire::Reason;
use crate::wire::llc::{Body, LEN, LinkEnd, Llc, Token, V1_KEYS};
use alloc::vec::Vec;
use drivers::hal::Instant;
use verbs::{Payload, SendOperation, SendRequest, SendWith};

impl Engine {
    /// Handles a received SEND that is not a CDC message.
    pub(super) fn handle_message<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        receive: usize,
        length: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(link) = self.groups.get(group).and_then(|g| g.links.get(at)?.as_ref()) else {
            return;
        };
        let id = WorkId::new(group, at, receive).to_bits();
        let Some(head) = link.head(receive).filter(|_| length >= LEN) else {
            self.counters.malformed += 1;
            return link.repost(id, receive, ctx.provider);
        };
        self.counters.llc_received += 1;
        let message = if length == LEN {
            Llc::parse(&head)
        } else {
            let tail = link.tail();
            let mut all = alloc::vec![0; length.min(LEN + tail.len())];
            all[..LEN].copy_from_slice(&head);
            // Cannot fail: the length is capped to the tail.
            let _ = tail.read(0, &mut all[LEN..]);
            Llc::parse(&all)
        };
        link.repost(id, receive, ctx.provider);
        match message {
            Ok(message) => self.handle_llc(group, at, message, ctx),
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Sends a message on a link. Returns false if the link has no room or does not exist.
    pub(super) fn send_llc<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        response: bool,
        body: Body,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Some(group) = self.groups.get_mut(group_key) else { return false };
        let order = group.order;
        let Some(link) = group.links.get_mut(at).and_then(Option::as_mut) else { return false };
        if link.pending.len() - link.cdc_under_way >= LLC_SLOTS {
            return false;
        }
        let bytes = Llc { version: group.version, response, order, body }.emit();
        let long = bytes.len() > LEN;
        let mut window = [drivers::hal::Window::empty()];
        let payload = if long {
            let free = link.long(bytes.len()).filter(|_| !link.long_under_way);
            let Some(memory) = free else { return false };
            if memory.write(0, &bytes).is_err() {
                return false;
            }
            window[0] = memory;
            Payload::Windows(&window)
        } else {
            Payload::Inline(&bytes)
        };
        let request = SendRequest {
            id: WorkId::new(group_key, at, link.next_send().into()).to_bits(),
            operation: SendOperation::Send { payload, with: SendWith::Nothing },
            signaled: true,
            solicited: true,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        if ctx.provider.post_send(link.qp, &request).is_err() {
            return false;
        }
        link.long_under_way |= long;
        link.pending.push_back(if long { Pending::LongLlc } else { Pending::Llc });
        self.counters.llc_sent += 1;
        true
    }

    /// Handles the completion of a link's SENDs, up to the one with this number.
    pub(super) fn handle_sent<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        send: u16,
        ctx: &mut Ctx<'_, P>,
    ) {
        while let Some(link) =
            self.groups.get_mut(group).and_then(|g| g.links.get_mut(at)?.as_mut())
            && let Some(pending) = link.take_arrived(send)
        {
            match pending {
                Pending::Cdc { socket, sent, seqno } => {
                    link.cdc_under_way -= 1;
                    let next = link.waiting.pop_front();
                    self.cdc_arrived(socket, sent, seqno, ctx);
                    if let Some(key) = next
                        && let Some(socket) = self.sockets.get_mut(key)
                    {
                        socket.waiting = false;
                        self.touch(key);
                    }
                }
                Pending::LongLlc => link.long_under_way = false,
                Pending::Confirmation => self.confirmation_arrived(group, at, ctx.now),
                Pending::Llc => {}
            }
        }
    }

    fn handle_llc<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        message: Llc,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        if matches!(group.state, GroupState::Ending(_)) {
            return;
        }
        if message.version != group.version {
            self.counters.malformed += 1;
            return;
        }
        group.order = message.order;
        #[cfg(test)]
        if self.ignore_delete_link && matches!(message.body, Body::DeleteLink { .. }) {
            return;
        }
        #[cfg(test)]
        if self.ignore_add_link && matches!(message.body, Body::AddLink(_)) {
            return;
        }
        if message.response {
            self.handle_response(group_key, at, message.body, ctx);
            return;
        }
        if !matches!(message.body, Body::ConfirmLink { .. }) {
            self.infer_confirmation_arrived(group_key, at, ctx.now);
        }
        match message.body {
            Body::ConfirmLink { link, no_eyecatcher, .. } => {
                self.handle_confirm_link(group_key, at, link, no_eyecatcher, ctx);
            }
            Body::AddLink(add) => self.handle_add_link(group_key, at, add, ctx),
            body @ Body::DeleteLink { .. } => self.handle_delete_link(group_key, at, &body, ctx),
            Body::ConfirmKey { token, others, .. } => {
                self.learn_keys(group_key, at, token, &others);
                let body = Body::ConfirmKey { token, others, negative: false, retry: false };
                self.send_llc(group_key, at, true, body, ctx);
            }
            Body::DeleteKey { keys, .. } => {
                let body = self.forget_keys(group_key, at, keys);
                self.send_llc(group_key, at, true, body, ctx);
            }
            Body::TestLink { data } => {
                self.send_llc(group_key, at, true, Body::TestLink { data }, ctx);
            }
            body @ Body::RequestAddLink { .. } => {
                self.handle_link_request(group_key, ctx);
                // An offer under way is the answer.
                if !matches!(self.groups[group_key].flow, Some((Flow::AddLink { .. }, _))) {
                    self.send_llc(group_key, at, true, body, ctx);
                }
            }
            Body::AddLinkContinue { link, keys, .. } => {
                self.handle_add_link_continue(group_key, at, link, &keys, ctx);
            }
        }
    }

    /// Handles the server's CONFIRM_LINK, the last step of a client's handshake.
    fn handle_confirm_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        number: u8,
        no_eyecatcher: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        if group.state == GroupState::Active {
            self.further_link_confirmed(group_key, at, ctx);
            return;
        }
        let (GroupState::Making(key), Role::Client) = (group.state, group.role) else { return };
        if self.sockets[key].phase() != Some(Phase::Link) {
            return;
        }
        if !no_eyecatcher {
            self.decline(key, Reason::RMBE_EYECATCHER, false, ctx);
            return;
        }
        let Some(link) = group.links[at].as_mut() else { return };
        if link.answers_confirm() {
            return;
        }
        link.number = number;
        if let Err(reason) = self.ready_to_send(group_key, at, ctx) {
            self.decline(key, reason, false, ctx);
            return;
        }
        self.send_confirm_link(group_key, at, true, ctx);
        let link = self.groups[group_key].links[at].as_mut();
        if let Some(last) = link.and_then(|link| link.pending.back_mut()) {
            *last = Pending::Confirmation;
        }
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.answered = true;
        }
        // A server that misses the response declines, and its Decline is still handled.
        let deadline = ctx.now + self.config.answer_wait;
        self.set_phase(key, Phase::Link, deadline);
    }

    /// As client: our response to the first CONFIRM_LINK is acknowledged. Only now is it certain that the server uses
    /// SMC-R: a server that misses the response declines.
    fn confirmation_arrived(&mut self, group_key: usize, at: usize, now: Instant) {
        let group = &self.groups[group_key];
        let (GroupState::Making(key), Role::Client) = (group.state, group.role) else { return };
        if self.sockets[key].phase() == Some(Phase::Link) {
            self.link_up(group_key, at);
            self.establish(key, now);
        }
    }

    /// As client: a message of the server after its CONFIRM_LINK also proves that our response has arrived, and may
    /// precede the acknowledgement.
    pub(super) fn infer_confirmation_arrived(&mut self, group_key: usize, at: usize, now: Instant) {
        let Some(group) = self.groups.get(group_key) else { return };
        if matches!(group.state, GroupState::Making(_))
            && group.links[at].as_ref().is_some_and(Link::answers_confirm)
        {
            self.confirmation_arrived(group_key, at, now);
        }
    }

    pub(super) fn link_up(&mut self, group: usize, at: usize) {
        if let Some(link) = self.groups[group].links[at].as_mut() {
            link.state = LinkState::Active;
        }
    }

    /// As server: sends CONFIRM_LINK and waits for the response.
    pub(super) fn confirm_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let deadline = ctx.now + self.config.confirm_wait.0;
        self.groups[group_key].flow = Some((Flow::ConfirmLink { link: at }, deadline));
        self.arm_group(group_key, deadline);
        self.send_confirm_link(group_key, at, false, ctx);
    }

    pub(super) fn send_confirm_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        response: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &self.groups[group_key];
        let Some(link) = group.links[at].as_ref() else { return };
        let body = Body::ConfirmLink {
            end: LinkEnd { mac: link.device.mac, gid: link.gid, qpn: link.qpn },
            link: link.number,
            uid: group.id << 8 | u32::from(link.number),
            max_links: group.max_links,
            max_conns: if group.version == 1 { 0 } else { group.max_conns },
            no_eyecatcher: true,
        };
        self.send_llc(group_key, at, response, body, ctx);
    }

    fn handle_response<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        body: Body,
        ctx: &mut Ctx<'_, P>,
    ) {
        match body {
            Body::ConfirmLink { no_eyecatcher, .. } => {
                let ours = |flow: &Flow| matches!(flow, Flow::ConfirmLink { link } if *link == at);
                if self.take_flow(group_key, ours).is_none() {
                    return;
                }
                let GroupState::Making(key) = self.groups[group_key].state else {
                    return self.further_link_up(group_key, at, ctx);
                };
                if !no_eyecatcher {
                    self.decline(key, Reason::RMBE_EYECATCHER, false, ctx);
                    return;
                }
                self.link_up(group_key, at);
                self.establish(key, ctx.now);
            }
            Body::ConfirmKey { token, negative, .. } => {
                let ours = |flow: &Flow| matches!(flow, Flow::ConfirmKey { rkey, .. } if *rkey == token.rkey);
                let confirmed = match self.take_flow(group_key, ours) {
                    Some(Flow::ConfirmKey { socket, .. }) => Some(socket),
                    // On a busy link the response may arrive when the next key is already being announced.
                    _ => self.member_with_key(group_key, token.rkey),
                };
                if let Some(socket) = confirmed {
                    self.handle_key_response(socket, !negative, ctx);
                }
            }
            Body::DeleteKey { .. } => {
                self.take_flow(group_key, |flow| matches!(flow, Flow::DeleteKey));
            }
            Body::AddLink(add) => {
                // Ignores a late response to an earlier offer of another queue pair.
                let numbers = self.numbers(group_key);
                let ours = |flow: &Flow| matches!(flow, &Flow::AddLink { link } if numbers[link] == Some(add.link));
                if let Some(Flow::AddLink { link }) = self.take_flow(group_key, ours) {
                    self.handle_add_link_response(group_key, at, link, &add, ctx);
                }
            }
            Body::AddLinkContinue { link, left, keys } => {
                self.keys_moved(group_key, at, link, left, &keys, ctx);
            }
            Body::DeleteLink { link, .. } => self.finish_delete_link(group_key, link, ctx),
            // Any received message completes a TEST_LINK.
            _ => {}
        }
        self.next_flow(group_key, ctx);
    }

    /// Handles the peer's CONFIRM_RKEY response for a socket's buffer.
    pub(super) fn handle_key_response<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        taken: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(socket) = self.socket_mut(id) else { return };
        let role = socket.role;
        let Some(handshake) = &mut socket.handshake else { return };
        if handshake.phase != Phase::Key {
            return;
        }
        if !taken {
            self.decline(id.key(), Reason::REGISTER_BUFFER, false, ctx);
            return;
        }
        let message = core::mem::take(&mut handshake.held_back);
        handshake.output.extend(message);
        self.announce(id.key(), Ready::CLC);
        let next = if role == Role::Server { Phase::Confirm } else { Phase::Done };
        self.clc_sent(id.key(), next, ctx);
    }

    /// Removes buffers of the peer, and returns the response.
    fn forget_keys(&mut self, group_key: usize, at: usize, mut keys: Vec<u32>) -> Body {
        let group = &mut self.groups[group_key];
        let (mut unknown, mut place) = (0u8, 0x80);
        for key in &mut keys {
            if !group.buffers.forget(at, *key) {
                unknown =
                    if group.version == 1 { unknown | place } else { unknown.wrapping_add(1) };
            }
            place >>= 1;
            if group.version > 1 {
                // As in Linux's response.
                *key = 0;
            }
        }
        Body::DeleteKey { keys, unknown, negative: unknown > 0 }
    }

    fn learn_keys(&mut self, group: usize, at: usize, token: Token, others: &[(u8, Token)]) {
        let group = &mut self.groups[group];
        let place = group.buffers.remember(at, token);
        for &(number, token) in others {
            let other = group
                .links
                .iter()
                .position(|link| link.as_ref().is_some_and(|link| link.number == number));
            if let Some(other) = other {
                group.buffers.set(place, other, Some(token));
            }
        }
    }

    /// Sends TEST_LINK, unless a test is under way.
    pub(super) fn test_link<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let deadline = ctx.now + self.config.llc_wait;
        let link = self.groups.get_mut(group).and_then(|g| g.links.get_mut(at)?.as_mut());
        let Some(link) = link.filter(|link| link.test.is_none()) else { return };
        link.test = Some(deadline);
        // Only messages received from now on count.
        link.last_rx = ctx.now;
        self.send_llc(group, at, false, Body::TestLink { data: [0; 16] }, ctx);
        self.arm_group(group, deadline);
    }

    /// Starts the next exchange of a group, if none is under way.
    pub(super) fn next_flow<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.flow.is_some() || group.state != GroupState::Active {
            return;
        }
        let deadline = ctx.now + self.config.llc_wait;
        let Some(at) = group.active_link() else { return };
        if group.pending_deletes.iter().all(Option::is_none)
            && core::mem::take(&mut group.wants_link)
        {
            return self.offer_link(group_key, at, ctx);
        }
        if let Some(socket) = group.new_keys.pop_front() {
            // The slot of a removed socket may belong to another host's socket.
            let link = self.socket(socket).map(|socket| socket.link);
            let token = link.and_then(|link| self.token_on(socket.key(), group_key, link));
            let (Some(link), Some(token)) = (link, token) else {
                return self.next_flow(group_key, ctx);
            };
            let others = self.keys_on_other_links(group_key, link, socket.key());
            let body = Body::ConfirmKey { token, others, negative: false, retry: false };
            self.groups[group_key].flow =
                Some((Flow::ConfirmKey { rkey: token.rkey, socket }, deadline));
            self.send_llc(group_key, link, false, body, ctx);
            if let Some(handshake) = self.socket_mut(socket).and_then(|it| it.handshake.as_mut()) {
                handshake.key_announced = true;
            }
        } else if !group.dead_keys.is_empty() {
            // The peer finds all keys of a buffer by one of them.
            let pd = group.links[at].as_ref().map(|link| link.pd);
            group.dead_keys.retain(|(of, _)| Some(*of) == pd);
            let count = group.dead_keys.len().min(V1_KEYS);
            let keys: Vec<u32> = group.dead_keys.drain(..count).map(|(_, rkey)| rkey).collect();
            if keys.is_empty() {
                return;
            }
            group.flow = Some((Flow::DeleteKey, deadline));
            let body = Body::DeleteKey { keys, unknown: 0, negative: false };
            self.send_llc(group_key, at, false, body, ctx);
        } else {
            return;
        }
        self.arm_group(group_key, deadline);
    }
}
