//! The cable of functions: from one to the other, from each to all others if there are more, or from the only one to a wire.

use std::sync::{Arc, Mutex, PoisonError};

use models::{Cable, Nanoseconds};

use crate::cable::Wire;

/// How long nobody has to look at the wire, if something has just passed, and else.
const BUSY: Nanoseconds = 50_000;
const IDLE: Nanoseconds = 500_000;

/// The cable.
pub struct PatchCable {
    ends: Vec<Arc<Mutex<Cable>>>,
    wire: Option<Wire>,
}

impl PatchCable {
    /// With so many ends, or with one and a wire.
    pub fn new(ends: usize, wire: Option<Wire>) -> Self {
        PatchCable { ends: (0..ends).map(|_| Arc::default()).collect(), wire }
    }

    /// What is plugged into a function.
    pub fn end(&self, number: usize) -> Arc<Mutex<Cable>> {
        self.ends[number].clone()
    }

    /// Carries frames; when it wants to be called again.
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
                // What has arrived wants to be taken in at once.
                passed.then_some(0).or(Some(IDLE))
            }
            // Whoever it is for.
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
