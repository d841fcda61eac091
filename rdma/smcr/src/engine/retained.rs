//! Receive buffers that outlive their socket. A peer with our Accept or Confirm may write at any time. A WRITE with a
//! revoked key fails its queue pair, and with it every connection of the link group. So an offered buffer stays
//! registered under its key until the peer releases it: the peer sends CLOSED or ABORT for the connection, declines, or
//! the group's queue pairs are destroyed. Linux keeps buffers as long as the group.
//!
//! Retained buffers are bounded: each counts as a connection of the link group and of the host
//! ([`crate::admission::Admission`]). A group with retained buffers but without connections ends soon.

use super::buffers::put_back;
use super::devices::SecondaryRegion;
use super::ids::SocketId;
use super::table::{GroupState, Socket, TOKENS};
use super::{Ctx, Engine, Role};
use crate::SmcDevice;
use crate::wire::cdc::Cdc;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Window;
use verbs::{PdId, Region};

/// How long a group with retained buffers is kept without connections.
const KEEP: Duration = Duration::from_secs(30);
/// Number of retained buffers at which a group accepts no more connections: a peer that leaves that many behind may
/// have lost track of them.
const MAX_RETAINED: usize = 32;

/// A receive buffer with its registrations at all devices.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// The host that the buffer was offered to, if it is registered, and the buffer's bytes.
    host: Option<(IpAddr, u64)>,
    first: Option<(PdId, Region)>,
    secondary_regions: alloc::vec::Vec<SecondaryRegion>,
}

impl Buffer {
    /// Moves the buffer out of a socket.
    pub fn take_from(socket: &mut Socket) -> Buffer {
        let pd = socket.rmb_pd;
        let first = socket.rmb.take().map(|region| (pd, region));
        let host = first.map(|_| (socket.remote, socket.rmb_size.into()));
        Buffer { host, first, secondary_regions: core::mem::take(&mut socket.secondary_regions) }
    }

    /// Its keys, with the protection domains of the devices.
    pub fn keys(&self) -> impl Iterator<Item = (PdId, u32)> + '_ {
        let first = self.first.iter().map(|(pd, region)| (*pd, region.rkey));
        first.chain(self.secondary_regions.iter().map(|one| (one.pd, one.region.rkey)))
    }

    /// Revokes the keys, then frees the memory.
    fn release<P: SmcDevice + ?Sized>(self, ctx: &mut Ctx<'_, P>) {
        for one in self.secondary_regions {
            let _ = ctx.provider.deregister(one.region.id);
        }
        let Some((_, region)) = self.first else { return };
        // The provider also holds memory of bytes that the peer has written but not announced.
        let lazy = ctx.provider.take_on_demand_memory(region.id);
        // Cannot fail: the region is registered until here.
        let _ = ctx.provider.deregister(region.id);
        match lazy {
            Some(memory) => put_back(memory, ctx),
            None if !region.memory.is_empty() => ctx.arena.free(region.memory),
            None => {}
        }
    }
}

/// Buffers of a removed socket.
#[derive(Debug)]
pub(super) struct Retained {
    group: usize,
    buffer: Buffer,
    /// Send buffer, because WRITEs may be retransmitted from it.
    sends: Option<Window>,
    /// The host whose share of connections includes this one.
    counted: Option<IpAddr>,
}

