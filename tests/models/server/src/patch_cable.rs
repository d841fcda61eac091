//! The cable between functions: two are joined, more share one segment, a single one has a wire to another process.

use std::sync::{Arc, Mutex, PoisonError};

use models::{Cable, Nanoseconds};

use crate::cable::Wire;

/// Poll intervals of the wire: after a frame has passed, and otherwise.
const BUSY: Nanoseconds = 50_000;
const IDLE: Nanoseconds = 500_000;

/// The cable.
pub struct PatchCable {
    ends: Vec<Arc<Mutex<Cable>>>,
    wire: Option<Wire>,
}

impl PatchCable {
    /// Creates a cable with this many ends, or with one end and a wire.
    pub fn new(ends: usize, wire: Option<Wire>) -> Self {
        PatchCable { ends: (0..ends).map(|_| Arc::default()).collect(), wire }
    }

    /// The end for a function.
    pub fn end(&self, number: usize) -> Arc<Mutex<Cable>> {
        self.ends[number].clone()
    }

    /// Carries frames. Returns the delay until the next call.
    pub fn turn(&mut self) -> Option<Nanoseconds> {
        let take = |end: &Arc<Mutex<Cable>>| {
            std::mem::take(&mut end.lock().unwrap_or_else(PoisonError::into_inner).sent)
        };
        match (&self.ends[..], &mut self.wire) {
            ([end], Some(wire)) => {
                let end = &mut *end.lock().unwrap_or_else(PoisonError::into_inner);
                let passed = wire.carry(&mut end.sent, &mut end.arriving);
                Some(if passed { BUSY } else { IDLE })
            }
            ([one, other], _) => {
                let (from_one, from_other) = (take(one), take(other));
                let dark = |end: &Arc<Mutex<Cable>>, of: &Arc<Mutex<Cable>>| {
                    let dark = of.lock().unwrap_or_else(PoisonError::into_inner).sends_no_light;
                    end.lock().unwrap_or_else(PoisonError::into_inner).gets_no_light = dark;
                };
                dark(one, other);
                dark(other, one);
                let passed = !from_one.is_empty() || !from_other.is_empty();
                let give = |end: &Arc<Mutex<Cable>>, frames: Vec<Vec<u8>>| {
                    end.lock().unwrap_or_else(PoisonError::into_inner).arriving.extend(frames);
                };
                give(one, from_other);
                give(other, from_one);
                // Arrived frames must be received at once.
                passed.then_some(0).or(Some(IDLE))
            }
            // One segment: each function receives all frames of the others, whatever their destination.
            (ends, _) => {
                let mut passed = false;
                for (n, from) in ends.iter().enumerate() {
                    let frames = take(from);
                    passed |= !frames.is_empty();
                    for (_, to) in ends.iter().enumerate().filter(|(other, _)| *other != n) {
                        let to = &mut *to.lock().unwrap_or_else(PoisonError::into_inner);
                        to.arriving.extend(frames.iter().cloned());
                    }
                }
                passed.then_some(0).or(Some(IDLE))
            }
        }
    }
}
