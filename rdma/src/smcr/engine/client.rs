//! The client's side of a handshake: a Proposal goes out, an Accept comes in, a Confirm goes out
//! (Linux 6.12, af_smc.c, `smc_connect_rdma`).

use super::config::{Device, LEAST_CONNECTIONS};
use super::group::NewGroup;
use super::handshake::{Refusal, Taken};
use super::table::{GroupState, LinkState, Phase};
use super::{Context, Engine, Role};
use crate::services::Neighbours;
use crate::smcr::wire::{
    AcceptConfirm, MAX_V6_PREFIXES, MessageType, Negotiated, PathType, PeerId, Prefixes, Proposal,
    ProposalV2, Reason,
};
use crate::verbs::Provider;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Engine {
    /// Makes a Proposal.
    pub(super) fn propose(&mut self, key: usize) {
        let device = self.device_for(self.sockets[key].local);
        let ip = device.map_or(Ipv4Addr::UNSPECIFIED, |device| device.ip);
        let v1 = self.v1_device_towards(key);
        // Without an enterprise there is no version 2.
        let has_v2 = v1.is_none() || !self.config.eids.is_empty();
        let proposal = Proposal {
            version: 2,
            v1_type: if v1.is_some() { PathType::R } else { PathType::None },
            v2_type: if has_v2 { PathType::R } else { PathType::None },
            // New at every boot: Linux would otherwise take up the link group of the last one.
            peer_id: self.peer_id,
            gid: v1.map_or(Ipv6Addr::UNSPECIFIED, |device| device.gid(1)),
            mac: v1.map_or([0; 6], |device| device.mac),
            prefixes: v1.map(|device| self.prefixes(key, &device)),
            v2: has_v2.then(|| ProposalV2 {
                eids: self.config.eids.clone(),
                release: 1,
                gid: ip.to_ipv6_mapped(),
                max_conns: self.config.max_conns,
                max_links: self.config.max_links,
                features: 0,
            }),
        };
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.output.extend(proposal.emit());
        }
    }

    /// The port for version 1, if the server is in a subnet of it.
    fn v1_device_towards(&self, key: usize) -> Option<Device> {
        let socket = &self.sockets[key];
        let device = self.v1_device(socket.local)?;
        let near = self.subnets_of(&device).any(|subnet| subnet.contains(socket.remote));
        near.then_some(device)
    }

    /// The subnets of a port that a server of a connection compares with its own: the IPv4 subnet, or
    /// all of IPv6.
    fn prefixes(&self, key: usize, device: &Device) -> Prefixes {
        let local = self.sockets[key].local;
        let mut prefixes = Prefixes { v4: (Ipv4Addr::UNSPECIFIED, 0), v6: Vec::new() };
        let alike = self.subnets_of(device).filter(|s| s.address.is_ipv4() == local.is_ipv4());
        for subnet in alike {
            match subnet.base().to_canonical() {
                IpAddr::V4(v4) if subnet.address == local => prefixes.v4 = (v4, subnet.prefix),
                IpAddr::V4(_) => {}
                IpAddr::V6(v6) => prefixes.v6.push((v6, subnet.prefix)),
            }
        }
        prefixes.v6.truncate(MAX_V6_PREFIXES);
        prefixes
    }

    pub(super) fn handle_accept<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Context<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Taken, Refusal> {
        let accept = AcceptConfirm::parse(message)?;
        if accept.kind != MessageType::Accept {
            return Err(Refusal::Broken);
        }
        let version = if accept.v2.is_some() { 2 } else { 1 };
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.version = version;
        }
        let v1 = self.v1_device_towards(key);
        if version == 1 && v1.is_none() {
            return Err(Refusal::Decline(Reason::MODE));
        }
        let remote = self.sockets[key].remote;
        let (group, link) = if accept.first_contact {
            let device = self.device_for(self.sockets[key].local);
            let device = v1.filter(|_| version == 1).or(device);
            let device = device.ok_or(Refusal::Decline(Reason::NO_SMCR_DEVICE))?;
            let peer = (accept.peer_id, accept.gid, accept.mac);
            let mut new = self.v1_group(Role::Client, key, device, peer);
            if let Some(v2) = &accept.v2 {
                self.take_negotiated(&mut new, v2).map_err(Refusal::Decline)?;
            }
            if !self.is_peer(&new) {
                return Err(Refusal::Decline(Reason::NO_SMCR_DEVICE));
            }
            let Some(mac) = self.find_way(&new, ctx, neighbours)? else { return Ok(Taken::Hold) };
            self.doubt_groups_with(&new, ctx);
            (self.make_group(&new, mac, ctx)?, 0)
        } else {
            match self.group_of_accept(&accept, remote) {
                Some(found) => found,
                // The server is ahead of us: another handshake makes the group.
                None if self.makes_group_with(accept.peer_id) => return Ok(Taken::Hold),
                None => return Err(Refusal::OutOfSync(Reason::SYNC)),
            }
        };
        self.join(key, group, link, accept.first_contact, ctx)?;
        self.learn_peer(key, &accept)?;
        if accept.first_contact {
            self.ready_to_receive(group, link, &accept, ctx)?;
            self.groups[group].peer_name = accept.peer_id;
        }
        let confirm = self.describe(key, MessageType::Confirm).ok_or(Refusal::Broken)?;
        let next = if accept.first_contact { Phase::Link } else { Phase::Done };
        self.say_when_told(key, confirm, next, ctx);
        Ok(Taken::Yes)
    }

    /// What a server of version 2 wants for a new group.
    fn take_negotiated(&self, new: &mut NewGroup, v2: &Negotiated) -> Result<(), Reason> {
        let contact = v2.first_contact.ok_or(Reason::INTERNAL)?;
        if !contact.direct {
            return Err(Reason::INDIRECT);
        }
        new.max_links = 1;
        if let (1.., Some((conns, links, _))) = (contact.release, contact.limits) {
            if conns < LEAST_CONNECTIONS {
                return Err(Reason::MAX_CONNECTIONS);
            }
            if !(1..=2).contains(&links) {
                return Err(Reason::MAX_LINKS);
            }
            (new.max_conns, new.max_links) = (conns, links);
        }
        (new.version, new.eid, new.release) = (2, v2.eid, contact.release);
        Ok(())
    }

    /// The group and link that a server means which wants to use them again.
    fn group_of_accept(&self, accept: &AcceptConfirm, remote: IpAddr) -> Option<(usize, usize)> {
        self.groups.iter().find_map(|(key, group)| {
            let fits = group.role == Role::Client
                && group.state == GroupState::Active
                && group.remote == remote
                && (group.version > 1) == accept.v2.is_some()
                && group.peer_name == accept.peer_id;
            let link = group.links.iter().position(|link| {
                link.as_ref().is_some_and(|link| {
                    link.state == LinkState::Active
                        && (link.peer.qpn, link.peer.gid) == (accept.qpn, accept.gid)
                        && (group.version > 1 || link.mac == accept.mac)
                })
            });
            fits.then_some((key, link?))
        })
    }

    /// A server that wants a new group though there is one may have forgotten that.
    fn doubt_groups_with<P: Provider + ?Sized>(
        &mut self,
        new: &NewGroup,
        ctx: &mut Context<'_, P>,
    ) {
        for key in 0..self.groups.capacity() {
            let Some(group) = self.groups.get(key) else { continue };
            let same = group.role == Role::Client && group.peer_gid == new.peer_gid;
            if let Some(link) = group.active_link().filter(|_| same) {
                self.test_link(key, link, ctx);
            }
        }
    }

    fn makes_group_with(&self, peer: PeerId) -> bool {
        self.groups.iter().any(|(_, group)| {
            group.role == Role::Client
                && group.peer_name == peer
                && matches!(group.state, GroupState::Making(_))
        })
    }
}
