//! A queue pair, and its counterpart at the peer. Its completions are kept here until they are
//! polled.

use super::completion::CompletionQueues;
use super::counters::Counters;
use super::layout::{Layout, Places};
use super::requester::Requester;
use super::responder::Responder;
use crate::parts::memory::Memory;
use crate::parts::receive_queue::ReceiveQueue;
use crate::verbs::{
    CompletedOperation, Completion, ConnectionId, CqId, PdId, QpId, QpInit, QpState, SendWith,
    Status,
};
use alloc::collections::VecDeque;
use drivers::hal::Window;
use drivers::ntb::Bridge;

/// What a queue pair touches outside of itself.
#[derive(Debug)]
pub struct Env<'a> {
    pub memory: &'a mut Memory,
    pub cqs: &'a mut CompletionQueues,
    pub counters: &'a mut Counters,
}

/// The way to the peer, while the link is up.
pub struct Wire<'a> {
    pub bridge: &'a mut dyn Bridge,
    /// What the peer exposes, as far as its bridge says.
    pub window: Window,
    /// What we expose.
    pub exposed: Window,
    pub own: Layout,
    pub peer: Layout,
    /// Entries that may be outstanding in a ring, either way.
    pub depth: u32,
    /// Whether the peer can load from what we expose, and we from what it exposes.
    pub peer_loads: bool,
    pub we_load: bool,
}

impl Wire<'_> {
    /// Writes a cell of the peer's.
    #[inline]
    pub fn put32(&mut self, offset: usize, value: u32) {
        if let Some(place) = self.window.slice(offset, 4) {
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

/// Completions that wait to be polled: those of sends, and those of receives if they go to another
/// completion queue.
#[derive(Debug)]
pub struct Done {
    queues: [VecDeque<Completion>; 2],
    listed: [bool; 2],
    /// How many of sends, and of receives.
    pub sends: usize,
    pub receives: usize,
}

impl Done {
    fn new(init: &QpInit) -> Self {
        let (sends, receives) = (init.max_send_wr as usize, init.max_recv_wr as usize);
        let capacities =
            if init.send_cq == init.recv_cq { [sends + receives, 0] } else { [sends, receives] };
        Done {
            queues: capacities.map(VecDeque::with_capacity),
            listed: [false; 2],
            sends: 0,
            receives: 0,
        }
    }

    /// The next for a completion queue, and whether there are more.
    #[inline]
    pub fn take(&mut self, identity: &Identity, cq: CqId) -> Option<(Completion, bool)> {
        let which = usize::from(cq != identity.send_cq);
        let completion = self.queues[which].pop_front();
        let more = !self.queues[which].is_empty();
        self.listed[which] = more;
        let completion = completion?;
        *self.count(&completion) -= 1;
        Some((completion, more))
    }

    #[inline]
    fn count(&mut self, completion: &Completion) -> &mut usize {
        match completion.operation {
            CompletedOperation::Send => &mut self.sends,
            _ => &mut self.receives,
        }
    }

    #[inline]
    fn push(&mut self, identity: &Identity, cqs: &mut CompletionQueues, completion: Completion) {
        let receive = completion.operation != CompletedOperation::Send;
        let cq = if receive { identity.recv_cq } else { identity.send_cq };
        let which = usize::from(cq != identity.send_cq);
        *self.count(&completion) += 1;
        self.queues[which].push_back(completion);
        if !core::mem::replace(&mut self.listed[which], true) {
            cqs.list(cq, identity.place);
        }
    }
}

/// Completes requests of one queue pair.
pub struct Completer<'a> {
    pub identity: &'a Identity,
    pub done: &'a mut Done,
    pub cqs: &'a mut CompletionQueues,
}

impl Completer<'_> {
    /// A send ended.
    #[inline]
    pub fn send(&mut self, id: u64, status: Status) {
        self.complete(id, status, CompletedOperation::Send);
    }

    /// A receive succeeded.
    #[inline]
    pub fn receive(&mut self, id: u64, operation: CompletedOperation) {
        self.complete(id, Status::Success, operation);
    }

    /// A receive did not.
    pub fn fail_receive(&mut self, id: u64, status: Status) {
        let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
        self.complete(id, status, operation);
    }

    #[inline]
    fn complete(&mut self, id: u64, status: Status, operation: CompletedOperation) {
        let qp = self.identity.id;
        let completion = Completion { id, qp, status, operation, datagram_from: None };
        self.done.push(self.identity, self.cqs, completion);
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
    pub done: Done,
    /// The connection that it belongs to.
    pub connection: Option<ConnectionId>,
    /// The peer has been told of it, and may write to its slot.
    pub known_to_peer: bool,
    /// The peer has been told that we write to its slot no more.
    pub detached: bool,
    /// It stands in the list of those that have something to do.
    pub listed: bool,
    /// It stands in the list of those whose bells have to be rung.
    pub dirty: bool,
    /// Its user was told that it went to error.
    pub error_told: bool,
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
            done: Done::new(init),
            connection: None,
            known_to_peer: false,
            detached: false,
            listed: false,
            dirty: false,
            error_told: false,
        }
    }

    /// To the error state: everything posted is flushed. `first` is how the oldest send ended, if
    /// that is what failed.
    pub fn fail(&mut self, first: Option<Status>, env: &mut Env<'_>) {
        if self.state == QpState::Error {
            return;
        }
        self.state = QpState::Error;
        env.counters.qp_errors += 1;
        let mut completer =
            Completer { identity: &self.identity, done: &mut self.done, cqs: env.cqs };
        self.requester.flush(first, &mut completer, env.memory);
        while let Some(id) = self.receives.pop() {
            completer.fail_receive(id, Status::Flushed);
        }
    }

    /// Does what the peer has sent, then sends what is posted. Returns whether there is more to do
    /// at once.
    pub fn serve(&mut self, wire: &mut Wire<'_>, env: &mut Env<'_>) -> bool {
        let Some(peer) = self.peer else { return false };
        if !matches!(self.state, QpState::Rtr | QpState::Rts) {
            return false;
        }
        let mut completer =
            Completer { identity: &self.identity, done: &mut self.done, cqs: env.cqs };
        let served = self.responder.serve(
            &peer,
            &mut self.receives,
            &mut completer,
            wire,
            env.memory,
            env.counters,
        );
        match served {
            Ok(more) => {
                if self.state == QpState::Rts {
                    self.requester.push(&peer, wire, env.counters);
                }
                more
            }
            Err(()) => {
                self.fail(None, env);
                false
            }
        }
    }
}
