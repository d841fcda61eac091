//! Further links of a group: ADD_LINK, and what follows it (Linux 6.12, smc_llc.c). The server
//! offers one where it has a second port; the client takes it where that makes another path. When
//! one is lost, the server offers it anew and the client asks for it, until it is there again.

use super::config::Device;
use super::flow::Flow;
use super::server::is_host_gid;
use super::table::{GroupState, LINKS, Link, LinkState, PeerEnd, Phase, TOKENS};
use super::{Engine, EngineContext, Role};
use crate::wire::llc::{AddLink, AddLinkV2, Body, DeleteReason, KeyMove, LinkEnd, Token};
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use drivers::hal::Instant;
use verbs::Provider;

/// Why a link is refused: there is no other path.
const NO_ALTERNATE_PATH: u8 = 1;
/// Most ADD_LINK_CONT messages behind the first: who has 255 keys tells two in each.
const MAX_MOVES: u8 = 127;

impl Engine {
    /// Offers the client a link over another port than that of link `at`.
    pub(super) fn offer_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some((free, device)) = self.place_for_link(group_key, at) else { return };
        // The way to the peer's other port is told by its answer.
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
            // Another long message is under way, or a device has no room for its buffers: later.
            self.groups[group_key].flow = None;
            self.remove_link(group_key, free, ctx);
            self.link_missing(group_key, ctx.now);
            return self.next_flow(group_key, ctx);
        }
        // The client may hear of the link before it has read an Accept: it is told those keys again.
        let members =
            self.groups[group_key].members.iter().filter_map(|&key| self.sockets.get(key));
        let accepted = members.filter(|socket| socket.phase() == Some(Phase::Confirm));
        let accepted: Vec<_> = accepted.map(|socket| socket.id).collect();
        self.groups[group_key].late_keys.extend(accepted);
    }

    /// A free place in a group, and a port that its link `at` does not use.
    fn place_for_link(&self, group: usize, at: usize) -> Option<(usize, Device)> {
        let group = self.groups.get(group)?;
        let used = &group.links.get(at)?.as_ref()?.device;
        let free = group.links.iter().position(Option::is_none)?;
        let other = self.devices.iter().find(|device| device.joins(used));
        // In version 1 nobody said how many links there will be: Linux waits for an offer, and refuses
        // it if it has no other port itself.
        let alone = group.active_links() < 2;
        let same = group.version == 1 && group.role == Role::Server && alone;
        Some((free, *other.or(same.then_some(used))?))
    }

    /// Our buffers of a group, with their keys on a link, and on a new one.
    fn key_moves(&self, group_key: usize, at: usize, new: usize) -> Vec<KeyMove> {
        let members = self.groups[group_key].members.iter();
        let keys = members.filter_map(|&key| {
            let known = self.token_on(key, group_key, at)?.rkey;
            Some(KeyMove { known, token: self.token_on(key, group_key, new)? })
        });
        keys.take(TOKENS).collect()
    }

    /// A new link, as ADD_LINK tells it on link `at`.
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

    /// The client has answered our offer of the link at `new`.
    pub(super) fn link_answered<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        answer: &AddLink,
        ctx: &mut EngineContext<'_, P>,
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
            self.move_keys(group_key, at, new, MAX_MOVES, ctx);
        }
    }

    /// As server in version 1: tells the next of our keys on a new link.
    fn move_keys<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        link: usize,
        more: u8,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let deadline = ctx.now + self.config.llc_wait;
        self.groups[group_key].flow = Some((Flow::MoveKeys { link, more }, deadline));
        self.arm_group(group_key, deadline);
        self.tell_moves(group_key, at, link, false, ctx);
    }

    /// Says ADD_LINK_CONT.
    fn tell_moves<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        response: bool,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let Some(link) = group.links[new].as_ref().map(|link| link.number) else { return };
        let left = group.moves.len();
        let keys = group.moves.split_off(left.saturating_sub(2));
        let body = Body::AddLinkContinue { link, left: left as u8, keys };
        self.send_llc(group_key, at, response, body, ctx);
    }

    /// As client in version 1: the server tells its keys on a new link, and hears ours.
    pub(super) fn handle_moved_keys<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        number: u8,
        keys: &[KeyMove],
        ctx: &mut EngineContext<'_, P>,
    ) {
        let group = &mut self.groups[group_key];
        let making = |link: &Option<Link>| {
            link.as_ref().is_some_and(|l| l.number == number && l.state == LinkState::Making)
        };
        if group.role == Role::Client
            && let Some(new) = group.links.iter().position(making)
        {
            group.buffers.learn_moves(at, new, keys);
            self.tell_moves(group_key, at, new, true, ctx);
        }
    }

    /// As server in version 1: the client has answered with some of its keys, of which `left` were left.
    pub(super) fn keys_moved<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        number: u8,
        left: u8,
        keys: &[KeyMove],
        ctx: &mut EngineContext<'_, P>,
    ) {
        let numbers = self.numbers(group_key);
        let ours = |flow: &Flow| matches!(flow, &Flow::MoveKeys { link, .. } if numbers[link] == Some(number));
        let Some(Flow::MoveKeys { link, more }) = self.take_flow(group_key, ours) else { return };
        let group = &mut self.groups[group_key];
        group.buffers.learn_moves(at, link, keys);
        if group.moves.is_empty() && usize::from(left) <= keys.len() {
            self.confirm_link(group_key, link, ctx);
        } else if more > 0 {
            self.move_keys(group_key, at, link, more - 1, ctx);
        } else {
            self.link_failed(group_key, link, ctx);
        }
    }

    /// The numbers of a group's links.
    pub(super) fn numbers(&self, group_key: usize) -> [Option<u8>; LINKS] {
        self.groups[group_key].links.each_ref().map(|link| link.as_ref().map(|link| link.number))
    }

    /// A group has lost a link, or its second one did not come about: another attempt is due.
    pub(super) fn link_missing(&mut self, group_key: usize, now: Instant) {
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

    /// Tries to make a link that is missing, if that is due.
    pub(super) fn remake_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        let Some((at, _)) = group.remake else { return };
        if ctx.now < at {
            return self.arm_group(group_key, at);
        }
        if group.active_links() > 1 {
            group.remake = None;
            return self.want_link(group_key, ctx);
        }
        if let Some((_, pause)) = &mut group.remake {
            *pause = (2 * *pause).min(self.config.remake.1);
        }
        self.link_missing(group_key, ctx.now);
        self.want_link(group_key, ctx);
    }

    /// The peer says that there can be another link: now, or once an attempt under way has failed.
    pub(super) fn invited<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.role == Role::Server && (group.active_links() < 2 || group.lacks_link()) {
            group.remake = None;
            self.link_missing(group_key, ctx.now);
            self.want_link(group_key, ctx);
        }
    }

    /// Has a second link made: by an offer of the server's, for which a client asks.
    pub(super) fn want_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        ctx: &mut EngineContext<'_, P>,
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
            // An offer of nothing but a port.
            let (end, link, path_mtu, psn) = (LinkEnd { mac, gid, qpn: 0 }, 0, 0, 0);
            Body::AddLink(AddLink { end, link, path_mtu, psn, rejected: None, v2: None })
        } else {
            // The server looks for a way to the first.
            let mut gids = alloc::vec![gid];
            if other.is_some() {
                gids.push(used.0);
            }
            Body::RequestAddLink { gids }
        };
        self.send_llc(group_key, at, false, body, ctx);
    }

    /// Connects a new link with the end that the peer tells, and learns its keys there.
    fn connect_further<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        new: usize,
        add: &AddLink,
        ctx: &mut EngineContext<'_, P>,
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

    /// The server offers a link.
    pub(super) fn handle_add_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        add: AddLink,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.groups[group_key].role == Role::Server {
            // A client whose port is back says so in this way.
            return self.invited(group_key, ctx);
        }
        let body = match self.take_link(group_key, at, &add, ctx) {
            Some(body) => body,
            None => Body::AddLink(AddLink { rejected: Some(NO_ALTERNATE_PATH), v2: None, ..add }),
        };
        self.send_llc(group_key, at, true, body, ctx);
        self.next_flow(group_key, ctx);
    }

    /// Makes our end of a link that the server offers; None if that is no other path.
    fn take_link<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        add: &AddLink,
        ctx: &mut EngineContext<'_, P>,
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
            // The same port here, but another there.
            None if elsewhere => (free, device),
            None => return None,
        };
        // In the place of a link that shares a port: one that shares none with the other.
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
            // A device that has no room for our buffers now may have later.
            self.link_missing(group_key, ctx.now);
            return None;
        }
        if self.groups[group_key].version == 1 {
            self.groups[group_key].moves = self.key_moves(group_key, at, new);
        }
        self.describe_link(group_key, at, new)
    }

    /// The server says CONFIRM_LINK on a further link.
    pub(super) fn further_link_confirmed<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut EngineContext<'_, P>,
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

    /// A further link stands: keys of those who came meanwhile are told on it.
    pub(super) fn further_link_up<P: Provider + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.link_up(group_key, at);
        let group = &mut self.groups[group_key];
        group.remake = None;
        group.new_keys.extend(group.late_keys.drain(..));
        if group.role == Role::Client {
            // A server makes no link before it is done with those that went.
            group.farewells = [None; LINKS];
        }
        if group.role == Role::Server
            && let Some(old) = group.superfluous_link()
            && let Some(link) = &mut group.links[old]
        {
            link.state = LinkState::Leaving;
            let number = link.number;
            self.move_connections(group_key, old, at, ctx);
            self.say_farewell(group_key, number, DeleteReason::ASYMMETRIC, ctx);
        }
        self.next_flow(group_key, ctx);
    }

    /// Keys of sockets on other links than `at`, by the numbers of those links.
    pub(super) fn others_of(&self, group: usize, at: usize, socket: usize) -> Vec<(u8, Token)> {
        let Some(found) = self.groups.get(group) else { return Vec::new() };
        let others = found.links.iter().enumerate().filter(|&(n, _)| n != at);
        let told = others.filter_map(|(n, link)| {
            Some((link.as_ref()?.number, self.token_on(socket, group, n)?))
        });
        told.collect()
    }
}
