//! Link groups: creation, membership of sockets, and end.

use super::config::{Device, address_of};
use super::flow::Flow;
use super::handshake::Refusal;
use super::peer_buffers::PeerBuffers;
use super::table::{Group, GroupState, LINKS, LinkState, Phase, RECEIVES};
use super::{Ctx, Engine, Input, Notice, Ready, Role};
use crate::SmcDevice;
use crate::wire::llc::{Body, DeleteReason, Order, Token};
use crate::wire::{AcceptConfirm, Eid, PeerId, Reason, rmbe_bytes};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Neighbours;
use net::Resolution;

/// How long the queue pairs of a group remain after DELETE_LINK for all links was sent.
const ENDING_TIME: Duration = Duration::from_millis(250);
/// Age after which a first contact may be evicted: some ten round trips, on a busy host.
const STALLED: Duration = Duration::from_secs(1);

/// Parameters of a new group.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewGroup {
    pub role: Role,
    pub socket: usize,
    pub version: u8,
    pub peer_id: PeerId,
    pub peer_gid: Ipv6Addr,
    /// Version 1: the peer's MAC address.
    pub peer_mac: [u8; 6],
    pub device: Device,
    pub eid: Eid,
    pub release: u8,
    pub max_conns: u8,
    pub max_links: u8,
}

