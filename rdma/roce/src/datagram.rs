//! Unreliable datagrams (vol. 1, 9.8.3): one packet each, sent once. A request completes when its packet is passed on
//! for transmission. The port may read its memory for a moment longer; if the memory changes in that moment, the
//! receiver drops the datagram because of its ICRC.

use super::psn::Psn;
use super::qp::{Ctx, Identity};
use super::receive_queue::{self, ReceiveQueue};
use super::requester::Stored;
use super::responder::Request;
use super::sges::Sges;
use super::transmit::{Emitter, TxBuffer};
use super::wire::bth::{Bth, DEFAULT_PKEY};
use super::wire::extended::Deth;
use super::wire::frame::{Frame, Network, Template};
use super::wire::get32;
use super::wire::opcode::Opcode;
use alloc::collections::VecDeque;
use verbs::{
    CompletedOperation, Completion, DatagramTo, SendOperation, SendRequest, SendWith, Status,
    VerbsError,
};

/// Bytes before the payload in a receive: a GRH, or an IPv4 header at its end.
pub const GRH_LEN: usize = 40;

#[derive(Debug)]
struct Work {
    id: u64,
    payload: Stored,
    immediate: Option<u32>,
    to: DatagramTo,
    signaled: bool,
    solicited: bool,
}

/// Datagrams that wait to be sent.
#[derive(Debug)]
pub struct Datagrams {
    queue: VecDeque<Work>,
    limit: usize,
    /// Number of datagrams posted so far, modulo 2^32.
    requests: u32,
    psn: Psn,
}

impl Datagrams {
    /// For up to `limit` datagrams.
    pub fn new(limit: usize) -> Self {
        Datagrams { queue: VecDeque::with_capacity(limit), limit, requests: 0, psn: Psn::default() }
    }

    /// As [`Requester::under_way`](super::requester::Requester::under_way).
    pub fn under_way(&self) -> Option<u32> {
        (!self.queue.is_empty()).then_some(self.requests)
    }

    /// As [`Requester::has_done`](super::requester::Requester::has_done).
    pub fn has_done(&self, requests: u32) -> bool {
        self.queue.len() <= self.requests.wrapping_sub(requests) as usize
    }

    /// Posts a datagram of up to `mtu` bytes.
    pub fn post(&mut self, request: &SendRequest<'_>, mtu: usize) -> Result<(), VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        let (SendOperation::Send { payload, with }, Some(to)) =
            (&request.operation, request.datagram)
        else {
            return Err(VerbsError::Invalid);
        };
        let payload = Stored::new(payload)?;
        let immediate = match with {
            SendWith::Nothing => None,
            SendWith::Immediate(value) => Some(*value),
            SendWith::Invalidate(_) => return Err(VerbsError::Invalid),
        };
        if payload.len() > mtu {
            return Err(VerbsError::Invalid);
        }
        let (id, signaled, solicited) = (request.id, request.signaled, request.solicited);
        self.queue.push_back(Work { id, payload, immediate, to, signaled, solicited });
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Whether a datagram waits to be sent.
    #[inline]
    pub fn has_send(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Puts the next datagram into `tx`.
    #[inline(never)]
    pub fn poll_transmit(
        &mut self,
        mac: [u8; 6],
        identity: &Identity,
        emitter: &Emitter,
        tx: &mut TxBuffer,
        ctx: &mut Ctx<'_>,
    ) -> Option<Opcode> {
        let work = self.queue.pop_front()?;
        let mut deth = [0; Deth::LEN];
        Deth { qkey: work.to.remote_qkey, source_qp: identity.number }.emit(&mut deth);
        let opcode = match work.immediate {
            None => Opcode::UdSendOnly,
            Some(_) => Opcode::UdSendOnlyImmediate,
        };
        let bth = Bth {
            opcode,
            solicited: work.solicited,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: work.to.remote_qpn,
            ack_request: false,
            psn: self.psn.get(),
        };
        self.psn = self.psn.plus(1);
        let template = Template::new(mac, &work.to.address);
        tx.begin(&template);
        tx.extend(deth);
        if let Some(immediate) = work.immediate {
            tx.extend(immediate.to_be_bytes());
        }
        work.payload.put(0, work.payload.len(), tx);
        emitter.emit(tx, &template, bth);
        if work.signaled {
            identity.complete_send(ctx, work.id, Status::Success, true);
        }
        Some(opcode)
    }

    /// Completes all datagrams as flushed.
    pub fn flush(&mut self, identity: &Identity, ctx: &mut Ctx<'_>) {
        while let Some(work) = self.queue.pop_front() {
            identity.complete_send(ctx, work.id, Status::Flushed, true);
        }
    }
}

/// Handles a datagram from queue pair `from_qp`.
pub fn receive(
    request: &Request<'_>,
    frame: &Frame<'_>,
    from_qp: u32,
    receives: &mut ReceiveQueue,
    identity: &Identity,
    ctx: &mut Ctx<'_>,
) {
    let with = if request.bth.opcode.has_immediate() {
        SendWith::Immediate(get32(request.extended, Deth::LEN).unwrap_or_default())
    } else {
        SendWith::Nothing
    };
    let Some(receive) = receives.front() else {
        ctx.counters.dropped.no_receive += 1;
        return;
    };
    receives.pop();
    if write(&receive.into, frame, request.payload).is_none() {
        ctx.counters.dropped.no_receive += 1;
        receive_queue::fail(receive.id, Status::LocalLength, identity, ctx);
        return;
    }
    ctx.counters.received.sends += 1;
    let completion = Completion {
        id: receive.id,
        qp: identity.id,
        status: Status::Success,
        operation: CompletedOperation::Recv {
            length: (GRH_LEN + request.payload.len()) as u32,
            with,
        },
        datagram_from: Some((frame.source().address(), from_qp)),
    };
    identity.complete_receive(ctx, completion);
}

/// Writes network header and payload (Linux `rxe_resp.c`, `send_data_in` for UD).
fn write(into: &Sges, frame: &Frame<'_>, payload: &[u8]) -> Option<()> {
    let mut grh = [0; GRH_LEN];
    match frame.network {
        Network::Ipv4 => grh.get_mut(20..)?.copy_from_slice(frame.headers.get(..20)?),
        Network::Ipv6 | Network::Grh => grh.copy_from_slice(frame.headers.get(..40)?),
    }
    into.write(0, &grh).ok()?;
    into.write(GRH_LEN, payload).ok()
}
