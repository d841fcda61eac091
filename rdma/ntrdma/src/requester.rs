//! The sending side of a queue pair: splits posted requests into entries, writes their payload to the
//! peer, and completes requests that the peer has done.
//!
//! Its indices are those of NTRDMA: posted (`queue`), produced (written to the peer), consumed (done
//! by the peer), completed (in the completion queue).

use super::layout::{ENTRY, INLINE};
use super::placing::Placing;
use super::qp::{Completer, RemoteQp, Session, Wire};
use super::ring::ByteRing;
use super::wire::{ANSWER_WORDS, Answer, ENTRY_WORDS, Opcode, Place, Template};
use crate::counters::Counters;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::dma::Ticket;
use drivers::hal::Window;
use drivers::ntb::Bridge;
use softverbs::memory::Memory;
use softverbs::pool::Block;
use softverbs::sges::Sges;
use verbs::{
    Payload, QpInit, RemoteAddress, SendOperation, SendRequest, SendWith, Status, VerbsError,
};

/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 1 << 30;

/// Most bytes of an entry, so that no message occupies a loop for long.
pub const PIECE: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Stored {
    Windows(Sges),
    /// In the entry: payload posted inline, or short.
    Inline,
}

/// A posted request.
#[derive(Debug)]
struct Work {
    id: u64,
    template: Template,
    payload: Stored,
    signaled: bool,
    /// Memory on demand that returns to the pool when the request ends.
    block: Option<Block>,
}

/// An entry in flight at the peer.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// Cost of its range of staging or landing memory.
    cost: u32,
    /// READ: offset of the response in landing memory.
    landing: u32,
    /// READ: offset of the response in the request's windows.
    at: u32,
    length: u32,
    last: bool,
    /// Its payload was written directly to its destination.
    placed: bool,
    /// The last copy of its payload; 0 without a copy.
    copy: Ticket,
}

/// The peer reported an impossible result of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// The sending side.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Work>,
    limit: usize,
    /// Requests ever posted, modulo 2^32.
    requests: u32,
    max_sge: usize,
    max_inline: usize,
    /// Index in the queue of the request that is split next.
    next: usize,
    /// Bytes of it that are in entries.
    cut: usize,
    pub produced: u32,
    pub consumed: u32,
    /// Entries that the peer reported as done: ahead of `consumed` while an engine may still read their payload.
    reported: u32,
    /// Entries in flight, each at its number modulo the depth.
    flight: Vec<Piece>,
    staging: ByteRing,
    landing: ByteRing,
    /// The last copy of payload that was submitted.
    copy: Ticket,
    placing: Placing,
}

impl Requester {
    /// A requester for a queue pair with these limits.
    pub fn new(init: &QpInit) -> Self {
        Requester {
            queue: VecDeque::with_capacity(init.max_send_wr as usize),
            limit: init.max_send_wr as usize,
            requests: 0,
            max_sge: init.max_send_sge,
            max_inline: init.max_inline,
            next: 0,
            cut: 0,
            produced: 0,
            consumed: 0,
            reported: 0,
            flight: Vec::new(),
            staging: ByteRing::default(),
            landing: ByteRing::default(),
            copy: 0,
            placing: Placing::default(),
        }
    }

    /// Sets the most outstanding entries, and the bytes of memory for
    /// payload (at the peer) and for responses (local).
    pub fn start(&mut self, depth: u32, staging: u32, landing: u32) {
        self.flight = alloc::vec![Piece::default(); depth as usize];
        self.staging = ByteRing::new(staging as usize);
        self.landing = ByteRing::new(landing as usize);
    }

    /// Number of requests ever posted, modulo 2^32; None if all have ended.
    pub fn under_way(&self) -> Option<u32> {
        (!self.queue.is_empty()).then_some(self.requests)
    }

    /// Whether the requests up to that number have ended.
    pub fn has_done(&self, requests: u32) -> bool {
        self.queue.len() <= self.requests.wrapping_sub(requests) as usize
    }

