//! Ending the halt of another loop: whoever puts something into a ring for it calls
//! [`LoopWaker::wake`] afterwards.
//!
//! No wake-up is lost: a loop says that it halts, then looks into its rings for the last time;
//! who fills a ring looks afterwards whether the loop has said so. Both are in one order that all
//! cores agree on, so that one of the two sees the other. Between the last look and the halt
//! interrupts are held back, and the bell's is kept until then.
//!
//! `tests/threads` compiles this file a second time, with loom's atomics, and tries every order of steps.

use super::atomics::{AtomicBool, Ordering, fence};
use crate::machine::Ipi;
use std::sync::Arc;

/// How the halt of a loop is ended.
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

    /// Whether the loop may halt: it says that it does, then looks once more into its rings. It is asked before each
    /// halt. Who woke the loop has taken back what it said, though it may have told of something for which it does
    /// not look; who comes next would find that it runs.
    pub fn may_halt(&self, has_arrivals: impl FnOnce() -> bool) -> bool {
        self.0.halting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !has_arrivals()
    }

    /// The loop runs (again).
    pub fn clear(&self) {
        self.0.halting.store(false, Ordering::Relaxed);
    }

    /// Something was put into a ring for the loop.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        let halting = &self.0.halting;
        if halting.load(Ordering::Relaxed) {
            // Whoever takes it back rings, be it that two do.
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
    fn rings_once_for_a_halt_and_never_for_a_loop_that_runs() {
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
