//! Links: life cycle of a queue pair to a peer, from Init to failure (Linux 6.12, smc_ib.c for attributes).

use super::config::{Device, address_of};
use super::handshake::Refusal;
use super::ids::WorkId;
use super::table::{
    CDC_SLOTS, GroupState, LINK_MEMORY, LLC_SLOTS, Link, LinkState, PeerEnd, RECEIVES,
};
use super::{Ctx, Engine, Notice};
use crate::SmcDevice;
use crate::wire::llc::LEN;
use crate::wire::{AcceptConfirm, Reason};
use alloc::collections::VecDeque;
use core::net::Ipv6Addr;
use verbs::{
    AddressVector, GidType, PathMtu, QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest,
    VerbsError,
};

/// Work requests of a message: two WRITEs at most, and the SEND.
const PER_MESSAGE: u32 = 3;
/// Timer code in our RNR NAKs.
const MIN_RNR_TIMER: u8 = 5;

impl Engine {
    /// Creates a link in a free slot of a group, with a queue pair in Init.
    pub(super) fn make_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        device: Device,
        mac: [u8; 6],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), VerbsError> {
        let group = &mut self.groups[group_key];
        let memory = ctx.arena.alloc(LINK_MEMORY, 64).ok_or(VerbsError::NoRoom)?;
        let pd = ctx.provider.pd_on(group.pd, device.address);
        // The paths to the host's TCP address and to its GID, as far as they are known.
        let remotes = [group.remote, address_of(group.peer_gid)];
        let passes = |remote| ctx.provider.path_mtu_to(device.address, remote, ctx.now);
        let [there, gid] = remotes.map(passes);
        let path_mtu = device.path_mtu.min(there).min(gid);
        let init = QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            max_send_wr: PER_MESSAGE * CDC_SLOTS as u32 + LLC_SLOTS as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: LEN,
        };
        let made = ctx
            .provider
            .create_qp(&init, ctx.rng)
            .and_then(|qp| ctx.provider.qp_number(qp).map(|qpn| (qp, qpn)));
        let (qp, qpn) = made.inspect_err(|_| ctx.arena.free(memory))?;
        ctx.provider.coalesce_acks(qp);
        // Each WRITE is followed by its CDC message.
        ctx.provider.writes_precede_send(qp);
        let number = group.next_link;
        group.next_link = group.next_link.wrapping_add(1).max(1);
        let link = Link {
            state: LinkState::Making,
            number,
            device,
            pd,
            gid: device.gid(group.version),
            mac,
            qp,
            qpn,
            psn: ctx.rng.next_u32() & 0xff_ffff,
            peer: PeerEnd { gid: Ipv6Addr::UNSPECIFIED, qpn: 0 },
            path_mtu,
            memory,
            pending: VecDeque::with_capacity(CDC_SLOTS + LLC_SLOTS),
            arrived: 0,
            cdc_under_way: 0,
            long_under_way: false,
            waiting: VecDeque::new(),
            last_rx: ctx.now,
            test: None,
        };
        for n in 0..RECEIVES {
            let id = WorkId::new(group_key, at, n).to_bits();
            let into = link.receive(n);
            // Cannot fail: the queue has this depth.
            let _ = ctx.provider.post_recv(qp, &RecvRequest { id, into: &into });
        }
        group.links[at] = Some(link);
        Ok(())
    }

    /// Connects the first link of a group, with the peer's Accept or Confirm.
    pub(super) fn ready_to_receive<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        peer: &AcceptConfirm,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Refusal> {
        // As Linux does, uses the GID of the Proposal.
        let gid = self.groups[group_key].peer_gid;
        let end = PeerEnd { gid, qpn: peer.qpn };
        let connected = self.connect_link(group_key, at, end, peer.psn, peer.path_mtu, ctx);
        connected.map_err(|()| Refusal::Decline(Reason::READY_LINK))
    }

    /// Moves a queue pair from Init to ready-to-receive.
    pub(super) fn connect_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        peer: PeerEnd,
        psn: u32,
        path_mtu: u8,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), ()> {
        let group = &mut self.groups[group_key];
        let link = group.links[at].as_mut().ok_or(())?;
        let path_mtu = PathMtu::from_code(path_mtu).ok_or(())?.min(link.path_mtu);
        let to = ReadyToReceive {
            remote_qpn: peer.qpn,
            rq_psn: psn,
            path_mtu,
            address: AddressVector {
                local: address_of(link.gid),
                remote: address_of(peer.gid),
                gid_type: if group.version == 1 { GidType::RoceV1 } else { GidType::RoceV2 },
                remote_mac: link.mac,
                source_port: 0xc000 | (link.qpn as u16 & 0x3fff),
                traffic_class: 0,
                hop_limit: 64,
            },
            max_dest_rd_atomic: 1,
            min_rnr_timer: MIN_RNR_TIMER,
        };
        ctx.provider.ready_to_receive(link.qp, &to).map_err(|_| ())?;
        link.peer = peer;
        link.path_mtu = path_mtu;
        Ok(())
    }

    /// Moves a queue pair from ready-to-receive to ready-to-send.
    pub(super) fn ready_to_send<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Reason> {
        let group = &mut self.groups[group_key];
        let (two, one) = self.config.ack_timeout;
        let link = group.links[at].as_mut().ok_or(Reason::READY_LINK)?;
        // Version 1 may negotiate two links although we have no second port.
        let joins = || self.devices.iter().any(|other| other.joins(&link.device));
        let ack_timeout =
            if group.max_links > 1 && (group.version > 1 || joins()) { two } else { one };
        let to = ReadyToSend {
            sq_psn: link.psn,
            max_rd_atomic: 1,
            ack_timeout,
            retry_count: self.config.retry_count,
            rnr_retry: 7,
        };
        ctx.provider.ready_to_send(link.qp, &to).map_err(|_| Reason::READY_LINK)?;
        link.last_rx = ctx.now;
        Ok(())
    }

    /// Removes a link, and returns its number.
    pub(super) fn remove_link<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<u8> {
        let group = self.groups.get_mut(group_key)?;
        let link = group.links.get_mut(at)?.take()?;
        // These sockets waited for this link.
        group.new_keys.extend(group.late_keys.drain(..));
        // Cannot fail: the queue pair exists until here. Its requests under way get no completions.
        let _ = ctx.provider.destroy_qp(link.qp);
        ctx.arena.free(link.memory);
        Some(link.number)
    }

    /// Handles the loss of a link: its queue pair failed, or the peer is silent.
    pub(super) fn link_failed<P: SmcDevice + ?Sized>(
        &mut self,
        group_key: usize,
        at: usize,
        ctx: &mut Ctx<'_, P>,
    ) {
        let state = self.groups.get(group_key).and_then(|g| Some(g.links.get(at)?.as_ref()?.state));
        let Some(number) = self.remove_link(group_key, at, ctx) else { return };
        let group = &mut self.groups[group_key];
        // An additional link that was never up does not count as lost.
        let lost = state == Some(LinkState::Active) || group.state != GroupState::Active;
        self.counters.links_failed += u64::from(lost);
        if matches!(group.state, GroupState::Ending(_)) {
            return;
        }
        let peer = group.peer();
        if lost {
            self.notice(Notice::LinkDown { peer, link: number });
        }
        self.fail_over(group_key, at, Some(number), ctx);
    }
}
