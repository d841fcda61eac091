//! Who has something to do, of several clients in one loop: each has a number and a bell, which is rung when it
//! is asked for something, by whoever. The loop polls those whose bells were rung.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

#[derive(Debug, Default)]
struct Rung {
    order: VecDeque<u32>,
    /// By number: whether it stands in `order`.
    known: Vec<bool>,
}

/// The bells of a loop.
#[derive(Clone, Debug, Default)]
pub struct Bells(Rc<RefCell<Rung>>);

/// The bell of a client.
#[derive(Clone, Debug)]
pub struct Bell {
    bells: Bells,
    number: u32,
}

impl Bells {
    /// The bell of client `number`. Makes room, so that ringing does not allocate.
    pub fn bell(&self, number: u32) -> Bell {
        let mut rung = self.0.borrow_mut();
        let places = rung.known.len().max(number as usize + 1);
        rung.known.resize(places, false);
        let more = places - rung.order.len();
        rung.order.reserve(more);
        drop(rung);
        Bell { bells: self.clone(), number }
    }

    /// Rings the bell of a client.
    #[inline]
    pub fn ring(&self, number: u32) {
        let mut rung = self.0.borrow_mut();
        if let Some(known) = rung.known.get_mut(number as usize)
            && !core::mem::replace(known, true)
        {
            rung.order.push_back(number);
        }
    }

    /// Number of clients whose bells were rung.
    pub fn rung(&self) -> usize {
        self.0.borrow().order.len()
    }

    /// The client whose bell was rung first, as if it had not been.
    pub fn answer(&self) -> Option<u32> {
        let mut rung = self.0.borrow_mut();
        let number = rung.order.pop_front()?;
        if let Some(known) = rung.known.get_mut(number as usize) {
            *known = false;
        }
        Some(number)
    }
}

impl Bell {
    /// Whose bell it is.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Rings it.
    #[inline]
    pub fn ring(&self) {
        self.bells.ring(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_answered_once_in_the_order_of_ringing() {
        let bells = Bells::default();
        let [two, five] = [2, 5].map(|number| bells.bell(number));
        five.ring();
        two.ring();
        five.ring();
        bells.ring(99);
        assert_eq!((bells.rung(), bells.answer()), (2, Some(5)));
        five.ring();
        assert_eq!([bells.answer(), bells.answer(), bells.answer()], [Some(2), Some(5), None]);
    }
}
