//! The packets of a responder: ACKs and NAKs, answers to RDMA READs and atomics, and repetitions of them.

use super::{Fault, INVALID, Reply, Request, Responder};
use crate::memory::Memory;
use crate::psn::Psn;
use crate::qp::{Ctx, Identity, Peer};
use crate::transmit::{Emitter, TxBuffer};
use crate::wire::bth::{Bth, DEFAULT_PKEY};
use crate::wire::extended::{Aeth, Nak, Reth, Syndrome};
use crate::wire::opcode::{Class, Opcode};
use drivers::hal::Window;
use verbs::{Access, RemoteAddress};

/// The answer to an RDMA READ or atomic, kept for repetition if it is lost.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Read { from: RemoteAddress, length: u32 },
    Atomic { original: u64 },
}

/// An answer and its progress.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    answer: Answer,
    /// First PSN and number of its packets.
    first: Psn,
    packets: u32,
    /// Packets to send, counted from `first`: `start` is the first one, `next` the next one. All are sent when `next`
    /// reaches `packets`.
    start: u32,
    next: u32,
    /// Whether all were sent once.
    answered: bool,
}

impl Resource {
    pub const fn is_due(&self) -> bool {
        self.next < self.packets
    }
}

impl Responder {
    /// Handles a duplicate request: the answer is repeated, the request is not executed again.
    #[cold]
    pub(super) fn repeat(&mut self, psn: Psn, request: &Request<'_>, mtu: usize) {
        match request.bth.opcode.class() {
            Class::Read => {
                let Ok(reth) = Reth::parse(request.extended) else { return };
                for resource in &mut self.resources {
                    let index = psn.since(resource.first);
                    let Answer::Read { from, .. } = resource.answer else { continue };
                    let address = from.address.wrapping_add(index as u64 * mtu as u64);
                    if index >= resource.packets
                        || (address, from.rkey) != (reth.address, reth.rkey)
                    {
                        continue;
                    }
                    if !resource.is_due() {
                        self.resources_due += 1;
                    }
                    resource.start = index;
                    resource.next = index;
                    return;
                }
            }
            Class::Atomic => {
                if let Some(resource) = self.resources.iter_mut().find(|r| r.first == psn)
                    && let Answer::Atomic { .. } = resource.answer
                    && !resource.is_due()
                {
                    resource.next = 0;
                    self.resources_due += 1;
                }
            }
            _ if !matches!(self.reply, Some(Reply::Nak { psn, .. }) if psn == self.expected) => {
                self.reply = Some(Reply::Ack);
            }
            _ => (),
        }
    }

    /// Keeps an answer and schedules it; refused if the peer has more requests outstanding than negotiated.
    pub(super) fn answer(&mut self, answer: Answer, packets: u32) -> Result<(), Fault> {
        if self.resources.len() >= self.max_resources {
            // A peer that keeps to the negotiated number has received the oldest answer. If that is being repeated, the
            // peer no longer needs it.
            match self.resources.pop_front() {
                Some(oldest) if oldest.answered && oldest.is_due() => self.resources_due -= 1,
                Some(oldest) if oldest.answered => (),
                _ => return Err(INVALID),
            }
        }
        let first = self.expected;
        self.resources.push_back(Resource {
            answer,
            first,
            packets,
            start: 0,
            next: 0,
            answered: false,
        });
        self.resources_due += 1;
        Ok(())
    }

    /// Puts the ACK or NAK that is due into `tx`.
    #[inline]
    pub fn poll_reply(
        &mut self,
        peer: &Peer,
        emitter: &Emitter,
        tx: &mut TxBuffer,
    ) -> Option<Opcode> {
        let (psn, syndrome) = match self.reply.take()? {
            Reply::Ack => (self.expected.previous(), Syndrome::ACK),
            Reply::Nak { psn, syndrome } => (psn, syndrome),
        };
        Some(emit_reply(psn, syndrome, self.messages, peer, emitter, tx))
    }

    /// The NAK by which the queue pair failed, or the pending ACK, if it was not sent yet.
    pub fn final_nak(&self) -> Option<FinalNak> {
        let (psn, syndrome) = match self.reply {
            Some(Reply::Nak { psn, syndrome: Syndrome::Nak(reason) })
                if reason != Nak::SequenceError =>
            {
                (psn, Syndrome::Nak(reason))
            }
            Some(Reply::Nak { .. }) => return None,
            Some(Reply::Ack) => (self.expected.previous(), Syndrome::ACK),
            None => return None,
        };
        Some(FinalNak { psn, syndrome, messages: self.messages })
    }

