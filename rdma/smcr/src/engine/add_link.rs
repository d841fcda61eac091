//! Additional links of a group: ADD_LINK and the exchanges behind it (Linux 6.12, smc_llc.c). The server offers a link
//! if it has a second port. The client accepts if the link is an alternate path. After a loss the server repeats the
//! offer, and the client requests one, until the link is up again.

use super::config::Device;
use super::flow::Flow;
use super::server::is_host_gid;
use super::table::{GroupState, LINKS, Link, LinkState, PeerEnd, Phase, TOKENS};
use super::{Ctx, Engine, Role};
use crate::SmcDevice;
use crate::wire::llc::{AddLink, AddLinkV2, Body, DeleteReason, KeyMove, LinkEnd, Token};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use drivers::hal::Instant;

/// Rejection reason: no alternate path.
const NO_ALTERNATE_PATH: u8 = 1;
/// Most ADD_LINK_CONT messages after the first: each has two keys, and a peer at most 255.
const MAX_MOVES: u8 = 127;

impl Engine {
    /// Offers the client a link over another port than that of link `at`.
    pub(super) fn offer_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some((free, device)) = self.place_for_link(group_key, at) else { return };
        // The client's response has the MAC address of its other port.
        if self.make_link(group_key, free, device, [0; 6], ctx).is_err() {
            return;
        }
        let deadline = ctx.now + self.config.llc_wait;
        self.groups[group_key].flow = Some((Flow::AddLink { link: free }, deadline));
        self.arm_group(group_key, deadline);
        let body = match self.register_further(group_key, at, free, ctx) {
            true => self.describe_link(group_key, at, free),
            false => None,
        };
        if !body.is_some_and(|body| self.send_llc(group_key, at, false, body, ctx)) {
            // Another long message is under way, or a device has no room for its buffers: retry later.
            self.groups[group_key].flow = None;
            self.remove_link(group_key, free, ctx);
            self.schedule_link_attempt(group_key, ctx.now);
            return self.next_flow(group_key, ctx);
        }
        // The client may see the link before it reads an Accept: these keys are sent again.
        let members =
            self.groups[group_key].members.iter().filter_map(|&key| self.sockets.get(key));
        let accepted = members.filter(|socket| socket.phase() == Some(Phase::Confirm));
        let accepted: Vec<_> = accepted.map(|socket| socket.id).collect();
        self.groups[group_key].late_keys.extend(accepted);
    }

    /// A free link slot of a group, and a port that its link `at` does not use.
    fn place_for_link(&self, group: usize, at: usize) -> Option<(usize, Device)> {
        let group = self.groups.get(group)?;
        let used = &group.links.get(at)?.as_ref()?.device;
        let free = group.links.iter().position(Option::is_none)?;
        let other = self.devices.iter().find(|device| device.joins(used));
        // Version 1 does not negotiate the number of links: Linux waits for an offer, and rejects it if it has no other
        // port itself.
        let alone = group.active_links() < 2;
        let same = group.version == 1 && group.role == Role::Server && alone;
        Some((free, *other.or(same.then_some(used))?))
    }

    /// Our receive buffers of a group, with their keys on link `at` and on link `new`.
    fn key_moves(&self, group_key: usize, at: usize, new: usize) -> Vec<KeyMove> {
        let members = self.groups[group_key].members.iter();
        let keys = members.filter_map(|&key| {
            let known = self.token_on(key, group_key, at)?.rkey;
            Some(KeyMove { known, token: self.token_on(key, group_key, new)? })
        });
        keys.take(TOKENS).collect()
    }

    /// The ADD_LINK message for a new link, to be sent on link `at`.
    fn describe_link(&self, group_key: usize, at: usize, new: usize) -> Option<Body> {
        let group = self.groups.get(group_key)?;
        let link = group.links.get(new)?.as_ref()?;
        let target = group.links.iter().flatten().map(|link| link.peer.gid).next();
        let v2 = (group.version > 1).then(|| AddLinkV2 {
            direct: group.direct,
            target: target.unwrap_or(Ipv6Addr::UNSPECIFIED),
            keys: self.key_moves(group_key, at, new),
        });
        Some(Body::AddLink(AddLink {
            end: LinkEnd { mac: link.device.mac, gid: link.gid, qpn: link.qpn },
            link: link.number,
            path_mtu: link.path_mtu as u8,
            psn: link.psn,
            rejected: None,
            v2,
        }))
    }

    /// Handles the client's response to our offer of the link at `new`.
    pub(super) fn handle_add_link_response<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        answer: &AddLink,
        ctx: &mut Ctx<'_, P>,
    ) {
        let connected = answer.rejected.is_none()
            && self.connect_further(group_key, at, new, answer, ctx).is_some()
            && self.ready_to_send(group_key, new, ctx).is_ok();
        if !connected {
            self.remove_link(group_key, new, ctx);
        } else if self.groups[group_key].version > 1 {
            self.confirm_link(group_key, new, ctx);
        } else {
            self.groups[group_key].moves = self.key_moves(group_key, at, new);
            self.continue_key_exchange(group_key, at, new, MAX_MOVES, ctx);
        }
    }

    /// As server in version 1: sends the next keys for a new link.
    fn continue_key_exchange<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        link: usize,
        more: u8,
        ctx: &mut Ctx<'_, P>,
    ) {
        let deadline = ctx.now + self.config.llc_wait;
        self.groups[group_key].flow = Some((Flow::MoveKeys { link, more }, deadline));
        self.arm_group(group_key, deadline);
        self.send_add_link_continue(group_key, at, link, false, ctx);
    }

    /// Sends ADD_LINK_CONT.
    fn send_add_link_continue<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        response: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let Some(link) = group.links[new].as_ref().map(|link| link.number) else { return };
        let left = group.moves.len();
        let keys = group.moves.split_off(left.saturating_sub(2));
        let body = Body::AddLinkContinue { link, left: left as u8, keys };
        self.send_llc(group_key, at, response, body, ctx);
    }

    /// As client in version 1: stores the server's keys on a new link, and responds with ours.
    pub(super) fn handle_add_link_continue<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        number: u8,
        keys: &[KeyMove],
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let making = |link: &Option<Link>| {
            link.as_ref().is_some_and(|l| l.number == number && l.state == LinkState::Making)
        };
        if group.role == Role::Client
            && let Some(new) = group.links.iter().position(making)
        {
            group.buffers.learn_moves(at, new, keys);
            self.send_add_link_continue(group_key, at, new, true, ctx);
        }
    }

    /// As server in version 1: handles the client's response with keys; `left`: the client's remaining keys, including
    /// these.
    pub(super) fn keys_moved<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        number: u8,
        left: u8,
        keys: &[KeyMove],
        ctx: &mut Ctx<'_, P>,
    ) {
        let numbers = self.numbers(group_key);
        let ours = |flow: &Flow| matches!(flow, &Flow::MoveKeys { link, .. } if numbers[link] == Some(number));
        let Some(Flow::MoveKeys { link, more }) = self.take_flow(group_key, ours) else { return };
        let group = &mut self.groups[group_key];
        group.buffers.learn_moves(at, link, keys);
        if group.moves.is_empty() && usize::from(left) <= keys.len() {
            self.confirm_link(group_key, link, ctx);
        } else if more > 0 {
            self.continue_key_exchange(group_key, at, link, more - 1, ctx);
        } else {
            self.link_failed(group_key, link, ctx);
        }
    }

    /// The numbers of a group's links.
    pub(super) fn numbers(&self, group_key: usize) -> [Option<u8>; LINKS] {
        self.groups[group_key].links.each_ref().map(|link| link.as_ref().map(|link| link.number))
    }

    /// Schedules the next attempt to add a link, after a loss or a failed attempt.
    pub(super) fn schedule_link_attempt(&mut self, group_key: usize, now: Instant) {
        let first = self.config.remake.0;
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.max_links < 2 || group.state != GroupState::Active {
            return;
        }
        let pause = group.remake.map_or(first, |(_, pause)| pause);
        let at = now + pause;
        group.remake = Some((at, pause));
        self.arm_group(group_key, at);
    }

    /// Tries to re-establish a missing link, if an attempt is due.
    pub(super) fn remake_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        let Some((at, _)) = group.remake else { return };
        if ctx.now < at {
            return self.arm_group(group_key, at);
        }
        if group.active_links() > 1 {
            group.remake = None;
            return self.request_link(group_key, ctx);
        }
        if let Some((_, pause)) = &mut group.remake {
            *pause = (2 * *pause).min(self.config.remake.1);
        }
        self.schedule_link_attempt(group_key, ctx.now);
        self.request_link(group_key, ctx);
    }

    /// The peer requests another link: starts an attempt now, or once the one under way has failed.
    pub(super) fn handle_link_request<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.role == Role::Server && (group.active_links() < 2 || group.lacks_link()) {
            group.remake = None;
            self.schedule_link_attempt(group_key, ctx.now);
            self.request_link(group_key, ctx);
        }
    }

    /// Starts adding a second link: the server offers one, the client requests one.
    pub(super) fn request_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.max_links < 2 || !group.lacks_link() {
            return;
        }
        let Some(at) = group.active_link() else { return };
        if group.role == Role::Server {
            group.wants_link = true;
            return self.next_flow(group_key, ctx);
        }
        let Some(used) = group.links[at].as_ref() else { return };
        let (version, used) = (group.version, (used.gid, used.device.mac));
        let other = self.place_for_link(group_key, at);
        let other = other.map(|(_, device)| (device.gid(version), device.mac));
        let (gid, mac) = other.unwrap_or(used);
        let body = if version == 1 {
            // ADD_LINK with a port, but without a queue pair.
            let (end, link, path_mtu, psn) = (LinkEnd { mac, gid, qpn: 0 }, 0, 0, 0);
            Body::AddLink(AddLink { end, link, path_mtu, psn, rejected: None, v2: None })
        } else {
            // The server resolves the first GID.
            let mut gids = alloc::vec![gid];
            if other.is_some() {
                gids.push(used.0);
            }
            Body::RequestAddLink { gids }
        };
        self.send_llc(group_key, at, false, body, ctx);
    }

    /// Connects a new link to the peer's end, and stores the peer's keys on it.
    fn connect_further<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        add: &AddLink,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<()> {
        let group = &mut self.groups[group_key];
        if !is_host_gid(group.version, add.end.gid) {
            return None;
        }
        group.links[new].as_mut()?.mac = add.end.mac;
        let end = PeerEnd { gid: add.end.gid, qpn: add.end.qpn };
        self.connect_link(group_key, new, end, add.psn, add.path_mtu, ctx).ok()?;
        if let Some(v2) = &add.v2 {
            self.groups[group_key].buffers.learn_moves(at, new, &v2.keys);
        }
        Some(())
    }

    /// Handles ADD_LINK.
    pub(super) fn handle_add_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        add: AddLink,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.groups[group_key].role == Role::Server {
            // A client requests a link in this way when its port is up again.
            return self.handle_link_request(group_key, ctx);
        }
        let body = match self.accept_link(group_key, at, &add, ctx) {
            Some(body) => body,
            None => Body::AddLink(AddLink { rejected: Some(NO_ALTERNATE_PATH), v2: None, ..add }),
        };
        self.send_llc(group_key, at, true, body, ctx);
        self.next_flow(group_key, ctx);
    }

    /// Creates our end of an offered link. Returns None if the link is no alternate path.
    fn accept_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        add: &AddLink,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Body> {
        let group = self.groups.get(group_key)?;
        let present = group.links.get(at)?.as_ref()?;
        if group.role != Role::Client || self.config.max_links < 2 || !group.lacks_link() {
            return None;
        }
        let elsewhere = add.end.gid != present.peer.gid;
        let (device, free) = (present.device, group.links.iter().position(Option::is_none)?);
        let (new, device) = match self.place_for_link(group_key, at) {
            Some(place) => place,
            // The same local port, but another port of the peer.
            None if elsewhere => (free, device),
            None => return None,
        };
        // Replaces a link that shares a port with another: the new one must share none with the remaining one.
        let there = add.end.gid;
        let mut links = group.links.iter().flatten();
        if links.clone().count() > 1 && !links.any(|link| link.is_apart(device.ip, there)) {
            return None;
        }
        self.make_link(group_key, new, device, add.end.mac, ctx).ok()?;
        if let Some(link) = self.groups[group_key].links[new].as_mut() {
            link.number = add.link;
        }
        self.arm_group(group_key, ctx.now);
        if self.connect_further(group_key, at, new, add, ctx).is_none()
            || !self.register_further(group_key, at, new, ctx)
        {
            self.remove_link(group_key, new, ctx);
            // The device may have room for our buffers later.
            self.schedule_link_attempt(group_key, ctx.now);
            return None;
        }
        if self.groups[group_key].version == 1 {
            self.groups[group_key].moves = self.key_moves(group_key, at, new);
        }
        self.describe_link(group_key, at, new)
    }

    /// Handles the server's CONFIRM_LINK on an additional link.
    pub(super) fn further_link_confirmed<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let group = &self.groups[group_key];
        let making = group.links[at].as_ref().is_some_and(|l| l.state == LinkState::Making);
        if group.role != Role::Client || !making {
            return;
        }
        if self.ready_to_send(group_key, at, ctx).is_ok() {
            self.send_confirm_link(group_key, at, true, ctx);
            self.further_link_up(group_key, at, ctx);
        }
    }

    /// An additional link is up: sends the keys of sockets that joined meanwhile.
    pub(super) fn further_link_up<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.link_up(group_key, at);
        let group = &mut self.groups[group_key];
        group.remake = None;
        group.new_keys.extend(group.late_keys.drain(..));
        if group.role == Role::Client {
            // A server adds no link before it has finished its deletions.
            group.pending_deletes = [None; LINKS];
        }
        if group.role == Role::Server
            && let Some(old) = group.superfluous_link()
            && let Some(link) = &mut group.links[old]
        {
            link.state = LinkState::Leaving;
            let number = link.number;
            self.move_connections(group_key, old, at, false, ctx);
            self.begin_delete_link(group_key, number, DeleteReason::ASYMMETRIC, ctx);
        }
        self.call_back(group_key, at);
        self.next_flow(group_key, ctx);
    }

    /// Keys of a socket on the links other than `at`, by link number.
    pub(super) fn keys_on_other_links(
        &self,
        group: usize,
        at: usize,
        socket: usize,
    ) -> Vec<(u8, Token)> {
        let Some(found) = self.groups.get(group) else { return Vec::new() };
        let others = found.links.iter().enumerate().filter(|&(n, _)| n != at);
        let tokens = others.filter_map(|(n, link)| {
            Some((link.as_ref()?.number, self.token_on(socket, group, n)?))
        });
        tokens.collect()
    }
}