impl Engine {
    /// Resolves the MAC address of the peer of a new group. Returns None while resolution is pending.
    pub(super) fn resolve_peer<P: SmcDevice + ?Sized>(
        &self,
        new: &NewGroup,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Option<[u8; 6]>, Refusal> {
        // In version 1 the peer also sends its MAC address. It must match that of its GID, or the neighbour table.
        let is_said = |mac: [u8; 6]| new.version > 1 || mac == new.peer_mac;
        if let Some(mac) = net::mac_of_link_local(new.peer_gid).filter(|_| new.version == 1) {
            let found = Some(mac).filter(|mac| is_said(*mac));
            return found.map(Some).ok_or(Refusal::Decline(Reason::NO_ROUTE));
        }
        match neighbours.resolve(address_of(new.peer_gid), ctx.now) {
            Resolution::Known(mac) if is_said(mac) => Ok(Some(mac)),
            Resolution::Known(_) => Err(Refusal::Decline(Reason::NO_ROUTE)),
            Resolution::Pending => Ok(None),
            Resolution::Unreachable | Resolution::NoRoute => {
                Err(Refusal::Decline(Reason::NO_ROUTE))
            }
        }
    }

    /// Creates a group with one link, which is not connected yet.
    pub(super) fn make_group<P: SmcDevice + ?Sized>(
        &mut self,
        new: &NewGroup,
        mac: [u8; 6],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, Refusal> {
        let no_memory = Refusal::Decline(Reason::MEMORY);
        let remote = self.sockets[new.socket].remote;
        let may = self.may_have_group(remote, ctx)
            && (self.groups.len() < self.config.max_groups || self.make_room(ctx));
        if !may {
            return Err(no_memory);
        }
        let pd = ctx.provider.alloc_pd().map_err(|_| no_memory)?;
        let id = self.next_group;
        self.next_group = self.next_group.wrapping_add(1).max(1);
        let key = self.groups.insert(Group {
            id,
            role: new.role,
            state: GroupState::Making(new.socket),
            peer_id: new.peer_id,
            peer_name: new.peer_id,
            peer_gid: new.peer_gid,
            peer_mac: new.peer_mac,
            remote,
            version: new.version,
            eid: new.eid,
            release: new.release,
            direct: true,
            max_conns: new.max_conns,
            max_links: new.max_links,
            order: Order::default(),
            pd,
            links: [const { None }; LINKS],
            next_link: 1,
            members: Vec::new(),
            idle: None,
            retained: Vec::new(),
            is_retiring: false,
            buffers: PeerBuffers::default(),
            flow: None,
            wants_link: false,
            moves: Vec::new(),
            pending_deletes: [None; LINKS],
            remake: None,
            dead_keys: Vec::new(),
            new_keys: VecDeque::new(),
            late_keys: Vec::new(),
        });
        self.hosts.entry(remote).or_default().groups.push(key);
        if self.make_link(key, 0, new.device, mac, ctx).is_err() {
            self.drop_group(key, ctx);
            return Err(no_memory);
        }
        if let Some(handshake) = &mut self.sockets[new.socket].handshake {
            handshake.first_contact = true;
        }
        Ok(key)
    }

    /// Evicts the group that has been idle longest; without one, the oldest first contact, if it is stalled. Returns
    /// whether a group was evicted.
    fn make_room<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> bool {
        let ending = |group: &Group| matches!(group.state, GroupState::Ending(_));
        let idle = |(key, group): (usize, &Group)| {
            let since = if ending(group) { Some(Instant::ZERO) } else { group.idle };
            since.map(|since| (since, key))
        };
        if let Some((_, key)) = self.groups.iter().filter_map(idle).min() {
            self.drop_group(key, ctx);
            return true;
        }
        let stalled = |(_, group): (usize, &Group)| {
            let GroupState::Making(socket) = group.state else { return None };
            let opened = self.sockets.get(socket)?.handshake.as_ref()?.opened;
            (opened + STALLED <= ctx.now).then_some((opened, socket))
        };
        let Some((_, socket)) = self.groups.iter().filter_map(stalled).min() else { return false };
        self.decline(socket, Reason::MEMORY, false, ctx);
        true
    }

    /// Adds a socket to a group, and registers its receive buffer.
    pub(super) fn join<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        group_key: usize,
        link: usize,
        first_contact: bool,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refusal> {
        let code = self.sockets[key].sizes.receive;
        let size = rmbe_bytes(code);
        let group = &self.groups[group_key];
        let pd = self.pd_of(group_key, link).unwrap_or(group.pd);
        let remote = self.sockets[key].remote;
        let may = self.may_have_buffer(remote, size.into());
        let Some(region) = may.then(|| self.register_buffer(pd, code, ctx)).flatten() else {
            if first_contact {
                self.drop_group(group_key, ctx);
            }
            return Err(Refusal::Decline(Reason::MEMORY));
        };
        self.note_buffer(remote, size.into());
        let group = &mut self.groups[group_key];
        let member = group.members.len();
        group.members.push(key);
        group.idle = None;
        let socket = &mut self.sockets[key];
        socket.member = member;
        socket.group = Some(group_key);
        socket.link = link;
        (socket.rmb, socket.rmb_pd) = (Some(region), pd);
        socket.rmb_size = size;
        match self.register_on_links(key, group_key, ctx) {
            true => Ok(()),
            false => Err(Refusal::Decline(Reason::MEMORY)),
        }
    }

    /// Stores the peer's token and receive buffer from its Accept or Confirm.
    pub(super) fn learn_peer(&mut self, key: usize, of: &AcceptConfirm) -> Result<(), Refusal> {
        let size = rmbe_bytes(of.rmbe_size);
        let offset = u64::from(of.rmbe_index - 1) * u64::from(size);
        let Some(address) = of.address.checked_add(offset) else { return Err(Refusal::Broken) };
        if address.checked_add(u64::from(size)).is_none() {
            return Err(Refusal::Broken);
        }
        let socket = &mut self.sockets[key];
        socket.peer.size = size;
        socket.peer.rkey = of.rkey;
        socket.peer.address = address;
        socket.peer.offset = offset;
        socket.peer.token = of.token;
        let link = socket.link;
        if let Some(group) = socket.group.and_then(|group| self.groups.get_mut(group)) {
            group.buffers.remember(link, Token { rkey: of.rkey, address: of.address });
        }
        Ok(())
    }

    pub(super) fn set_phase(&mut self, key: usize, phase: Phase, deadline: Instant) {
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.phase = phase;
            handshake.deadline = deadline;
        }
        self.arm_socket(key, deadline);
    }

    /// Sends an Accept or Confirm: at once on a group with one link, otherwise when the peer knows the buffer's keys on
    /// all links. Waits for a link that is being added, as Linux does: a peer without the buffer's key on the remaining
    /// link writes to a wrong address (Linux: key 0), and loses that link, too. In version 1 the key is always sent
    /// first: RFC 7609 requires that, though Linux does without.
    pub(super) fn send_when_key_known<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        message: AcceptConfirm,
        next: Phase,
        ctx: &mut Ctx<'_, P>,
    ) {
        let socket = &mut self.sockets[key];
        let (id, group_key) = (socket.id, socket.group);
        let Some(handshake) = &mut socket.handshake else { return };
        let message = message.emit();
        if let Some(group_key) = group_key.filter(|_| !handshake.first_contact)
            && let Some(group) = self.groups.get_mut(group_key)
        {
            let adds = group.links.iter().flatten().any(|link| link.state == LinkState::Making);
            if group.active_links() > 1 || adds || group.version == 1 {
                handshake.held_back = message;
                if adds && group.active_links() < 2 {
                    group.late_keys.push(id);
                } else {
                    group.new_keys.push_back(id);
                }
                let deadline = ctx.now + self.config.key_wait;
                self.set_phase(key, Phase::Key, deadline);
                self.next_flow(group_key, ctx);
                return;
            }
        }
        handshake.output.extend(message);
        self.announce(key, Ready::CLC);
        self.clc_sent(key, next, ctx);
    }

