//! What the owners of a device's queues, each on its own core, share: the state of the device, and its link. The owner of
//! the first queue resets the device and sets it up. No owner touches the rings of another.
//!
//! A reset has these steps. The first owner resets the device, which reaches no memory from then on, and publishes
//! "stopped". Each other owner, at its next look, clears its rings and confirms. When all have confirmed and the device
//! is out of reset, the first owner sets it up and publishes "live". Each other owner continues at its next look and
//! fills its own rings.
//!
//! Until an owner has looked, it reports none of its frames as sent, so memory that the device might read is not reused.
//! An owner whose queue hangs reports it, and the first owner resets.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Entries of a table by which a device chooses a queue: a hash's low bits say which.
pub const ENTRIES: usize = 128;

/// The queue of an entry. Each bit of a hash (Toeplitz) is a sum of bits of the addresses, so that hosts whose addresses are
/// next to each other may have any one of them in common, and a sum of some: which queue it is, is no such sum.
pub const fn queue_of(entry: usize, queues: usize) -> usize {
    // Modulo a power of two each value comes once; of any half of the entries that a sum of bits tells apart, each queue has
    // half of its share at least.
    entry * (2 * entry + 25) % ENTRIES * queues / ENTRIES
}

/// Owners by all owners.
#[derive(Debug)]
pub struct Owners {
    /// Odd while the device is live; one more with each change.
    phase: AtomicU32,
    /// The phase that each other owner follows.
    followed: Box<[AtomicU32]>,
    link: AtomicBool,
    /// A queue of another owner hangs.
    hangs: AtomicBool,
}

impl Owners {
    /// For up to so many owners beside the first, of a device that is stopped.
    pub fn new(others: usize) -> Self {
        Owners {
            phase: AtomicU32::new(0),
            followed: (0..others).map(|_| AtomicU32::new(0)).collect(),
            link: AtomicBool::new(true),
            hangs: AtomicBool::new(false),
        }
    }

    /// The device was reset: it reaches no memory.
    pub fn stopped(&self) {
        let phase = self.phase.load(Ordering::Relaxed);
        // A reset within a reset changes nothing for the others.
        self.phase.store(phase.wrapping_add(phase & 1), Ordering::Release);
    }

    /// Whether so many other owners, which are all, know that the device is stopped, and touch nothing.
    pub fn all_follow(&self, others: usize) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        // Acquire: what they wrote to their rings was before.
        self.followed.iter().take(others).all(|followed| followed.load(Ordering::Acquire) == phase)
    }

    /// The device is set up, and its rings are empty.
    pub fn live(&self) {
        self.hangs.store(false, Ordering::Relaxed);
        let phase = self.phase.load(Ordering::Relaxed);
        self.phase.store(phase.wrapping_add(1), Ordering::Release);
    }

    /// The phase, for an owner that compares it with the one that it follows.
    #[inline(always)]
    pub fn phase(&self) -> u32 {
        self.phase.load(Ordering::Acquire)
    }

    /// Whether the device is live in a phase.
    pub fn is_live(phase: u32) -> bool {
        phase & 1 != 0
    }

    /// An owner has done what a phase asks of it.
    pub fn follow(&self, owner: usize, phase: u32) {
        self.followed[owner].store(phase, Ordering::Release);
    }

    pub fn set_link(&self, up: bool) {
        self.link.store(up, Ordering::Relaxed);
    }

    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// An owner says that its queue hangs.
    pub fn report_hang(&self) {
        self.hangs.store(true, Ordering::Relaxed);
    }

    /// Whether one said so.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of 64 hosts next to each other differ in sums of six bits: they are those of which one sum is the same.
    #[test]
    fn neighbours_are_spread() {
        for queues in 2..=8 {
            let mut of_each = [0; 8];
            (0..ENTRIES).for_each(|entry| of_each[queue_of(entry, queues)] += 1);
            let even = ENTRIES / queues..=ENTRIES.div_ceil(queues);
            assert!(of_each[..queues].iter().all(|count| even.contains(count)), "{of_each:?}");
            for sum in 1..ENTRIES {
                for same in 0..2 {
                    let hashes = (0..ENTRIES).filter(|hash| (hash & sum).count_ones() & 1 == same);
                    let mut seen = [0; 8];
                    hashes.for_each(|hash| seen[queue_of(hash, queues)] += 1);
                    let least = ENTRIES / 2 / queues / 3;
                    assert!(seen[..queues].iter().all(|hosts| *hosts >= least), "{sum} {seen:?}");
                }
            }
        }
    }
}
