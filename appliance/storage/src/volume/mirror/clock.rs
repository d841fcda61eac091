//! Clock of the mirrors. Their owner sets the time before it polls them, and calls
//! [`tend`](crate::volume::Volume::tend) at their deadline.

use alloc::rc::Rc;
use core::cell::Cell;
use drivers::hal::Instant;

#[derive(Debug)]
struct Times {
    now: Cell<Instant>,
    due: Cell<Option<Instant>>,
}

/// A clock that mirrors share with their owner.
#[derive(Clone, Debug)]
pub struct Clock(Rc<Times>);

impl Default for Clock {
    fn default() -> Self {
        Clock(Rc::new(Times { now: Cell::new(Instant::ZERO), due: Cell::new(None) }))
    }
}

impl Clock {
    /// Sets the time.
    pub fn set(&self, now: Instant) {
        self.0.now.set(now);
    }

    /// Earliest deadline of a mirror for `tend`, if it is before the periodic call.
    pub fn due(&self) -> Option<Instant> {
        self.0.due.get()
    }

    /// Whether the deadline has passed; clears it then.
    pub fn take_due(&self) -> bool {
        let due = self.due().is_some_and(|due| due <= self.now());
        if due {
            self.0.due.set(None);
        }
        due
    }

    pub(super) fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Requests a call of `tend` at `deadline` at the latest.
    pub(super) fn wake_at(&self, deadline: Instant) {
        if self.due().is_none_or(|due| deadline < due) {
            self.0.due.set(Some(deadline));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_deadline_is_reported_once() {
        let clock = Clock::default();
        let at = Instant::from_nanos;
        clock.set(at(10));
        assert_eq!((clock.now(), clock.due(), clock.take_due()), (at(10), None, false));
        [40, 20, 30].into_iter().for_each(|deadline| clock.wake_at(at(deadline)));
        assert_eq!(clock.due(), Some(at(20)));
        clock.set(at(19));
        assert!(!clock.take_due());
        clock.set(at(20));
        assert!(clock.take_due());
        assert_eq!((clock.due(), clock.take_due()), (None, false));
    }
}
