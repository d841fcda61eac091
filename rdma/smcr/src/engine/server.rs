//! Server side of a handshake: handles the Proposal, sends the Accept, handles the Confirm (Linux 6.12, af_smc.c,
//! `smc_listen_work`).

use super::config::{Device, MIN_CONNECTIONS, address_of};
use super::group::NewGroup;
use super::handshake::{Refusal, Taken};
use super::table::{GroupState, Phase};
use super::{Ctx, Engine, Role};
use crate::SmcDevice;
use crate::wire::{
    AcceptConfirm, Eid, FirstContact, MessageType, Negotiated, Os, PeerId, Proposal, Reason,
};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use net::Neighbours;

/// Highest supported release.
const RELEASE: u8 = 1;

impl Engine {
    pub(super) fn handle_proposal<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Taken, Refusal> {
        let proposal = Proposal::parse(message)?;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.version = proposal.version.min(2);
        }
        let mut new = self.evaluate(key, &proposal).map_err(Refusal::Decline)?;
        let (group, link, first_contact) = loop {
            match self.group_for(&new) {
                Ok(Some((group, link))) => break (group, link, false),
                Ok(None) => {}
                Err(()) => return Ok(Taken::Hold),
            }
            match self.resolve_peer(&new, ctx, neighbours) {
                Ok(None) => return Ok(Taken::Hold),
                Ok(Some(mac)) => break (self.make_group(&new, mac, ctx)?, 0, true),
                Err(refusal) if new.version == 1 => return Err(refusal),
                Err(_) => {
                    let other = self.evaluate_v1(key, &proposal, Reason::NO_ROUTE);
                    new = other.map_err(Refusal::Decline)?;
                }
            }
        };
        self.join(key, group, link, first_contact, ctx)?;
        let accept = self.describe(key, MessageType::Accept).ok_or(Refusal::Broken)?;
        self.send_when_key_known(key, accept, Phase::Confirm, ctx);
        Ok(Taken::Yes)
    }

    /// The group and link that a client can reuse. Returns an error if the client has to wait for a group that is being
    /// created with the same host, under any peer ID. So a host cannot create many groups at once; Linux creates one
    /// after another.
    fn group_for(&self, new: &NewGroup) -> Result<Option<(usize, usize)>, ()> {
        let remote = self.sockets[new.socket].remote;
        let mut reuse = None;
        for (at, group) in self.groups_with(remote) {
            if group.role != Role::Server {
                continue;
            }
            let same = (group.version, group.peer_id) == (new.version, new.peer_id)
                && (group.peer_gid, group.peer_mac) == (new.peer_gid, new.peer_mac);
            match group.state {
                GroupState::Making(_) => return Err(()),
                GroupState::Active if same && group.has_place() => {
                    reuse = reuse.or(group.link_for_next().map(|link| (at, link)));
                }
                GroupState::Active | GroupState::Ending(_) => {}
            }
        }
        Ok(reuse)
    }

    /// Evaluates a Proposal, in Linux's order: version 2, then version 1.
    fn evaluate(&self, key: usize, proposal: &Proposal) -> Result<NewGroup, Reason> {
        self.evaluate_v2(key, proposal).or_else(|reason| match reason {
            Reason::MAX_CONNECTIONS | Reason::MAX_LINKS => Err(reason),
            _ => self.evaluate_v1(key, proposal, reason),
        })
    }

    fn evaluate_v2(&self, key: usize, proposal: &Proposal) -> Result<NewGroup, Reason> {
        let v2 = proposal.v2.as_ref().filter(|_| proposal.v2_type.has_r());
        let v2 = v2.ok_or(Reason::NO_DEVICE)?;
        let release = v2.release.min(RELEASE);
        let (mut max_conns, mut max_links) = (self.config.max_conns, 1);
        if release > 0 {
            if v2.max_conns < MIN_CONNECTIONS {
                return Err(Reason::MAX_CONNECTIONS);
            }
            if v2.max_links == 0 {
                return Err(Reason::MAX_LINKS);
            }
            max_conns = max_conns.min(v2.max_conns);
            max_links = self.config.max_links.min(v2.max_links);
        }
        let eid = self.common_eid(&v2.eids).ok_or(Reason::NO_DEVICE)?;
        let device = self.device_for(self.sockets[key].local).ok_or(Reason::NO_SMCR_DEVICE)?;
        if !self.devices.iter().any(|other| other.joins(&device)) {
            max_links = 1;
        }
        let peer = (proposal.peer_id, v2.gid, [0; 6]);
        let mut new = self.group_with(Role::Server, key, device, peer);
        (new.version, new.eid, new.release) = (2, eid, release);
        (new.max_conns, new.max_links) = (max_conns, max_links);
        if self.is_peer(&new) { Ok(new) } else { Err(Reason::NO_SMCR_DEVICE) }
    }

    /// Evaluates the version 1 part of a Proposal. `reason`: why version 2 is impossible, returned if the client does
    /// not offer version 1.
    #[inline(never)]
    fn evaluate_v1(
        &self,
        key: usize,
        proposal: &Proposal,
        reason: Reason,
    ) -> Result<NewGroup, Reason> {
        let theirs = proposal.prefixes.as_ref().filter(|_| proposal.v1_type.has_r());
        let device = self.v1_device_among(self.sockets[key].local, theirs.ok_or(reason)?);
        let device = device.map_err(|()| reason)?.ok_or(Reason::PREFIX)?;
        let peer = (proposal.peer_id, proposal.gid, proposal.mac);
        let new = self.group_with(Role::Server, key, *device, peer);
        if self.is_peer(&new) { Ok(new) } else { Err(Reason::NO_SMCR_DEVICE) }
    }

    /// Parameters of a group with a peer (peer ID, GID and MAC address). Version 1 negotiates nothing.
    #[inline(never)]
    pub(super) fn group_with(
        &self,
        role: Role,
        socket: usize,
        device: Device,
        (peer_id, peer_gid, peer_mac): (PeerId, Ipv6Addr, [u8; 6]),
    ) -> NewGroup {
        NewGroup {
            role,
            socket,
            version: 1,
            peer_id,
            peer_gid,
            peer_mac,
            device,
            eid: Eid::BLANK,
            release: 0,
            max_conns: self.config.max_conns,
            max_links: self.config.max_links,
        }
    }

    /// Whether the addresses of a new group's peer can be those of another host.
    #[inline(never)]
    pub(super) fn is_peer(&self, new: &NewGroup) -> bool {
        let own = |device: &Device| device.gid(2) == new.peer_gid || device.mac == new.peer_mac;
        // In version 1 the peer has a unicast MAC address.
        let station = new.version > 1 || new.peer_mac[0] & 1 == 0 && new.peer_mac != [0; 6];
        station && is_host_gid(new.version, new.peer_gid) && !self.devices.iter().any(own)
    }

    /// The port for a connection: the one of the TCP connection, else the first port of the network.
    pub(super) fn device_for(&self, local: IpAddr) -> Option<Device> {
        let same = self.devices.iter().find(|device| IpAddr::V4(device.ip) == local);
        same.or(self.devices.iter().find(|device| device.is_port())).copied()
    }

    pub(super) fn handle_confirm<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Taken, Refusal> {
        let confirm = AcceptConfirm::parse(message)?;
        if confirm.kind != MessageType::Confirm {
            return Err(Refusal::Broken);
        }
        let socket = &self.sockets[key];
        let (Some(group_key), link) = (socket.group, socket.link) else {
            return Err(Refusal::Decline(Reason::NO_ACTIVE_LINK));
        };
        let first_contact = socket.handshake.as_ref().is_some_and(|hs| hs.first_contact);
        let group = &self.groups[group_key];
        if confirm.v2.is_some() != (group.version > 1) {
            return Err(Refusal::Decline(Reason::VERSION));
        }
        let contact = confirm.v2.as_ref().and_then(|v2| v2.first_contact.as_ref());
        if let Some(contact) = contact.filter(|_| first_contact) {
            if contact.release != group.release {
                return Err(Refusal::Decline(Reason::RELEASE));
            }
            if group.release > 0
                && let Some((conns, links, _)) = contact.limits
            {
                if conns != group.max_conns {
                    return Err(Refusal::Decline(Reason::MAX_CONNECTIONS));
                }
                if links != group.max_links {
                    return Err(Refusal::Decline(Reason::MAX_LINKS));
                }
            }
        }
        if socket.handshake.as_ref().is_some_and(|hs| hs.link_lost) {
            self.learn_peer_on_other_link(key, &confirm)?;
        } else {
            self.learn_peer(key, &confirm)?;
        }
        if !first_contact {
            self.establish(key, ctx.now);
            return Ok(Taken::Yes);
        }
        self.ready_to_receive(group_key, link, &confirm, ctx)?;
        self.ready_to_send(group_key, link, ctx).map_err(Refusal::Decline)?;
        self.groups[group_key].peer_name = confirm.peer_id;
        let deadline = ctx.now + self.config.confirm_wait.0;
        self.set_phase(key, Phase::Link, deadline);
        self.confirm_link(group_key, link, ctx);
        Ok(Taken::Yes)
    }

    /// The Accept or Confirm for a connection.
    pub(super) fn describe(&self, key: usize, kind: MessageType) -> Option<AcceptConfirm> {
        let socket = self.sockets.get(key)?;
        let group = self.groups.get(socket.group?)?;
        let link = group.links.get(socket.link)?.as_ref()?;
        let rmb = socket.rmb?;
        let first_contact = socket.handshake.as_ref()?.first_contact;
        let contact = first_contact.then_some(FirstContact {
            direct: group.direct,
            os: Os::LINUX,
            release: group.release,
            hostname: self.config.hostname,
            limits: Some(match group.release {
                0 => (0, 0, 0),
                _ => (group.max_conns, group.max_links, 0),
            }),
        });
        let gids = match kind {
            MessageType::Confirm if first_contact => {
                let port = link.device.is_port();
                let devices = self.devices.iter().filter(|device| device.is_port() == port);
                devices.take(8).map(|device| device.ip.to_ipv6_mapped()).collect()
            }
            _ => Vec::new(),
        };
        Some(AcceptConfirm {
            kind,
            version: group.version,
            first_contact,
            peer_id: self.peer_id,
            gid: link.gid,
            mac: link.device.mac,
            qpn: link.qpn,
            rkey: rmb.rkey,
            rmbe_index: 1,
            token: socket.id.0,
            rmbe_size: socket.sizes.receive,
            // What we offer, and that of both sides once it is known.
            path_mtu: link.path_mtu as u8,
            address: rmb.address,
            psn: link.psn,
            v2: (group.version > 1).then_some(Negotiated {
                eid: group.eid,
                first_contact: contact,
                gids,
            }),
        })
    }
}

/// Whether a GID can be that of a host. In version 2 it must be an IPv4 address.
pub(super) fn is_host_gid(version: u8, gid: Ipv6Addr) -> bool {
    let ip = address_of(gid);
    net::is_host(ip) && (version == 1 || ip.is_ipv4())
}
