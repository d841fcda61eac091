//! Threads that use the shared state of loops, for ThreadSanitizer, which reports unsynchronized accesses.

use crate::machine::Ipi;
use core::sync::atomic as atomics;
use frame_ring::frame_ring;
use loop_waker::LoopWaker;
use std::thread::{self, Thread};

#[path = "../../../appliance/src/gateway/frame_ring.rs"]
#[expect(dead_code, reason = "the appliance uses all of it")]
mod frame_ring;
#[path = "../../../appliance/src/gateway/loop_waker.rs"]
#[expect(clippy::duplicate_mod, reason = "with other atomics")]
mod loop_waker;

const ROUNDS: usize = 2_000;

/// A parked thread in place of a halted core.
struct Parked(Thread);

impl Ipi for Parked {
    fn ring(&self) {
        self.0.unpark();
    }
}

/// One loop hands frames to another, which halts when it has none.
pub fn frames_are_handed_over_and_the_loop_is_woken() {
    let waker = LoopWaker::new(Box::new(Parked(thread::current())));
    let (mut sender, mut receiver) = frame_ring(4096);
    let bell = waker.clone();
    let other = thread::spawn(move || {
        for round in 0..ROUNDS {
            let frame = [round as u8; 100];
            while !sender.push(&frame[..60 + round % 40]) {
                thread::yield_now();
            }
            bell.wake();
        }
    });
    let (mut taken, mut frame) = (0, Vec::new());
    while taken < ROUNDS {
        if waker.may_halt(|| !receiver.is_empty()) {
            thread::park();
        }
        waker.clear();
        while receiver.pop(&mut frame) {
            assert_eq!(frame, vec![taken as u8; 60 + taken % 40]);
            taken += 1;
        }
    }
    other.join().unwrap();
}
