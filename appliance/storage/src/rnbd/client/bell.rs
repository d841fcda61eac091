//! Ready list of a loop's RNBD clients. Each client has a number and a bell, which is rung when the client has work.
//! The loop polls only clients whose bells were rung.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

#[derive(Debug, Default)]
struct ReadyList {
    order: VecDeque<u32>,
    /// By client number: whether `order` contains it.
    queued: Vec<bool>,
}

/// The bells of a loop.
#[derive(Clone, Debug, Default)]
pub struct Bells(Rc<RefCell<ReadyList>>);

/// The bell of a client.
#[derive(Clone, Debug)]
pub struct Bell {
    bells: Bells,
    number: u32,
}

impl Bells {
    /// The bell of client `number`. Reserves the memory for it, so that ringing does not allocate.
    pub fn bell(&self, number: u32) -> Bell {
        let mut ready = self.0.borrow_mut();
        let clients = ready.queued.len().max(number as usize + 1);
        ready.queued.resize(clients, false);
        let more = clients - ready.order.len();
        ready.order.reserve(more);
        drop(ready);
        Bell { bells: self.clone(), number }
    }

    /// Rings the bell of a client.
    #[inline]
    pub fn ring(&self, number: u32) {
        let mut ready = self.0.borrow_mut();
        if let Some(queued) = ready.queued.get_mut(number as usize)
            && !core::mem::replace(queued, true)
        {
            ready.order.push_back(number);
        }
    }

    /// Number of clients in the list.
    pub fn rung(&self) -> usize {
        self.0.borrow().order.len()
    }

    /// Removes and returns the client whose bell was rung first.
    pub fn answer(&self) -> Option<u32> {
        let mut ready = self.0.borrow_mut();
        let number = ready.order.pop_front()?;
        if let Some(queued) = ready.queued.get_mut(number as usize) {
            *queued = false;
        }
        Some(number)
    }
}

impl Bell {
    /// Number of the client.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds the client to the list.
    #[inline]
    pub fn ring(&self) {
        self.bells.ring(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ringing_client_is_returned_once_in_order() {
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
