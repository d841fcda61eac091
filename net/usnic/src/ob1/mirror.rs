//! A rank that returns every message to its sender, with the same communicator, tag and sequence number.
//!
//! A complete message (MATCH) is returned at once. A longer one (RNDV) has to arrive completely first, because its
//! sender may receive nothing before MPI_Send ends. So memory is reserved before the rest is requested (ACK); without
//! free memory the message waits, in the order of arrival. Its parts (FRAG) are returned as they arrived, from the same
//! memory, with new headers. Messages and parts that violate the protocol are handed to the user, and counted.
//!
//! A message (`M`) is an opaque handle of the user. Only its header is read here.

use super::header::{Envelope, Header};
use super::limits::{Budget, Counters, Limits, Refused, Turn, needs, overdue_at};
use super::order::{Order, is_before};
use super::rendezvous::{NONE, Part, Phase, Places, Rendezvous};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// Identifies the message of something that was sent. The user passes it to [`Mirror::sent`] after the acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// An action for the user.
#[derive(Debug, PartialEq, Eq)]
pub enum Out<M> {
    /// Send a header alone.
    Control(Header),
    /// Return a message whose first bytes are replaced by a header. The message is at least as long as the header.
    Back(Header, M, Mark),
    /// Release a message.
    Drop(M),
}

/// A mirror of one peer.
#[derive(Debug)]
pub struct Mirror<M> {
    rank: i32,
    longest: u64,
    rendezvous: Places<Rendezvous<M>>,
    parts: Places<Part<M>>,
    generation: u32,
    /// Bytes that are reserved for all messages of this peer.
    held: u64,
    /// Messages that wait for memory.
    waiting: VecDeque<u32>,
    /// Messages whose parts are being returned.
    returning: VecDeque<u32>,
    /// Actions that go before the return of parts.
    ready: VecDeque<Out<M>>,
    /// The peer sends over several interfaces, where messages overtake each other.
    several: bool,
    order: Order,
    counters: Counters,
}

/// The mark of a complete message (MATCH).
const WHOLE: Mark = Mark(0);

impl<M> Mirror<M> {
    /// A mirror with this rank.
    pub fn new(rank: i32, limits: Limits) -> Self {
        let Limits { rendezvous, parts, longest } = limits;
        Mirror {
            rank,
            longest,
            rendezvous: Places::new(rendezvous),
            parts: Places::new(parts),
            generation: 0,
            held: 0,
            waiting: VecDeque::with_capacity(rendezvous),
            returning: VecDeque::with_capacity(rendezvous),
            ready: VecDeque::with_capacity(2 * rendezvous + parts),
            several: false,
            order: Order::default(),
            counters: Counters::default(),
        }
    }

