//! In which order a peer has sent its messages, where they come over several interfaces and overtake each other.
//!
//! The peer takes messages back only in the order in which it has sent them. One that is given memory before another,
//! which was sent before it and finds none then, would wait for it for ever; so what must wait for memory does so in
//! that order. It is known by the numbers of `ob1`, which begin with 1 in each communicator.

use super::header::Envelope;
use alloc::vec::Vec;

/// Communicators whose order is known at a time; of others it is not heeded.
const COMMUNICATORS: usize = 64;
/// Numbers that have come while one before them has not, of a communicator: no more are on the way.
const EARLY: usize = 1024;
/// Farthest that a number is ahead of the next one. One that is farther, or behind, is of another communicator which
/// has the same name, since the first is no more.
const AHEAD: i16 = 2048;

#[derive(Debug)]
struct Communicator {
    name: u16,
    /// The first number that has not come.
    next: u16,
    /// Those behind it that have.
    early: Vec<u16>,
}

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Order {
    communicators: Vec<Communicator>,
}

impl Order {
    /// A message has come; whether one that was missing was waited for.
    pub fn note(&mut self, message: &Envelope) -> bool {
        let name = message.communicator;
        let found = self.communicators.iter().position(|known| known.name == name);
        let place = match found {
            Some(place) => place,
            None if self.communicators.len() < COMMUNICATORS => {
                self.communicators.push(Communicator { name, next: 1, early: Vec::new() });
                self.communicators.len() - 1
            }
            None => return false,
        };
        self.communicators.get_mut(place).is_some_and(|known| known.note(message.sequence))
    }

    /// Whether everything has come that was sent before it.
    pub fn is_turn(&self, message: &Envelope) -> bool {
        let mut all = self.communicators.iter();
        let found = all.find(|known| known.name == message.communicator);
        found.is_none_or(|known| {
            known.early.is_empty() || (message.sequence.wrapping_sub(known.next) as i16) < 0
        })
    }
}

impl Communicator {
    fn note(&mut self, number: u16) -> bool {
        if number != self.next {
            return self.note_other(number);
        }
        self.next = self.next.wrapping_add(1);
        let had_gap = !self.early.is_empty();
        while let Some(at) = self.early.iter().position(|early| *early == self.next) {
            self.early.swap_remove(at);
            self.next = self.next.wrapping_add(1);
        }
        had_gap
    }

    #[cold]
    fn note_other(&mut self, number: u16) -> bool {
        let ahead = number.wrapping_sub(self.next) as i16;
        if !(0..AHEAD).contains(&ahead) {
            // Numbers begin anew. What has come early of the new ones is known already.
            self.next = if (1..AHEAD as u16).contains(&number) { 1 } else { number };
            if number == self.next {
                self.note(number);
                return true;
            }
        }
        if self.early.len() >= EARLY {
            // No honest peer has so many on the way: the order is not waited for.
            self.early.clear();
            self.next = number.wrapping_add(1);
            return true;
        }
        if !self.early.contains(&number) {
            self.early.push(number);
        }
        false
    }
}

/// Whether a message was sent before another of the same communicator.
pub(super) fn is_before(message: &Envelope, other: &Envelope) -> bool {
    let ahead = other.sequence.wrapping_sub(message.sequence) as i16;
    message.communicator == other.communicator && ahead > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(communicator: u16, sequence: u16) -> Envelope {
        Envelope { communicator, source: 0, tag: 0, sequence }
    }

    #[test]
    fn what_overtakes_is_told_from_what_is_missing() {
        let mut order = Order::default();
        assert!(order.is_turn(&envelope(0, 5)), "nothing is known of it");
        for number in [1, 2, 3] {
            assert!(!order.note(&envelope(0, number)) && order.is_turn(&envelope(0, number)));
        }
        for number in [6, 5] {
            assert!(!order.note(&envelope(0, number)) && !order.is_turn(&envelope(0, number)));
        }
        assert!(order.is_turn(&envelope(0, 3)));
        // Another communicator's is nothing to it.
        assert!(!order.note(&envelope(7, 1)) && order.is_turn(&envelope(7, 1)));
        assert!(order.note(&envelope(0, 4)));
        assert!([4, 5, 6].iter().all(|number| order.is_turn(&envelope(0, *number))));
    }

    #[test]
    fn numbers_wrap_and_begin_anew() {
        let mut order = Order::default();
        for number in (1..=u16::MAX).chain(0..10) {
            order.note(&envelope(0, number));
            assert!(order.is_turn(&envelope(0, number)), "{number}");
        }
        // The communicator's name is another's now, whose second message comes first.
        order.note(&envelope(0, 2));
        assert!(!order.is_turn(&envelope(0, 2)));
        assert!(order.note(&envelope(0, 1)) && order.is_turn(&envelope(0, 2)));
        // And once more, from far ahead.
        for number in 3..5000 {
            order.note(&envelope(0, number));
        }
        order.note(&envelope(0, 1));
        assert!(order.is_turn(&envelope(0, 1)));
    }

    #[test]
    fn a_liar_has_bounded_room_and_waits_for_nothing_in_the_end() {
        let mut order = Order::default();
        for number in 2..=2 + EARLY as u16 {
            order.note(&envelope(0, number));
        }
        assert!(order.is_turn(&envelope(0, 2)));
        for name in 0..1000 {
            order.note(&envelope(name, 9));
        }
        assert_eq!(order.communicators.len(), COMMUNICATORS);
    }
}
