//! The client's side of a handshake: a Proposal goes out, an Accept comes in, a Confirm goes out
//! (Linux 6.12, af_smc.c, `smc_connect_rdma`).

use super::config::LEAST_CONNECTIONS;
use super::group::NewGroup;
use super::handshake::{Refusal, Taken};
use super::server::is_host;
use super::table::{GroupState, LinkState, Phase};
use super::{Context, Engine, Role};
use crate::services::Neighbours;
use crate::smcr::wire::{
    AcceptConfirm, MessageType, PathType, PeerId, Proposal, ProposalV2, Reason,
};
use crate::verbs::Provider;
use core::net::{IpAddr, Ipv6Addr};

impl Engine {
    /// Makes a Proposal.
    pub(super) fn propose(&mut self, key: usize) {
        let device = self.device_for(self.sockets[key].local);
        let ip = device.map_or(core::net::Ipv4Addr::UNSPECIFIED, |device| device.ip);
        let proposal = Proposal {
            version: 2,
            v1_type: PathType::None,
            v2_type: PathType::R,
            // New at every boot: Linux would otherwise take up the link group of the last one.
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
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.output.extend(proposal.emit());
        }
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
        let Some(v2) = &accept.v2 else { return Err(Refusal::Decline(Reason::MODE)) };
        let peer_ip = accept.gid.to_ipv4_mapped().filter(is_host);
        let peer_ip = peer_ip.ok_or(Refusal::Decline(Reason::NO_SMCR_DEVICE))?;
        let remote = self.sockets[key].remote;
        let (group, link) = if accept.first_contact {
            let contact = v2.first_contact.ok_or(Refusal::Decline(Reason::INTERNAL))?;
            if !contact.direct {
                return Err(Refusal::Decline(Reason::INDIRECT));
            }
            let (mut max_conns, mut max_links) = (self.config.max_conns, 1);
            if let (1.., Some((conns, links, _))) = (contact.release, contact.limits) {
                if conns < LEAST_CONNECTIONS {
                    return Err(Refusal::Decline(Reason::MAX_CONNECTIONS));
                }
                if !(1..=2).contains(&links) {
                    return Err(Refusal::Decline(Reason::MAX_LINKS));
                }
                (max_conns, max_links) = (conns, links);
            }
            let device = self.device_for(self.sockets[key].local);
            let device = device.ok_or(Refusal::Decline(Reason::NO_SMCR_DEVICE))?;
            let new = NewGroup {
                role: Role::Client,
                socket: key,
                peer_id: accept.peer_id,
                peer_ip,
                device,
                eid: v2.eid,
                release: contact.release,
                max_conns,
                max_links,
            };
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

    /// The group and link that a server means which wants to use them again.
    fn group_of_accept(&self, accept: &AcceptConfirm, remote: IpAddr) -> Option<(usize, usize)> {
        self.groups.iter().find_map(|(key, group)| {
            let fits = group.role == Role::Client
                && group.state == GroupState::Active
                && group.remote == remote
                && group.peer_name == accept.peer_id;
            let link = group.links.iter().position(|link| {
                link.as_ref().is_some_and(|link| {
                    link.state == LinkState::Active
                        && link.peer.qpn == accept.qpn
                        && link.peer.ip.to_ipv6_mapped() == accept.gid
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
            let same = group.role == Role::Client && group.peer_ip == new.peer_ip;
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
