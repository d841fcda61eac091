//! Checks that a halting loop loses no wake-up for work from another core.
//!
//! The waker is the appliance's (`appliance/src/gateway/loop_waker.rs`), with loom's atomics. The loops follow
//! `gateway/worker.rs` and `gateway/mod.rs`: announce the halt, check for work, halt.

use crate::machine::Ipi;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use loop_waker::LoopWaker;

use loom::sync::atomic as atomics;

#[path = "../../../appliance/src/gateway/loop_waker.rs"]
mod loop_waker;

/// A core that halts with interrupts disabled: a pending interrupt ends the next halt at once.
#[derive(Default)]
struct Core {
    pending: Mutex<bool>,
    rung: Condvar,
}

impl Core {
    /// Halts until an interrupt. There is no deadline, so a lost wake-up is a deadlock.
    fn halt(&self) {
        let mut pending = self.pending.lock().unwrap();
        while !*pending {
            pending = self.rung.wait(pending).unwrap();
        }
        *pending = false;
    }

    /// Ends the halt by a deadline, and consumes an interrupt of the same moment.
    fn expire(&self) {
        *self.pending.lock().unwrap() = false;
    }
}

struct Interrupt(Arc<Core>);

impl Ipi for Interrupt {
    fn ring(&self) {
        *self.0.pending.lock().unwrap() = true;
        self.0.rung.notify_one();
    }
}

/// Shared state of two loops: the index of a ring, and a flag beside it (the link state), which a loop does not check
/// before a halt.
#[derive(Default)]
struct Between {
    filled: AtomicUsize,
    link: AtomicBool,
}

impl Between {
    /// Fills a ring from one thread, as `rtrb` does.
    fn push(&self, filled: usize) {
        self.filled.store(filled, Ordering::Release);
    }

    fn has_arrivals(&self, taken: usize) -> bool {
        self.filled.load(Ordering::Acquire) != taken
    }
}

fn setting() -> (Arc<Core>, LoopWaker, Arc<Between>) {
    let core = Arc::new(Core::default());
    let waker = LoopWaker::new(Box::new(Interrupt(core.clone())));
    (core, waker, Arc::new(Between::default()))
}

/// Tries all orders of steps with at most three preemptions.
pub fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// The halt of a worker's loop (`worker.rs`).
pub fn loop_is_woken_for_each_item_of_another() {
    model(|| {
        let (core, waker, between) = setting();
        let (bell, ring) = (waker.clone(), between.clone());
        let other = thread::spawn(move || {
            for filled in 1..=2 {
                ring.push(filled);
                bell.wake();
            }
        });
        let mut taken = 0;
        while taken < 2 {
            if waker.may_halt(|| between.has_arrivals(taken)) {
                core.halt();
            }
            waker.clear();
            taken = between.filled.load(Ordering::Acquire);
        }
        other.join().unwrap();
    });
}

/// Two loops fill a ring each for a third loop.
pub fn loop_is_woken_by_two_others() {
    model(|| {
        let (core, waker, first) = setting();
        let second = Arc::new(Between::default());
        let others = [first.clone(), second.clone()].map(|ring| {
            let bell = waker.clone();
            thread::spawn(move || {
                ring.push(1);
                bell.wake();
            })
        });
        let mut taken = [0; 2];
        while taken != [1, 1] {
            let has = || first.has_arrivals(taken[0]) || second.has_arrivals(taken[1]);
            if waker.may_halt(has) {
                core.halt();
            }
            waker.clear();
            taken = [&first, &second].map(|ring| ring.filled.load(Ordering::Acquire));
        }
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// The halt of the first loop (`mod.rs`), which continues after a deadline without work. In that moment the other loop
/// sets its link flag, which is not checked. Then a frame arrives.
pub fn loop_that_continues_a_halt_is_woken_by_later_work() {
    model(|| {
        let (core, waker, between) = setting();
        let (bell, ring) = (waker.clone(), between.clone());
        let other = thread::spawn(move || {
            ring.link.store(true, Ordering::Relaxed);
            bell.wake();
            ring.push(1);
            bell.wake();
        });
        let mut deadlines = 1;
        while waker.may_halt(|| between.has_arrivals(0)) {
            if deadlines > 0 {
                deadlines -= 1;
                core.expire();
                continue;
            }
            core.halt();
            break;
        }
        waker.clear();
        other.join().unwrap();
    });
}
