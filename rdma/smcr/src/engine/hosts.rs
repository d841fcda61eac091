//! Link groups, receive buffers and held handshakes per host, by TCP address, so that a handshake examines only the
//! link groups of its own host.

use super::ids::SocketId;
use super::table::Group;
use super::{Ctx, Engine, IpAddr, Phase};
use crate::SmcDevice;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// State of one host.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Link groups with the host.
    pub groups: Vec<usize>,
    /// Number of receive buffers offered to the host, and their bytes.
    pub buffers: (u64, u64),
    /// Sockets with a held message, which may wait for one of the groups.
    held: BTreeSet<SocketId>,
}

impl Host {
    /// Whether the entry is empty.
    fn is_forgotten(&self) -> bool {
        self.groups.is_empty() && self.held.is_empty() && self.buffers.0 == 0
    }
}

impl Engine {
    /// Whether a host may have another receive buffer of `size` bytes. The first one is always allowed.
    pub(super) fn may_have_buffer(&self, host: IpAddr, size: u64) -> bool {
        let (count, bytes) = self.hosts.get(&host).map_or((0, 0), |host| host.buffers);
        count == 0 || bytes + size <= self.config.memory_per_host
    }

    /// Counts a receive buffer of a host, with its bytes.
    pub(super) fn note_buffer(&mut self, host: IpAddr, size: u64) {
        let (count, bytes) = &mut self.hosts.entry(host).or_default().buffers;
        (*count, *bytes) = (*count + 1, *bytes + size);
        self.buffers += 1;
    }

    /// Discounts a receive buffer of a host.
    pub(super) fn forget_buffer(&mut self, host: IpAddr, size: u64) {
        if let Some(Host { buffers: (count, bytes), .. }) = self.hosts.get_mut(&host) {
            (*count, *bytes) = (count.saturating_sub(1), bytes.saturating_sub(size));
        }
        self.buffers = self.buffers.saturating_sub(1);
        self.forget_host(host);
    }

    /// Whether another link group with a host is allowed. If the host has its share, drops its longest idle group.
    pub(super) fn may_have_group<P: SmcDevice + ?Sized>(
        &mut self,
        host: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        if self.groups_with(host).count() < self.config.groups_per_host {
            return true;
        }
        let idle = |(key, group): (usize, &Group)| group.idle.map(|since| (since, key));
        let Some((_, key)) = self.groups_with(host).filter_map(idle).min() else { return false };
        self.drop_group(key, ctx);
        true
    }

    /// The link groups with a host.
    pub(super) fn groups_with(&self, host: IpAddr) -> impl Iterator<Item = (usize, &Group)> {
        let keys = self.hosts.get(&host).into_iter().flat_map(|host| &host.groups);
        keys.filter_map(|&key| Some((key, self.groups.get(key)?)))
    }

    /// The sockets of a group.
    pub(super) fn members(&self, group: usize) -> Vec<usize> {
        self.groups.get(group).map_or(Vec::new(), |group| group.members.clone())
    }

    /// The socket of a group whose receive buffer has `rkey`.
    pub(super) fn member_with_key(&self, group: usize, rkey: u32) -> Option<SocketId> {
        let mut members = self.groups.get(group)?.members.iter();
        members.find_map(|&key| {
            let socket = self.sockets.get(key)?;
            socket.rmb_keys().any(|(_, key)| key == rkey).then_some(socket.id)
        })
    }

    /// Removes a link group from its host.
    pub(super) fn forget_group(&mut self, host: IpAddr, group: usize) {
        if let Some(host) = self.hosts.get_mut(&host) {
            host.groups.retain(|&other| other != group);
        }
        self.forget_host(host);
    }

    fn forget_host(&mut self, host: IpAddr) {
        if self.hosts.get(&host).is_some_and(|it| it.is_forgotten()) {
            self.hosts.remove(&host);
        }
    }

    /// Adds a socket with a held message to its host.
    pub(super) fn note_held(&mut self, key: usize) {
        let (id, remote) = (self.sockets[key].id, self.sockets[key].remote);
        self.hosts.entry(remote).or_default().held.insert(id);
    }

    /// Removes a socket without a held message from its host.
    pub(super) fn release_held(&mut self, key: usize) {
        let (id, remote) = (self.sockets[key].id, self.sockets[key].remote);
        if let Some(host) = self.hosts.get_mut(&remote) {
            host.held.remove(&id);
        }
        self.forget_host(remote);
    }

    /// Retries held messages of a host at once: a link group with it is up, or has failed.
    pub(super) fn wake_held(&mut self, host: IpAddr, now: Instant) {
        let held = self.hosts.get_mut(&host).map(|host| core::mem::take(&mut host.held));
        for id in held.into_iter().flatten() {
            let Some(socket) = self.socket_mut(id) else { continue };
            if let Some(handshake) = &mut socket.handshake
                && handshake.retry.is_some()
                && matches!(handshake.phase, Phase::Proposal | Phase::Accept)
            {
                handshake.retry = Some(now);
                self.arm_socket(id.key(), now);
            }
        }
        self.forget_host(host);
    }
}
