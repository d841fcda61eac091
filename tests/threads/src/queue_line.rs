//! Who touches the rings of a drive's queue that the loop of another core has: that loop, while the controller knows
//! nothing of them, or the controller, and never both.
//!
//! The line between the two is the driver's (`drivers/src/block/nvme/line.rs`), with loom's atomics. The user heeds it as
//! `core_queue.rs` does, the owner says what `life.rs` and `lines.rs` say.

use crate::model::model;
use line::{Line, Said, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic as atomics;
use loom::thread;

#[path = "../../../drivers/src/block/nvme/line.rs"]
#[expect(dead_code, reason = "the driver uses all of it")]
mod line;

/// The rings, and the line.
struct Shared {
    line: Line,
    /// Which epoch the rings are as new for.
    rings: UnsafeCell<u32>,
}

// SAFETY: who touches the rings when is what is tried here; loom reports it if two do at once.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The loop of the other core takes turns until the drive is gone, and makes its rings anew when it is told to.
fn user(shared: &Shared) {
    let (mut heard, mut ready) = (Word::new(1, Said::Made), 1);
    while heard.said() != Said::Gone {
        let word = shared.line.word();
        if word == heard {
            thread::yield_now();
            continue;
        }
        heard = word;
        if heard.said() == Said::Quiet && heard.epoch() != ready {
            ready = heard.epoch();
            shared.rings.with_mut(|rings| {
                // SAFETY: loom looks whether anybody else has them.
                unsafe { *rings = ready };
            });
            shared.line.set_ready(ready);
        }
        if heard.said() == Said::Made {
            assert_eq!(heard.epoch(), ready, "the controller has rings that are not as new");
        }
    }
    // The controller reaches no memory any more: whatever comes to lie there now is another's.
    // SAFETY: as above.
    shared.rings.with_mut(|rings| unsafe { *rings = 0 });
}

/// The controller writes to the rings that it has.
fn controller_works(shared: &Shared, epoch: u32) {
    shared.rings.with_mut(|rings| {
        // SAFETY: as above.
        assert_eq!(unsafe { *rings }, epoch, "rings of before a reset");
    });
}

/// A drive that is reset twice, and gone at last; the user may be late for either reset, or for both.
pub fn a_ring_is_the_loops_or_the_controllers() {
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
