//! A queue pair: the common state of its requester and its responder.

use super::completion::CompletionQueues;
use super::counters::Counters;
use super::datagram::Datagrams;
use super::memory::Memory;
use super::psn::Psn;
use super::receive_queue::{self, ReceiveQueue};
use super::requester::Requester;
use super::responder::Responder;
use super::wire::frame::Template;
use super::wire::header_prediction::HeaderPrediction;
use core::net::IpAddr;
use drivers::hal::Instant;
use verbs::{
    CompletedOperation, Completion, ConnectionId, CqId, GidType, PathMtu, PdId, QpId, QpInit,
    QpState, QpType, ReadyToReceive, ReadyToSend, Status, VerbsError,
};

/// The provider's state that a queue pair works on.
#[derive(Debug)]
pub struct Ctx<'a> {
    pub memory: &'a mut Memory,
    pub cqs: &'a mut CompletionQueues,
    pub counters: &'a mut Counters,
    pub now: Instant,
}

/// The other end of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub qpn: u32,
    pub template: Template,
    pub path_mtu: PathMtu,
}

/// Constant properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub id: QpId,
    /// Number on the wire.
    pub number: u32,
    pub kind: QpType,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    /// PSN of our first packet, if the connection manager connects it.
    pub initial_psn: Psn,
}

impl Identity {
    /// Adds a completion to the send completion queue; counts it if it is lost. `awaited` is false if the user does not
    /// wait for it ([`SendRequest::ack_lazily`](verbs::SendRequest::ack_lazily)).
    #[inline(never)]
    pub fn complete_send(&self, ctx: &mut Ctx<'_>, id: u64, status: Status, awaited: bool) {
        let operation = CompletedOperation::Send;
        let completion = Completion { id, qp: self.id, status, operation, datagram_from: None };
        if !ctx.cqs.push(self.send_cq, completion, awaited) {
            ctx.counters.completions_lost += 1;
        }
    }

