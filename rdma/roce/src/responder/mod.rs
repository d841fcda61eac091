//! The responder of a reliable connection (vol. 1, 9.7 and 9.9): executes requests in order, within the access that
//! their keys grant, and answers them. It keeps nothing of packets that arrive ahead of a gap.
//!
//! `Memory` checks the bytes of each packet when the packet accesses them. So a key that is revoked in the middle of a
//! message stops the rest of it.

mod ack_repeat;
mod answers;

use crate::memory::{Grant, Refusal};
use crate::psn::Psn;
use crate::qp::{Ctx, Identity};
use crate::receive_queue::{self, ReceiveQueue};
use crate::requester::MAX_MESSAGE;
use crate::wire::bth::{self, Bth};
use crate::wire::extended::{AtomicEth, Nak, Reth, Syndrome};
use crate::wire::opcode::{Class, Opcode};
use crate::wire::{Error, get32, icrc};
use ack_repeat::AckRepeat;
use alloc::collections::VecDeque;
pub use answers::FinalNak;
use answers::{Answer, Resource};
use drivers::hal::Instant;
use verbs::{Access, CompletedOperation, Completion, PdId, RemoteAddress, SendWith, Status};

/// A message that is arriving.
#[derive(Clone, Copy, Debug)]
enum Incoming {
    None,
    /// SEND, into the oldest receive.
    Send {
        received: u32,
    },
    /// RDMA WRITE.
    Write(IncomingWrite),
}

/// An RDMA WRITE that is arriving.
#[derive(Clone, Copy, Debug)]
struct IncomingWrite {
    /// Destination of its first byte.
    to: RemoteAddress,
    total: u32,
    left: u32,
    grant: Grant,
}

/// A pending ACK or NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// ACK of everything received so far.
    Ack,
    /// RNR NAK or NAK.
    Nak { psn: Psn, syndrome: Syndrome },
}

/// Why a packet cannot be executed.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// NAK; the queue pair fails.
    Nak(Nak),
    /// The queue pair fails without a NAK (SEND with invalidate of an unknown key).
    Silent,
    /// No receive is posted, or no memory on demand is free.
    NotReady,
}

impl From<Error> for Fault {
    fn from(_: Error) -> Self {
        Fault::Nak(Nak::InvalidRequest)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoMemory => Fault::NotReady,
            _ => Fault::Nak(Nak::RemoteAccess),
        }
    }
}

const INVALID: Fault = Fault::Nak(Nak::InvalidRequest);

/// A request packet. Its payload has neither pad nor ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub bth: Bth,
    pub extended: &'a [u8],
    pub payload: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses a packet from its BTH to its ICRC.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn parse(transport: &'a [u8]) -> Result<Self, Error> {
        let bth = Bth::parse(transport)?;
        let (headers, payload) = transport
            .len()
            .checked_sub(icrc::LEN + bth.pad as usize)
            .and_then(|end| {
                transport.get(..end)?.split_at_checked(bth::LEN + bth.opcode.extended_len())
            })
            .ok_or(Error::Truncated)?;
        let extended = headers.get(bth::LEN..).unwrap_or_default();
        Ok(Request { bth, extended, payload })
    }
}

/// The responder.
#[derive(Debug)]
pub struct Responder {
    expected: Psn,
    /// Number of messages completed.
    messages: Psn,
    incoming: Incoming,
    /// Whether a NAK for the expected PSN was sent: packets ahead of it are dropped silently.
    nak_sent: bool,
    reply: Option<Reply>,
    ack_repeat: AckRepeat,
    /// Whether a message follows each of the peer's WRITEs and announces it.
    announced: bool,
    min_rnr_timer: u8,
    /// The last READs and atomics, oldest first; as many as the peer may have outstanding.
    resources: VecDeque<Resource>,
    max_resources: usize,
    /// How many of them have packets to send.
    resources_due: usize,
    requests_seen: u32,
}

impl Responder {
    /// A responder that accepts nothing yet.
    pub fn new() -> Self {
        Responder {
            expected: Psn::default(),
            messages: Psn::default(),
            incoming: Incoming::None,
            nak_sent: false,
            reply: None,
            ack_repeat: AckRepeat::new(),
            announced: false,
            min_rnr_timer: 0,
            resources: VecDeque::new(),
            max_resources: 0,
            resources_due: 0,
            requests_seen: 0,
        }
    }

