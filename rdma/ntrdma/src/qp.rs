//! A queue pair, its counterpart at the peer, and the session.

use super::counters::Counters;
use super::layout::Places;
use super::requester::Requester;
use super::responder::Responder;
use super::wire::Info;
use core::ops::Deref;
use drivers::dma::Ticket;
use drivers::hal::Window;
use drivers::ntb::Bridge;
use softverbs::completion::CompletionQueues;
use softverbs::memory::Memory;
use softverbs::receive_queue::ReceiveQueue;
use verbs::{
    CompletedOperation, Completion, ConnectionId, CqId, PdId, QpId, QpInit, QpState, SendWith,
    Status,
};

/// State of the provider that queue pairs use.
#[derive(Debug)]
pub struct Ctx<'a> {
    pub memory: &'a mut Memory,
    pub cqs: &'a mut CompletionQueues,
    pub counters: &'a mut Counters,
}

/// Parameters of a session, which both sides have agreed on while the link is up.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Window to the peer's exposed memory.
    pub window: Window,
    /// The peer's bell of batches.
    pub batch: Window,
    /// Local exposed memory.
    pub exposed: Window,
    /// Most outstanding entries of a ring, in each direction.
    pub depth: u32,
    /// Bytes of local staging memory for the payload of the peer's sends on a queue pair.
    pub staging: u32,
    /// Bytes of the peer's landing memory for responses to its READs.
    pub landing: u32,
    /// Whether the peer can load from local exposed memory.
    pub peer_loads: bool,
    /// Whether this side can load from the peer's exposed memory.
    pub we_load: bool,
    /// Whether the bridge merges writes to adjacent memory ([`drivers::dma::Dma::gathers`]).
    pub gathers: bool,
    /// The peer's introduction.
    pub info: Info,
}

/// The bridge and the session, for writes to the peer.
pub struct Wire<'a, B: ?Sized> {
    pub bridge: &'a mut B,
    pub session: &'a Session,
}

impl<B: ?Sized> Deref for Wire<'_, B> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session
    }
}

impl<B: Bridge + ?Sized> Wire<'_, B> {
    /// Writes a cell of the peer's exposed memory.
    #[inline]
    pub fn put32(&mut self, offset: usize, value: u32) {
        if let Some(place) = self.session.window.slice(offset, 4) {
            self.bridge.put32(&place, value);
        }
    }
}

/// The counterpart of a queue pair at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    pub number: u32,
    /// Offsets of its parts in the peer's exposed memory.
    pub places: Places,
}

/// Immutable properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub id: QpId,
    /// Its index in the table.
    pub place: u32,
    /// Its number; some bits are the slot.
    pub number: u32,
    /// Its slot in exposed memory.
    pub slot: u32,
    pub places: Places,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
}

/// Completes requests of one queue pair.
pub struct Completer<'a> {
    pub identity: &'a Identity,
    pub cqs: &'a mut CompletionQueues,
    /// Counts completions dropped because their queue is full.
    pub lost: &'a mut u64,
}

