//! The requester of a reliable connection (vol. 1, 9.7): sends posted requests and ensures their delivery.
//! Retransmission begins at the oldest unacknowledged packet (go-back-N), because responders keep state for nothing
//! else. It ignores flow-control credits, as Linux does.

mod ack_share;
mod rto;
mod transmit;
mod work;

pub use work::Stored;

use crate::memory::Memory;
use crate::psn::Psn;
use crate::qp::{Ctx, Identity};
use crate::wire::extended::{Nak, Syndrome};
use ack_share::AckShare;
use core::time::Duration;
use drivers::hal::{Instant, Through};
use rto::RetransmitTimeout;
use verbs::{Payload, QpInit, ReadyToSend, SendOperation, SendRequest, Status, VerbsError};
use work::{LargePayloads, Operation, Work, WorkQueue};

/// Longest message in bytes; its PSNs stay far from half of their space at any path MTU.
pub const MAX_MESSAGE: usize = 1 << 30;

/// Longest time in which a peer acknowledges nothing new; then the queue pair fails. It is longer than all ACK timeouts
/// and retries, and than a busy host needs to post receives. It also ends RNR NAKs, which may otherwise be answered for
/// ever: a peer cannot hold our memory for as long as it likes.
const MAX_STALL: Duration = Duration::from_secs(60);

/// Delays of RNR NAKs in units of 10 microseconds, by code (vol. 1, table 45).
const RNR_PAUSE: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Result of handling an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted.
    Taken,
    /// It answers no outstanding request.
    Unexpected,
    /// The queue pair has failed, with this status of the oldest request.
    Failed(Status),
}

/// The requester.
#[derive(Debug)]
pub struct Requester {
    queue: WorkQueue,
    limit: usize,
    /// Number of requests posted so far, modulo 2^32.
    requests: u32,
    large: LargePayloads,
    /// PSN of the next packet to be posted.
    posted: Psn,
    /// Oldest unacknowledged PSN.
    unacknowledged: Psn,
    /// PSN of the next packet to send, and index of its request in the queue.
    next: Psn,
    cursor: usize,
    /// One after the highest PSN ever sent.
    sent: Psn,
    /// Requests sent that wait for an answer other than an ACK, and their limit.
    answers_due: u8,
    max_rd_atomic: u8,
    /// Packets since the last ACK request.
    since_ack_request: u32,
    /// Whether one of them ends a request that the user waits for.
    awaited: bool,
    /// One after the last packet that requested an ACK or another answer.
    ack_requested_to: Psn,
    /// ACK requests for requests that the user does not wait for.
    ack_share: AckShare,
    rto: RetransmitTimeout,
    retry_count: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_left: u8,
    /// Whether it went back, and nothing was acknowledged since.
    recovering: bool,
    /// Time of the last new ACK, or of the first packet sent while nothing was unacknowledged.
    stalled_since: Instant,
    retransmit_at: Option<Instant>,
    pause_until: Option<Instant>,
    /// Index of the port that it sends through.
    pub port: usize,
}

