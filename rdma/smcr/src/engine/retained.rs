//! Receive buffers that outlive their socket. A peer that has our Accept or Confirm writes when it likes, and a WRITE to a
//! key that is gone takes its queue pair down, and with that every connection of the link group. So a buffer that was
//! offered stays registered, under its own key, until the peer has let go of it: it has said CLOSED or ABORT of the
//! connection, it has declined, or the queue pairs of the group are gone. Linux keeps buffers for as long as the group.
//!
//! What a peer holds this way is bounded: it counts as a connection of the link group and of the host
//! ([`crate::admission::Admission`]). A group that keeps such buffers and has no connections ends soon.

use super::buffers::put_back;
use super::devices::Elsewhere;
use super::group::recycle;
use super::ids::SocketId;
use super::table::{GroupState, Socket, TOKENS};
use super::{Engine, EngineContext, Role};
use crate::wire::cdc::Cdc;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Window;
use verbs::{PdId, Provider, Region};

/// How long a group without connections is kept that has such buffers.
const KEEP: Duration = Duration::from_secs(30);
/// Such buffers after which a group takes no more connections: a peer that leaves that many behind may have lost track.
const MANY: usize = 32;

/// A receive buffer, as all devices have it.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Whose peer has it, unless there is none.
    host: Option<IpAddr>,
    first: Option<(PdId, Region)>,
    elsewhere: alloc::vec::Vec<Elsewhere>,
}

impl Buffer {
    /// Takes it from a socket.
    pub fn take_from(socket: &mut Socket) -> Buffer {
        let pd = socket.rmb_pd;
        let first = socket.rmb.take().map(|region| (pd, region));
        let host = first.map(|_| socket.remote);
        Buffer { host, first, elsewhere: core::mem::take(&mut socket.elsewhere) }
    }

    /// Its keys, with the domains of the devices.
    pub fn keys(&self) -> impl Iterator<Item = (PdId, u32)> + '_ {
        let first = self.first.iter().map(|(pd, region)| (*pd, region.rkey));
        first.chain(self.elsewhere.iter().map(|one| (one.pd, one.region.rkey)))
    }

    /// Revokes its keys, then gives its memory back.
    fn release<P: Provider + ?Sized>(self, ctx: &mut EngineContext<'_, P>) {
        for one in self.elsewhere {
            let _ = ctx.provider.deregister(one.region.id);
        }
        let Some((_, region)) = self.first else { return };
        // What the peer has written and not told of lies in memory, too.
        let lazy = ctx.provider.take_on_demand_memory(region.id);
        // It is registered as long as somebody has it.
        let _ = ctx.provider.deregister(region.id);
        match lazy {
            Some(memory) => put_back(memory, ctx),
            None if !region.memory.is_empty() => ctx.arena.free(region.memory),
            None => {}
        }
    }
}

/// What is left of a socket.
#[derive(Debug)]
pub(super) struct Retained {
    group: usize,
    buffer: Buffer,
    /// Its send buffer, out of which WRITEs may still be repeated.
    sends: Option<Window>,
    /// The host whose share it counts against.
    counted: Option<IpAddr>,
}

impl Engine {
    /// Whether the handshake of a socket has gone so far that the peer may be on SMC-R, or be about to: it is to be
    /// finished, and not broken off.
    pub fn is_committed(&self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|socket| {
            !socket.established
                && socket.group.is_some()
                && socket.handshake.as_ref().is_some_and(|hs| hs.offered)
        })
    }

    /// Receive buffers that are kept though their sockets are gone.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }

    /// Takes a socket's memory and its place in its group.
    pub(super) fn give_back<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Engine { sockets, groups, spare, config, .. } = self;
        let socket = &mut sockets[key];
        let offered = socket.established || socket.handshake.as_ref().is_some_and(|hs| hs.offered);
        let let_go = !offered || socket.rx_end.is_closed() && !socket.end_missed;
        let told = socket.peer.size > 0 || socket.handshake.as_ref().is_some_and(|hs| hs.told_key);
        let mut sends = socket.buffer.take();
        if socket.in_flight == 0
            && let Some(buffer) = sends.take()
        {
            recycle(spare, config.spare_buffers, buffer, ctx);
        }
        let (id, role, remote, member) = (socket.id, socket.role, socket.remote, socket.member);
        let buffer = Buffer::take_from(socket);
        let group_key = socket.group.take();
        let Some((group_key, group)) = group_key.and_then(|at| Some((at, groups.get_mut(at)?)))
        else {
            // Neither its links nor their queue pairs are there.
            if let Some(sends) = sends {
                ctx.arena.free(sends);
            }
            return self.release(buffer, ctx);
        };
        group.members.swap_remove(member);
        if let Some(&moved) = group.members.get(member) {
            sockets[moved].member = member;
        }
        if let_go && sends.is_none() {
            if told {
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

    /// A socket, or the last that was kept of one, has left a group.
    fn has_left<P: Provider + ?Sized>(&mut self, group_key: usize, ctx: &mut EngineContext<'_, P>) {
        let Some(group) = self.groups.get_mut(group_key) else { return };
        if group.members.is_empty() {
            group.idle = Some(ctx.now);
            self.arm_group(group_key, ctx.now);
        }
        self.next_flow(group_key, ctx);
    }

    /// A CDC message about a socket that is gone: if a buffer of it is kept, and the peer says that it is done with that,
    /// it goes. A peer that is not believes that its connection lives, and learns otherwise at the end of the group, which
    /// therefore takes no more connections.
    pub(super) fn handle_late_cdc<P: Provider + ?Sized>(
        &mut self,
        group: usize,
        cdc: &Cdc,
        ctx: &mut EngineContext<'_, P>,
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

    /// Gives all back that was kept for a group. Its queue pairs are gone.
    pub(super) fn release_retained<P: Provider + ?Sized>(
        &mut self,
        ids: &[SocketId],
        ctx: &mut EngineContext<'_, P>,
    ) {
        for id in ids {
            if let Some(kept) = self.retained.remove(id) {
                self.drop_retained(kept, ctx);
            }
        }
    }

    fn drop_retained<P: Provider + ?Sized>(
        &mut self,
        kept: Retained,
        ctx: &mut EngineContext<'_, P>,
    ) {
        kept.counted.into_iter().for_each(|host| self.admission.unpin(host));
        if let Some(sends) = kept.sends {
            ctx.arena.free(sends);
        }
        self.release(kept.buffer, ctx);
    }

    fn release<P: Provider + ?Sized>(&mut self, buffer: Buffer, ctx: &mut EngineContext<'_, P>) {
        if let Some(host) = buffer.host {
            self.forget_buffer(host);
        }
        buffer.release(ctx);
    }
}

impl super::table::Group {
    /// Whether it takes another connection. What is kept of those that are gone counts, too.
    pub fn has_place(&self) -> bool {
        let taken = self.members.len() + self.retained.len();
        !self.is_retiring && self.retained.len() < MANY && taken < usize::from(self.max_conns)
    }

    /// Whether so much is kept of connections that are gone that a server is to make another one.
    pub fn is_clogged(&self) -> bool {
        self.retained.len() >= TOKENS
    }

    /// How long it is kept without connections, if others are kept for so long.
    pub fn keeps(&self, others: Duration) -> Duration {
        match self.is_retiring {
            true => Duration::ZERO,
            false if self.retained.is_empty() => others,
            false => others.min(KEEP),
        }
    }
}