    /// Adds a completion to the receive completion queue; counts it if it is lost.
    #[inline]
    pub fn complete_receive(&self, ctx: &mut Ctx<'_>, completion: Completion) {
        if !ctx.cqs.push(self.recv_cq, completion, true) {
            ctx.counters.completions_lost += 1;
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub identity: Identity,
    pub state: QpState,
    pub peer: Option<Peer>,
    /// The headers that the peer's packets have in common, if known.
    pub expected: Option<HeaderPrediction>,
    /// Index of the port that it sends through.
    pub port: usize,
    /// Whether the peer is behind a router; its packets may come through another router.
    pub routed: bool,
    pub requester: Requester,
    pub responder: Responder,
    pub receives: ReceiveQueue,
    /// For an unreliable datagram queue pair.
    pub datagrams: Datagrams,
    /// Its connection.
    pub connection: Option<ConnectionId>,
    /// Whether a valid packet of the peer has arrived.
    pub peer_seen: bool,
    /// Whether it is in `Port::replies`.
    pub listed_reply: bool,
    /// Whether it is in `Port::sends`.
    pub listed_send: bool,
    /// Whether its error was reported to the user.
    pub error_reported: bool,
    /// When it failed because its peer did not acknowledge a large packet.
    pub large_packet_lost: Option<Instant>,
}

impl Qp {
    /// A queue pair in state Init. All memory that it will ever need, except for RDMA READ, is allocated here.
    pub fn new(identity: Identity, init: &QpInit) -> Self {
        let (sends, datagrams) = match init.kind {
            QpType::Rc => (init.max_send_wr, 0),
            QpType::Ud { .. } => (0, init.max_send_wr),
        };
        Qp {
            identity,
            state: QpState::Init,
            peer: None,
            expected: None,
            port: 0,
            routed: false,
            requester: Requester::new(sends as usize, init),
            responder: Responder::new(),
            receives: ReceiveQueue::new(init),
            datagrams: Datagrams::new(datagrams as usize),
            connection: None,
            peer_seen: false,
            listed_reply: false,
            listed_send: false,
            error_reported: false,
            large_packet_lost: None,
        }
    }

    /// Init to ready-to-receive.
    pub fn ready_to_receive(
        &mut self,
        to: &ReadyToReceive,
        mac: [u8; 6],
    ) -> Result<(), VerbsError> {
        if self.state != QpState::Init {
            return Err(VerbsError::WrongState);
        }
        if to.min_rnr_timer > 31 {
            return Err(VerbsError::Invalid);
        }
        let template = Template::new(mac, &to.address);
        self.peer = Some(Peer { qpn: to.remote_qpn & 0xff_ffff, template, path_mtu: to.path_mtu });
        self.expected = HeaderPrediction::new(&template, to.address.remote_mac);
        self.responder.start(Psn::new(to.rq_psn), to.max_dest_rd_atomic, to.min_rnr_timer);
        self.state = QpState::Rtr;
        Ok(())
    }

    /// Address of the peer.
    pub fn remote(&self) -> Option<IpAddr> {
        self.peer.as_ref().map(|peer| peer.template.remote().address())
    }

    /// The MAC address in the peer's GID, if the queue pair uses RoCEv1 and the GID has one.
    pub fn mac_of_gid(&self) -> Option<[u8; 6]> {
        let template = &self.peer.as_ref()?.template;
        let is_v1 = template.gid_type() == GidType::RoceV1;
        ::cm::mac_of_gid(template.remote().address()).filter(|_| is_v1)
    }

    /// Changes the MAC address of the peer.
    pub fn readdress(&mut self, mac: [u8; 6]) {
        if let Some(peer) = &mut self.peer {
            peer.template.readdress(mac);
            self.expected = HeaderPrediction::new(&peer.template, mac);
        }
    }

    /// Ready-to-receive to ready-to-send.
    pub fn ready_to_send(&mut self, to: &ReadyToSend) -> Result<(), VerbsError> {
        if self.state != QpState::Rtr {
            return Err(VerbsError::WrongState);
        }
        if to.retry_count > 7 || to.rnr_retry > 7 || to.ack_timeout > 31 {
            return Err(VerbsError::Invalid);
        }
        self.requester.start(to);
        self.state = QpState::Rts;
        Ok(())
    }

    /// To the error state: all work requests are flushed. `first` is the status of the oldest send request, if that
    /// caused the failure.
    pub fn fail(&mut self, first: Option<Status>, ctx: &mut Ctx<'_>) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        ctx.counters.qp_errors += 1;
        if let (Some(Status::RetryExceeded), Some(peer)) = (first, &self.peer)
            && self.requester.oldest_packet(peer.path_mtu.bytes()) > ::cm::LEAST_OFFER.bytes()
        {
            self.large_packet_lost = Some(ctx.now);
        }
        self.requester.flush(first, &self.identity, ctx);
        self.datagrams.flush(&self.identity, ctx);
        receive_queue::flush(&mut self.receives, &self.identity, ctx);
        self.responder.stop();
    }

    /// Whether it has an ACK or NAK to send before anything else.
    #[inline]
    pub fn has_reply(&self) -> bool {
        self.responder.has_reply()
    }

    /// Whether it has anything else to send.
    #[inline]
    pub fn has_send(&self, window: u32) -> bool {
        self.responder.has_answer()
            || self.state == QpState::Rts
                && (self.requester.can_send(window) || self.datagrams.has_send())
    }

    /// Whether a request packet without an ACK request leaves nothing to do: no failure, and no reply or answer that is
    /// not listed yet.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.state != QpState::Error
            && (self.listed_reply || !self.responder.has_reply())
            && (self.listed_send || !self.responder.has_answer())
    }

    /// Whether it is ready to send and has nothing to send.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.state == QpState::Rts && !self.listed_reply && !self.listed_send
    }

    /// Number of requests posted so far, modulo 2^32; None if none is in flight.
    pub fn under_way(&self) -> Option<u32> {
        // A queue pair has requests in only one of them.
        self.requester.under_way().or_else(|| self.datagrams.under_way())
    }

    /// Whether the requests up to number `requests` are done.
    pub fn has_done(&self, requests: u32) -> bool {
        match self.identity.kind {
            QpType::Rc => self.requester.has_done(requests),
            QpType::Ud { .. } => self.datagrams.has_done(requests),
        }
    }

    /// When its next timer expires.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        Instant::first([self.requester.deadline(), self.responder.deadline()])
    }
}
