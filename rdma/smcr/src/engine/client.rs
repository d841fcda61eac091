//! Client side of a handshake: sends the Proposal, handles the Accept, sends the Confirm (Linux 6.12, af_smc.c,
//! `smc_connect_rdma`).

use super::config::MIN_CONNECTIONS;
use super::group::NewGroup;
use super::handshake::{Refusal, Taken};
use super::table::{Group, GroupState, Link, LinkState, Phase};
use super::{Ctx, Engine, Role};
use crate::SmcDevice;
use crate::wire::{
    AcceptConfirm, MessageType, Negotiated, PathType, PeerId, Proposal, ProposalV2, Reason,
};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use net::Neighbours;

impl Engine {
    /// Queues a Proposal.
    pub(super) fn propose(&mut self, key: usize) {
        let (local, remote) = (self.sockets[key].local, self.sockets[key].remote);
        let device = self.device_for(local);
        let ip = device.map_or(Ipv4Addr::UNSPECIFIED, |device| device.ip);
        let mut proposal = Proposal {
            version: 2,
            v1_type: PathType::None,
            v2_type: PathType::R,
            // New at every boot: Linux would otherwise reuse the link group of the last boot.
            peer_id: self.peer_id,
            gid: Ipv6Addr::UNSPECIFIED,
            mac: [0; 6],
            prefixes: None,
            v2: Some(ProposalV2 {
                eids: self.config.eids.clone(),
                release: 1,
                gid: ip.to_ipv6_mapped(),
                max_conns: self.config.max_conns,
                max_links: self.config.max_links,
                features: 0,
            }),
        };
        if let Some((device, prefixes)) = self.v1_device_towards(local, remote) {
            proposal.v1_type = PathType::R;
            proposal.gid = device.gid(1);
            proposal.mac = device.mac;
            proposal.prefixes = Some(prefixes);
            if self.config.eids.is_empty() {
                // Version 2 needs an EID.
                proposal.v2_type = PathType::None;
                proposal.v2 = None;
            }
        }
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.output.extend(proposal.emit());
        }
    }

    pub(super) fn handle_accept<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Ctx<'_, P>,
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
        let (local, remote) = (self.sockets[key].local, self.sockets[key].remote);
        let device = if version == 1 {
            let v1 = self.v1_device_towards(local, remote);
            Some(*v1.ok_or(Refusal::Decline(Reason::MODE))?.0)
        } else {
            self.device_for(local)
        };
        let (group, link) = if accept.first_contact {
            let device = device.ok_or(Refusal::Decline(Reason::NO_SMCR_DEVICE))?;
            let peer = (accept.peer_id, accept.gid, accept.mac);
            let mut new = self.group_with(Role::Client, key, device, peer);
            if let Some(v2) = &accept.v2 {
                self.take_negotiated(&mut new, v2).map_err(Refusal::Decline)?;
            }
            if !self.is_peer(&new) {
                return Err(Refusal::Decline(Reason::NO_SMCR_DEVICE));
            }
            let Some(mac) = self.resolve_peer(&new, ctx, neighbours)? else {
                return Ok(Taken::Hold);
            };
            self.test_groups_with(&new, ctx);
            (self.make_group(&new, mac, ctx)?, 0)
        } else {
            match self.group_of_accept(&accept, remote) {
                Some((group, _)) if self.groups[group].is_clogged() => {
                    return Err(Refusal::Decline(Reason::MAX_CONNECTIONS));
                }
                Some(found) => found,
                // The server is ahead of us: another handshake is still creating the group.
                None if self.is_creating_group_with(accept.peer_id, remote) => {
                    return Ok(Taken::Hold);
                }
                // Only the link is lost: an out-of-sync Decline would make the server end the group.
                None if self.has_group_with(accept.peer_id, remote) => {
                    return Err(Refusal::Decline(Reason::NO_ACTIVE_LINK));
                }
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
        self.send_when_key_known(key, confirm, next, ctx);
        Ok(Taken::Yes)
    }

    /// Checks and applies the negotiated values of a version 2 Accept for a new group.
    fn take_negotiated(&self, new: &mut NewGroup, v2: &Negotiated) -> Result<(), Reason> {
        let contact = v2.first_contact.ok_or(Reason::INTERNAL)?;
        if !contact.direct {
            return Err(Reason::INDIRECT);
        }
        new.max_links = 1;
        if let (1.., Some((conns, links, _))) = (contact.release, contact.limits) {
            if conns < MIN_CONNECTIONS {
                return Err(Reason::MAX_CONNECTIONS);
            }
            if !(1..=2).contains(&links) {
                return Err(Reason::MAX_LINKS);
            }
            (new.max_conns, new.max_links) = (conns, links);
        }
        (new.version, new.eid, new.release) = (2, v2.eid, contact.release);
        new.peer_mac = [0; 6];
        Ok(())
    }

    /// The group and link that an Accept without first contact refers to.
    fn group_of_accept(&self, accept: &AcceptConfirm, remote: IpAddr) -> Option<(usize, usize)> {
        self.groups_with(remote).find_map(|(key, group)| {
            let fits = group.role == Role::Client
                && group.state == GroupState::Active
                && group.version == accept.version.min(2)
                && group.peer_name == accept.peer_id;
            let link = group
                .links
                .iter()
                .position(|link| link.as_ref().is_some_and(|link| is_link_of_accept(link, accept)));
            fits.then_some((key, link?))
        })
    }

    /// Tests the groups with a server that requests a new one: the server may have lost them.
    fn test_groups_with<P: SmcDevice + ?Sized>(&mut self, new: &NewGroup, ctx: &mut Ctx<'_, P>) {
        let remote = self.sockets[new.socket].remote;
        let same = |group: &Group| group.role == Role::Client && group.peer_gid == new.peer_gid;
        let same = self.groups_with(remote).filter(|(_, group)| same(group));
        let suspects: Vec<_> =
            same.filter_map(|(key, group)| Some((key, group.active_link()?))).collect();
        for (key, link) in suspects {
            self.test_link(key, link, ctx);
        }
    }

    /// Whether there is an active group with the server that may have lost one of its links.
    fn has_group_with(&self, peer: PeerId, remote: IpAddr) -> bool {
        self.groups_with(remote).any(|(_, group)| {
            group.role == Role::Client
                && group.state == GroupState::Active
                && group.peer_name == peer
                && group.max_links > 1
        })
    }

    fn is_creating_group_with(&self, peer: PeerId, remote: IpAddr) -> bool {
        self.groups_with(remote).any(|(_, group)| {
            group.role == Role::Client
                && group.peer_name == peer
                && matches!(group.state, GroupState::Making(_))
        })
    }
}

/// Whether an Accept refers to this link. Version 1 also compares the MAC address.
#[inline(never)]
fn is_link_of_accept(link: &Link, accept: &AcceptConfirm) -> bool {
    link.state == LinkState::Active
        && link.peer.qpn == accept.qpn
        && link.peer.gid == accept.gid
        && (accept.version > 1 || link.mac == accept.mac)
}
