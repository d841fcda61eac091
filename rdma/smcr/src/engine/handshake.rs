//! Common code of client and server handshakes: CLC bytes in and out, Decline, fallback.

use super::table::{Handshake, LINKS, Phase};
use super::{Ctx, Engine, Notice, Ready, Role, Socket, SocketId, State};
use crate::SmcDevice;
use crate::wire::cdc::End;
use crate::wire::llc::DeleteReason;
use crate::wire::{Decline, Eid, Os, Reason, WireError, frame_length};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Neighbours;

/// First and longest pause before a held message is retried. A message held for a group is also retried when the group
/// is up.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));

/// Result of handling a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Handled.
    Yes,
    /// Held until a neighbour or a link group is available; retried later.
    Hold,
}

/// Why a message ends a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Falls back to TCP with a Decline.
    Decline(Reason),
    /// Falls back with a Decline that is marked out of sync: the peer named an unknown link group.
    OutOfSync(Reason),
    /// The peer violates the protocol.
    Broken,
}

impl From<WireError> for Refusal {
    fn from(_: WireError) -> Self {
        Refusal::Broken
    }
}

impl Engine {
    /// Opens a socket for a TCP connection on which both sides offer SMC. A server socket waits for a Proposal, a
    /// client socket sends one. `owner`: tag returned with its events ([`Engine::poll_event`]). Returns None if the
    /// socket table is full.
    pub fn open<P: SmcDevice + ?Sized>(
        &mut self,
        role: Role,
        [local, remote]: [IpAddr; 2],
        owner: u32,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<SocketId> {
        if self.closing || self.sockets.len() >= self.config.max_sockets {
            return None;
        }
        let place = self.sockets.vacant_entry().key();
        // A retained buffer keeps its socket's ID.
        let id = loop {
            self.generation = self.generation.wrapping_add(1);
            let id = SocketId::new(place, self.generation);
            if !self.retained.contains_key(&id) {
                break id;
            }
        };
        let (phase, timeout) = match role {
            Role::Server => (Phase::Proposal, self.config.clc_wait),
            Role::Client => (Phase::Accept, self.config.accept_wait.0),
        };
        let deadline = ctx.now + timeout;
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
            key_announced: false,
            link_lost: false,
        };
        let mut socket = Socket::new(id, role, [local, remote], owner, handshake);
        socket.sizes = self.config.sizes();
        entry.insert(socket);
        self.arm_socket(key, deadline);
        if role == Role::Client {
            self.propose(key);
        }
        Some(id)
    }

    /// Passes TCP bytes to a socket, and returns the number of bytes taken. The rest belongs to the application after a
    /// fallback; otherwise it is to be offered again.
    pub fn handle_clc_bytes<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        bytes: &[u8],
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> usize {
        let mut taken = 0;
        while let Some(socket) = self.socket_mut(id)
            && let Some(handshake) = &mut socket.handshake
            && !matches!(handshake.phase, Phase::Done | Phase::Fallback(_) | Phase::Failed)
            && handshake.retry.is_none()
        {
            // At most one message: bytes behind a Decline belong to the application.
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

    /// Copies CLC bytes that are to be sent over TCP to `into`, and returns their number.
    pub fn poll_clc_bytes(&mut self, id: SocketId, into: &mut [u8]) -> usize {
        let Some(socket) = self.socket_mut(id) else { return 0 };
        let Some(handshake) = &mut socket.handshake else { return 0 };
        let count = handshake.output.len().min(into.len());
        into[..count].copy_from_slice(&handshake.output[..count]);
        handshake.output.drain(..count);
        let phase = handshake.phase;
        handshake.offered |=
            count > 0 && matches!(phase, Phase::Confirm | Phase::Link | Phase::Done);
        handshake.key_announced |= handshake.offered;
        if socket.established && handshake.output.is_empty() {
            socket.handshake = None;
        }
        count
    }

    /// The TCP connection was reset. The handshake fails; an established socket has its link tested.
    pub fn handle_tcp_gone<P: SmcDevice + ?Sized>(&mut self, id: SocketId, ctx: &mut Ctx<'_, P>) {
        let Some(socket) = self.socket(id) else { return };
        if !socket.established {
            self.fail(id.key(), ctx);
        } else if let Some(group) = socket.group {
            let link = socket.link;
            self.test_link(group, link, ctx);
        }
    }

    /// The peer has sent a FIN on the TCP connection. Linux does that right after its last CDC message for a socket
    /// (`smc_close_active`, `smc_shutdown`), or instead of it: a killed process sends none while all send buffers of
    /// its link are in use (`smc_wr_tx_get_free_slot`).
    pub fn handle_tcp_finished(&mut self, id: SocketId, now: Instant) {
        let until = now + self.config.end_wait;
        let Some(socket) = self.socket_mut(id) else { return };
        if socket.established && socket.tcp_finished.is_none() {
            socket.tcp_finished = Some((until, socket.rx_seqno));
            self.arm_socket(id.key(), until);
        }
    }

    /// Handles the message in a handshake's input.
    pub(super) fn advance<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
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

    fn handle_decline<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        decline: &Decline,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.sockets[key].role == Role::Client && decline.reason == Reason::TIMEOUT_CONFIRM_LINK
        {
            self.note_roce_timeout(self.sockets[key].remote, ctx.now);
        }
        let group = self.sockets[key].group.filter(|_| decline.out_of_sync);
        let mut lost = false;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            lost = handshake.link_lost;
            // The peer does not use our buffer.
            handshake.offered = false;
        }
        self.fall_back(key, decline.reason, true, ctx);
        let Some(group_key) = group.filter(|_| !lost) else { return };
        let links = self.groups.get(group_key).map_or(0, |group| group.active_links());
        if links < 2 {
            self.end_group(group_key, DeleteReason::PROGRAM, true, ctx);
            return;
        }
        // Linux also sends this when it has lost only the link that the Accept named.
        for at in 0..LINKS {
            self.test_link(group_key, at, ctx);
        }
    }

