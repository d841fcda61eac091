//! A queue pair, and its counterpart at the peer.

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

/// What a queue pair touches outside of itself.
#[derive(Debug)]
pub struct Env<'a> {
    pub memory: &'a mut Memory,
    pub cqs: &'a mut CompletionQueues,
    pub counters: &'a mut Counters,
}

/// What both sides have agreed on, while the link is up.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// What the peer exposes, as far as its bridge says.
    pub window: Window,
    /// The peer's bell of batches.
    pub batch: Window,
    /// What we expose.
    pub exposed: Window,
    /// Entries that may be outstanding in a ring, either way.
    pub depth: u32,
    /// Bytes for the payload of what the peer sends on a queue pair, and for our answers to its
    /// READs there.
    pub staging: u32,
    pub landing: u32,
    /// Whether the peer can load from what we expose, and we from what it exposes.
    pub peer_loads: bool,
    pub we_load: bool,
    /// Whether the bridge makes one of writes to neighbouring memory ([`drivers::dma::Dma::gathers`]).
    pub gathers: bool,
    /// The peer's introduction.
    pub info: Info,
}

/// The way to the peer.
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
    /// Writes a cell of the peer's.
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
    /// Where it lies in what the peer exposes.
    pub places: Places,
}

/// What a queue pair is and never changes.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub id: QpId,
    /// Its place in the table.
    pub place: u32,
    /// Its number, of which some bits are the slot.
    pub number: u32,
    /// Its place in the exposed memory.
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
    /// Counts those for which there is no room.
    pub lost: &'a mut u64,
}

impl Completer<'_> {
    /// A send ended.
    #[inline]
    pub fn send(&mut self, id: u64, status: Status) {
        self.complete(self.identity.send_cq, id, status, CompletedOperation::Send);
    }

    /// A receive succeeded.
    #[inline]
    pub fn receive(&mut self, id: u64, operation: CompletedOperation) {
        self.complete(self.identity.recv_cq, id, Status::Success, operation);
    }

    /// A receive did not.
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
    /// The peer has been told of it, and may write to its slot.
    pub known_to_peer: bool,
    /// The peer has been told that we write to its slot no more.
    pub detached: bool,
    /// It stands in the list of those that have something to do.
    pub listed: bool,
    /// What the bells at the peer say: entries that we have produced, and consumed.
    pub told: [u32; 2],
    /// Why an entry of the peer's was refused, of which it has not been told.
    pub refused: Option<Status>,
    /// Its user was told that it went to error.
    pub error_told: bool,
    /// It went to error and its requests have not ended: an engine may still read what they send. How the oldest
    /// is to end.
    pub ending: Option<Option<Status>>,
}

impl Qp {
    /// In the state Init. All memory that it will ever need is taken here.
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
            listed: false,
            told: [0; 2],
            refused: None,
            error_told: false,
            ending: None,
        }
    }

    /// To the error state: everything posted is flushed. `first` is how the oldest send ended, if
    /// that is what failed.
    pub fn fail(
        &mut self,
        first: Option<Status>,
        env: &mut Env<'_>,
        exposed: &Window,
        copied: Ticket,
    ) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        env.counters.qp_errors += 1;
        self.ending = Some(first);
        self.end_requests(env, exposed, copied);
        let lost = &mut env.counters.completions_lost;
        let mut completer = Completer { identity: &self.identity, cqs: env.cqs, lost };
        while let Some(id) = self.receives.pop() {
            completer.fail_receive(id, Status::Flushed);
        }
    }

    /// Ends the requests of a queue pair in error, once nothing of them is read any more: copies up to `copied` are
    /// complete. Whether that is so. `exposed` is what we expose.
    pub fn end_requests(&mut self, env: &mut Env<'_>, exposed: &Window, copied: Ticket) -> bool {
        let Some(first) = self.ending else { return true };
        if self.requester.copying(copied).is_some() {
            return false;
        }
        self.ending = None;
        let lost = &mut env.counters.completions_lost;
        let mut completer = Completer { identity: &self.identity, cqs: env.cqs, lost };
        self.requester.flush(first, &mut completer, exposed, env.memory);
        true
    }

    /// What the bells at the peer should say.
    #[inline]
    pub fn reached(&self) -> [u32; 2] {
        [self.requester.produced, self.responder.consumed]
    }

    /// Does what the peer has sent, then sends what is posted. Returns whether there is more to do
    /// at once; or why the queue pair has to fail, which the peer is to be told.
    #[inline]
    pub fn serve<B: Bridge + ?Sized>(
        &mut self,
        wire: &mut Wire<'_, B>,
        env: &mut Env<'_>,
    ) -> Result<bool, Status> {
        let Some(peer) = &self.peer else { return Ok(false) };
        if !matches!(self.state, QpState::Rtr | QpState::Rts) {
            return Ok(false);
        }
        let mut more = false;
        if self.responder.produced != self.responder.consumed {
            more = self.responder.serve(peer, &self.identity, &mut self.receives, wire, env)?;
        }
        if self.state == QpState::Rts {
            self.requester.push(peer, wire, env.counters);
        }
        Ok(more)
    }
}
