//! A rank that sends every message back to the one that it came from, under the same communicator, tag and number.
//!
//! A message that is whole (MATCH) goes back at once. Of a longer one (RNDV) all has to be here first: its sender may
//! take nothing back before MPI_Send is over. So memory is set aside for it before its rest is asked for (ACK); while
//! there is none it waits, in the order of arrival. Its parts (FRAG) go back as they came, from the memory that they
//! lie in, with other headers in front. Whatever does not fit what was agreed is given back to the user, and counted.
//!
//! A message (`M`) is whatever the user knows it by. Its bytes are never looked at here but for the header.

use super::header::{Envelope, Header};
use super::limits::{Budget, Counters, Limits, Refused, Turn, needs, overdue_at};
use super::order::{Order, is_before};
use super::rendezvous::{NONE, Part, Phase, Places, Rendezvous};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// Of which message something is that was sent: to be given to [`Mirror::sent`] when it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Out<M> {
    /// Send a header by itself.
    Control(Header),
    /// Send a message back whose first bytes are replaced by a header: it is as long as that at least.
    Back(Header, M, Mark),
    /// Nobody needs it any more.
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
    /// Bytes that are set aside for all of them.
    held: u64,
    /// Those that wait for memory, and those that go back.
    waiting: VecDeque<u32>,
    returning: VecDeque<u32>,
    /// What goes before parts.
    ready: VecDeque<Out<M>>,
    /// Messages come over several interfaces, and in which order they were sent.
    several: bool,
    order: Order,
    counters: Counters,
}

/// The mark of a message that was whole.
const WHOLE: Mark = Mark(0);

impl<M> Mirror<M> {
    /// As this rank.
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