    /// Handles a Decline of the server after the client was established. The server does not use SMC-R, so the
    /// connection is lost.
    pub fn handle_late_decline<P: SmcDevice + ?Sized>(
        &mut self,
        id: SocketId,
        ctx: &mut Ctx<'_, P>,
    ) {
        let is_client = |socket: &&Socket| socket.established && socket.role == Role::Client;
        if self.socket(id).filter(is_client).is_none() {
            return;
        }
        let ready = self.handle_end(id.key(), End::ABORT);
        self.announce(id.key(), ready);
        self.reap(id.key(), ctx);
    }

    /// Records that a client handshake timed out on the RoCE path.
    pub(super) fn note_roce_timeout(&mut self, server: IpAddr, now: Instant) {
        if let Some(time) = self.blocklist.record_timeout(server, now) {
            self.notice(Notice::ServerBlocked { server, time });
        }
    }

    pub(super) fn refuse<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        refusal: Refusal,
        ctx: &mut Ctx<'_, P>,
    ) {
        match refusal {
            Refusal::Broken => self.fail(key, ctx),
            Refusal::Decline(reason) => self.decline(key, reason, false, ctx),
            Refusal::OutOfSync(reason) => self.decline(key, reason, true, ctx),
        }
    }

    /// Declines, and goes back to TCP.
    pub(super) fn decline<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: Reason,
        out_of_sync: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        let peer_id = self.peer_id;
        if let Some(handshake) = &mut self.sockets[key].handshake {
            let version = handshake.version;
            let decline = Decline { version, out_of_sync, peer_id, reason, os: Os::LINUX };
            if matches!(handshake.phase, Phase::Confirm | Phase::Link) && !handshake.offered {
                // Discards the Accept or Confirm, which is not sent yet.
                handshake.output.clear();
            }
            handshake.output.extend(decline.emit());
        }
        if self.sockets[key].role == Role::Server {
            self.admission.declined(self.sockets[key].remote, reason);
        }
        self.fall_back(key, reason, false, ctx);
    }

    fn fall_back<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: Reason,
        by_peer: bool,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.counters.count_fallback(reason);
        let peer = self.sockets[key].remote;
        // A server's own Declines are reported as refusals instead.
        if by_peer || self.sockets[key].role == Role::Client {
            self.notice(Notice::Fallback { peer, reason, by_peer });
        }
        self.end_handshake(key, Phase::Fallback(reason), ctx);
        self.announce(key, Ready::FALLBACK);
    }

    /// Fails a handshake without a fallback.
    pub(super) fn fail<P: SmcDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        self.counters.failed += 1;
        self.end_handshake(key, Phase::Failed, ctx);
        self.announce(key, Ready::FAILED);
    }

    fn end_handshake<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        phase: Phase,
        ctx: &mut Ctx<'_, P>,
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
                self.blocklist.record_success(socket.remote);
            }
            Role::Server => self.counters.server += 1,
        }
        self.counters.first_contacts += u64::from(first_contact);
        // Data may have arrived before the handshake was complete.
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

    /// The first EID of the peer that is also ours.
    pub(super) fn common_eid(&self, theirs: &[Eid]) -> Option<Eid> {
        theirs.iter().copied().find(|eid| self.config.eids.contains(eid))
    }
}
