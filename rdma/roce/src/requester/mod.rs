//! The requester of a reliable connection (vol. 1, 9.7): sends what is posted, and sees to it that
//! all of it arrives. Retries go back to the oldest packet that is not acknowledged (go-back-N),
//! because that is all that responders keep state for. Flow-control credits are not honoured, as
//! in Linux.

mod ack_share;
mod rto;
mod transmit;
mod work;

pub use work::Stored;

use crate::memory::Memory;
use crate::psn::Psn;
use crate::qp::{Env, Identity};
use crate::wire::extended::{Nak, Syndrome};
use ack_share::AckShare;
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::{Instant, Through};
use rto::Patience;
use verbs::{Payload, QpInit, ReadyToSend, SendOperation, SendRequest, Status, VerbsError};
use work::{LargePayloads, Operation, Work};

/// Longest message in bytes; its PSNs stay far from half of their space at any path MTU.
pub const MAX_MESSAGE: usize = 1 << 30;

/// Longest that a peer may keep a request without acknowledging any more of what was sent: more than ACK timeouts
/// and retries take, and than a host needs that posts no receives because it is busy. RNR NAKs, which may
/// be answered for ever, end with it: a peer does not hold our memory for as long as it likes.
const MAX_STALL: Duration = Duration::from_secs(60);

/// Pauses of RNR NAKs in units of 10 microseconds, by code (vol. 1, table 45).
const RNR_PAUSE: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It fits.
    Taken,
    /// It answers nothing that is outstanding.
    Unexpected,
    /// The queue pair has failed: how the oldest request ended.
    Failed(Status),
}

/// The requester.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Work>,
    limit: usize,
    /// Requests ever posted, modulo 2^32.
    requests: u32,
    large: LargePayloads,
    /// PSN of the next packet to be posted.
    posted: Psn,
    /// Oldest PSN that is not acknowledged.
    unacknowledged: Psn,
    /// PSN of the next packet to be sent, and the place of its request in the queue.
    next: Psn,
    cursor: usize,
    /// One after the highest PSN ever sent.
    sent: Psn,
    /// Requests sent that wait for an answer other than an ACK, and how many there may be.
    answers_due: u8,
    max_rd_atomic: u8,
    /// Packets since the last that asked for an ACK.
    since_ack_request: u32,
    /// Whether one of them ends a request that somebody waits for.
    waited_for: bool,
    /// One after the last packet that asked for an ACK or another answer.
    asked: Psn,
    /// When requests that nobody waits for ask for one.
    ack_share: AckShare,
    patience: Patience,
    retry_count: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_left: u8,
    /// Whether it went back and nothing was acknowledged since.
    recovering: bool,
    /// Since when nothing more was acknowledged of what was sent.
    stalled_since: Instant,
    retransmit_at: Option<Instant>,
    pause_until: Option<Instant>,
    /// The port that it sends through.
    pub port: usize,
}

impl Requester {
    /// For up to `limit` requests of the size that `init` says.
    pub fn new(limit: usize, init: &QpInit) -> Self {
        Requester {
            queue: VecDeque::with_capacity(limit),
            limit,
            requests: 0,
            large: LargePayloads::new(limit, init.max_send_sge, init.max_inline),
            posted: Psn::default(),
            unacknowledged: Psn::default(),
            next: Psn::default(),
            cursor: 0,
            sent: Psn::default(),
            answers_due: 0,
            max_rd_atomic: 0,
            since_ack_request: 0,
            waited_for: false,
            asked: Psn::default(),
            ack_share: AckShare::default(),
            patience: Patience::default(),
            retry_count: 0,
            retries_left: 0,
            rnr_retry: 0,
            rnr_left: 0,
            recovering: false,
            stalled_since: Instant::ZERO,
            retransmit_at: None,
            pause_until: None,
            port: 0,
        }
    }

    /// Number of requests that were ever posted, modulo 2^32; None if none of them is under way.
    pub fn under_way(&self) -> Option<u32> {
        (!self.queue.is_empty()).then_some(self.requests)
    }

    /// Whether the requests up to that number are done.
    pub fn has_done(&self, requests: u32) -> bool {
        let since = self.requests.wrapping_sub(requests);
        self.queue.len() <= since as usize
    }

    /// Requests that nobody waits for need not be acknowledged at once. To be said before `start`.
    pub fn coalesce_acks(&mut self) {
        self.ack_share.enabled = true;
    }

    /// Ready to send.
    pub fn start(&mut self, to: &ReadyToSend) {
        let first = Psn::new(to.sq_psn);
        self.posted = first;
        self.unacknowledged = first;
        self.next = first;
        self.sent = first;
        self.asked = first;
        self.max_rd_atomic = to.max_rd_atomic;
        let timeout = match to.ack_timeout {
            0 => Duration::ZERO,
            code => Duration::from_nanos(4096 << code.min(31)),
        };
        self.patience = Patience::new(timeout);
        self.ack_share.start(timeout);
        self.retry_count = to.retry_count;
        self.retries_left = to.retry_count;
        self.rnr_retry = to.rnr_retry;
        self.rnr_left = to.rnr_retry;
    }

