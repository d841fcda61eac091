//! Ends the halt of another loop. A producer calls [`LoopWaker::wake`] after it has filled a ring of that loop.
//!
//! No wake-up is lost. A loop sets `halting`, then checks its rings for the last time. A producer fills a ring, then
//! checks `halting`. Both have a sequentially consistent fence between the two steps, so at least one of the two sees
//! the other. Interrupts are off between the last check and the halt, so an IPI in between stays pending and ends the
//! halt.
//!
//! `tests/threads` compiles this file a second time, with loom's atomics, and tries every order of steps.

use super::atomics::{AtomicBool, Ordering, fence};
use crate::machine::Ipi;
use std::sync::Arc;

/// Ends the halt of a loop.
#[derive(Clone)]
pub(super) struct LoopWaker(Arc<Inner>);

struct Inner {
    halting: AtomicBool,
    bell: Box<dyn Ipi>,
}

impl LoopWaker {
    pub fn new(bell: Box<dyn Ipi>) -> Self {
        LoopWaker(Arc::new(Inner { halting: AtomicBool::new(false), bell }))
    }

    /// Whether the loop may halt: sets `halting`, then checks its rings once more. The loop calls it before each halt,
    /// because a wake-up clears `halting`, also one whose reason `has_arrivals` does not check. Otherwise the next
    /// producer would not wake the loop.
    pub fn may_halt(&self, has_arrivals: impl FnOnce() -> bool) -> bool {
        self.0.halting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !has_arrivals()
    }

    /// The loop runs again.
    pub fn clear(&self) {
        self.0.halting.store(false, Ordering::Relaxed);
    }

    /// Wakes the loop, if it halts, after a ring was filled.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        let halting = &self.0.halting;
        if halting.load(Ordering::Relaxed) {
            // The producer that clears `halting` sends the IPI. If two race, both may send it.
            halting.store(false, Ordering::Relaxed);
            self.0.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    struct Count(Arc<AtomicUsize>);

    impl Ipi for Count {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn waker_rings_once_per_halt_and_never_for_a_running_loop() {
        let rung = Arc::new(AtomicUsize::new(0));
        let waker = LoopWaker::new(Box::new(Count(rung.clone())));
        waker.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 0);
        assert!(waker.may_halt(|| false));
        waker.wake();
        waker.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 1);
        assert!(!waker.may_halt(|| true));
        waker.clear();
        waker.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 1);
    }
}
