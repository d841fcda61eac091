//! The sending side of a queue pair: cuts what is posted into entries, puts their payload where the
//! peer finds it, and completes what the peer has done.
//!
//! Its indices are those of NTRDMA: posted (`queue`), produced (written to the peer), consumed (done
//! by it), completed (polled, see [`super::qp::Done`]).

use super::layout::{ENTRY, INLINE};
use super::qp::{Completer, RemoteQp, Wire};
use super::ring::ByteRing;
use super::wire::{COMPLETION_WORDS, CompletionEntry, ENTRY_WORDS, Entry, Opcode, Place};
use crate::ntrdma::counters::Counters;
use crate::parts::memory::Memory;
use crate::parts::pool::Block;
use crate::parts::sges::Sges;
use crate::verbs::{
    Payload, QpInit, RemoteAddress, SendOperation, SendRequest, SendWith, Status, VerbsError,
};
use alloc::collections::VecDeque;

/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 1 << 30;

/// Bytes of an entry at most: so that no message keeps a loop busy for long.
pub const PIECE: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Stored {
    Windows(Sges),
    Inline([u8; INLINE], u8),
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Send(SendWith),
    Write(RemoteAddress, Option<u32>),
    Read(RemoteAddress),
    CompareSwap { at: RemoteAddress, compare: u64, swap: u64 },
    FetchAdd { at: RemoteAddress, add: u64 },
}

/// A posted request.
#[derive(Debug)]
struct Work {
    id: u64,
    operation: Operation,
    payload: Stored,
    length: usize,
    signaled: bool,
    solicited: bool,
    /// Memory on demand that goes back to the pool with it.
    block: Option<Block>,
}

/// An entry that is at the peer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// What its stretch of memory for payload, or for the answer, cost.
    cost: usize,
    /// Of a READ: where the answer lands, and where in the request's windows it belongs.
    landing: usize,
    at: usize,
    length: usize,
    last: bool,
}

/// Why what the peer says of our requests ends the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It could not do the oldest of them.
    Refused(Status),
    /// It makes no sense.
    Violation,
}

/// The sending side.
#[derive(Debug)]
pub struct Requester {
    queue: VecDeque<Work>,
    limit: usize,
    max_sge: usize,
    max_inline: usize,
    /// Place in the queue of the request that is cut next, and how much of it was.
    next: usize,
    cut: usize,
    pub produced: u32,
    pub consumed: u32,
    flight: VecDeque<Piece>,
    staging: ByteRing,
    landing: ByteRing,
}

impl Requester {
    /// As `init` says.
    pub fn new(init: &QpInit) -> Self {
        Requester {
            queue: VecDeque::with_capacity(init.max_send_wr as usize),
            limit: init.max_send_wr as usize,
            max_sge: init.max_send_sge,
            max_inline: init.max_inline,
            next: 0,
            cut: 0,
            produced: 0,
            consumed: 0,
            flight: VecDeque::new(),
            staging: ByteRing::default(),
            landing: ByteRing::default(),
        }
    }

    /// The peer is known: so many entries may be outstanding, and so much memory is there for
    /// payload (at the peer) and for answers (here).
    pub fn start(&mut self, depth: u32, staging: u32, landing: u32) {
        self.flight = VecDeque::with_capacity(depth as usize);
        self.staging = ByteRing::new(staging as usize);
        self.landing = ByteRing::new(landing as usize);
    }

    /// Whether anything is at the peer.
    pub fn in_flight(&self) -> bool {
        self.produced != self.consumed
    }

    /// Posts a request; `waiting` completions have not been polled yet.
    #[inline]
    pub fn post(
        &mut self,
        request: &SendRequest<'_>,
        waiting: usize,
        memory: &mut Memory,
    ) -> Result<(), VerbsError> {
        if self.queue.len() + waiting >= self.limit {
            return Err(VerbsError::QueueFull);
        }
        let one;
        let (operation, payload) = match &request.operation {
            SendOperation::Send { payload, with } => (Operation::Send(*with), *payload),
            SendOperation::Write { payload, to, immediate } => {
                (Operation::Write(*to, *immediate), *payload)
            }
            SendOperation::Read { into, from } => (Operation::Read(*from), Payload::Windows(into)),
            SendOperation::CompareSwap { into, at, compare, swap } => {
                one = [*into];
                let operation = Operation::CompareSwap { at: *at, compare: *compare, swap: *swap };
                (operation, Payload::Windows(&one))
            }
            SendOperation::FetchAdd { into, at, add } => {
                one = [*into];
                (Operation::FetchAdd { at: *at, add: *add }, Payload::Windows(&one))
            }
        };
        let length = payload.len();
        let atomic =
            matches!(operation, Operation::CompareSwap { .. } | Operation::FetchAdd { .. });
        if length > MAX_MESSAGE || atomic && length != 8 {
            return Err(VerbsError::Invalid);
        }
        let payload = match payload {
            Payload::Windows(windows) if windows.len() <= self.max_sge => {
                Stored::Windows(Sges::new(windows)?)
            }
            Payload::Inline(from) if from.len() <= self.max_inline => {
                let mut bytes = [0; INLINE];
                bytes.get_mut(..from.len()).ok_or(VerbsError::Invalid)?.copy_from_slice(from);
                Stored::Inline(bytes, from.len() as u8)
            }
            _ => return Err(VerbsError::Invalid),
        };
        let block = request.carries.and_then(|(region, chunk)| memory.detach_chunk(region, chunk));
        self.queue.push_back(Work {
            id: request.id,
            operation,
            payload,
            length,
            signaled: request.signaled,
            solicited: request.solicited,
            block,
        });
        Ok(())
    }