impl Requester {
    /// For up to `limit` requests of the size that `init` allows.
    pub fn new(limit: usize, init: &QpInit) -> Self {
        Requester {
            queue: WorkQueue::new(limit),
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
            awaited: false,
            ack_requested_to: Psn::default(),
            ack_share: AckShare::default(),
            rto: RetransmitTimeout::default(),
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

    /// Number of requests posted so far, modulo 2^32; None if none is in flight.
    pub fn under_way(&self) -> Option<u32> {
        (!self.queue.is_empty()).then_some(self.requests)
    }

    /// Whether the requests up to number `requests` are done.
    pub fn has_done(&self, requests: u32) -> bool {
        let since = self.requests.wrapping_sub(requests);
        self.queue.len() <= since as usize
    }

    /// Lets requests that the user does not wait for share ACKs. Call it before `start`.
    pub fn coalesce_acks(&mut self) {
        self.ack_share.enabled = true;
    }

    /// Starts to send.
    pub fn start(&mut self, to: &ReadyToSend) {
        let first = Psn::new(to.sq_psn);
        self.posted = first;
        self.unacknowledged = first;
        self.next = first;
        self.sent = first;
        self.ack_requested_to = first;
        self.max_rd_atomic = to.max_rd_atomic;
        let timeout = match to.ack_timeout {
            0 => Duration::ZERO,
            code => Duration::from_nanos(4096 << code.min(31)),
        };
        self.rto = RetransmitTimeout::new(timeout);
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
        // Each operation has its own call, so that nothing has to be assembled first.
        match &request.operation {
            SendOperation::Send { payload, with } => {
                self.enqueue(request, Operation::Send(*with), payload, mtu, memory)
            }
            SendOperation::Write { payload, to, immediate } => {
                self.enqueue(request, Operation::Write(*to, *immediate), payload, mtu, memory)
            }
            SendOperation::Read { into, from } => {
                let into = Payload::Windows(into);
                self.enqueue_with_answer(request, Operation::Read(*from), &into, mtu, memory)
            }
            SendOperation::CompareSwap { into, at, compare, swap } => {
                let operation = Operation::CompareSwap { at: *at, compare: *compare, swap: *swap };
                let into = Payload::Windows(core::slice::from_ref(into));
                self.enqueue_with_answer(request, operation, &into, mtu, memory)
            }
            SendOperation::FetchAdd { into, at, add } => {
                let operation = Operation::FetchAdd { at: *at, add: *add };
                let into = Payload::Windows(core::slice::from_ref(into));
                self.enqueue_with_answer(request, operation, &into, mtu, memory)
            }
        }
    }

    /// Enqueues a request that needs an answer other than an ACK.
    #[inline(never)]
    fn enqueue_with_answer(
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

    // Inlined with the rest of a SEND: 2,787 instructions with its ACK instead of 3,010 (`bench roce`).
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
        let is_posted = self.queue.push_back(Work {
            id: request.id,
            operation,
            payload,
            length: length as u32,
            first: self.posted,
            packets,
            signaled: request.signaled,
            awaited: request.signaled && !request.ack_lazily
                || block.is_some()
                || operation.wants_answer(),
            solicited: request.solicited,
            block,
        });
        debug_assert!(is_posted, "the queue has room for its limit");
        self.posted = self.posted.plus(packets);
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Starts the retransmission timer if an answer is due. With shared ACKs, only a requested ACK counts.
    fn arm(&mut self, now: Instant) {
        let until = if self.ack_share.enabled { self.ack_requested_to } else { self.sent };
        self.retransmit_at =
            self.rto.deadline(now).filter(|_| self.unacknowledged.is_before(until));
    }

    /// Acknowledges everything before `psn`, but stops at a request that waits for another answer. Returns whether it
    /// reached `psn`.
    #[inline]
    fn acknowledge(&mut self, psn: Psn, identity: &Identity, ctx: &mut Ctx<'_>) -> bool {
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
            self.complete_front(Status::Success, identity, ctx);
        }
        if self.unacknowledged != before {
            self.progress(ctx.now);
        }
        complete
    }

    /// Completes the oldest request.
    #[inline]
    fn complete_front(&mut self, status: Status, identity: &Identity, ctx: &mut Ctx<'_>) {
        let Some(work) = self.queue.front() else { return };
        // Most need nothing else.
        if !work.is_plain() || status != Status::Success {
            self.finish_front(status, identity, ctx);
        }
        self.queue.drop_front();
        self.cursor = self.cursor.saturating_sub(1);
    }

    /// Releases the resources of the oldest request and posts its completion.
    #[inline(never)]
    fn finish_front(&mut self, status: Status, identity: &Identity, ctx: &mut Ctx<'_>) {
        let Some(work) = self.queue.front_mut() else { return };
        self.large.release(&work.payload);
        if let Some(block) = work.block.take() {
            ctx.memory.pool.retire(block, Through::Port(self.port));
        }
        if work.signaled || status != Status::Success {
            let awaited = work.awaited || status != Status::Success;
            identity.complete_send(ctx, work.id, status, awaited);
        }
    }

    /// Handles progress of the acknowledged PSN.
    fn progress(&mut self, now: Instant) {
        self.recovering = false;
        self.stalled_since = now;
        self.rto.acknowledged(self.unacknowledged, now);
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        if self.next.is_before(self.unacknowledged) {
            // The packets to be retransmitted had arrived the first time.
            self.next = self.unacknowledged;
            self.cursor = 0;
        }
        self.arm(now);
    }

    /// Goes back to the oldest unacknowledged packet.
    fn go_back(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.retries += 1;
        self.rto.retransmit(self.sent);
        self.next = self.unacknowledged;
        self.cursor = 0;
        self.answers_due = 0;
        self.since_ack_request = 0;
        self.awaited = true;
    }

    /// Handles a lost packet or answer. Only the first sign of a loss counts: packets in flight behind the gap cause
    /// more. If the retransmission is lost too, the timer expires.
    fn lost(&mut self, ctx: &mut Ctx<'_>) -> Outcome {
        if self.recovering {
            return Outcome::Taken;
        }
        self.recovering = true;
        self.retry(ctx)
    }

    /// Goes back, unless the retries are used up.
    fn retry(&mut self, ctx: &mut Ctx<'_>) -> Outcome {
        if self.retries_left == 0 {
            return Outcome::Failed(Status::RetryExceeded);
        }
        self.retries_left -= 1;
        self.go_back(ctx);
        self.retransmit_at = None;
        self.arm(ctx.now);
        Outcome::Taken
    }

    /// Excludes the time in which the machine stood still, because it could not receive the peer's answers.
    fn exclude_standstill(&mut self, now: Instant) {
        if let Some(deadline) = self.deadline() {
            self.stalled_since = self.stalled_since + deadline.standstill(now);
        }
    }

    /// Whether the peer has acknowledged nothing for `MAX_STALL`.
    fn is_stalled(&self, now: Instant) -> bool {
        now.since(self.stalled_since) >= MAX_STALL
    }

    /// Bytes of payload in the oldest unacknowledged packet, or in the answer to it; 0 without one.
    pub fn oldest_packet(&self, mtu: usize) -> usize {
        let Some(work) = self.queue.front() else { return 0 };
        let before = self.unacknowledged.since(work.first) as usize * mtu;
        (work.length as usize).saturating_sub(before).min(mtu)
    }

    /// Whether `psn` was sent and is not acknowledged.
    fn is_outstanding(&self, psn: Psn) -> bool {
        psn.since(self.unacknowledged) < self.sent.since(self.unacknowledged)
    }

    /// Handles an ACK or NAK.
    #[inline]
    pub fn handle_acknowledge(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Outcome {
        if !self.is_outstanding(psn) {
            self.rto.duplicate_ack(self.unacknowledged);
            return Outcome::Unexpected;
        }
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge(psn.plus(1), identity, ctx) {
                    Outcome::Taken
                } else {
                    // The answer to a READ or atomic was lost.
                    self.lost(ctx)
                }
            }
            Syndrome::ReceiverNotReady { timer } => {
                ctx.counters.naks_received.receiver_not_ready += 1;
                if !self.acknowledge(psn, identity, ctx) {
                    return self.lost(ctx);
                }
                self.exclude_standstill(ctx.now);
                if self.rnr_left == 0 || self.is_stalled(ctx.now) {
                    return Outcome::Failed(Status::RnrRetryExceeded);
                }
                if self.rnr_retry < 7 {
                    self.rnr_left -= 1;
                }
                self.go_back(ctx);
                let pause = RNR_PAUSE.get(timer as usize).copied().unwrap_or(RNR_PAUSE[0]);
                self.pause_until = Some(ctx.now + Duration::from_micros(10 * pause as u64));
                self.retransmit_at = None;
                Outcome::Taken
            }
            Syndrome::Nak(reason) => {
                ctx.counters.naks_received.count(reason);
                if !self.acknowledge(psn, identity, ctx) {
                    return self.lost(ctx);
                }
                match reason {
                    Nak::SequenceError => self.lost(ctx),
                    Nak::InvalidRequest => Outcome::Failed(Status::RemoteInvalidRequest),
                    Nak::RemoteAccess => Outcome::Failed(Status::RemoteAccess),
                    Nak::RemoteOperation => Outcome::Failed(Status::RemoteOperation),
                }
            }
        }
    }

    /// Handles a packet of an RDMA READ response.
    #[inline(never)]
    pub fn handle_read_response(
        &mut self,
        psn: Psn,
        payload: &[u8],
        mtu: usize,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Outcome {
        match self.answered(psn, identity, ctx) {
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
            self.complete_front(Status::Success, identity, ctx);
        }
        self.progress(ctx.now);
        Outcome::Taken
    }

    /// Handles the answer to an atomic.
    #[inline(never)]
    pub fn handle_atomic_acknowledge(
        &mut self,
        psn: Psn,
        original: u64,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Outcome {
        match self.answered(psn, identity, ctx) {
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
        self.complete_front(Status::Success, identity, ctx);
        self.progress(ctx.now);
        Outcome::Taken
    }

    /// Acknowledges everything before an answer, which has to be the next one due.
    fn answered(
        &mut self,
        psn: Psn,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Outcome> {
        if !self.is_outstanding(psn) {
            return Err(Outcome::Unexpected);
        }
        if self.acknowledge(psn, identity, ctx) {
            Ok(())
        } else {
            // The answer before this one was lost.
            Err(self.lost(ctx))
        }
    }

    /// When its next timer expires.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.pause_until.or_else(|| Instant::first([self.ack_share.deadline(), self.retransmit_at]))
    }

    /// Runs the expired timers.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) -> Outcome {
        self.exclude_standstill(ctx.now);
        if self.pause_until.is_some_and(|until| until <= ctx.now) {
            self.pause_until = None;
            // From now on, not from the next transmission: a standstill before that would not be noticed.
            self.arm(ctx.now);
        }
        if self.ack_share.is_due(ctx.now) {
            self.request_ack_again();
        }
        if self.retransmit_at.is_some_and(|at| at <= ctx.now) {
            ctx.counters.timeouts += 1;
            if self.is_stalled(ctx.now) {
                return Outcome::Failed(Status::RetryExceeded);
            }
            if self.rto.expired() {
                return self.retry(ctx);
            }
            self.go_back(ctx);
            self.retransmit_at = None;
            self.arm(ctx.now);
        }
        Outcome::Taken
    }

    /// Retransmits the last packet with an ACK request, unless other packets are to be sent, which will request one. A
    /// responder that has the packet reports its progress again (vol. 1, 9.7.5.1.3).
    fn request_ack_again(&mut self) {
        self.awaited = true;
        let all_sent = self.cursor == self.queue.len() && self.next == self.sent;
        if all_sent
            && self.next != self.unacknowledged
            && self.queue.back().is_some_and(|work| !work.operation.wants_answer())
        {
            self.next = self.next.previous();
            self.cursor -= 1;
        }
    }

    /// Releases the memory on demand of all requests, when the queue pair is destroyed.
    pub fn release_memory(&mut self, memory: &mut Memory) {
        while let Some(work) = self.queue.front_mut() {
            if let Some(block) = work.block.take() {
                memory.pool.retire(block, Through::Port(self.port));
            }
            self.queue.drop_front();
        }
    }

    /// Completes all requests: the oldest with status `first`, the others as flushed.
    pub fn flush(&mut self, first: Option<Status>, identity: &Identity, ctx: &mut Ctx<'_>) {
        let mut status = first.unwrap_or(Status::Flushed);
        while let Some(work) = self.queue.front_mut() {
            self.large.release(&work.payload);
            if let Some(block) = work.block.take() {
                ctx.memory.pool.retire(block, Through::Port(self.port));
            }
            identity.complete_send(ctx, work.id, status, true);
            self.queue.drop_front();
            status = Status::Flushed;
        }
        self.cursor = 0;
        self.retransmit_at = None;
        self.pause_until = None;
        self.ack_share.stop();
    }
}