    /// Posts a request, to be sent in packets of up to `mtu` bytes.
    #[inline]
    pub fn post(
        &mut self,
        request: &SendRequest<'_>,
        mtu: usize,
        memory: &mut Memory,
    ) -> Result<(), VerbsError> {
        // Each operation goes on its own way, so that nothing has to be put together first.
        match &request.operation {
            SendOperation::Send { payload, with } => {
                self.enqueue(request, Operation::Send(*with), payload, mtu, memory)
            }
            SendOperation::Write { payload, to, immediate } => {
                self.enqueue(request, Operation::Write(*to, *immediate), payload, mtu, memory)
            }
            SendOperation::Read { into, from } => {
                let into = Payload::Windows(into);
                self.enqueue_asking(request, Operation::Read(*from), &into, mtu, memory)
            }
            SendOperation::CompareSwap { into, at, compare, swap } => {
                let operation = Operation::CompareSwap { at: *at, compare: *compare, swap: *swap };
                let into = Payload::Windows(core::slice::from_ref(into));
                self.enqueue_asking(request, operation, &into, mtu, memory)
            }
            SendOperation::FetchAdd { into, at, add } => {
                let operation = Operation::FetchAdd { at: *at, add: *add };
                let into = Payload::Windows(core::slice::from_ref(into));
                self.enqueue_asking(request, operation, &into, mtu, memory)
            }
        }
    }

    /// Enqueues a request that wants another answer than an ACK.
    #[inline(never)]
    fn enqueue_asking(
        &mut self,
        request: &SendRequest<'_>,
        operation: Operation,
        into: &Payload<'_>,
        mtu: usize,
        memory: &mut Memory,
    ) -> Result<(), VerbsError> {
        let atomic = !matches!(operation, Operation::Read(_));
        if self.max_rd_atomic == 0 || atomic && into.len() != 8 {
            return Err(VerbsError::Invalid);
        }
        self.enqueue(request, operation, into, mtu, memory)
    }

    #[inline(always)]
    fn enqueue(
        &mut self,
        request: &SendRequest<'_>,
        operation: Operation,
        payload: &Payload<'_>,
        mtu: usize,
        memory: &mut Memory,
    ) -> Result<(), VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        let length = payload.len();
        if length > MAX_MESSAGE {
            return Err(VerbsError::Invalid);
        }
        let packets = length.div_ceil(mtu).max(1) as u32;
        let payload = self.large.store(payload)?;
        let block = request.carries.and_then(|(region, chunk)| memory.detach_chunk(region, chunk));
        self.queue.push_back(Work {
            id: request.id,
            operation,
            payload,
            length: length as u32,
            first: self.posted,
            packets,
            signaled: request.signaled,
            waited_for: request.signaled && !request.ack_lazily
                || block.is_some()
                || operation.wants_answer(),
            solicited: request.solicited,
            block,
        });
        self.posted = self.posted.plus(packets);
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Waits for an answer from now on, if one is due: of those that share ACKs, only one that was asked for.
    fn arm(&mut self, now: Instant) {
        let until = if self.ack_share.enabled { self.asked } else { self.sent };
        self.retransmit_at =
            self.patience.runs_out(now).filter(|_| self.unacknowledged.is_before(until));
    }

    /// Takes everything before `psn` as acknowledged, but for requests that wait for another
    /// answer: those stop it. Returns whether it got that far.
    #[inline]
    fn acknowledge(&mut self, psn: Psn, identity: &Identity, env: &mut Env<'_>) -> bool {
        let before = self.unacknowledged;
        let mut complete = true;
        let mut left = psn.since(before);
        while left > 0
            && let Some(work) = self.queue.front()
        {
            if work.operation.wants_answer() {
                complete = false;
                break;
            }
            let of_front = work.first.plus(work.packets).since(self.unacknowledged);
            if left < of_front {
                self.unacknowledged = psn;
                break;
            }
            left -= of_front;
            self.unacknowledged = self.unacknowledged.plus(of_front);
            self.complete_front(Status::Success, identity, env);
        }
        if self.unacknowledged != before {
            self.progress(env.now);
        }
        complete
    }

    /// The oldest request is done.
    #[inline]
    fn complete_front(&mut self, status: Status, identity: &Identity, env: &mut Env<'_>) {
        let Some(work) = self.queue.front() else { return };
        // Most leave nothing to see to.
        if !work.is_plain() || status != Status::Success {
            self.see_to_front(status, identity, env);
        }
        self.queue.pop_front();
        self.cursor = self.cursor.saturating_sub(1);
    }