    /// Messages come over several interfaces, where they overtake each other.
    pub fn set_several(&mut self) {
        self.several = true;
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Messages in parts that are under way, and how many of them wait for memory.
    pub fn under_way(&self) -> (usize, usize) {
        (self.rendezvous.len(), self.waiting.len())
    }

    /// A message has come with a tag: `head` is its first bytes (as many as the longest header has, or all), `length`
    /// all its bytes, `takes` the memory that it takes. One that is refused is given back.
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
                        if self.order.note(&envelope) {
                            self.admit(budget);
                        }
                        Ok(())
                    }
                    Header::Rendezvous { envelope, length, request } => {
                        let size = (length, data, takes as u64);
                        self.begin(envelope, size, request, message, budget)
                    }
                    Header::Fragment { offset, receiver, .. } => {
                        self.take_part(receiver, (offset, data, takes as u64), message, budget)
                    }
                    Header::Ack { sender, receiver, offset, size } => {
                        match self.go_back(sender, receiver, offset, size, budget) {
                            true => {
                                self.ready.push_back(Out::Drop(message));
                                Ok(())
                            }
                            false => Err((Refused::Strange, message)),
                        }
                    }
                }
            }
        };
        self.counters.refused += u64::from(taken.is_err());
        taken
    }

    /// The envelope of what goes back.
    fn returned(&self, envelope: Envelope) -> Envelope {
        Envelope { source: self.rank, ..envelope }
    }

    /// A message begins.
    fn begin(
        &mut self,
        envelope: Envelope,
        (length, begun, takes): (u64, u64, u64),
        sender: u64,
        message: M,
        budget: &mut Budget,
    ) -> Result<(), (Refused, M)> {
        let closes_gap = self.order.note(&envelope);
        let refused = match () {
            _ if length > self.longest.min(budget.longest()) => Some(Refused::TooLong(length)),
            _ if begun > length => Some(Refused::Strange),
            _ if self.rendezvous.is_full() => Some(Refused::TooMany),
            _ => None,
        };
        if let Some(why) = refused {
            // It has come all the same.
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
            on_the_way: 0,
            reserved: 0,
            takes,
            since: budget.now,
        };
        // It is not full.
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

    /// Asks for the rest of those that wait, unless other peers do as well.
    fn admit(&mut self, budget: &mut Budget) {
        if !budget.is_contended {
            self.admit_in_turn(budget);
        }
    }

    /// Asks for the rest of those that wait, as far as there is memory. To be called when there is more.
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

    /// The place of a message that the peer names, if it is in that phase.
    fn named(&self, token: u64, phase: Phase) -> Option<u32> {
        let place = token as u32;
        let rendezvous = self.rendezvous.get(place)?;
        (rendezvous.token == token && rendezvous.phase == phase).then_some(place)
    }

    /// A part has come.
    fn take_part(
        &mut self,
        token: u64,
        (offset, data, takes): (u64, u64, u64),
        message: M,
        budget: &mut Budget,
    ) -> Result<(), (Refused, M)> {
        let Some(place) = self.named(token, Phase::Arriving) else {
            return Err((Refused::Strange, message));
        };
        let Some(rendezvous) = self.rendezvous.get_mut(place) else {
            return Err((Refused::Strange, message));
        };
        let inside = offset >= rendezvous.begun
            && offset.checked_add(data).is_some_and(|end| end <= rendezvous.length)
            && data <= rendezvous.length - rendezvous.received
            && data > 0;
        if !inside {
            return Err((Refused::Strange, message));
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

    /// Sends the beginning of a message back, if all of it is here.
    fn offer_if_complete(&mut self, place: u32, now: Instant) {
        let Some(rendezvous) = self.rendezvous.get_mut(place) else { return };
        if rendezvous.received < rendezvous.length {
            return;
        }
        let Some(beginning) = rendezvous.beginning.take() else { return };
        rendezvous.phase = Phase::Offered;
        rendezvous.since = now;
        rendezvous.on_the_way = 1;
        let (length, request) = (rendezvous.length, rendezvous.token);
        let envelope = Envelope { source: self.rank, ..rendezvous.envelope };
        let header = Header::Rendezvous { envelope, length, request };
        self.ready.push_back(Out::Back(header, beginning, Mark(request)));
    }

    /// The peer asks for the rest of what goes back; whether it may.
    fn go_back(
        &mut self,
        token: u64,
        receiver: u64,
        offset: u64,
        size: u64,
        budget: &mut Budget,
    ) -> bool {
        let Some(place) = self.named(token, Phase::Offered) else { return false };
        let Some(rendezvous) = self.rendezvous.get_mut(place) else { return false };
        let rest = rendezvous.length - rendezvous.begun;
        // The parts are cut as they came: it has to be all of them.
        if offset != rendezvous.begun || (size != 0 && size != rest) {
            return false;
        }
        rendezvous.phase = Phase::Returning;
        rendezvous.receiver = receiver;
        self.counters.rendezvous += 1;
        self.counters.bytes += rendezvous.length;
        self.returning.push_back(place);
        self.end_if_over(place, budget);
        true
    }

    /// What is to be done next, if there is something. What cannot be done now comes back by [`Mirror::put_back`].
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
            rendezvous.on_the_way += 1;
            let (sender, receiver) = (rendezvous.token, rendezvous.receiver);
            let header = Header::Fragment { offset: part.offset, sender, receiver };
            return Some(Out::Back(header, part.message, Mark(sender)));
        }
    }

    /// What was taken by [`Mirror::next_out`] last, and could not be done.
    pub fn put_back(&mut self, out: Out<M>) {
        self.ready.push_front(out);
    }

    /// Something that was sent was acknowledged, and its memory is free.
    pub fn sent(&mut self, mark: Mark, budget: &mut Budget) {
        let place = mark.0 as u32;
        let known = self.rendezvous.get_mut(place).filter(|it| mark != WHOLE && it.token == mark.0);
        if let Some(rendezvous) = known {
            rendezvous.on_the_way = rendezvous.on_the_way.saturating_sub(1);
            self.end_if_over(place, budget);
        }
    }

    /// Forgets a message of which everything went back.
    fn end_if_over(&mut self, place: u32, budget: &mut Budget) {
        let over = self.rendezvous.get(place).is_some_and(|it| {
            it.phase == Phase::Returning && it.first == NONE && it.on_the_way == 0
        });
        if over && let Some(gone) = self.rendezvous.remove(place) {
            self.give_back(gone.reserved, budget);
            self.returning.retain(|other| *other != place);
            self.admit(budget);
        }
    }

    fn give_back(&mut self, bytes: u64, budget: &mut Budget) {
        budget.free += bytes;
        self.held -= bytes;
    }

    /// Gives up what does not go on, while others wait for memory; how many messages that were.
    pub fn give_up_overdue(&mut self, budget: &mut Budget) -> usize {
        let overdue = |place: &u32| {
            self.rendezvous.get(*place).is_some_and(|it| {
                let is_here = matches!(it.phase, Phase::Offered | Phase::Returning);
                it.phase != Phase::Waits && overdue_at(is_here, it.since, it.length) <= budget.now
            })
        };
        let overdue: Vec<u32> = self.rendezvous.places().filter(overdue).collect();
        for &place in &overdue {
            self.returning.retain(|other| *other != place);
            self.counters.overdue += 1;
            self.forget(place, budget);
        }
        overdue.len()
    }

    /// Gives a message up that is arriving: what is here of it is dropped.
    fn give_up(&mut self, place: u32, budget: &mut Budget) {
        self.forget(place, budget);
        self.admit(budget);
    }

    fn forget(&mut self, place: u32, budget: &mut Budget) {
        let Some(gone) = self.rendezvous.remove(place) else { return };
        self.give_back(gone.reserved, budget);
        self.ready.extend(gone.beginning.map(Out::Drop));
        let mut next = gone.first;
        while let Some(part) = self.parts.remove(next) {
            next = part.next;
            self.ready.push_back(Out::Drop(part.message));
        }
    }

    /// Gives everything up that is here; `gone` gets the messages. What was sent is forgotten.
    pub fn clear(&mut self, budget: &mut Budget, mut gone: impl FnMut(M)) {
        self.waiting.clear();
        self.returning.clear();
        while let Some(place) = self.rendezvous.first() {
            self.give_up(place, budget);
        }
        for out in self.ready.drain(..) {
            match out {
                Out::Control(_) => {}
                Out::Back(_, message, _) | Out::Drop(message) => gone(message),
            }
        }
    }
}
