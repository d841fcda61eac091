//! The server's side of a handshake: Proposal and Confirm come in, an Accept goes out (Linux 6.12,
//! af_smc.c, `smc_listen_work`).

use super::config::{Device, LEAST_CONNECTIONS};
use super::group::NewGroup;
use super::handshake::{Refusal, Taken};
use super::table::{GroupState, LinkState, Phase};
use super::{Context, Engine, Role};
use crate::services::Neighbours;
use crate::smcr::wire::{
    AcceptConfirm, Eid, FirstContact, MessageType, Negotiated, Os, PeerId, Proposal, Reason,
};
use crate::verbs::Provider;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

/// Releases that we speak, at most.
const RELEASE: u8 = 1;

/// What a Proposal that we can take comes to.
struct Offer {
    peer_id: PeerId,
    peer_ip: Ipv4Addr,
    device: Device,
    eid: Eid,
    release: u8,
    max_conns: u8,
    max_links: u8,
}

impl Engine {
    pub(super) fn handle_proposal<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Context<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Taken, Refusal> {
        let proposal = Proposal::parse(message)?;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            handshake.version = proposal.version.min(2);
        }
        let offer = self.weigh(key, &proposal).map_err(Refusal::Decline)?;
        // A group that is being made with this host is waited for, whoever it says it is, so that it
        // cannot have many at once; Linux makes one after another.
        let remote = self.sockets[key].remote;
        let of_host = |group: &super::Group| group.role == Role::Server && group.remote == remote;
        let mut reuse = None;
        for (at, group) in self.groups.iter().filter(|(_, group)| of_host(group)) {
            let same = group.peer_id == offer.peer_id && group.peer_ip == offer.peer_ip;
            match group.state {
                GroupState::Making(_) => return Ok(Taken::Hold),
                GroupState::Active if same && group.sockets < u32::from(group.max_conns) => {
                    reuse = reuse.or(group.active_link().map(|link| (at, link)));
                }
                GroupState::Active | GroupState::Ending(_) => {}
            }
        }
        let first_contact = reuse.is_none();
        let (group, link) = match reuse {
            Some(found) => found,
            None => {
                let new = NewGroup {
                    role: Role::Server,
                    socket: key,
                    peer_id: offer.peer_id,
                    peer_ip: offer.peer_ip,
                    device: offer.device,
                    eid: offer.eid,
                    release: offer.release,
                    max_conns: offer.max_conns,
                    max_links: offer.max_links,
                };
                match self.find_way(&new, ctx, neighbours)? {
                    None => return Ok(Taken::Hold),
                    Some(mac) => (self.make_group(&new, mac, ctx)?, 0),
                }
            }
        };
        self.join(key, group, link, first_contact, ctx)?;
        let accept = self.describe(key, MessageType::Accept).ok_or(Refusal::Broken)?;
        self.say_when_told(key, accept, Phase::Confirm, ctx);
        Ok(Taken::Yes)
    }

    /// Whether, and how, a Proposal can be taken; Linux looks at it in this order.
    fn weigh(&self, key: usize, proposal: &Proposal) -> Result<Offer, Reason> {
        let v2 = proposal.v2.as_ref().filter(|_| proposal.v2_type.has_r());
        let v2 = v2.ok_or(Reason::NO_DEVICE)?;
        let release = v2.release.min(RELEASE);
        let (mut max_conns, mut max_links) = (self.config.max_conns, 1);
        if release > 0 {
            if v2.max_conns < LEAST_CONNECTIONS {
                return Err(Reason::MAX_CONNECTIONS);
            }
            if v2.max_links == 0 {
                return Err(Reason::MAX_LINKS);
            }
            max_conns = max_conns.min(v2.max_conns);
            max_links = self.config.max_links.min(v2.max_links);
        }
        let eid = self.common_eid(&v2.eids).ok_or(Reason::NO_DEVICE)?;
        let peer_ip = v2.gid.to_ipv4_mapped().filter(is_host).ok_or(Reason::NO_SMCR_DEVICE)?;
        let device = self.device_for(self.sockets[key].local).ok_or(Reason::NO_SMCR_DEVICE)?;
        if !self.devices.iter().any(|other| other.joins(&device)) {
            max_links = 1;
        }
        if self.devices.iter().any(|device| device.ip == peer_ip) {
            return Err(Reason::NO_SMCR_DEVICE);
        }
        let peer_id = proposal.peer_id;
        Ok(Offer { peer_id, peer_ip, device, eid, release, max_conns, max_links })
    }

    /// The port for a connection: the one that TCP uses, else the first of the network.
    pub(super) fn device_for(&self, local: IpAddr) -> Option<Device> {
        let same = self.devices.iter().find(|device| IpAddr::V4(device.ip) == local);
        same.or(self.devices.iter().find(|device| device.is_port())).copied()
    }

    pub(super) fn handle_confirm<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        message: &[u8],
        ctx: &mut Context<'_, P>,
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
        let v2 = confirm.v2.as_ref().ok_or(Refusal::Decline(Reason::VERSION))?;
        if first_contact && let Some(contact) = &v2.first_contact {
            let group = &self.groups[group_key];
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
        self.learn_peer(key, &confirm)?;
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

    /// Our side of a connection, as Accept or Confirm.
    pub(super) fn describe(&self, key: usize, kind: MessageType) -> Option<AcceptConfirm> {
        let socket = self.sockets.get(key)?;
        let group = self.groups.get(socket.group?)?;
        let link = group.links.get(socket.link)?.as_ref()?;
        let rmb = socket.rmb?;
        let first_contact = socket.handshake.as_ref()?.first_contact;
        let gid = link.device.ip.to_ipv6_mapped();
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
            version: 2,
            first_contact,
            peer_id: self.peer_id,
            gid,
            mac: link.device.mac,
            qpn: link.qpn,
            rkey: rmb.rkey,
            rmbe_index: 1,
            token: socket.id.0,
            rmbe_size: self.config.rmb_size,
            path_mtu: match (kind, link.state) {
                // What both can do is known by then.
                (MessageType::Confirm, _) | (_, LinkState::Active) => link.path_mtu as u8,
                _ => link.device.path_mtu as u8,
            },
            address: rmb.address,
            psn: link.psn,
            v2: Some(Negotiated { eid: group.eid, first_contact: contact, gids }),
        })
    }
}

/// Whether an address can be that of a host.
pub(super) fn is_host(ip: &Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback())
}