    /// What else there is to do when the oldest request is done.
    #[inline(never)]
    fn see_to_front(&mut self, status: Status, identity: &Identity, env: &mut Env<'_>) {
        let Some(work) = self.queue.front_mut() else { return };
        self.large.release(&work.payload);
        if let Some(block) = work.block.take() {
            env.memory.pool.retire(block, Through::Port(self.port));
        }
        if work.signaled || status != Status::Success {
            let awaited = work.waited_for || status != Status::Success;
            identity.complete_send(env, work.id, status, awaited);
        }
    }

    /// Something was acknowledged.
    fn progress(&mut self, now: Instant) {
        self.recovering = false;
        self.stalled_since = now;
        self.patience.acknowledged(self.unacknowledged, now);
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        if self.next.is_before(self.unacknowledged) {
            // It was about to be sent again, but had arrived the first time.
            self.next = self.unacknowledged;
            self.cursor = 0;
        }
        self.arm(now);
    }

    /// Goes back to the oldest packet that is not acknowledged.
    fn go_back(&mut self, env: &mut Env<'_>) {
        env.counters.retries += 1;
        self.patience.repeats(self.sent);
        self.next = self.unacknowledged;
        self.cursor = 0;
        self.answers_due = 0;
        self.since_ack_request = 0;
        self.waited_for = true;
    }

    /// A packet or an answer was lost. Only the first sign of it counts: what was under way behind
    /// the gap gives more of them, and if the repetition is lost too, the timer sees to it.
    fn lost(&mut self, env: &mut Env<'_>) -> Outcome {
        if self.recovering {
            return Outcome::Taken;
        }
        self.recovering = true;
        self.retry(env)
    }

    /// Goes back, unless that was done too often.
    fn retry(&mut self, env: &mut Env<'_>) -> Outcome {
        if self.retries_left == 0 {
            return Outcome::Failed(Status::RetryExceeded);
        }
        self.retries_left -= 1;
        self.go_back(env);
        self.retransmit_at = None;
        self.arm(env.now);
        Outcome::Taken
    }

    /// Leaves the time out of account in which the machine stood still: the peer could not be heard then.
    fn forgive_standstill(&mut self, now: Instant) {
        if let Some(deadline) = self.deadline() {
            self.stalled_since = self.stalled_since + deadline.standstill(now);
        }
    }

    /// Whether the peer has acknowledged nothing for too long.
    fn is_stalled(&self, now: Instant) -> bool {
        now.since(self.stalled_since) >= MAX_STALL
    }

    /// Whether `psn` was sent and is not acknowledged.
    fn is_outstanding(&self, psn: Psn) -> bool {
        psn.since(self.unacknowledged) < self.sent.since(self.unacknowledged)
    }