    /// Whether something posted waits to be written to the peer.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.next < self.queue.len()
    }

    /// Writes entries for as much of what is posted as there is room for.
    #[inline]
    pub fn push(&mut self, peer: &RemoteQp, wire: &mut Wire<'_>, counters: &mut Counters) {
        while self.produced.wrapping_sub(self.consumed) < wire.depth
            && self.next < self.queue.len()
            && self.push_piece(peer, wire, counters).is_some()
        {}
    }

    /// Writes one entry; None if there is no memory for its payload now.
    fn push_piece(
        &mut self,
        peer: &RemoteQp,
        wire: &mut Wire<'_>,
        counters: &mut Counters,
    ) -> Option<()> {
        let work = self.queue.get(self.next)?;
        let (at, rest) = (self.cut, work.length - self.cut);
        let mut words = [0; ENTRY / 8];
        let mut entry = Entry {
            opcode: Opcode::Send,
            first: at == 0,
            last: false,
            solicited: work.solicited,
            index: self.produced,
            qpn: peer.number,
            length: 0,
            total: work.length as u32,
            place: Place::Inline,
            address: 0,
            rkey: 0,
            extra: 0,
            compare_add: 0,
            swap: 0,
        };
        let mut piece = Piece { cost: 0, landing: 0, at, length: rest.min(PIECE), last: false };
        let mut to = None;
        match work.operation {
            Operation::Send(with) => match with {
                SendWith::Nothing => (),
                SendWith::Immediate(immediate) => {
                    (entry.opcode, entry.extra) = (Opcode::SendImmediate, immediate);
                }
                SendWith::Invalidate(key) => {
                    (entry.opcode, entry.extra) = (Opcode::SendInvalidate, key);
                }
            },
            Operation::Write(address, None) => {
                (entry.opcode, to) = (Opcode::Write, Some(address));
            }
            Operation::Write(address, Some(immediate)) => {
                (entry.opcode, to) = (Opcode::WriteImmediate, Some(address));
                entry.extra = immediate;
            }
            Operation::Read(address) => (entry.opcode, to) = (Opcode::Read, Some(address)),
            Operation::CompareSwap { at, compare, swap } => {
                (entry.opcode, to) = (Opcode::CompareSwap, Some(at));
                (entry.compare_add, entry.swap) = (compare, swap);
            }
            Operation::FetchAdd { at, add } => {
                (entry.opcode, to) = (Opcode::FetchAdd, Some(at));
                entry.compare_add = add;
            }
        }
        if let Some(to) = to {
            (entry.address, entry.rkey) = (to.address.wrapping_add(at as u64), to.rkey);
        }
        let mut payload_words = 0;
        match (&work.operation, &work.payload) {
            (Operation::Read(_), _) => {
                piece.length = piece.length.min(self.landing.longest());
                (piece.landing, piece.cost) = self.landing.take(piece.length)?;
                entry.place = Place::Staged(piece.landing as u32);
            }
            (Operation::CompareSwap { .. } | Operation::FetchAdd { .. }, _) => (),
            (_, Stored::Inline(bytes, length)) => {
                payload_words = put_inline(&mut words, bytes, usize::from(*length));
            }
            (_, Stored::Windows(sges)) if work.length <= INLINE => {
                let mut bytes = [0; INLINE];
                // As long as they say they are.
                let _ = sges.read(&mut bytes[..work.length]);
                payload_words = put_inline(&mut words, &bytes, work.length);
            }
            (_, Stored::Windows(sges)) => {
                let mut part = Sges::empty();
                sges.part(at, piece.length, &mut part);
                match lendable(&part, wire) {
                    Some(offset) => {
                        entry.place = Place::Lent(offset);
                        counters.bytes_lent += piece.length as u64;
                    }
                    None => {
                        piece.length = piece.length.min(self.staging.longest());
                        let offset;
                        (offset, piece.cost) = self.staging.take(piece.length)?;
                        sges.part(at, piece.length, &mut part);
                        let mut to = peer.places.staging + offset;
                        for window in part.as_slice() {
                            if let Some(place) = wire.window.slice(to, window.len()) {
                                wire.bridge.copy(&place, window);
                            }
                            to += window.len();
                        }
                        entry.place = Place::Staged(offset as u32);
                        counters.bytes_staged += piece.length as u64;
                    }
                }
            }
        }
        piece.last = piece.length == rest;
        (entry.last, entry.length) = (piece.last, piece.length as u32);
        words[..ENTRY_WORDS].copy_from_slice(&entry.emit());
        let place = wire.window.slice(peer.places.entry(self.produced), ENTRY)?;
        wire.bridge.put(&place, &words[..ENTRY_WORDS + payload_words]);
        counters.entries_sent += 1;
        self.produced = self.produced.wrapping_add(1);
        self.flight.push_back(piece);
        if piece.last {
            (self.next, self.cut) = (self.next + 1, 0);
        } else {
            self.cut += piece.length;
        }
        Some(())
    }

    /// The peer says that it has consumed all before `upto`.
    #[inline]
    pub fn consumed(
        &mut self,
        upto: u32,
        completer: &mut Completer<'_>,
        wire: &Wire<'_>,
        memory: &mut Memory,
    ) -> Result<(), Ended> {
        if upto.wrapping_sub(self.consumed) > self.produced.wrapping_sub(self.consumed) {
            return Err(Ended::Violation);
        }
        let places = &completer.identity.places;
        while self.consumed != upto {
            let mut words = [0; COMPLETION_WORDS];
            wire.exposed.load_words(places.completion(self.consumed), &mut words);
            let entry = CompletionEntry::parse(&words)
                .filter(|entry| entry.index == self.consumed)
                .ok_or(Ended::Violation)?;
            if entry.status != Status::Success {
                return Err(Ended::Refused(entry.status));
            }
            let piece = self.flight.pop_front().ok_or(Ended::Violation)?;
            self.consumed = self.consumed.wrapping_add(1);
            let Some(work) = self.queue.front() else { return Err(Ended::Violation) };
            match (&work.operation, &work.payload) {
                (Operation::Read(_), Stored::Windows(into)) => {
                    let from = places.landing + piece.landing;
                    if let Some(from) = wire.exposed.slice(from, piece.length) {
                        // It was cut to fit.
                        let _ = into.write_window(piece.at, &from);
                    }
                    self.landing.give_back(piece.cost);
                }
                (
                    Operation::CompareSwap { .. } | Operation::FetchAdd { .. },
                    Stored::Windows(into),
                ) => {
                    // 8 bytes: that was checked when it was posted.
                    let _ = into.write(0, &entry.value.to_ne_bytes());
                }
                _ => self.staging.give_back(piece.cost),
            }
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
        Ok(())
    }

    /// Ends everything that is posted; the oldest as `first` says.
    pub fn flush(
        &mut self,
        mut first: Option<Status>,
        completer: &mut Completer<'_>,
        memory: &mut Memory,
    ) {
        for work in self.queue.drain(..) {
            if let Some(block) = work.block {
                memory.pool.free(block);
            }
            completer.send(work.id, first.take().unwrap_or(Status::Flushed));
        }
        self.flight.clear();
        (self.next, self.cut, self.consumed) = (0, 0, self.produced);
    }

    /// Gives back the memory on demand that requests carry: the queue pair is destroyed.
    pub fn give_back(&mut self, memory: &mut Memory) {
        for block in self.queue.drain(..).filter_map(|work| work.block) {
            memory.pool.free(block);
        }
    }
}

/// Puts payload into an entry; the words that it takes.
fn put_inline(words: &mut [u64; ENTRY / 8], bytes: &[u8; INLINE], length: usize) -> usize {
    for (word, chunk) in words[ENTRY_WORDS..].iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    length.div_ceil(8)
}

/// Where in the exposed memory a payload lies, if the peer can read it there.
fn lendable(part: &Sges, wire: &Wire<'_>) -> Option<u64> {
    match part.as_slice() {
        [only] if wire.peer_loads && wire.exposed.contains(only) => {
            Some(only.bus_address() - wire.exposed.bus_address())
        }
        _ => None,
    }
}