    /// Enters the phase behind an Accept or Confirm.
    pub(super) fn clc_sent<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        next: Phase,
        ctx: &mut Ctx<'_, P>,
    ) {
        let first = self.sockets[key].handshake.as_ref().is_some_and(|hs| hs.first_contact);
        let timeout = match next {
            Phase::Link => self.config.confirm_wait.1,
            Phase::Confirm if !first => self.config.late_confirm_wait,
            _ => self.config.clc_wait,
        };
        self.set_phase(key, next, ctx.now + timeout);
        if next == Phase::Done {
            self.establish(key, ctx.now);
        }
    }

    /// The first link of a group is confirmed.
    pub(super) fn group_up(&mut self, key: usize, now: Instant) {
        let group = &mut self.groups[key];
        group.state = GroupState::Active;
        // Linux waits for a second link that was negotiated.
        group.wants_link = group.role == Role::Server && group.max_links > 1;
        let (role, peer, peer_id) = (group.role, group.peer(), group.peer_name);
        let remote = group.remote;
        self.notice(Notice::GroupUp { role, peer, peer_id });
        self.arm_group(key, now);
        self.wake_held(remote, now);
    }

    /// Ends a group because the peer violated the protocol.
    pub(super) fn violation<P: SmcDevice + ?Sized>(&mut self, group: usize, ctx: &mut Ctx<'_, P>) {
        self.counters.violations += 1;
        self.end_group(group, DeleteReason::VIOLATION, false, ctx);
    }

    /// Ends a group and all its connections, and sends DELETE_LINK for all links. `by_peer` is for the log.
    pub(super) fn end_group<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: DeleteReason,
        by_peer: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if matches!(group.state, GroupState::Ending(_)) {
            return;
        }
        let was_up = group.state == GroupState::Active;
        let orderly = group.members.is_empty() && reason == DeleteReason::PROGRAM;
        let until = ctx.now + ENDING_TIME;
        group.state = GroupState::Ending(until);
        group.flow = None;
        let (role, peer) = (group.role, group.peer());
        let link = group.active_link();
        if was_up {
            self.notice(Notice::GroupDown { role, peer, reason, by_peer });
        }
        self.leave_all(key, ctx);
        if let Some(remote) = self.groups.get(key).map(|group| group.remote) {
            self.wake_held(remote, ctx.now);
        }
        if let Some(link) = link {
            let body = Body::DeleteLink { link: 0, all: true, orderly, reason };
            self.send_llc(key, link, false, body, ctx);
        }
        self.arm_group(key, until);
    }

    /// Removes all sockets from a group.
    fn leave_all<P: SmcDevice + ?Sized>(&mut self, group: usize, ctx: &mut Ctx<'_, P>) {
        for key in self.members(group) {
            let Some(socket) = self.sockets.get_mut(key) else { continue };
            if socket.group != Some(group) {
                continue;
            }
            if socket.established {
                self.lose(key, ctx);
            } else {
                let role = socket.role;
                // The caller removes the group.
                let mut answered = false;
                if let Some(handshake) = &mut socket.handshake {
                    handshake.first_contact = false;
                    answered = handshake.answered;
                }
                match role {
                    Role::Server if self.awaits_confirm(key) => self.give_back(key, ctx),
                    Role::Server => self.decline(key, Reason::NO_ACTIVE_LINK, false, ctx),
                    Role::Client if answered => self.fail(key, ctx),
                    Role::Client => self.decline(key, Reason::READY_LINK, false, ctx),
                }
            }
        }
    }

    /// Ends a socket that has lost its last link.
    pub(super) fn lose<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        self.counters.aborted += 1;
        self.apply(key, Input::LinksLost);
        self.give_back(key, ctx);
        self.sockets[key].in_flight = 0;
        self.announce(key, Ready::ABORTED | Ready::CLOSED);
        self.reap(key, ctx);
    }

    /// Removes a group, and frees its queue pairs and memory.
    pub(super) fn drop_group<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        if !self.groups.contains(key) {
            return;
        }
        self.leave_all(key, ctx);
        let mut group = self.groups.remove(key);
        self.timers.groups.forget(key);
        self.forget_group(group.remote, key);
        self.wake_held(group.remote, ctx.now);
        for link in group.links.iter_mut().filter_map(Option::take) {
            // Cannot fail: the queue pair exists until here, and has no connection manager.
            let _ = ctx.provider.destroy_qp(link.qp);
            ctx.arena.free(link.memory);
        }
        self.release_retained(&group.retained, ctx);
        // Cannot fail: the domain has no region and no queue pair any more.
        let _ = ctx.provider.dealloc_pd(group.pd);
    }

    /// Ends the flow of a group and returns it, if it matches `is`.
    pub(super) fn take_flow(&mut self, group: usize, is: impl Fn(&Flow) -> bool) -> Option<Flow> {
        let group = self.groups.get_mut(group)?;
        match &group.flow {
            Some((flow, _)) if is(flow) => group.flow.take().map(|(flow, _)| flow),
            _ => None,
        }
    }
}

const _: () = assert!(RECEIVES >= 3 * super::table::CDC_SLOTS);