    /// An ACK or NAK has come.
    #[inline]
    pub fn handle_acknowledge(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        identity: &Identity,
        env: &mut Env<'_>,
    ) -> Outcome {
        if !self.is_outstanding(psn) {
            self.patience.acknowledged_again(self.unacknowledged);
            return Outcome::Unexpected;
        }
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(psn.plus(1), identity, env) {
                    Outcome::Taken
                } else {
                    // Its answer was lost on the way.
                    self.lost(env)
                }
            }
            Syndrome::ReceiverNotReady { timer } => {
                env.counters.naks_received.receiver_not_ready += 1;
                if !self.acknowledge(psn, identity, env) {
                    return self.lost(env);
                }
                self.forgive_standstill(env.now);
                if self.rnr_left == 0 || self.is_stalled(env.now) {
                    return Outcome::Failed(Status::RnrRetryExceeded);
                }
                if self.rnr_retry < 7 {
                    self.rnr_left -= 1;
                }
                self.go_back(env);
                let pause = RNR_PAUSE.get(timer as usize).copied().unwrap_or(RNR_PAUSE[0]);
                self.pause_until = Some(env.now + Duration::from_micros(10 * pause as u64));
                self.retransmit_at = None;
                Outcome::Taken
            }
            Syndrome::Nak(reason) => {
                env.counters.naks_received.count(reason);
                if !self.acknowledge(psn, identity, env) {
                    return self.lost(env);
                }
                match reason {
                    Nak::SequenceError => self.lost(env),
                    Nak::InvalidRequest => Outcome::Failed(Status::RemoteInvalidRequest),
                    Nak::RemoteAccess => Outcome::Failed(Status::RemoteAccess),
                    Nak::RemoteOperation => Outcome::Failed(Status::RemoteOperation),
                }
            }
        }
    }

    /// A packet of an RDMA READ response has come.
    #[inline(never)]
    pub fn handle_read_response(
        &mut self,
        psn: Psn,
        payload: &[u8],
        mtu: usize,
        identity: &Identity,
        env: &mut Env<'_>,
    ) -> Outcome {
        match self.answered(psn, identity, env) {
            Ok(()) => (),
            Err(outcome) => return outcome,
        }
        let Some(work) = self.queue.front() else { return Outcome::Unexpected };
        let Operation::Read(_) = work.operation else { return Outcome::Unexpected };
        let index = psn.since(work.first);
        let offset = index as usize * mtu;
        let expected = (work.length as usize).saturating_sub(offset).min(mtu);
        if payload.len() != expected {
            return Outcome::Unexpected;
        }
        if !self.large.write(&work.payload, offset, payload) {
            return Outcome::Failed(Status::LocalProtection);
        }
        let ends = index + 1 == work.packets;
        self.unacknowledged = psn.plus(1);
        if ends {
            self.answers_due = self.answers_due.saturating_sub(1);
            self.complete_front(Status::Success, identity, env);
        }
        self.progress(env.now);
        Outcome::Taken
    }

    /// The answer to an atomic has come.
    #[inline(never)]
    pub fn handle_atomic_acknowledge(
        &mut self,
        psn: Psn,
        original: u64,
        identity: &Identity,
        env: &mut Env<'_>,
    ) -> Outcome {
        match self.answered(psn, identity, env) {
            Ok(()) => (),
            Err(outcome) => return outcome,
        }
        let Some(work) = self.queue.front() else { return Outcome::Unexpected };
        let (Operation::CompareSwap { .. } | Operation::FetchAdd { .. }) = work.operation else {
            return Outcome::Unexpected;
        };
        if !self.large.write(&work.payload, 0, &original.to_ne_bytes()) {
            return Outcome::Failed(Status::LocalProtection);
        }
        self.unacknowledged = psn.plus(1);
        self.answers_due = self.answers_due.saturating_sub(1);
        self.complete_front(Status::Success, identity, env);
        self.progress(env.now);
        Outcome::Taken
    }

    /// An answer acknowledges everything before it; it has to be the next that is due.
    fn answered(
        &mut self,
        psn: Psn,
        identity: &Identity,
        env: &mut Env<'_>,
    ) -> Result<(), Outcome> {
        if !self.is_outstanding(psn) {
            return Err(Outcome::Unexpected);
        }
        if self.acknowledge(psn, identity, env) {
            Ok(())
        } else {
            // The answer before this one was lost.
            Err(self.lost(env))
        }
    }

    /// When it wants to be woken.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.pause_until.or_else(|| Instant::first([self.ack_share.deadline(), self.retransmit_at]))
    }

    /// Runs what has expired.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) -> Outcome {
        self.forgive_standstill(env.now);
        if self.pause_until.is_some_and(|until| until <= env.now) {
            self.pause_until = None;
            // From now on, not from when it is sent: a standstill before that would not be noticed.
            self.arm(env.now);
        }
        if self.ack_share.is_due(env.now) {
            self.ask_again();
        }
        if self.retransmit_at.is_some_and(|at| at <= env.now) {
            env.counters.timeouts += 1;
            if self.is_stalled(env.now) {
                return Outcome::Failed(Status::RetryExceeded);
            }
            if self.patience.ran_out() {
                return self.retry(env);
            }
            self.go_back(env);
            self.retransmit_at = None;
            self.arm(env.now);
        }
        Outcome::Taken
    }

    /// Has the last packet sent once more, now asking for an ACK, unless there is anything else to send:
    /// that will ask. A responder that has it says again how far it got (vol. 1, 9.7.5.1.3).
    fn ask_again(&mut self) {
        self.waited_for = true;
        let all_sent = self.cursor == self.queue.len() && self.next == self.sent;
        if all_sent
            && self.next != self.unacknowledged
            && self.queue.back().is_some_and(|work| !work.operation.wants_answer())
        {
            self.next = self.next.previous();
            self.cursor -= 1;
        }
    }

    /// The queue pair is no more: what its requests hold of the memory on demand goes back.
    pub fn give_back(&mut self, memory: &mut Memory) {
        for block in self.queue.drain(..).filter_map(|work| work.block) {
            memory.pool.retire(block, Through::Port(self.port));
        }
    }

    /// Takes all requests out: the oldest as `first` says, the others as flushed.
    pub fn flush(&mut self, first: Option<Status>, identity: &Identity, env: &mut Env<'_>) {
        let mut status = first.unwrap_or(Status::Flushed);
        while let Some(work) = self.queue.pop_front() {
            self.large.release(&work.payload);
            if let Some(block) = work.block {
                env.memory.pool.retire(block, Through::Port(self.port));
            }
            identity.complete_send(env, work.id, status, true);
            status = Status::Flushed;
        }
        self.cursor = 0;
        self.retransmit_at = None;
        self.pause_until = None;
        self.ack_share.stop();
    }
}