impl Completer<'_> {
    /// Completes a send.
    #[inline]
    pub fn send(&mut self, id: u64, status: Status) {
        self.complete(self.identity.send_cq, id, status, CompletedOperation::Send);
    }

    /// Completes a receive with success.
    #[inline]
    pub fn receive(&mut self, id: u64, operation: CompletedOperation) {
        self.complete(self.identity.recv_cq, id, Status::Success, operation);
    }

    /// Completes a receive with an error.
    pub fn fail_receive(&mut self, id: u64, status: Status) {
        let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
        self.complete(self.identity.recv_cq, id, status, operation);
    }

    #[inline]
    fn complete(&mut self, cq: CqId, id: u64, status: Status, operation: CompletedOperation) {
        let qp = self.identity.id;
        let completion = Completion { id, qp, status, operation, datagram_from: None };
        if !self.cqs.push(cq, completion, true) {
            *self.lost += 1;
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub identity: Identity,
    pub state: QpState,
    pub peer: Option<RemoteQp>,
    pub requester: Requester,
    pub responder: Responder,
    pub receives: ReceiveQueue,
    /// The connection that it belongs to.
    pub connection: Option<ConnectionId>,
    /// The peer was notified of it, and may write to its slot.
    pub known_to_peer: bool,
    /// The peer was notified that this side no longer writes to its counterpart.
    pub detached: bool,
    /// It is in the queue of queue pairs with work.
    pub queued: bool,
    /// Values of its bells at the peer: local entries produced, and entries of the peer consumed.
    pub announced: [u32; 2],
    /// Why an entry of the peer was refused, until `Detach` reports it.
    pub refused: Option<Status>,
    /// The user was notified that it went to error, or requested it.
    pub error_reported: bool,
    /// Set while it is in error and its requests have not ended, because an engine may still read their payload: the
    /// status for the oldest one.
    pub ending: Option<Option<Status>>,
}

impl Qp {
    /// A queue pair in the state Init. This allocates all its memory.
    pub fn new(identity: Identity, init: &QpInit) -> Self {
        Qp {
            identity,
            state: QpState::Init,
            peer: None,
            requester: Requester::new(init),
            responder: Responder::new(),
            receives: ReceiveQueue::new(init),
            connection: None,
            known_to_peer: false,
            detached: false,
            queued: false,
            announced: [0; 2],
            refused: None,
            error_reported: false,
            ending: None,
        }
    }

    /// Moves it to the error state, and flushes all posted requests. `first` is the status of the oldest send, if
    /// that one failed.
    pub fn fail(
        &mut self,
        first: Option<Status>,
        ctx: &mut Ctx<'_>,
        exposed: &Window,
        copied: Ticket,
    ) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        ctx.counters.qp_errors += 1;
        self.ending = Some(first);
        self.end_requests(ctx, exposed, copied);
        let lost = &mut ctx.counters.completions_lost;
        let mut completer = Completer { identity: &self.identity, cqs: ctx.cqs, lost };
        while let Some(id) = self.receives.pop() {
            completer.fail_receive(id, Status::Flushed);
        }
    }

    /// Ends the requests of a queue pair in error once no engine reads them any more; copies up to `copied` are
    /// complete. False if that is not the case yet. `exposed` is the local exposed memory.
    pub fn end_requests(&mut self, ctx: &mut Ctx<'_>, exposed: &Window, copied: Ticket) -> bool {
        let Some(first) = self.ending else { return true };
        if self.requester.copying(copied).is_some() {
            return false;
        }
        self.ending = None;
        let lost = &mut ctx.counters.completions_lost;
        let mut completer = Completer { identity: &self.identity, cqs: ctx.cqs, lost };
        self.requester.flush(first, &mut completer, exposed, ctx.memory);
        true
    }

    /// Current values for its bells at the peer.
    #[inline]
    pub fn reached(&self) -> [u32; 2] {
        [self.requester.produced, self.responder.consumed]
    }

    /// Executes entries of the peer, then writes posted requests. Returns whether there is more work now; an error is
    /// the status with which the queue pair fails, to be reported to the peer.
    #[inline]
    pub fn serve<B: Bridge + ?Sized>(
        &mut self,
        wire: &mut Wire<'_, B>,
        ctx: &mut Ctx<'_>,
    ) -> Result<bool, Status> {
        let Some(peer) = &self.peer else { return Ok(false) };
        if !matches!(self.state, QpState::Rtr | QpState::Rts) {
            return Ok(false);
        }
        let mut more = false;
        if self.responder.produced != self.responder.consumed {
            more = self.responder.serve(peer, &self.identity, &mut self.receives, wire, ctx)?;
        }
        if self.state == QpState::Rts {
            self.requester.push(peer, wire, ctx.counters);
        }
        Ok(more)
    }
}