    /// Whether the peer has entries that it has not done.
    pub fn in_flight(&self) -> bool {
        self.produced != self.reported
    }

    /// Posts a request. Short payload is copied now.
    #[inline]
    pub fn post(
        &mut self,
        request: &SendRequest<'_>,
        peer: &RemoteQp,
        memory: &mut Memory,
    ) -> Result<(), VerbsError> {
        if self.queue.len() >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        let mut operands = None;
        let (opcode, payload, to, extra) = match &request.operation {
            SendOperation::Send { payload, with } => {
                let (opcode, extra) = match *with {
                    SendWith::Nothing => (Opcode::Send, 0),
                    SendWith::Immediate(immediate) => (Opcode::SendImmediate, immediate),
                    SendWith::Invalidate(key) => (Opcode::SendInvalidate, key),
                };
                (opcode, *payload, RemoteAddress { address: 0, rkey: 0 }, extra)
            }
            SendOperation::Write { payload, to, immediate: None } => {
                (Opcode::Write, *payload, *to, 0)
            }
            SendOperation::Write { payload, to, immediate: Some(immediate) } => {
                (Opcode::WriteImmediate, *payload, *to, *immediate)
            }
            SendOperation::Read { into, from } => (Opcode::Read, Payload::Windows(into), *from, 0),
            SendOperation::CompareSwap { into, at, compare, swap } => {
                operands = Some((*compare, *swap));
                (Opcode::CompareSwap, Payload::Windows(core::slice::from_ref(into)), *at, 0)
            }
            SendOperation::FetchAdd { into, at, add } => {
                operands = Some((*add, 0));
                (Opcode::FetchAdd, Payload::Windows(core::slice::from_ref(into)), *at, 0)
            }
        };
        let length = payload.len();
        if length > MAX_MESSAGE || operands.is_some() && length != 8 {
            return Err(VerbsError::Invalid);
        }
        let mut template = Template::new(opcode, peer.number, length as u32, to, extra);
        template.solicited = request.solicited;
        if let Some((compare_add, swap)) = operands {
            template.operands(compare_add, swap);
        }
        let outgoing = operands.is_none() && opcode != Opcode::Read;
        let mut bytes = [0; INLINE];
        let payload = match payload {
            Payload::Windows(windows) if windows.len() > self.max_sge => {
                return Err(VerbsError::Invalid);
            }
            Payload::Windows(windows) if outgoing && length <= INLINE => {
                let mut at = 0;
                for window in windows {
                    let here = bytes.get_mut(at..at + window.len()).ok_or(VerbsError::Invalid)?;
                    window.read(0, here).map_err(|_| VerbsError::Invalid)?;
                    at += window.len();
                }
                template.payload(&bytes);
                Stored::Inline
            }
            Payload::Windows(windows) => Stored::Windows(Sges::new(windows)?),
            Payload::Inline(from) if length <= self.max_inline => {
                bytes.get_mut(..length).ok_or(VerbsError::Invalid)?.copy_from_slice(from);
                template.payload(&bytes);
                Stored::Inline
            }
            Payload::Inline(_) => return Err(VerbsError::Invalid),
        };
        let block = request.carries.and_then(|(region, chunk)| memory.detach_chunk(region, chunk));
        let signaled = request.signaled;
        self.queue.push_back(Work { id: request.id, template, payload, signaled, block });
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Index of entry number `index` in `flight`, whose length is a power of two.
    #[inline]
    fn flight_of(&self, index: u32) -> usize {
        index as usize & self.flight.len().wrapping_sub(1)
    }

    /// Whether posted requests wait to be written to the peer.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Writes entries of posted requests while there is room.
    #[inline]
    pub fn push<B: Bridge + ?Sized>(
        &mut self,
        peer: &RemoteQp,
        wire: &mut Wire<'_, B>,
        counters: &mut Counters,
    ) {
        while self.produced.wrapping_sub(self.consumed) < wire.depth
            && self.next < self.queue.len()
            && self.push_piece(peer, wire, counters).is_some()
        {}
    }

    /// Offset in the peer's exposed memory to which a piece of the next request may be written directly. It has to be a
    /// WRITE to lent memory, and no earlier request may be in flight that the peer has to execute, because that would
    /// take effect later.
    #[inline(never)]
    fn direct_offset(
        &self,
        template: &Template,
        at: usize,
        length: usize,
        wire: &Session,
    ) -> Option<usize> {
        let is_write = matches!(template.opcode, Opcode::Write | Opcode::WriteImmediate);
        if !is_write || wire.info.lent_at == 0 {
            return None;
        }
        // A piece is placed only after placed ones, so checking the last one is sufficient.
        let mut index = self.produced;
        while index != self.consumed {
            index = index.wrapping_sub(1);
            let piece = self.flight.get(self.flight_of(index))?;
            if piece.length > 0 {
                if !piece.placed {
                    return None;
                }
                break;
            }
        }
        let address = template.address.checked_add(at as u64)?;
        wire.info.lent(address, length, wire.window.len())
    }

    /// Writes one entry; None if there is no memory for its payload now.
    #[inline]
    fn push_piece<B: Bridge + ?Sized>(
        &mut self,
        peer: &RemoteQp,
        wire: &mut Wire<'_, B>,
        counters: &mut Counters,
    ) -> Option<()> {
        let work = self.queue.get(self.next)?;
        let Template { opcode, total, .. } = work.template;
        let (at, rest) = (self.cut, total as usize - self.cut);
        let (mut length, mut cost, mut landing, mut copy) = (rest.min(PIECE), 0, 0, 0);
        let to = peer.places.entry(self.produced);
        let (mut place, mut placed) = (Place::Inline, false);
        // A bridge that gathers merges whole entries with adjacent ones.
        let mut whole = wire.session.gathers;
        match &work.payload {
            Stored::Inline => whole = true,
            Stored::Windows(_) if opcode.is_atomic() => (),
            Stored::Windows(_) if opcode == Opcode::Read => {
                length = length.min(self.landing.longest());
                (landing, cost) = self.landing.take(length)?;
                place = Place::Staged(landing as u32);
            }
            Stored::Windows(sges) => {
                let mut part = Sges::empty();
                sges.part(at, length, &mut part);
                match lendable(&part, wire.session) {
                    Some(offset) => {
                        place = Place::Lent(offset);
                        counters.bytes_lent += length as u64;
                    }
                    None => {
                        let mut to;
                        if let Some(offset) = self.direct_offset(&work.template, at, length, wire) {
                            if self.placing.add(counters.batches, offset, length)? {
                                wire.bridge.order();
                            }
                            placed = true;
                            to = offset;
                            place = Place::Placed(offset as u64);
                            counters.bytes_placed += length as u64;
                        } else {
                            length = length.min(self.staging.longest());
                            let offset;
                            (offset, cost) = self.staging.take(length)?;
                            sges.part(at, length, &mut part);
                            to = peer.places.staging + offset;
                            place = Place::Staged(offset as u32);
                            counters.bytes_staged += length as u64;
                        }
                        for window in part.as_slice() {
                            if let Some(place) = wire.window.slice(to, window.len()) {
                                wire.bridge.submit(&place, window);
                            }
                            to += window.len();
                        }
                        self.copy = wire.bridge.submitted();
                        copy = self.copy;
                    }
                }
            }
        }
        let (at, length) = (at as u32, length as u32);
        let to = wire.session.window.slice(to, ENTRY)?;
        let work = self.queue.get_mut(self.next)?;
        let entry = work.template.entry(self.produced, at, length, place);
        wire.bridge.put(&to, if whole { entry } else { &entry[..ENTRY_WORDS] });
        counters.entries_sent += 1;
        let last = at + length == total;
        let (cost, landing) = (cost as u32, landing as u32);
        let flown = self.flight_of(self.produced);
        *self.flight.get_mut(flown)? = Piece { cost, landing, at, length, last, placed, copy };
        self.produced = self.produced.wrapping_add(1);
        (self.next, self.cut) =
            if last { (self.next + 1, 0) } else { (self.next, (at + length) as usize) };
        Some(())
    }

    /// The copy that has to complete before the memory of posted requests may be reused; None if all copies
    /// are complete. Copies up to `copied` are.
    pub fn copying(&self, copied: Ticket) -> Option<Ticket> {
        Some(self.copy).filter(|&copy| copy > copied && !self.queue.is_empty())
    }

    /// Handles the peer's report that all entries before `upto` are done; an error if that is impossible. Entries whose
    /// payload an engine may still read (copies after `copied`) do not count as done yet: false if there are any.
    #[inline]
    pub fn consumed(
        &mut self,
        upto: u32,
        completer: &mut Completer<'_>,
        exposed: &Window,
        memory: &mut Memory,
        copied: Ticket,
    ) -> Result<bool, Violation> {
        if upto.wrapping_sub(self.consumed) > self.produced.wrapping_sub(self.consumed) {
            return Err(Violation);
        }
        self.reported = upto;
        while self.consumed != upto {
            let piece = self.flight.get(self.flight_of(self.consumed));
            let (piece, work) = piece.zip(self.queue.front()).ok_or(Violation)?;
            match &work.payload {
                Stored::Windows(into) if work.template.opcode == Opcode::Read => {
                    let from = completer.identity.places.landing + piece.landing as usize;
                    if let Some(from) = exposed.slice(from, piece.length as usize) {
                        // The piece was cut to fit.
                        let _ = into.write_window(piece.at as usize, &from);
                    }
                    self.landing.give_back(piece.cost as usize);
                }
                Stored::Windows(into) if work.template.opcode.is_atomic() => {
                    let mut words = [0; ANSWER_WORDS];
                    let at = completer.identity.places.answer(self.consumed);
                    exposed.load_words(at, &mut words);
                    let answer = Answer::parse(&words).filter(|a| a.index == self.consumed);
                    // The window has 8 bytes, which `post` checked.
                    let _ = into.write(0, &answer.ok_or(Violation)?.value.to_ne_bytes());
                }
                Stored::Windows(_) if piece.copy > copied => return Ok(false),
                Stored::Windows(_) => self.staging.give_back(piece.cost as usize),
                Stored::Inline => (),
            }
            self.consumed = self.consumed.wrapping_add(1);
            if piece.last
                && let Some(work) = self.queue.pop_front()
            {
                self.next -= 1;
                if let Some(block) = work.block {
                    memory.pool.free(block);
                }
                if work.signaled {
                    completer.send(work.id, Status::Success);
                }
            }
        }
        Ok(true)
    }

    /// Ends all posted requests: those that the peer has done with success, then the oldest with `first`, the others as
    /// flushed.
    pub fn flush(
        &mut self,
        mut first: Option<Status>,
        completer: &mut Completer<'_>,
        exposed: &Window,
        memory: &mut Memory,
    ) {
        // After a violation, the remaining requests count as not done.
        let _ = self.consumed(self.reported, completer, exposed, memory, Ticket::MAX);
        for work in self.queue.drain(..) {
            if let Some(block) = work.block {
                memory.pool.free(block);
            }
            completer.send(work.id, first.take().unwrap_or(Status::Flushed));
        }
        (self.next, self.cut) = (0, 0);
        (self.consumed, self.reported) = (self.produced, self.produced);
    }

    /// Takes the memory on demand of all requests, because the queue pair is destroyed.
    pub fn blocks(&mut self) -> impl Iterator<Item = Block> {
        self.queue.drain(..).filter_map(|work| work.block)
    }
}

/// Offset of a payload in exposed memory, if the peer can read it there.
fn lendable(part: &Sges, wire: &Session) -> Option<u64> {
    match part.as_slice() {
        [only] if wire.peer_loads && wire.exposed.contains(only) => {
            Some(only.bus_address() - wire.exposed.bus_address())
        }
        _ => None,
    }
}