    /// Sets that the peer sends over several interfaces, where messages overtake each other.
    pub fn set_several(&mut self) {
        self.several = true;
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of messages in parts, and how many of them wait for memory.
    pub fn under_way(&self) -> (usize, usize) {
        (self.rendezvous.len(), self.waiting.len())
    }

    /// Handles a message with a tag. `head` is its first [`super::header::LONGEST`] bytes, or all; `length` is its
    /// length,
    /// `takes` the memory that it occupies. A refused message is returned with the error.
    pub fn receive(
        &mut self,
        tag: u8,
        head: &[u8],
        (length, takes): (usize, usize),
        message: M,
        budget: &mut Budget,
    ) -> Result<(), (Refused, M)> {
        let taken = match Header::parse(tag, head) {
            Err(why) => Err((Refused::Header(why), message)),
            Ok(header) => {
                let data = length.saturating_sub(header.length()) as u64;
                match header {
                    Header::Match(envelope) => {
                        self.counters.eager += 1;
                        self.counters.bytes += data;
                        let header = Header::Match(self.returned(envelope));
                        self.ready.push_back(Out::Back(header, message, WHOLE));
                        if self.order.record(&envelope) {
                            self.admit(budget);
                        }
                        Ok(())
                    }
                    Header::Rendezvous { envelope, length, request } => {
                        let size = (length, data, takes as u64);
                        self.begin(envelope, size, request, message, budget)
                    }
                    Header::Fragment { offset, receiver, .. } => {
                        self.receive_part(receiver, (offset, data, takes as u64), message, budget)
                    }
                    Header::Ack { sender, receiver, offset, size } => {
                        match self.start_return(sender, receiver, offset, size, budget) {
                            true => {
                                self.ready.push_back(Out::Drop(message));
                                Ok(())
                            }
                            false => Err((Refused::Mismatch, message)),
                        }
                    }
                }
            }
        };
        self.counters.refused += u64::from(taken.is_err());
        taken
    }

    /// The envelope of a returned message.
    fn returned(&self, envelope: Envelope) -> Envelope {
        Envelope { source: self.rank, ..envelope }
    }

    /// Handles the beginning of a message in parts.
    fn begin(
        &mut self,
        envelope: Envelope,
        (length, begun, takes): (u64, u64, u64),
        sender: u64,
        message: M,
        budget: &mut Budget,
    ) -> Result<(), (Refused, M)> {
        let closes_gap = self.order.record(&envelope);
        let refused = match () {
            _ if length > self.longest.min(budget.longest()) => Some(Refused::TooLong(length)),
            _ if begun > length => Some(Refused::Mismatch),
            _ if self.rendezvous.is_full() => Some(Refused::TooMany),
            _ => None,
        };
        if let Some(why) = refused {
            // The message counts as arrived even if it is refused.
            if closes_gap {
                self.admit(budget);
            }
            return Err((why, message));
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let new = Rendezvous {
            token: 0,
            phase: Phase::Waits,
            envelope,
            beginning: Some(message),
            begun,
            length,
            received: begun,
            sender,
            receiver: 0,
            first: NONE,
            last: NONE,
            unacknowledged: 0,
            reserved: 0,
            takes,
            since: budget.now,
        };
        // The table is not full.
        let Ok(place) = self.rendezvous.insert(new) else { return Ok(()) };
        if let Some(rendezvous) = self.rendezvous.get_mut(place) {
            rendezvous.token = u64::from(self.generation) << 32 | u64::from(place);
        }
        let later = |other: &u32| {
            let other = self.rendezvous.get(*other);
            other.is_some_and(|other| is_before(&envelope, &other.envelope))
        };
        let overtaken = self.waiting.iter().position(later).filter(|_| self.several);
        self.waiting.insert(overtaken.unwrap_or(self.waiting.len()), place);
        self.admit(budget);
        let waits = self.rendezvous.get(place).is_some_and(|it| it.phase == Phase::Waits);
        self.counters.waited += u64::from(waits);
        budget.waits |= waits;
        Ok(())
    }

    /// Requests the rest of waiting messages, unless other peers wait for memory too.
    fn admit(&mut self, budget: &mut Budget) {
        if !budget.is_contended {
            self.admit_in_turn(budget);
        }
    }

    /// Requests the rest of waiting messages, as far as there is memory. Call it when memory was released.
    pub fn admit_in_turn(&mut self, budget: &mut Budget) -> Turn {
        while let Some(&place) = self.waiting.front() {
            let Some(rendezvous) = self.rendezvous.get_mut(place) else {
                self.waiting.pop_front();
                continue;
            };
            if self.several && !self.order.is_turn(&rendezvous.envelope) {
                return Turn::Done;
            }
            let wanted = needs(rendezvous.length).saturating_add(rendezvous.takes);
            let wanted = wanted.min(budget.most());
            if !budget.allows(self.held, wanted) {
                let is_short = wanted > budget.free;
                return if is_short { Turn::Waits } else { Turn::Done };
            }
            budget.free -= wanted;
            self.held += wanted;
            rendezvous.reserved = wanted;
            rendezvous.since = budget.now;
            rendezvous.phase = Phase::Arriving;
            self.waiting.pop_front();
            let ack = Header::Ack {
                sender: rendezvous.sender,
                receiver: rendezvous.token,
                offset: rendezvous.begun,
                size: 0,
            };
            self.ready.push_back(Out::Control(ack));
            self.offer_if_complete(place, budget.now);
        }
        Turn::Done
    }

    /// Looks up a message by its token, if it is in that phase.
    fn find(&self, token: u64, phase: Phase) -> Option<u32> {
        let place = token as u32;
        let rendezvous = self.rendezvous.get(place)?;
        (rendezvous.token == token && rendezvous.phase == phase).then_some(place)
    }

    /// Handles a part of a message.
    fn receive_part(
        &mut self,
        token: u64,
        (offset, data, takes): (u64, u64, u64),
        message: M,
        budget: &mut Budget,
    ) -> Result<(), (Refused, M)> {
        let Some(place) = self.find(token, Phase::Arriving) else {
            return Err((Refused::Mismatch, message));
        };
        let Some(rendezvous) = self.rendezvous.get_mut(place) else {
            return Err((Refused::Mismatch, message));
        };
        let inside = offset >= rendezvous.begun
            && offset.checked_add(data).is_some_and(|end| end <= rendezvous.length)
            && data <= rendezvous.length - rendezvous.received
            && data > 0;
        if !inside {
            return Err((Refused::Mismatch, message));
        }
        if rendezvous.takes.saturating_add(takes) > rendezvous.reserved {
            self.give_up(place, budget);
            return Err((Refused::TooSmall, message));
        }
        let part = Part { message, offset, next: NONE };
        let new = match self.parts.insert(part) {
            Ok(new) => new,
            Err(part) => {
                self.give_up(place, budget);
                return Err((Refused::TooMany, part.message));
            }
        };
        rendezvous.takes += takes;
        rendezvous.received += data;
        let last = core::mem::replace(&mut rendezvous.last, new);
        match self.parts.get_mut(last) {
            Some(last) => last.next = new,
            None => rendezvous.first = new,
        }
        self.offer_if_complete(place, budget.now);
        Ok(())
    }

    /// Returns the beginning of a message, if the message is complete.
    fn offer_if_complete(&mut self, place: u32, now: Instant) {
        let Some(rendezvous) = self.rendezvous.get_mut(place) else { return };
        if rendezvous.received < rendezvous.length {
            return;
        }
        let Some(beginning) = rendezvous.beginning.take() else { return };
        rendezvous.phase = Phase::Offered;
        rendezvous.since = now;
        rendezvous.unacknowledged = 1;
        let (length, request) = (rendezvous.length, rendezvous.token);
        let envelope = Envelope { source: self.rank, ..rendezvous.envelope };
        let header = Header::Rendezvous { envelope, length, request };
        self.ready.push_back(Out::Back(header, beginning, Mark(request)));
    }

    /// Handles the peer's request for the rest of a returned message; false if it is invalid.
    fn start_return(
        &mut self,
        token: u64,
        receiver: u64,
        offset: u64,
        size: u64,
        budget: &mut Budget,
    ) -> bool {
        let Some(place) = self.find(token, Phase::Offered) else { return false };
        let Some(rendezvous) = self.rendezvous.get_mut(place) else { return false };
        let rest = rendezvous.length - rendezvous.begun;
        // Parts are returned as they arrived, so the peer has to request all of them.
        if offset != rendezvous.begun || (size != 0 && size != rest) {
            return false;
        }
        rendezvous.phase = Phase::Returning;
        rendezvous.receiver = receiver;
        self.counters.rendezvous += 1;
        self.counters.bytes += rendezvous.length;
        self.returning.push_back(place);
        self.end_if_returned(place, budget);
        true
    }

    /// The next action. The user returns an action that it cannot carry out now with [`Mirror::put_back`].
    pub fn next_out(&mut self) -> Option<Out<M>> {
        if let Some(out) = self.ready.pop_front() {
            return Some(out);
        }
        loop {
            let &place = self.returning.front()?;
            let rendezvous = self.rendezvous.get_mut(place);
            let found = rendezvous.filter(|it| it.phase == Phase::Returning && it.first != NONE);
            let Some(rendezvous) = found else {
                self.returning.pop_front();
                continue;
            };
            let part = self.parts.remove(rendezvous.first)?;
            rendezvous.first = part.next;
            rendezvous.unacknowledged += 1;
            let (sender, receiver) = (rendezvous.token, rendezvous.receiver);
            let header = Header::Fragment { offset: part.offset, sender, receiver };
            return Some(Out::Back(header, part.message, Mark(sender)));
        }
    }

    /// Takes back the last action of [`Mirror::next_out`], which could not be carried out.
    pub fn put_back(&mut self, out: Out<M>) {
        self.ready.push_front(out);
    }

    /// Handles the acknowledgement of a sent message, whose memory is free.
    pub fn sent(&mut self, mark: Mark, budget: &mut Budget) {
        let place = mark.0 as u32;
        let known = self.rendezvous.get_mut(place).filter(|it| mark != WHOLE && it.token == mark.0);
        if let Some(rendezvous) = known {
            rendezvous.unacknowledged = rendezvous.unacknowledged.saturating_sub(1);
            self.end_if_returned(place, budget);
        }
    }

    /// Removes a message once all of it was returned and acknowledged.
    fn end_if_returned(&mut self, place: u32, budget: &mut Budget) {
        let returned = self.rendezvous.get(place).is_some_and(|it| {
            it.phase == Phase::Returning && it.first == NONE && it.unacknowledged == 0
        });
        if returned && let Some(removed) = self.rendezvous.remove(place) {
            self.release(removed.reserved, budget);
            self.returning.retain(|other| *other != place);
            self.admit(budget);
        }
    }

    fn release(&mut self, bytes: u64, budget: &mut Budget) {
        budget.free += bytes;
        self.held -= bytes;
    }

    /// Drops overdue messages while other peers wait for memory; returns their number.
    pub fn give_up_overdue(&mut self, budget: &mut Budget) -> usize {
        let overdue = |place: &u32| {
            self.rendezvous.get(*place).is_some_and(|it| {
                let is_complete = matches!(it.phase, Phase::Offered | Phase::Returning);
                it.phase != Phase::Waits
                    && overdue_at(is_complete, it.since, it.length) <= budget.now
            })
        };
        let overdue: Vec<u32> = self.rendezvous.places().filter(overdue).collect();
        for &place in &overdue {
            self.returning.retain(|other| *other != place);
            self.counters.overdue += 1;
            self.drop_message(place, budget);
        }
        overdue.len()
    }

    /// Drops a message that is arriving, and admits others.
    fn give_up(&mut self, place: u32, budget: &mut Budget) {
        self.drop_message(place, budget);
        self.admit(budget);
    }

    fn drop_message(&mut self, place: u32, budget: &mut Budget) {
        let Some(removed) = self.rendezvous.remove(place) else { return };
        self.release(removed.reserved, budget);
        self.ready.extend(removed.beginning.map(Out::Drop));
        let mut next = removed.first;
        while let Some(part) = self.parts.remove(next) {
            next = part.next;
            self.ready.push_back(Out::Drop(part.message));
        }
    }

    /// Drops all messages, and passes them to `release`. Messages that were sent are no longer tracked.
    pub fn clear(&mut self, budget: &mut Budget, mut release: impl FnMut(M)) {
        self.waiting.clear();
        self.returning.clear();
        while let Some(place) = self.rendezvous.first() {
            self.give_up(place, budget);
        }
        for out in self.ready.drain(..) {
            match out {
                Out::Control(_) => {}
                Out::Back(_, message, _) | Out::Drop(message) => release(message),
            }
        }
    }
}
