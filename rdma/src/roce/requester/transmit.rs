//! The requester's packets.

use super::Requester;
use super::work::{Operation, Work};
use crate::roce::qp::Peer;
use crate::roce::transmit::{Body, Emitter, TxBuffer};
use crate::roce::wire::bth::{Bth, DEFAULT_PKEY};
use crate::roce::wire::extended::{AtomicEth, Reth};
use crate::roce::wire::opcode::Opcode;
use crate::verbs::SendWith;
use drivers::hal::Instant;

/// PSNs that may be outstanding at most, whatever is asked for by RDMA READ.
const MAX_SPAN: u32 = 1 << 22;

impl Requester {
    /// Whether a packet may be sent now, with `window` packets unacknowledged at most.
    #[inline]
    pub fn can_send(&self, window: u32) -> bool {
        self.cursor < self.queue.len()
            && self.may_send(window)
            // Without any of those there is no need to look at it.
            && (self.max_rd_atomic == 0
                || self.queue.get(self.cursor).is_some_and(|work| self.may_ask(work)))
    }

    /// Whether a packet may be sent now that nobody has to answer.
    #[inline]
    fn may_send(&self, window: u32) -> bool {
        self.next.since(self.unacknowledged) < window && self.pause_until.is_none()
    }

    /// Whether `work`, which is the next request, may be sent as far as answers that are due go.
    #[inline]
    fn may_ask(&self, work: &Work) -> bool {
        let outstanding = self.next.since(self.unacknowledged);
        !work.operation.wants_answer()
            || self.answers_due < self.max_rd_atomic
                && (outstanding == 0 || outstanding + work.packets < MAX_SPAN)
    }

    /// Puts the next packet into `tx`; false if there is none to be sent now.
    pub fn poll_transmit(
        &mut self,
        peer: &Peer,
        window: u32,
        now: Instant,
        emitter: &Emitter,
        tx: &mut TxBuffer,
    ) -> Option<Opcode> {
        let work = self.queue.get(self.cursor)?;
        if !self.may_send(window) || !self.may_ask(work) {
            return None;
        }
        let mtu = peer.path_mtu.bytes();
        let index = self.next.since(work.first);
        let offset = index as usize * mtu;
        let left = (work.length as usize).saturating_sub(offset);
        let mut extended = [0; AtomicEth::LEN];
        let mut extended_len = 0;
        let mut packets = 1;
        let mut ends = true;
        let mut body = Body::EMPTY;

        let opcode = match work.operation {
            Operation::Send(_) | Operation::Write(..) => {
                let begins = index == 0;
                ends = index + 1 == work.packets;
                body = self.large.body(&work.payload, offset, left.min(mtu));
                let mut append = |bytes: &[u8]| {
                    if let Some(place) = extended.get_mut(extended_len..extended_len + bytes.len())
                    {
                        place.copy_from_slice(bytes);
                        extended_len += bytes.len();
                    }
                };
                match work.operation {
                    Operation::Write(to, immediate) => {
                        if begins {
                            let mut reth = [0; Reth::LEN];
                            Reth { address: to.address, rkey: to.rkey, length: work.length }
                                .emit(&mut reth);
                            append(&reth);
                        }
                        if let (true, Some(immediate)) = (ends, immediate) {
                            append(&immediate.to_be_bytes());
                        }
                        write_opcode(begins, ends, immediate.is_some())
                    }
                    Operation::Send(with) => {
                        if let (true, SendWith::Immediate(value) | SendWith::Invalidate(value)) =
                            (ends, with)
                        {
                            append(&value.to_be_bytes());
                        }
                        send_opcode(begins, ends, with)
                    }
                    _ => return None,
                }
            }
            Operation::Read(from) => {
                packets = work.packets - index;
                let mut reth = [0; Reth::LEN];
                let address = from.address.wrapping_add(offset as u64);
                Reth { address, rkey: from.rkey, length: left as u32 }.emit(&mut reth);
                extended_len = Reth::LEN;
                if let Some(place) = extended.first_chunk_mut() {
                    *place = reth;
                }
                Opcode::ReadRequest
            }
            Operation::CompareSwap { at, compare, swap } => {
                extended_len = AtomicEth::LEN;
                AtomicEth { address: at.address, rkey: at.rkey, swap_or_add: swap, compare }
                    .emit(&mut extended);
                Opcode::CompareSwap
            }
            Operation::FetchAdd { at, add } => {
                extended_len = AtomicEth::LEN;
                AtomicEth { address: at.address, rkey: at.rkey, swap_or_add: add, compare: 0 }
                    .emit(&mut extended);
                Opcode::FetchAdd
            }
        };

        // An ACK is asked for at the end of the last message, which acknowledges the others too, and
        // often enough in between that the window does not close before it comes. Where nobody waits for
        // those messages, one ACK may do for all that are sent within a while.
        let wants_answer = work.operation.wants_answer();
        let after = self.next.plus(packets);
        self.since_ack_request += 1;
        let ends_all = ends && self.cursor + 1 == self.queue.len();
        self.waited_for |= ends && work.waited_for;
        let ack_request = ends_all
            && (self.waited_for || now.nanos_since(self.asked_at) >= self.hold)
            || 4 * self.since_ack_request >= window
            || after.since(self.unacknowledged) >= window;
        let bth = Bth {
            opcode,
            solicited: work.solicited && ends,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: peer.qpn,
            ack_request,
            psn: self.next.get(),
        };
        let extended = extended.get(..extended_len).unwrap_or_default();
        emitter.emit(tx, &peer.template, bth, extended, body);

        let asks = ack_request || wants_answer;
        if wants_answer {
            self.answers_due = self.answers_due.saturating_add(1);
        }
        if asks {
            self.asked = after;
        }
        if ack_request {
            self.since_ack_request = 0;
            self.waited_for = false;
            self.asked_at = now;
            self.ask_at = None;
            if !self.next.is_before(self.sent) {
                self.patience.asked(self.next, now);
            }
        }
        if ends {
            self.cursor += 1;
        }
        self.next = after;
        if self.sent.is_before(after) {
            self.sent = after;
        }
        if (asks || !self.shares_acks) && self.retransmit_at.is_none() {
            self.arm(now);
        }
        if ends_all && !ack_request {
            self.ask_at = Some(Instant::from_nanos(self.asked_at.as_nanos() + 2 * self.hold));
        }
        Some(opcode)
    }
}

const fn send_opcode(begins: bool, ends: bool, with: SendWith) -> Opcode {
    match (begins, ends, with) {
        (true, false, _) => Opcode::SendFirst,
        (false, false, _) => Opcode::SendMiddle,
        (false, true, SendWith::Nothing) => Opcode::SendLast,
        (false, true, SendWith::Immediate(_)) => Opcode::SendLastImmediate,
        (false, true, SendWith::Invalidate(_)) => Opcode::SendLastInvalidate,
        (true, true, SendWith::Nothing) => Opcode::SendOnly,
        (true, true, SendWith::Immediate(_)) => Opcode::SendOnlyImmediate,
        (true, true, SendWith::Invalidate(_)) => Opcode::SendOnlyInvalidate,
    }
}

const fn write_opcode(begins: bool, ends: bool, immediate: bool) -> Opcode {
    match (begins, ends, immediate) {
        (true, false, _) => Opcode::WriteFirst,
        (false, false, _) => Opcode::WriteMiddle,
        (false, true, false) => Opcode::WriteLast,
        (false, true, true) => Opcode::WriteLastImmediate,
        (true, true, false) => Opcode::WriteOnly,
        (true, true, true) => Opcode::WriteOnlyImmediate,
    }
}
