//! What handshakes of both roles share: bytes in and out, Decline, fallback.

use super::table::{Handshake, LINKS, Phase};
use super::{Engine, EngineContext, Notice, Ready, Role, Socket, SocketId, State};
use crate::wire::cdc::End;
use crate::wire::llc::DeleteReason;
use crate::wire::{Decline, Eid, Os, Reason, WireError, frame_length};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Neighbours;
use verbs::Provider;

/// How soon a held message is looked at again, and how soon after that at the latest; what waits for a
/// group is woken when that is made.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));

/// How a message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is done with.
    Yes,
    /// It has to wait for somebody else, and is looked at again.
    Hold,
}

/// Why a message ends a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Back to TCP, with a word to the peer.
    Decline(Reason),
    /// Likewise; and the link group that the peer meant is none of ours.
    OutOfSync(Reason),
    /// The peer does not keep to the protocol.
    Broken,
}

impl From<WireError> for Refusal {
    fn from(_: WireError) -> Self {
        Refusal::Broken
    }
}

impl Engine {
    /// A socket for a TCP connection on which both sides offer SMC: as server it waits for a
    /// Proposal, as client it makes one. `owner` is said with its events ([`Engine::poll_event`]). None if there is no
    /// room for it.
    pub fn open<P: Provider + ?Sized>(
        &mut self,
        role: Role,
        [local, remote]: [IpAddr; 2],
        owner: u32,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<SocketId> {
        if self.closing || self.sockets.len() >= self.config.max_sockets {
            return None;
        }
        let place = self.sockets.vacant_entry().key();
        // What is kept of a socket that is gone has its name to itself.
        let id = loop {
            self.generation = self.generation.wrapping_add(1);
            let id = SocketId::new(place, self.generation);
            if !self.retained.contains_key(&id) {
                break id;
            }
        };
        let (phase, patience) = match role {
            Role::Server => (Phase::Proposal, self.config.clc_wait),
            Role::Client => (Phase::Accept, self.config.accept_wait.0),
        };
        let deadline = ctx.now + patience;
        let entry = self.sockets.vacant_entry();
        let key = entry.key();
        let handshake = Handshake {
            phase,
            input: Vec::new(),
            output: Vec::new(),
            opened: ctx.now,
            deadline,
            retry: None,
            pause: RETRY.0,
            first_contact: false,
            version: 2,
            held_back: Vec::new(),
            answered: false,
            offered: false,
            told_key: false,
            link_lost: false,
        };
        entry.insert(Socket::new(id, role, [local, remote], owner, handshake));
        self.arm_socket(key, deadline);
        if role == Role::Client {
            self.propose(key);
        }
        Some(id)
    }

    /// Gives a socket bytes of its TCP connection; how many it took. What it leaves is the
    /// application's if the socket has fallen back, and to be offered again if it has not.
    pub fn handle_clc_bytes<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut EngineContext<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> usize {
        let mut taken = 0;
        while let Some(socket) = self.socket_mut(id)
            && let Some(handshake) = &mut socket.handshake
            && !matches!(handshake.phase, Phase::Done | Phase::Fallback(_) | Phase::Failed)
            && handshake.retry.is_none()
        {
            // Never more than a message: what follows a Decline is not ours.
            let want = match frame_length(&handshake.input) {
                Ok(length) => length.unwrap_or(8),
                Err(_) => {
                    self.refuse(id.key(), Refusal::Broken, ctx);
                    break;
                }
            };
            let count = (want - handshake.input.len()).min(bytes.len() - taken);
            if count == 0 && handshake.input.len() < want {
                break;
            }
            handshake.input.extend_from_slice(&bytes[taken..taken + count]);
            taken += count;
            if frame_length(&handshake.input) == Ok(Some(handshake.input.len())) {
                self.advance(id.key(), ctx, neighbours);
            }
        }
        taken
    }

    /// What a socket has to say on its TCP connection; how much was put into `into`.
    pub fn poll_clc_bytes(&mut self, id: SocketId, into: &mut [u8]) -> usize {
        let Some(socket) = self.socket_mut(id) else { return 0 };
        let Some(handshake) = &mut socket.handshake else { return 0 };
        let count = handshake.output.len().min(into.len());
        into[..count].copy_from_slice(&handshake.output[..count]);
        handshake.output.drain(..count);
        let phase = handshake.phase;
        handshake.offered |=
            count > 0 && matches!(phase, Phase::Confirm | Phase::Link | Phase::Done);
        handshake.told_key |= handshake.offered;
        if socket.established && handshake.output.is_empty() {
            socket.handshake = None;
        }
        count
    }

    /// The TCP connection is gone. An established socket has its link tested.
    pub fn handle_tcp_gone<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(socket) = self.socket(id) else { return };
        if !socket.established {
            self.fail(id.key(), ctx);
        } else if let Some(group) = socket.group {
            let link = socket.link;
            self.test_link(group, link, ctx);
        }
    }

