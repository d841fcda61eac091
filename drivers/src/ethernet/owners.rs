//! State shared by the owners of a device's queues, each on its own core: the phase of the device, and its link. The
//! owner of the first queue resets the device and sets it up. No owner accesses the rings of another.
//!
//! A reset has these steps. The first owner resets the device, which accesses no memory from then on, and publishes
//! "stopped". Each other owner, at its next poll, clears its rings and confirms. When all have confirmed and the device
//! is out of reset, the first owner sets it up and publishes "live". Each other owner continues at its next poll and
//! fills its own rings.
//!
//! Until its next poll an owner reports none of its frames as sent, so memory that the device might read is not reused.
//! An owner whose queue hangs reports it, and the first owner resets the device.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Number of entries of a redirection table (RSS). The low bits of the hash select an entry.
pub const ENTRIES: usize = 128;

/// The queue of a table entry. Each bit of the Toeplitz hash is a sum of address bits, so hosts with adjacent addresses
/// may agree in any hash bit, or sum of hash bits. The mapping is not linear in these bits, so it spreads such hosts.
pub const fn queue_of(entry: usize, queues: usize) -> usize {
    // The polynomial takes each value once modulo a power of two. Of any half of the entries that a sum of bits
    // selects, each queue gets at least half of its share.
    entry * (2 * entry + 25) % ENTRIES * queues / ENTRIES
}

/// The shared state.
#[derive(Debug)]
pub struct Owners {
    /// Odd while the device is live; incremented with each change.
    phase: AtomicU32,
    /// The phase that each other owner has confirmed.
    followed: Box<[AtomicU32]>,
    link: AtomicBool,
    /// A queue of another owner hangs.
    hangs: AtomicBool,
}

impl Owners {
    /// State of a stopped device with up to `others` owners beside the first.
    pub fn new(others: usize) -> Self {
        Owners {
            phase: AtomicU32::new(0),
            followed: (0..others).map(|_| AtomicU32::new(0)).collect(),
            link: AtomicBool::new(true),
            hangs: AtomicBool::new(false),
        }
    }

    /// Publishes that the device was reset and accesses no memory.
    pub fn stopped(&self) {
        let phase = self.phase.load(Ordering::Relaxed);
        // A reset within a reset changes nothing for the others.
        self.phase.store(phase.wrapping_add(phase & 1), Ordering::Release);
    }

    /// Whether all `others` other owners have confirmed the phase, so that they do not access their rings.
    pub fn all_follow(&self, others: usize) -> bool {
        let phase = self.phase.load(Ordering::Relaxed);
        // Acquire: their writes to their rings come before.
        self.followed.iter().take(others).all(|followed| followed.load(Ordering::Acquire) == phase)
    }

    /// Publishes that the device is set up, with empty rings.
    pub fn live(&self) {
        self.hangs.store(false, Ordering::Relaxed);
        let phase = self.phase.load(Ordering::Relaxed);
        self.phase.store(phase.wrapping_add(1), Ordering::Release);
    }

    /// The current phase, which an owner compares with the one that it has confirmed.
    #[inline]
    pub fn phase(&self) -> u32 {
        self.phase.load(Ordering::Acquire)
    }

    /// Whether the device is live in this phase.
    pub fn is_live(phase: u32) -> bool {
        phase & 1 != 0
    }

    /// Confirms a phase for an owner.
    pub fn follow(&self, owner: usize, phase: u32) {
        self.followed[owner].store(phase, Ordering::Release);
    }

    pub fn set_link(&self, up: bool) {
        self.link.store(up, Ordering::Relaxed);
    }

    pub fn link(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// Reports that a queue of another owner hangs.
    pub fn report_hang(&self) {
        self.hangs.store(true, Ordering::Relaxed);
    }

    /// Whether an owner has reported a hang.
    pub fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of 64 hosts with adjacent addresses differ in sums of six bits: they are the hashes in which one sum is
    /// equal.
    #[test]
    fn hosts_with_adjacent_addresses_are_spread() {
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