    /// Number of PSNs of accepted requests, modulo 2^32.
    pub fn requests_seen(&self) -> u32 {
        self.requests_seen
    }

    /// Number of packets still to arrive of the message in progress, and of the message that announces it, as far as
    /// known.
    pub fn under_way(&self, mtu: usize) -> usize {
        match &self.incoming {
            Incoming::None => 0,
            Incoming::Send { .. } => 1,
            Incoming::Write(write) => {
                (write.left as usize).div_ceil(mtu) + usize::from(self.announced)
            }
        }
    }

    /// See [`Provider::writes_precede_send`](verbs::Provider::writes_precede_send).
    pub fn writes_precede_send(&mut self) {
        self.announced = true;
    }

    /// Starts to receive.
    pub fn start(&mut self, expected: Psn, max_dest_rd_atomic: u8, min_rnr_timer: u8) {
        self.expected = expected;
        self.max_resources = max_dest_rd_atomic as usize;
        self.resources = VecDeque::with_capacity(self.max_resources);
        self.min_rnr_timer = min_rnr_timer;
    }

    /// Stops after a failure of the queue pair. A NAK that reports the failure is still sent.
    pub fn stop(&mut self) {
        self.resources.clear();
        self.resources_due = 0;
        self.incoming = Incoming::None;
        self.ack_repeat = AckRepeat::new();
        if self.reply == Some(Reply::Ack) {
            self.reply = None;
        }
    }

