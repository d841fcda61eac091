//! The halt of a loop, and work that comes from another core: no wake-up is lost.
//!
//! The waker is the appliance's (`appliance/src/gateway/loop_waker.rs`), with loom's atomics. The loops are as in
//! `gateway/worker.rs` and `gateway/mod.rs`: say that it halts, look, halt.

use crate::machine::Ipi;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use loop_waker::LoopWaker;

use loom::sync::atomic as atomics;

#[path = "../../../appliance/src/gateway/loop_waker.rs"]
mod loop_waker;

/// A core that halts with interrupts held back: one that has come ends the next halt at once.
#[derive(Default)]
struct Core {
    pending: Mutex<bool>,
    rung: Condvar,
}

impl Core {
    /// Until an interrupt comes. There is no deadline: a wake-up that is lost is a deadlock.
    fn halt(&self) {
        let mut pending = self.pending.lock().unwrap();
        while !*pending {
            pending = self.rung.wait(pending).unwrap();
        }
        *pending = false;
    }

    /// A deadline has ended the halt, and an interrupt that came in the same moment with it.
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

/// What is between two loops: the index of a ring, and a word that is told beside it (the state of a link), for which
/// nobody looks before a halt.
#[derive(Default)]
struct Between {
    filled: AtomicUsize,
    link: AtomicBool,
}

impl Between {
    /// As `rtrb` does it: one thread fills a ring.
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

/// Tries every order of steps with at most three changes of thread that none of them had to make.
pub fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// A worker's halt (`worker.rs`).
pub fn a_loop_hears_of_each_thing_that_another_gives_it() {
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

/// Two loops have something for a third, each in a ring of its own.
pub fn a_loop_hears_of_two_others() {
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

/// The first loop's halt (`mod.rs`), which goes on halting when a deadline has come with which there is nothing to
/// do. In that moment the other loop tells of its link, for which nobody looks; then a frame comes.
pub fn a_loop_that_goes_on_halting_hears_of_what_comes_then() {
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
