//! Ending the halt of another loop: whoever puts something into a ring for it calls
//! [`Alarm::wake`] afterwards.
//!
//! No wake-up is lost: a loop says that it halts, then looks for the last time whether it was
//! called; who calls it looks afterwards whether it has said so. Both are in one order that all
//! cores agree on, so that one of the two sees the other. Between the last look and the halt
//! interrupts are held back, and the bell's is kept until then.

use crate::machine::Bell;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::Arc;

/// How the halt of a loop is ended.
#[derive(Clone)]
pub(super) struct Alarm(Arc<Inner>);

struct Inner {
    halting: AtomicBool,
    /// It was called since it last looked.
    called: AtomicBool,
    bell: Box<dyn Bell>,
}

impl Alarm {
    pub fn new(bell: Box<dyn Bell>) -> Self {
        Alarm(Arc::new(Inner {
            halting: AtomicBool::new(false),
            called: AtomicBool::new(false),
            bell,
        }))
    }

    /// The loop is about to halt; false if it was called since the last time: then it looks into
    /// its rings instead.
    pub fn set(&self) -> bool {
        self.0.halting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.0.called.swap(false, Ordering::Acquire)
    }

    /// The loop runs (again).
    pub fn clear(&self) {
        self.0.halting.store(false, Ordering::Relaxed);
    }

    /// Something was put into a ring for the loop.
    pub fn wake(&self) {
        self.0.called.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let halting = &self.0.halting;
        if halting.load(Ordering::Relaxed) && halting.swap(false, Ordering::Relaxed) {
            self.0.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    struct Count(Arc<AtomicUsize>);

    impl Bell for Count {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn rings_once_for_a_halt_and_never_for_a_loop_that_runs() {
        let rung = Arc::new(AtomicUsize::new(0));
        let alarm = Alarm::new(Box::new(Count(rung.clone())));
        alarm.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 0);
        assert!(!alarm.set(), "called before");
        alarm.clear();
        assert!(alarm.set());
        alarm.wake();
        alarm.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 1);
        alarm.clear();
        alarm.wake();
        assert_eq!(rung.load(Ordering::Relaxed), 1);
    }
}