impl Engine {
    /// Whether the handshake of a socket has gone so far that the peer may use SMC-R, or be about to. Such a handshake
    /// must be finished, not aborted.
    pub fn is_committed(&self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|socket| {
            !socket.established
                && socket.group.is_some()
                && socket.handshake.as_ref().is_some_and(|hs| hs.offered)
        })
    }

    /// Number of retained receive buffers.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }

    /// Releases a socket's memory and its membership in the group, or retains its buffers.
    pub(super) fn give_back<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let Engine { sockets, groups, spare, .. } = self;
        let socket = &mut sockets[key];
        let offered = socket.established || socket.handshake.as_ref().is_some_and(|hs| hs.offered);
        let peer_released = !offered || socket.rx_end.is_closed() && !socket.end_missed;
        let key_known =
            socket.peer.size > 0 || socket.handshake.as_ref().is_some_and(|hs| hs.key_announced);
        let mut sends = socket.buffer.take();
        if socket.in_flight == 0
            && let Some(buffer) = sends.take()
        {
            spare.put(buffer, ctx);
        }
        let (id, role, remote, member) = (socket.id, socket.role, socket.remote, socket.member);
        let buffer = Buffer::take_from(socket);
        let group_key = socket.group.take();
        let Some((group_key, group)) = group_key.and_then(|at| Some((at, groups.get_mut(at)?)))
        else {
            // The group is gone, and its queue pairs with it.
            if let Some(sends) = sends {
                ctx.arena.free(sends);
            }
            return self.release(buffer, ctx);
        };
        group.members.swap_remove(member);
        if let Some(&moved) = group.members.get(member) {
            sockets[moved].member = member;
        }
        if peer_released && sends.is_none() {
            if key_known {
                group.dead_keys.extend(buffer.keys());
            }
            self.release(buffer, ctx);
        } else {
            let is_over = matches!(group.state, GroupState::Ending(_));
            let counted = (role == Role::Server && !is_over).then_some(remote);
            group.retained.push(id);
            counted.into_iter().for_each(|host| self.admission.pin(host));
            self.retained.insert(id, Retained { group: group_key, buffer, sends, counted });
        }
        self.has_left(group_key, ctx);
    }

    /// Continues after a socket, or a retained buffer, has left a group.
    fn has_left<P: SmcDevice + ?Sized>(&mut self, group_key: usize, ctx: &mut Ctx<'_, P>) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.members.is_empty() {
            group.idle = Some(ctx.now);
            self.arm_group(group_key, ctx.now);
        }
        self.next_flow(group_key, ctx);
    }

    /// Handles a CDC message for a removed socket. If the peer sends CLOSED or ABORT, a retained buffer is released. A
    /// peer that sends anything else believes that its connection lives. It learns otherwise when the group ends, so
    /// the group accepts no more connections.
    pub(super) fn handle_late_cdc<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        cdc: &Cdc,
        ctx: &mut Ctx<'_, P>,
    ) {
        let id = SocketId(cdc.token);
        if self.retained.get(&id).is_none_or(|kept| kept.group != group) {
            return;
        }
        if !cdc.end.is_closed() {
            if let Some(group) = self.groups.get_mut(group) {
                group.is_retiring = true;
            }
            return self.arm_group(group, ctx.now);
        }
        let Some(kept) = self.retained.remove(&id) else { return };
        if let Some(group) = self.groups.get_mut(group) {
            group.retained.retain(|other| *other != id);
            group.is_retiring &= !group.retained.is_empty();
            group.dead_keys.extend(kept.buffer.keys());
        }
        self.drop_retained(kept, ctx);
        self.has_left(group, ctx);
    }

    /// Releases all retained buffers of a group whose queue pairs are destroyed.
    pub(super) fn release_retained<P: SmcDevice + ?Sized>(
        &mut self,
        ids: &[SocketId],
        ctx: &mut Ctx<'_, P>,
    ) {
        for id in ids {
            if let Some(kept) = self.retained.remove(id) {
                self.drop_retained(kept, ctx);
            }
        }
    }

    fn drop_retained<P: SmcDevice + ?Sized>(&mut self, kept: Retained, ctx: &mut Ctx<'_, P>) {
        kept.counted.into_iter().for_each(|host| self.admission.unpin(host));
        if let Some(sends) = kept.sends {
            ctx.arena.free(sends);
        }
        self.release(kept.buffer, ctx);
    }

    fn release<P: SmcDevice + ?Sized>(&mut self, buffer: Buffer, ctx: &mut Ctx<'_, P>) {
        if let Some((host, size)) = buffer.host {
            self.forget_buffer(host, size);
        }
        buffer.release(ctx);
    }
}

impl super::table::Group {
    /// Whether the group accepts another connection. Retained buffers count as connections.
    pub fn has_place(&self) -> bool {
        let taken = self.members.len() + self.retained.len();
        !self.is_retiring
            && self.retained.len() < MAX_RETAINED
            && taken < usize::from(self.max_conns)
    }

    /// Whether the group has so many retained buffers that the server should create another group.
    pub fn is_clogged(&self) -> bool {
        self.retained.len() >= TOKENS
    }

    /// How long the group is kept without connections; `others`: the time for groups without retained buffers.
    pub fn keeps(&self, others: Duration) -> Duration {
        match self.is_retiring {
            true => Duration::ZERO,
            false if self.retained.is_empty() => others,
            false => others.min(KEEP),
        }
    }
}
