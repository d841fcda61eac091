//! Status reports of the engine: the columns of `smcss` and `smcr`.

use super::table::LinkState;
use super::{Engine, Role, SocketId, State};
use crate::wire::{Eid, PeerId};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use drivers::hal::Instant;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketStatus {
    /// Its ID.
    pub id: SocketId,
    /// Our role.
    pub role: Role,
    /// State.
    pub state: State,
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Whether it may send and receive.
    pub established: bool,
    /// Number of its link group.
    pub group: Option<u32>,
    /// Number of its link.
    pub link: Option<u8>,
    /// Size of its receive buffer, and of the peer's.
    pub buffers: (u32, u32),
    /// Size of its send buffer, which has memory while data is in it.
    pub send_buffer: u32,
    /// Bytes received and sent.
    pub bytes: (u64, u64),
    /// Bytes received but not read, and accepted but not sent.
    pub queued: (u64, u64),
}

/// A link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its number.
    pub id: u32,
    /// Our role.
    pub role: Role,
    /// The peer.
    pub peer: IpAddr,
    /// The peer's ID.
    pub peer_id: PeerId,
    /// 1 or 2.
    pub version: u8,
    /// The common EID (blank in version 1).
    pub eid: Eid,
    /// Release of version 2.
    pub release: u8,
    /// Connections.
    pub connections: u32,
    /// Most connections.
    pub max_conns: u8,
    /// Most links.
    pub max_links: u8,
    /// Links.
    pub links: usize,
    /// Whether connections may be added.
    pub active: bool,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Number of its group.
    pub group: u32,
    /// Our role.
    pub role: Role,
    /// Number of links of its group.
    pub of: usize,
    /// Its number.
    pub number: u8,
    /// [`super::Device::ip`] of our device.
    pub device: Ipv4Addr,
    /// Our GID and the peer's.
    pub gids: (Ipv6Addr, Ipv6Addr),
    /// Our queue pair and the peer's.
    pub qpns: (u32, u32),
    /// Path MTU in bytes.
    pub path_mtu: usize,
    /// Whether it carries connections.
    pub active: bool,
    /// Number of connections.
    pub connections: usize,
}

impl Engine {
    /// Our peer ID.
    pub fn peer_id(&self) -> PeerId {
        self.peer_id
    }

    /// Numbers of sockets, link groups and links.
    pub fn counts(&self) -> [usize; 3] {
        let links = self.groups.iter().map(|(_, group)| group.links.iter().flatten().count());
        [self.sockets.len(), self.groups.len(), links.sum()]
    }

    /// The sockets.
    pub fn sockets(&self) -> impl Iterator<Item = SocketStatus> {
        self.sockets.iter().map(|(_, socket)| self.status_of(socket))
    }

    /// A socket, if it exists.
    pub fn socket_status(&self, id: SocketId) -> Option<SocketStatus> {
        self.socket(id).map(|socket| self.status_of(socket))
    }

    fn status_of(&self, s: &super::Socket) -> SocketStatus {
        let group = s.group.and_then(|group| self.groups.get(group));
        let link = group.and_then(|group| group.links.get(s.link)?.as_ref());
        SocketStatus {
            id: s.id,
            role: s.role,
            state: s.state,
            local: s.local,
            remote: s.remote,
            established: s.established,
            group: group.map(|group| group.id),
            link: link.map(|link| link.number),
            buffers: (s.rmb_size, s.peer.size),
            send_buffer: s.sizes.send,
            bytes: (s.produced, s.sent),
            queued: (s.produced - s.consumed, s.accepted - s.sent),
        }
    }

    /// The link groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupStatus> {
        self.groups.iter().map(|(_, g)| GroupStatus {
            id: g.id,
            role: g.role,
            peer: g.peer(),
            peer_id: g.peer_name,
            version: g.version,
            eid: g.eid,
            release: g.release,
            connections: g.members.len() as u32,
            max_conns: g.max_conns,
            max_links: g.max_links,
            links: g.links.iter().flatten().count(),
            active: g.state == super::table::GroupState::Active,
        })
    }

    /// The links.
    pub fn links(&self) -> impl Iterator<Item = LinkStatus> {
        self.groups.iter().flat_map(move |(key, group)| {
            let links = group.links.iter().enumerate();
            let links = links.filter_map(|(at, link)| Some((at, link.as_ref()?)));
            links.map(move |(at, link)| LinkStatus {
                group: group.id,
                role: group.role,
                of: group.links.iter().flatten().count(),
                number: link.number,
                device: link.device.ip,
                gids: (link.gid, link.peer.gid),
                qpns: (link.qpn, link.peer.qpn),
                path_mtu: link.path_mtu.bytes(),
                active: link.state == LinkState::Active,
                connections: self.on_link(key, at),
            })
        })
    }

    /// Connections that use a link.
    fn on_link(&self, group: usize, at: usize) -> usize {
        let members = self.groups.get(group).into_iter().flat_map(|group| &group.members);
        members.filter(|&&key| self.sockets.get(key).is_some_and(|s| s.link == at)).count()
    }

    /// The ports that links may use.
    pub fn devices(&self) -> &[super::Device] {
        &self.devices
    }

    /// Replaces the ports; present links stay. If there were none before, the MAC address of the first becomes part of
    /// our peer ID.
    pub fn set_devices(&mut self, devices: Vec<super::Device>) {
        if let ([], Some(first)) = (&self.devices[..], devices.first()) {
            self.peer_id = self.peer_id.with_mac(first.mac);
        }
        // A new port may carry missing links.
        let more = devices.iter().any(|device| !self.devices.contains(device));
        self.devices = devices;
        let first = self.config.remake.0;
        for key in 0..self.groups.capacity() {
            if let Some(group) =
                self.groups.get_mut(key).filter(|group| more && group.max_links > 1)
            {
                group.remake = Some((Instant::ZERO, first));
                self.arm_group(key, Instant::ZERO);
            }
        }
    }

    /// Replaces the subnets of the ports. Version 1 is possible with peers in one of them.
    pub fn set_subnets(&mut self, subnets: Vec<super::Subnet>) {
        self.subnets = subnets;
    }

    /// The counters.
    pub fn counters(&self) -> &super::Counters {
        &self.counters
    }
}