    /// Puts the next packet of an answer to a READ or atomic into `tx`. `Err` if the queue pair fails because the key
    /// was revoked meanwhile.
    #[inline(never)]
    pub fn poll_answer(
        &mut self,
        peer: &Peer,
        identity: &Identity,
        emitter: &Emitter,
        tx: &mut TxBuffer,
        ctx: &mut Ctx<'_>,
    ) -> Result<Option<Opcode>, ()> {
        let aeth = aeth(Syndrome::ACK, self.messages);
        let Some(resource) = self.resources.iter_mut().find(|r| r.is_due()) else {
            return Ok(None);
        };
        let index = resource.next;
        let psn = resource.first.plus(index);
        let opcode = match resource.answer {
            Answer::Atomic { original } => {
                tx.begin(&peer.template);
                tx.extend(aeth);
                tx.extend(original.to_be_bytes());
                Opcode::AtomicAcknowledge
            }
            Answer::Read { from, length } => {
                let Ok(payload) = piece(ctx.memory, identity, peer, from, length, index) else {
                    self.nak(psn, Nak::RemoteAccess, ctx);
                    return Err(());
                };
                // A repetition begins with a first packet, at any offset.
                let opcode = match (index == resource.start, index + 1 == resource.packets) {
                    (true, true) => Opcode::ReadResponseOnly,
                    (true, false) => Opcode::ReadResponseFirst,
                    (false, false) => Opcode::ReadResponseMiddle,
                    (false, true) => Opcode::ReadResponseLast,
                };
                tx.begin(&peer.template);
                if opcode != Opcode::ReadResponseMiddle {
                    tx.extend(aeth);
                }
                tx.refer(&payload, 0, payload.len());
                opcode
            }
        };
        emitter.emit(tx, &peer.template, bth(opcode, peer, psn));
        resource.next += 1;
        if !resource.is_due() {
            resource.answered = true;
            self.resources_due -= 1;
        }
        Ok(Some(opcode))
    }
}

/// A NAK or ACK that outlives its queue pair. The peer needs it to learn why the queue pair failed, or that all its
/// requests arrived, even if the user destroys the queue pair at once.
#[derive(Clone, Copy, Debug)]
pub struct FinalNak {
    psn: Psn,
    syndrome: Syndrome,
    messages: Psn,
}

impl FinalNak {
    /// Puts it into `tx`.
    pub fn emit(&self, peer: &Peer, emitter: &Emitter, tx: &mut TxBuffer) -> Opcode {
        emit_reply(self.psn, self.syndrome, self.messages, peer, emitter, tx)
    }
}

/// Puts an ACK or NAK into `tx`.
fn emit_reply(
    psn: Psn,
    syndrome: Syndrome,
    messages: Psn,
    peer: &Peer,
    emitter: &Emitter,
    tx: &mut TxBuffer,
) -> Opcode {
    tx.begin(&peer.template);
    tx.extend(aeth(syndrome, messages));
    emitter.emit(tx, &peer.template, bth(Opcode::Acknowledge, peer, psn));
    Opcode::Acknowledge
}

fn aeth(syndrome: Syndrome, messages: Psn) -> [u8; Aeth::LEN] {
    let mut bytes = [0; Aeth::LEN];
    Aeth { syndrome, msn: messages.get() }.emit(&mut bytes);
    bytes
}

/// BTH of a responder's packet.
fn bth(opcode: Opcode, peer: &Peer, psn: Psn) -> Bth {
    Bth {
        opcode,
        solicited: false,
        pad: 0,
        pkey: DEFAULT_PKEY,
        destination_qp: peer.qpn,
        ack_request: false,
        psn: psn.get(),
    }
}

/// The bytes of packet `index` of an answer to a READ.
fn piece(
    memory: &Memory,
    identity: &Identity,
    peer: &Peer,
    from: RemoteAddress,
    length: u32,
    index: u32,
) -> Result<Window, Fault> {
    let mtu = peer.path_mtu.bytes() as u32;
    let offset = index.saturating_mul(mtu);
    let here = length.saturating_sub(offset).min(mtu);
    if here == 0 {
        return Ok(Window::empty());
    }
    let at = RemoteAddress { address: from.address.wrapping_add(offset as u64), ..from };
    Ok(memory.check(identity.pd, Access::REMOTE_READ, at, here)?)
}
