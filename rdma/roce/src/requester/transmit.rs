//! Packets of the requester.

use super::Requester;
use super::work::{Load, Operation, Work};
use crate::psn::Psn;
use crate::qp::Peer;
use crate::transmit::{Emitter, TxBuffer};
use crate::wire::bth::{Bth, DEFAULT_PKEY};
use crate::wire::extended::{AtomicEth, Reth};
use crate::wire::opcode::Opcode;
use drivers::hal::Instant;
use verbs::{RemoteAddress, SendWith};

/// Most outstanding PSNs, however much RDMA READs request.
const MAX_SPAN: u32 = 1 << 22;

impl Requester {
    /// Whether a packet may be sent now, with at most `window` packets unacknowledged.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    pub fn can_send(&self, window: u32) -> bool {
        self.cursor < self.queue.len() && self.can_send_next(window)
    }

    fn can_send_next(&self, window: u32) -> bool {
        self.may_send(window)
            // Without READs and atomics the request itself does not matter.
            && (self.max_rd_atomic == 0
                || self.queue.get(self.cursor).is_some_and(|work| self.may_request_answer(work)))
    }

    /// Whether a packet that needs no answer may be sent now.
    #[inline]
    fn may_send(&self, window: u32) -> bool {
        self.next.since(self.unacknowledged) < window && self.pause_until.is_none()
    }

    /// Whether the outstanding answers allow `work`, the next request, to be sent.
    #[inline]
    fn may_request_answer(&self, work: &Work) -> bool {
        let outstanding = self.next.since(self.unacknowledged);
        !work.operation.wants_answer()
            || self.answers_due < self.max_rd_atomic
                && (outstanding == 0 || outstanding + work.packets < MAX_SPAN)
    }

    /// Puts the next packet into `tx`; None if none may be sent now.
    pub fn poll_transmit(
        &mut self,
        peer: &Peer,
        window: u32,
        now: Instant,
        emitter: &Emitter,
        tx: &mut TxBuffer,
    ) -> Option<Opcode> {
        let work = self.queue.get(self.cursor)?;
        if !self.may_send(window) || !self.may_request_answer(work) {
            return None;
        }
        let mtu = peer.path_mtu.bytes();
        let index = self.next.since(work.first);
        let offset = index as usize * mtu;
        let left = (work.length as usize).saturating_sub(offset);
        let mut packets = 1;
        let mut ends = true;
        tx.begin(&peer.template);

        let opcode = match work.operation {
            Operation::Send(with) => {
                let begins = index == 0;
                ends = index + 1 == work.packets;
                if let (true, SendWith::Immediate(value) | SendWith::Invalidate(value)) =
                    (ends, with)
                {
                    tx.extend(value.to_be_bytes());
                }
                self.large.put(&work.payload, offset, left.min(mtu), tx);
                send_opcode(begins, ends, with)
            }
            Operation::Write(to, immediate) => {
                let begins = index == 0;
                ends = index + 1 == work.packets;
                if begins {
                    tx.extend(reth(to, work.length));
                }
                if let (true, Some(immediate)) = (ends, immediate) {
                    tx.extend(immediate.to_be_bytes());
                }
                self.large.put(&work.payload, offset, left.min(mtu), tx);
                write_opcode(begins, ends, immediate.is_some())
            }
            Operation::Read(from) => {
                packets = work.packets - index;
                let address = from.address.wrapping_add(offset as u64);
                tx.extend(reth(RemoteAddress { address, ..from }, left as u32));
                Opcode::ReadRequest
            }
            Operation::CompareSwap { at, compare, swap } => {
                tx.extend(atomic(at, swap, compare));
                Opcode::CompareSwap
            }
            Operation::FetchAdd { at, add } => {
                tx.extend(atomic(at, add, 0));
                Opcode::FetchAdd
            }
        };

        // An ACK is requested at the end of the last message, which acknowledges the others too, and often enough in
        // between that the ACK arrives before the window closes. If the user waits for none of those messages, one ACK
        // covers all that are sent within a period.
        let wants_answer = work.operation.wants_answer();
        let after = self.next.plus(packets);
        self.since_ack_request += 1;
        let ends_all = ends && self.cursor + 1 == self.queue.len();
        self.awaited |= ends && work.awaited;
        let shared = ends_all && self.ack_share.must_request(now);
        let ack_request = shared || ends_all && self.awaited || self.needs_ack(after, window);
        let bth = Bth {
            opcode,
            solicited: work.solicited && ends,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: peer.qpn,
            ack_request,
            psn: self.next.get(),
        };
        emitter.emit(tx, &peer.template, bth);

        if wants_answer {
            self.answers_due = self.answers_due.saturating_add(1);
        }
        if ends {
            self.cursor += 1;
        } else {
            tx.continues = Some((peer.qpn, after));
        }
        self.note_sent(after, ack_request, wants_answer, now);
        if ends_all && !ack_request {
            self.ack_share.defer();
        }
        Some(opcode)
    }

    /// Puts the next packet into `tx` if it continues the message of the packet that is there: few fields change. The
    /// last packet of a message counts if it is as long as the others, has no immediate, and another request follows
    /// it, so that it is not the one that has to request an ACK.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    pub fn poll_middle(
        &mut self,
        peer: &Peer,
        window: u32,
        now: Instant,
        emitter: &Emitter,
        tx: &mut TxBuffer,
    ) -> Option<Opcode> {
        let work = self.queue.get(self.cursor)?;
        let mtu = peer.path_mtu.bytes();
        let offset = self.next.since(work.first) as usize * mtu;
        let Load::Window(payload) = &work.payload else { return None };
        let ends = offset + mtu == work.length as usize;
        let opcode = match work.operation {
            Operation::Write(..) if !ends => Opcode::WriteMiddle,
            Operation::Write(_, None) => Opcode::WriteLast,
            Operation::Send(_) if !ends => Opcode::SendMiddle,
            Operation::Send(SendWith::Nothing) => Opcode::SendLast,
            _ => return None,
        };
        if tx.continues != Some((peer.qpn, self.next))
            || offset + mtu > work.length as usize
            || ends && self.cursor + 1 >= self.queue.len()
            || !self.may_send(window)
        {
            return None;
        }
        let after = self.next.plus(1);
        self.since_ack_request += 1;
        let ack_request = self.needs_ack(after, window);
        tx.continue_message(&peer.template, payload, offset, mtu);
        let bth = Bth {
            opcode,
            solicited: work.solicited && ends,
            pad: 0,
            pkey: DEFAULT_PKEY,
            destination_qp: peer.qpn,
            ack_request,
            psn: self.next.get(),
        };
        emitter.emit_middle(tx, &peer.template, bth);
        tx.continues = (!ends).then_some((peer.qpn, after));
        if ends {
            self.awaited |= work.awaited;
            self.cursor += 1;
        }
        self.note_sent(after, ack_request, false, now);
        Some(opcode)
    }

    /// Whether the packet before `after` must request an ACK at any position in a message.
    #[inline]
    fn needs_ack(&self, after: Psn, window: u32) -> bool {
        4 * self.since_ack_request >= window || after.since(self.unacknowledged) >= window
    }

    /// Updates the state after the packets before `after` were sent.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    fn note_sent(&mut self, after: Psn, ack_request: bool, wants_answer: bool, now: Instant) {
        let asks_answer = ack_request || wants_answer;
        if asks_answer {
            self.ack_requested_to = after;
        }
        if ack_request {
            self.since_ack_request = 0;
            self.awaited = false;
            self.ack_share.requested(now);
            if !self.next.is_before(self.sent) {
                self.rto.ack_requested(self.next, now);
            }
        }
        if self.sent == self.unacknowledged {
            // No other packet waits for an ACK.
            self.stalled_since = now;
        }
        self.next = after;
        if self.sent.is_before(after) {
            self.sent = after;
        }
        if (asks_answer || !self.ack_share.enabled) && self.retransmit_at.is_none() {
            self.arm(now);
        }
    }
}

fn reth(of: RemoteAddress, length: u32) -> [u8; Reth::LEN] {
    let mut bytes = [0; Reth::LEN];
    Reth { address: of.address, rkey: of.rkey, length }.emit(&mut bytes);
    bytes
}

fn atomic(at: RemoteAddress, swap_or_add: u64, compare: u64) -> [u8; AtomicEth::LEN] {
    let mut bytes = [0; AtomicEth::LEN];
    AtomicEth { address: at.address, rkey: at.rkey, swap_or_add, compare }.emit(&mut bytes);
    bytes
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

/// Opcode of a WRITE packet. Index: 1 if it begins the message, plus 2 if it ends the message, plus 4 if the message
/// has an immediate.
const WRITES: [Opcode; 8] = [
    Opcode::WriteMiddle,
    Opcode::WriteFirst,
    Opcode::WriteLast,
    Opcode::WriteOnly,
    Opcode::WriteMiddle,
    Opcode::WriteFirst,
    Opcode::WriteLastImmediate,
    Opcode::WriteOnlyImmediate,
];

const fn write_opcode(begins: bool, ends: bool, immediate: bool) -> Opcode {
    WRITES[begins as usize + 2 * ends as usize + 4 * immediate as usize]
}
