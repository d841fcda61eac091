//! Order in which a peer has sent its messages, if they arrive over several interfaces and overtake each other.
//!
//! The peer takes messages back only in the order in which it has sent them. If a message got memory before an earlier
//! one that then finds none, the two would wait for each other for ever. So messages wait for memory in the order of
//! sending. The order follows from the sequence numbers of `ob1`, which begin with 1 in each communicator.

use super::header::Envelope;
use alloc::vec::Vec;

/// Most communicators whose order is tracked. Messages of others are not ordered.
const COMMUNICATORS: usize = 64;
/// Most numbers of a communicator that arrived before a missing one. An honest peer has fewer messages in flight.
const EARLY: usize = 1024;
/// Largest distance of a number ahead of the next one. A number farther ahead, or behind, belongs to a new communicator
/// that reuses the name of a deleted one.
const AHEAD: i16 = 2048;

#[derive(Debug)]
struct Communicator {
    name: u16,
    /// The first number that has not arrived.
    next: u16,
    /// Later numbers that have arrived.
    early: Vec<u16>,
}

/// Messages that have arrived, by communicator.
#[derive(Debug, Default)]
pub(super) struct Order {
    communicators: Vec<Communicator>,
}

impl Order {
    /// Records the arrival of a message; true if it was missing and messages wait for it.
    pub fn record(&mut self, message: &Envelope) -> bool {
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
        self.communicators.get_mut(place).is_some_and(|known| known.record(message.sequence))
    }

    /// Whether all messages that were sent before this one have arrived.
    pub fn is_turn(&self, message: &Envelope) -> bool {
        let mut all = self.communicators.iter();
        let found = all.find(|known| known.name == message.communicator);
        found.is_none_or(|known| {
            known.early.is_empty() || (message.sequence.wrapping_sub(known.next) as i16) < 0
        })
    }
}

impl Communicator {
    fn record(&mut self, number: u16) -> bool {
        if number != self.next {
            return self.record_out_of_order(number);
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
    fn record_out_of_order(&mut self, number: u16) -> bool {
        let ahead = number.wrapping_sub(self.next) as i16;
        if !(0..AHEAD).contains(&ahead) {
            // The numbers restart. `early` may already contain some of the new ones.
            self.next = if (1..AHEAD as u16).contains(&number) { 1 } else { number };
            if number == self.next {
                self.record(number);
                return true;
            }
        }
        if self.early.len() >= EARLY {
            // No honest peer has so many messages in flight: stop waiting for the missing one.
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
    fn order_distinguishes_overtaking_from_missing_messages() {
        let mut order = Order::default();
        assert!(order.is_turn(&envelope(0, 5)), "an unknown communicator has no order");
        for number in [1, 2, 3] {
            assert!(!order.record(&envelope(0, number)) && order.is_turn(&envelope(0, number)));
        }
        for number in [6, 5] {
            assert!(!order.record(&envelope(0, number)) && !order.is_turn(&envelope(0, number)));
        }
        assert!(order.is_turn(&envelope(0, 3)));
        // Messages of another communicator have an order of their own.
        assert!(!order.record(&envelope(7, 1)) && order.is_turn(&envelope(7, 1)));
        assert!(order.record(&envelope(0, 4)));
        assert!([4, 5, 6].iter().all(|number| order.is_turn(&envelope(0, *number))));
    }

    #[test]
    fn sequence_numbers_wrap_and_restart() {
        let mut order = Order::default();
        for number in (1..=u16::MAX).chain(0..10) {
            order.record(&envelope(0, number));
            assert!(order.is_turn(&envelope(0, number)), "{number}");
        }
        // A new communicator reuses the name, and its second message arrives first.
        order.record(&envelope(0, 2));
        assert!(!order.is_turn(&envelope(0, 2)));
        assert!(order.record(&envelope(0, 1)) && order.is_turn(&envelope(0, 2)));
        // And once more, from far ahead.
        for number in 3..5000 {
            order.record(&envelope(0, number));
        }
        order.record(&envelope(0, 1));
        assert!(order.is_turn(&envelope(0, 1)));
    }

    #[test]
    fn malicious_peer_uses_bounded_memory_and_blocks_nothing() {
        let mut order = Order::default();
        for number in 2..=2 + EARLY as u16 {
            order.record(&envelope(0, number));
        }
        assert!(order.is_turn(&envelope(0, 2)));
        for name in 0..1000 {
            order.record(&envelope(name, 9));
        }
        assert_eq!(order.communicators.len(), COMMUNICATORS);
    }
}