    /// The peer has ended its side of the TCP connection. Linux does that right behind its last word about a
    /// socket (`smc_close_active`, `smc_shutdown`), or in place of it: a process that is killed sends none
    /// while all send buffers of its link are in use (`smc_wr_tx_get_free_slot`).
    pub fn handle_tcp_finished(&mut self, id: SocketId, now: Instant) {
        let until = now + self.config.end_wait;
        let Some(socket) = self.socket_mut(id) else { return };
        if socket.established && socket.tcp_finished.is_none() {
            socket.tcp_finished = Some((until, socket.rx_seqno));
            self.arm_socket(id.key(), until);
        }
    }

    /// Looks at the message that is in a handshake's input.
    pub(super) fn advance<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        let Some(handshake) = &mut self.sockets[key].handshake else { return };
        let message = core::mem::take(&mut handshake.input);
        let held = handshake.retry.take().is_some();
        let phase = handshake.phase;
        let result = match Decline::parse(&message) {
            Ok(decline) => {
                self.handle_decline(key, &decline, ctx);
                return;
            }
            Err(_) => match phase {
                Phase::Proposal => self.handle_proposal(key, &message, ctx, neighbours),
                Phase::Confirm => self.handle_confirm(key, &message, ctx),
                Phase::Accept => self.handle_accept(key, &message, ctx, neighbours),
                _ => Err(Refusal::Broken),
            },
        };
        if held && result != Ok(Taken::Hold) {
            self.release_held(key);
        }
        match result {
            Ok(Taken::Yes) => {}
            Ok(Taken::Hold) => {
                let Some(handshake) = &mut self.sockets[key].handshake else { return };
                if !held {
                    handshake.deadline = handshake.deadline.min(ctx.now + self.config.hold_wait);
                    handshake.pause = RETRY.0;
                }
                let at = ctx.now + handshake.pause;
                handshake.pause = RETRY.1.min(2 * handshake.pause);
                handshake.input = message;
                handshake.retry = Some(at);
                let first = at.min(handshake.deadline);
                self.arm_socket(key, first);
                self.note_held(key);
            }
            Err(refusal) => self.refuse(key, refusal, ctx),
        }
    }

    fn handle_decline<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        decline: &Decline,
        ctx: &mut EngineContext<'_, P>,
    ) {
        if self.sockets[key].role == Role::Client && decline.reason == Reason::TIMEOUT_CONFIRM_LINK
        {
            self.waited_in_vain(self.sockets[key].remote, ctx.now);
        }
        let group = self.sockets[key].group.filter(|_| decline.out_of_sync);
        let mut lost = false;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            lost = handshake.link_lost;
            // It has no use for our buffer.
            handshake.offered = false;
        }
        self.fall_back(key, decline.reason, true, ctx);
        let Some(group_key) = group.filter(|_| !lost) else { return };
        let links = self.groups.get(group_key).map_or(0, |group| group.active_links());
        if links < 2 {
            self.end_group(group_key, DeleteReason::PROGRAM, true, ctx);
            return;
        }
        // Linux says the same of a group of which it has only lost the link that was named.
        for at in 0..LINKS {
            self.test_link(group_key, at, ctx);
        }
    }

    /// A server declines whose client is done: it is not on SMC-R, though its client is. The connection is lost.
    pub fn handle_late_decline<P: Provider + ?Sized>(
        &mut self,
        id: SocketId,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let is_client = |socket: &&Socket| socket.established && socket.role == Role::Client;
        if self.socket(id).filter(is_client).is_none() {
            return;
        }
        let ready = self.handle_end(id.key(), End::ABORT);
        self.announce(id.key(), ready);
        self.reap(id.key(), ctx);
    }

    /// A handshake as client has waited in vain for what comes over RoCE.
    pub(super) fn waited_in_vain(&mut self, server: IpAddr, now: Instant) {
        if let Some(time) = self.doubts.waited_in_vain(server, now) {
            self.notice(Notice::Doubted { server, time });
        }
    }

    pub(super) fn refuse<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        refusal: Refusal,
        ctx: &mut EngineContext<'_, P>,
    ) {
        match refusal {
            Refusal::Broken => self.fail(key, ctx),
            Refusal::Decline(reason) => self.decline(key, reason, false, ctx),
            Refusal::OutOfSync(reason) => self.decline(key, reason, true, ctx),
        }
    }

    /// Declines, and goes back to TCP.
    pub(super) fn decline<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        reason: Reason,
        out_of_sync: bool,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let peer_id = self.peer_id;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            let version = handshake.version;
            let decline = Decline { version, out_of_sync, peer_id, reason, os: Os::LINUX };
            if matches!(handshake.phase, Phase::Confirm | Phase::Link) && !handshake.offered {
                // The Accept or Confirm has not gone out, and does not any more.
                handshake.output.clear();
            }
            handshake.output.extend(decline.emit());
        }
        if self.sockets[key].role == Role::Server {
            self.admission.declined(self.sockets[key].remote, reason);
        }
        self.fall_back(key, reason, false, ctx);
    }

    fn fall_back<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        reason: Reason,
        by_peer: bool,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.counters.count_fallback(reason);
        let peer = self.sockets[key].remote;
        // Whom we decline as a server is among what was refused.
        if by_peer || self.sockets[key].role == Role::Client {
            self.notice(Notice::Fallback { peer, reason, by_peer });
        }
        self.end_handshake(key, Phase::Fallback(reason), ctx);
        self.announce(key, Ready::FALLBACK);
    }

    /// Breaks a handshake off.
    pub(super) fn fail<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.counters.failed += 1;
        self.end_handshake(key, Phase::Failed, ctx);
        self.announce(key, Ready::FAILED);
    }

    fn end_handshake<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        phase: Phase,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let socket = &mut self.sockets[key];
        socket.state = State::Closed;
        let Some(handshake) = &mut socket.handshake else { return };
        handshake.phase = phase;
        handshake.input = Vec::new();
        handshake.held_back = Vec::new();
        let held = handshake.retry.take().is_some();
        let makes_group = handshake.first_contact;
        let group = socket.group;
        if held {
            self.release_held(key);
        }
        self.give_back(key, ctx);
        if let Some(group) = group.filter(|_| makes_group) {
            self.drop_group(group, ctx);
        }
    }

    /// The handshake is over: the socket may send and receive.
    pub(super) fn establish(&mut self, key: usize, now: Instant) {
        let socket = &mut self.sockets[key];
        socket.established = true;
        if socket.state == State::Init {
            socket.state = State::Active;
        }
        let first_contact = socket.handshake.as_ref().is_some_and(|hs| hs.first_contact);
        if socket.handshake.as_ref().is_some_and(|hs| hs.output.is_empty()) {
            socket.handshake = None;
        }
        match socket.role {
            Role::Client => {
                self.counters.client += 1;
                self.doubts.works(socket.remote);
            }
            Role::Server => self.counters.server += 1,
        }
        self.counters.first_contacts += u64::from(first_contact);
        // Data may have come before the last word of the handshake.
        let socket = &self.sockets[key];
        let mut ready = Ready::ESTABLISHED;
        if socket.produced > 0 || !socket.rx_end.is_empty() {
            ready |= Ready::READABLE;
        }
        if let (Some(group), true) = (socket.group, first_contact) {
            self.group_up(group, now);
        }
        self.announce(key, ready);
        self.touch(key);
    }

    /// The enterprise that we share with a peer: the first of its own that is ours too.
    pub(super) fn common_eid(&self, theirs: &[Eid]) -> Option<Eid> {
        theirs.iter().copied().find(|eid| self.config.eids.contains(eid))
    }
}
