//! The sending side of a queue pair: cuts what is posted into entries, puts their payload where the
//! peer finds it, and completes what the peer has done.
//!
//! Its indices are those of NTRDMA: posted (`queue`), produced (written to the peer), consumed (done
//! by it), completed (in its queue).

use super::layout::{ENTRY, INLINE};
use super::placing::Placing;
use super::qp::{Completer, RemoteQp, Session, Wire};
use super::ring::ByteRing;
use super::wire::{ANSWER_WORDS, Answer, Opcode, Place, Template};
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

/// Bytes of an entry at most: so that no message keeps a loop busy for long.
pub const PIECE: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Stored {
    Windows(Sges),
    /// As it goes into the entry: what was posted so, and what is short.
    Inline([u64; INLINE / 8]),
}

/// A posted request.
#[derive(Debug)]
struct Work {
    id: u64,
    template: Template,
    payload: Stored,
    signaled: bool,
    /// Memory on demand that goes back to the pool with it.
    block: Option<Block>,
}

/// An entry that is at the peer.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// What its stretch of memory for payload, or for the answer, cost.
    cost: u32,
    /// Of a READ: where the answer lands, and where in the request's windows it belongs.
    landing: u32,
    at: u32,
    length: u32,
    last: bool,
    /// It was written straight to where it belongs.
    placed: bool,
    /// The last copy of its payload; 0 without any.
    copy: Ticket,
}

/// The peer says of our requests what makes no sense.
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
    /// Place in the queue of the request that is cut next, and how much of it was.
    next: usize,
    cut: usize,
    pub produced: u32,
    pub consumed: u32,
    /// As the peer says: ahead of `consumed` while an engine is behind.
    reported: u32,
    /// Of the entries that are at the peer, each in the place of its number.
    flight: Vec<Piece>,
    staging: ByteRing,
    landing: ByteRing,
    /// The last copy of payload that was submitted.
    copy: Ticket,
    placing: Placing,
}

impl Requester {
    /// As `init` says.
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

    /// The peer is known: so many entries may be outstanding, and so much memory is there for
    /// payload (at the peer) and for answers (here).
    pub fn start(&mut self, depth: u32, staging: u32, landing: u32) {
        self.flight = alloc::vec![Piece::default(); depth as usize];
        self.staging = ByteRing::new(staging as usize);
        self.landing = ByteRing::new(landing as usize);
    }

    /// Number of requests that were ever posted, modulo 2^32; None if none of them is under way.
    pub fn under_way(&self) -> Option<u32> {
        (!self.queue.is_empty()).then_some(self.requests)
    }

    /// Whether the requests up to that number are done.
    pub fn has_done(&self, requests: u32) -> bool {
        self.queue.len() <= self.requests.wrapping_sub(requests) as usize
    }

    /// Whether anything is at the peer that it has not done.
    pub fn in_flight(&self) -> bool {
        self.produced != self.reported
    }

    /// Posts a request. What is short is read now.
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
                Stored::Inline(words(&bytes))
            }
            Payload::Windows(windows) => Stored::Windows(Sges::new(windows)?),
            Payload::Inline(from) if length <= self.max_inline => {
                bytes.get_mut(..length).ok_or(VerbsError::Invalid)?.copy_from_slice(from);
                Stored::Inline(words(&bytes))
            }
            Payload::Inline(_) => return Err(VerbsError::Invalid),
        };
        let block = request.carries.and_then(|(region, chunk)| memory.detach_chunk(region, chunk));
        let signaled = request.signaled;
        self.queue.push_back(Work { id: request.id, template, payload, signaled, block });
        self.requests = self.requests.wrapping_add(1);
        Ok(())
    }

    /// Place of entry number `index` among those at the peer, of which there are a power of two.
    #[inline]
    fn flight_of(&self, index: u32) -> usize {
        index as usize & self.flight.len().wrapping_sub(1)
    }

    /// Whether something posted waits to be written to the peer.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Writes entries for as much of what is posted as there is room for.
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

    /// Where in the peer's exposed memory a piece of the next request may be written straight to: it is a WRITE to what
    /// the peer lends, and nothing is under way that the peer has to carry out before it, and that would be seen later.
    #[inline(never)]
    fn place_of(
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
        // Only behind others that were placed is one placed, so that it is enough to look at the last.
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
        let address = template.address().checked_add(at as u64)?;
        wire.info.lent(address, length, wire.window.len())
    }

    /// Writes one entry; None if there is no memory for its payload now.
    #[inline(always)]
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
        match &work.payload {
            Stored::Inline(payload) => {
                let to = wire.window.slice(to + ENTRY - INLINE, INLINE)?;
                wire.bridge.put(&to, payload);
            }
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
                        if let Some(offset) = self.place_of(&work.template, at, length, wire) {
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
        let entry = work.template.entry(self.produced, at, length, place);
        wire.bridge.put(&wire.session.window.slice(to, ENTRY - INLINE)?, &entry);
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

    /// The copy that has to be complete before what was posted may be given to others; None if none is under
    /// way, those up to `copied` being complete.
    pub fn copying(&self, copied: Ticket) -> Option<Ticket> {
        Some(self.copy).filter(|&copy| copy > copied && !self.queue.is_empty())
    }

    /// The peer says that it has done all before `upto`. An error if that makes no sense. What an engine may still
    /// read (the copies behind `copied`) is not taken as done yet: false if there is such.
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
            let piece = self.flight.get(self.flight_of(self.consumed)).copied();
            let (piece, work) = piece.zip(self.queue.front()).ok_or(Violation)?;
            match &work.payload {
                Stored::Windows(into) if work.template.opcode == Opcode::Read => {
                    let from = completer.identity.places.landing + piece.landing as usize;
                    if let Some(from) = exposed.slice(from, piece.length as usize) {
                        // It was cut to fit.
                        let _ = into.write_window(piece.at as usize, &from);
                    }
                    self.landing.give_back(piece.cost as usize);
                }
                Stored::Windows(into) if work.template.opcode.is_atomic() => {
                    let mut words = [0; ANSWER_WORDS];
                    let at = completer.identity.places.answer(self.consumed);
                    exposed.load_words(at, &mut words);
                    let answer = Answer::parse(&words).filter(|a| a.index == self.consumed);
                    // 8 bytes: that was checked when it was posted.
                    let _ = into.write(0, &answer.ok_or(Violation)?.value.to_ne_bytes());
                }
                Stored::Windows(_) if piece.copy > copied => return Ok(false),
                Stored::Windows(_) => self.staging.give_back(piece.cost as usize),
                Stored::Inline(_) => (),
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

    /// Ends everything that is posted: what the peer has done with success, and then the oldest as `first` says.
    pub fn flush(
        &mut self,
        mut first: Option<Status>,
        completer: &mut Completer<'_>,
        exposed: &Window,
        memory: &mut Memory,
    ) {
        // What makes no sense of it is not done.
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

    /// Takes the memory on demand that requests carry: the queue pair is destroyed.
    pub fn blocks(&mut self) -> impl Iterator<Item = Block> {
        self.queue.drain(..).filter_map(|work| work.block)
    }
}

fn words(bytes: &[u8; INLINE]) -> [u64; INLINE / 8] {
    let mut words = [0; INLINE / 8];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

/// Where in the exposed memory a payload lies, if the peer can read it there.
fn lendable(part: &Sges, wire: &Session) -> Option<u64> {
    match part.as_slice() {
        [only] if wire.peer_loads && wire.exposed.contains(only) => {
            Some(only.bus_address() - wire.exposed.bus_address())
        }
        _ => None,
    }
}