    /// When its next timer expires.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.ack_repeat.deadline()
    }

    /// Runs the expired timer.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        // A NAK includes the ACK, and after a NAK the peer has to act.
        if self.ack_repeat.is_due(ctx.now) && self.reply.is_none() && !self.nak_sent {
            ctx.counters.acks_repeated += 1;
            self.reply = Some(Reply::Ack);
        }
    }

    /// Whether an ACK or NAK can be sent now.
    #[inline]
    pub fn has_reply(&self) -> bool {
        self.reply.is_some() && self.resources_due == 0
    }

    /// Whether an answer to a READ or atomic is due. Answers precede ACKs, because they are older.
    #[inline]
    pub fn has_answer(&self) -> bool {
        self.resources_due > 0
    }

    /// Handles a packet from the middle of a WRITE without an ACK request, the most frequent packet. Returns whether it
    /// was the expected packet and is done. Any special case is left to [`Responder::handle`].
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn handle_middle(
        &mut self,
        psn: u32,
        payload: &[u8],
        mtu: usize,
        pd: PdId,
        ctx: &mut Ctx<'_>,
    ) -> bool {
        let length = payload.len();
        let Incoming::Write(write) = &mut self.incoming else { return false };
        if psn != self.expected.get() || length != mtu || length >= write.left as usize {
            return false;
        }
        let done = write.total - write.left;
        let at = RemoteAddress { address: write.to.address.wrapping_add(done.into()), ..write.to };
        let window = ctx.memory.go_on(&write.grant, done, pd, at, length as u32);
        if window.is_ok_and(|window| window.write(0, payload).is_ok()) {
            write.left -= length as u32;
            ctx.counters.received.count(Class::Write);
            self.nak_sent = false;
            self.expected = self.expected.plus(1);
            self.requests_seen = self.requests_seen.wrapping_add(1);
            true
        } else {
            false
        }
    }

    /// Handles a request. `Err` if the queue pair fails because of it.
    pub fn handle(
        &mut self,
        request: &Request<'_>,
        class: Class,
        mtu: usize,
        receives: &mut ReceiveQueue,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), ()> {
        let psn = Psn::new(request.bth.psn);
        if psn != self.expected {
            if psn.is_before(self.expected) {
                ctx.counters.dropped.duplicate += 1;
                self.repeat(psn, request, mtu);
            } else {
                ctx.counters.dropped.out_of_sequence += 1;
                if !self.nak_sent {
                    self.nak(self.expected, Nak::SequenceError, ctx);
                }
            }
            return Ok(());
        }
        self.nak_sent = false;
        ctx.counters.received.count(class);
        let done = match class {
            Class::Send => self.send(request, mtu, receives, identity, ctx),
            Class::Write => self.write(request, mtu, receives, identity, ctx),
            Class::Read => self.read(request, mtu, identity, ctx),
            _ => self.atomic(request, identity, ctx),
        };
        match done {
            Ok(packets) => {
                self.expected = self.expected.plus(packets);
                self.requests_seen = self.requests_seen.wrapping_add(packets);
                if request.bth.opcode.ends() {
                    self.messages = self.messages.plus(1);
                }
                if request.bth.ack_request {
                    let plain_write =
                        matches!(request.bth.opcode, Opcode::WriteOnly | Opcode::WriteLast);
                    if plain_write && self.announced {
                        self.ack_repeat.hold(ctx.now);
                    } else {
                        self.reply = Some(Reply::Ack);
                        self.ack_repeat.acknowledged(ctx.now);
                    }
                }
                Ok(())
            }
            Err(Fault::NotReady) => {
                ctx.counters.naks_sent.receiver_not_ready += 1;
                let syndrome = Syndrome::ReceiverNotReady { timer: self.min_rnr_timer };
                self.reply = Some(Reply::Nak { psn, syndrome });
                self.nak_sent = true;
                Ok(())
            }
            Err(Fault::Nak(reason)) => {
                self.nak(psn, reason, ctx);
                Err(())
            }
            Err(Fault::Silent) => Err(()),
        }
    }

    fn nak(&mut self, psn: Psn, reason: Nak, ctx: &mut Ctx<'_>) {
        ctx.counters.naks_sent.count(reason);
        self.reply = Some(Reply::Nak { psn, syndrome: Syndrome::Nak(reason) });
        self.nak_sent = true;
    }

    #[inline(never)]
    fn send(
        &mut self,
        request: &Request<'_>,
        mtu: usize,
        receives: &mut ReceiveQueue,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<u32, Fault> {
        let opcode = request.bth.opcode;
        let received = match (opcode.begins(), self.incoming) {
            (true, Incoming::None) => 0,
            (false, Incoming::Send { received }) => received,
            _ => return Err(INVALID),
        };
        check_length(opcode, request.payload.len(), mtu)?;
        let receive = receives.front().ok_or(Fault::NotReady)?;
        if receive.into.write(received as usize, request.payload).is_err() {
            let id = receive.id;
            receives.pop();
            receive_queue::fail(id, Status::LocalLength, identity, ctx);
            return Err(INVALID);
        }
        let length = received + request.payload.len() as u32;
        if !opcode.ends() {
            self.incoming = Incoming::Send { received: length };
            return Ok(1);
        }
        let id = receive.id;
        let with = if opcode.has_immediate() {
            SendWith::Immediate(get32(request.extended, 0).map_err(Error::from)?)
        } else if opcode.has_invalidate() {
            let key = get32(request.extended, 0).map_err(Error::from)?;
            if ctx.memory.invalidate(identity.pd, key).is_err() {
                receives.pop();
                receive_queue::fail(id, Status::LocalProtection, identity, ctx);
                return Err(Fault::Silent);
            }
            SendWith::Invalidate(key)
        } else {
            SendWith::Nothing
        };
        receives.pop();
        self.incoming = Incoming::None;
        let operation = CompletedOperation::Recv { length, with };
        complete(id, operation, identity, ctx);
        Ok(1)
    }

    fn write(
        &mut self,
        request: &Request<'_>,
        mtu: usize,
        receives: &mut ReceiveQueue,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<u32, Fault> {
        let opcode = request.bth.opcode;
        let payload = request.payload;
        let length = payload.len() as u32;
        let mut immediate_at = 0;
        let mut begun;
        let write = match (opcode.begins(), &mut self.incoming) {
            (false, Incoming::Write(write)) => write,
            (true, Incoming::None) => {
                let reth = Reth::parse(request.extended)?;
                immediate_at = Reth::LEN;
                if reth.length as usize > MAX_MESSAGE {
                    return Err(INVALID);
                }
                let to = RemoteAddress { address: reth.address, rkey: reth.rkey };
                let (total, grant) = (reth.length, Grant::NONE);
                begun = IncomingWrite { to, total, left: total, grant };
                &mut begun
            }
            _ => return Err(INVALID),
        };
        let IncomingWrite { to, total, left, .. } = *write;
        check_length(opcode, payload.len(), mtu)?;
        // The last packet has exactly the remaining bytes, the others fewer.
        if opcode.ends() != (length == left) || length > left {
            return Err(INVALID);
        }
        let immediate = if opcode.has_immediate() {
            Some(get32(request.extended, immediate_at).map_err(Error::from)?)
        } else {
            None
        };
        if immediate.is_some() && receives.is_empty() {
            return Err(Fault::NotReady);
        }
        // The first packet of a message checks the whole message. A message of one packet is checked when it is
        // written, unless memory is allocated for it first.
        if opcode.begins() && total > 0 && (!opcode.ends() || ctx.memory.pool.capacity() > 0) {
            write.grant = ctx.memory.begin_write(identity.pd, to, total)?;
        }
        if length > 0 {
            let done = total - left;
            let at = RemoteAddress { address: to.address.wrapping_add(done as u64), ..to };
            let window = ctx.memory.go_on(&write.grant, done, identity.pd, at, length)?;
            window.write(0, payload).map_err(|_| Fault::Nak(Nak::RemoteOperation))?;
        }
        if !opcode.ends() {
            write.left -= length;
            if opcode.begins() {
                self.incoming = Incoming::Write(*write);
            }
            return Ok(1);
        }
        self.incoming = Incoming::None;
        if let Some(immediate) = immediate
            && let Some(id) = receives.pop()
        {
            let operation = CompletedOperation::RecvWriteImmediate { length: total, immediate };
            complete(id, operation, identity, ctx);
        }
        Ok(1)
    }

    #[inline(never)]
    fn read(
        &mut self,
        request: &Request<'_>,
        mtu: usize,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<u32, Fault> {
        let Incoming::None = self.incoming else { return Err(INVALID) };
        let reth = Reth::parse(request.extended)?;
        if reth.length as usize > MAX_MESSAGE || !request.payload.is_empty() {
            return Err(INVALID);
        }
        let from = RemoteAddress { address: reth.address, rkey: reth.rkey };
        if reth.length > 0 {
            ctx.memory.check(identity.pd, Access::REMOTE_READ, from, reth.length)?;
        }
        let packets = (reth.length as usize).div_ceil(mtu).max(1) as u32;
        self.answer(Answer::Read { from, length: reth.length }, packets)?;
        Ok(packets)
    }

    #[inline(never)]
    fn atomic(
        &mut self,
        request: &Request<'_>,
        identity: &Identity,
        ctx: &mut Ctx<'_>,
    ) -> Result<u32, Fault> {
        let Incoming::None = self.incoming else { return Err(INVALID) };
        let atomic = AtomicEth::parse(request.extended)?;
        if atomic.address % 8 != 0 || !request.payload.is_empty() || self.max_resources == 0 {
            return Err(INVALID);
        }
        let at = RemoteAddress { address: atomic.address, rkey: atomic.rkey };
        let window = ctx.memory.check(identity.pd, Access::REMOTE_ATOMIC, at, 8)?;
        let broken = |_| Fault::Nak(Nak::RemoteOperation);
        let mut bytes = [0; 8];
        window.read(0, &mut bytes).map_err(broken)?;
        let original = u64::from_ne_bytes(bytes);
        let value = match request.bth.opcode {
            Opcode::FetchAdd => original.wrapping_add(atomic.swap_or_add),
            _ if original == atomic.compare => atomic.swap_or_add,
            _ => original,
        };
        self.answer(Answer::Atomic { original }, 1)?;
        window.write(0, &value.to_ne_bytes()).map_err(broken)?;
        Ok(1)
    }
}

/// First and middle packets are full, the last has at least a byte (vol. 1, 9.7.4.1.6).
fn check_length(opcode: Opcode, length: usize, mtu: usize) -> Result<(), Fault> {
    let fits = match (opcode.begins(), opcode.ends()) {
        (_, false) => length == mtu,
        (true, true) => length <= mtu,
        (false, true) => (1..=mtu).contains(&length),
    };
    if fits { Ok(()) } else { Err(INVALID) }
}

/// Completes a successful receive.
#[inline]
fn complete(id: u64, operation: CompletedOperation, identity: &Identity, ctx: &mut Ctx<'_>) {
    let qp = identity.id;
    let status = Status::Success;
    identity.complete_receive(ctx, Completion { id, qp, status, operation, datagram_from: None });
}
