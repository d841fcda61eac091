//! Accesses to the rings of a drive's queue of another core: that core's loop while the controller does not have the
//! rings, or the controller, but never both.
//!
//! The `Line` between the two is the driver's (`drivers/src/block/nvme/line.rs`), with loom's atomics. The user follows
//! it as `core_queue.rs` does. The owner sets it as `life.rs` and `lines.rs` do.

use crate::model::model;
use line::{Line, Said, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic as atomics;
use loom::thread;

#[path = "../../../drivers/src/block/nvme/line.rs"]
#[expect(dead_code, reason = "the driver uses all of it")]
mod line;

/// The rings and the line.
struct Shared {
    line: Line,
    /// The epoch for which the rings were initialised.
    rings: UnsafeCell<u32>,
}

// SAFETY: the test checks the accesses to the rings: loom reports two at the same time.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The loop of the other core: runs until the drive is gone, and initialises its rings after each reset.
fn user(shared: &Shared) {
    let (mut seen, mut ready) = (Word::new(1, Said::Made), 1);
    while seen.said() != Said::Gone {
        let word = shared.line.word();
        if word == seen {
            thread::yield_now();
            continue;
        }
        seen = word;
        if seen.said() == Said::Quiet && seen.epoch() != ready {
            ready = seen.epoch();
            shared.rings.with_mut(|rings| {
                // SAFETY: loom checks for accesses by another thread.
                unsafe { *rings = ready };
            });
            shared.line.set_ready(ready);
        }
        if seen.said() == Said::Made {
            assert_eq!(seen.epoch(), ready, "the controller has rings that were not initialised");
        }
    }
    // The controller no longer accesses memory, so the rings' memory may have another use.
    // SAFETY: as above.
    shared.rings.with_mut(|rings| unsafe { *rings = 0 });
}

/// The controller accesses its rings.
fn controller_works(shared: &Shared, epoch: u32) {
    shared.rings.with_mut(|rings| {
        // SAFETY: as above.
        assert_eq!(unsafe { *rings }, epoch, "rings from before a reset");
    });
}

/// The drive is reset twice, and then removed. The user may be late for either reset, or for both.
pub fn ring_is_accessed_by_the_loop_or_the_controller() {
    model(|| {
        let line = Line::new(1, core::iter::empty(), Box::new(|| ()), crate::hal::Interrupt);
        line.say(1, Said::Made);
        let shared = Arc::new(Shared { line, rings: UnsafeCell::new(1) });
        let other = {
            let shared = shared.clone();
            thread::spawn(move || user(&shared))
        };
        controller_works(&shared, 1);
        for epoch in 2..=3 {
            shared.line.say(epoch, Said::Stopping);
            // The controller has stopped.
            shared.line.say(epoch, Said::Quiet);
            if shared.line.is_ready(epoch) {
                controller_works(&shared, epoch);
                shared.line.say(epoch, Said::Made);
                controller_works(&shared, epoch);
            }
        }
        shared.line.say(3, Said::Gone);
        other.join().unwrap();
    });
}
