//! Shared state of a controller's owner and the user of one pair of queues: the loop of another core. Only the user
//! touches the rings of the pair. The owner knows their addresses only, and requests that the controller creates queues
//! there. This protocol ensures that the controller and the user agree on the state of a ring:
//!
//! | owner's state | state of the controller | action of the user |
//! |---|---|---|
//! | `Stopping` | is about to be reset | does not ring its doorbells |
//! | `Quiet` | has stopped (CSTS.RDY is 0), and has no queues | clears its rings, and sets `ready` |
//! | `Made` | is set up, and has created queues in these rings | sends the waiting requests |
//! | `Gone` | cannot reach memory any more | ends its requests |
//!
//! Each reset begins an epoch. The owner passes rings to the controller only if the user cleared them for this epoch.
//! So a slow user delays only itself, and a user that acts on a state from before a reset touches no ring of the
//! controller.
//!
//! `tests/threads` compiles this file a second time with loom's atomics, and tries every order of steps.

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::hal::{Interrupt, Wake};
use alloc::boxed::Box;

/// State that the owner publishes. The module's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Stopping,
    Quiet,
    Made,
    Gone,
}

/// The owner's state and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u32);

impl Word {
    pub fn new(epoch: u32, said: Said) -> Word {
        Word(epoch << 2 | said as u32)
    }

    pub fn said(self) -> Said {
        match self.0 & 3 {
            0 => Said::Stopping,
            1 => Said::Quiet,
            2 => Said::Made,
            _ => Said::Gone,
        }
    }

    pub fn epoch(self) -> u32 {
        self.0 >> 2
    }
}

/// Why the user requests a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The controller completed a command that was not in flight.
    InvalidCompletion,
    /// The controller neither completed nor aborted a request in time.
    Late,
}

/// The shared state.
pub struct Line {
    word: AtomicU32,
    /// The epoch for which the user has cleared its rings.
    ready: AtomicU32,
    /// The user's request for a reset: the epoch and the reason. 0 for none, because epochs begin at 1.
    trouble: AtomicU32,
    /// The user's request for an abort: the command's identifier and [`WANTED`].
    abort: AtomicU32,
    /// Number of completed requests.
    completed: AtomicU64,
    /// Sectors of each namespace, as read by the owner.
    sectors: Box<[AtomicU64]>,
    wake: Wake,
    interrupt: Interrupt,
}

const WANTED: u32 = 1 << 16;

impl Line {
    /// Begins in an epoch, 1 or later, for which the rings are clear and the controller has no queues there yet.
    pub fn new(
        epoch: u32,
        sectors: impl Iterator<Item = u64>,
        wake: Wake,
        interrupt: Interrupt,
    ) -> Line {
        Line {
            word: AtomicU32::new(Word::new(epoch, Said::Quiet).0),
            ready: AtomicU32::new(epoch),
            trouble: AtomicU32::new(0),
            abort: AtomicU32::new(0),
            completed: AtomicU64::new(0),
            sectors: sectors.map(AtomicU64::new).collect(),
            wake,
            interrupt,
        }
    }

    /// The owner's state. Acquire: the owner's actions before [`Line::say`] are visible.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Publishes the owner's state, and wakes the user.
    pub fn say(&self, epoch: u32, said: Said) {
        self.word.store(Word::new(epoch, said).0, Ordering::Release);
        (self.wake)();
    }

    /// The user has cleared its rings for `epoch`.
    pub fn set_ready(&self, epoch: u32) {
        self.abort.store(0, Ordering::Relaxed);
        self.ready.store(epoch, Ordering::Release);
    }

    /// Whether the user has cleared its rings for `epoch`.
    pub fn is_ready(&self, epoch: u32) -> bool {
        self.ready.load(Ordering::Acquire) == epoch
    }

    /// The user requests a reset.
    pub fn ask_for_reset(&self, epoch: u32, why: Trouble) {
        self.trouble.store(epoch << 1 | (why == Trouble::Late) as u32, Ordering::Release);
    }

    /// Takes the user's request for a reset in this epoch, if there is one.
    pub fn trouble(&self, epoch: u32) -> Option<Trouble> {
        match self.trouble.swap(0, Ordering::Acquire) {
            word if word >> 1 != epoch & u32::MAX >> 1 => None,
            word if word & 1 == 0 => Some(Trouble::InvalidCompletion),
            _ => Some(Trouble::Late),
        }
    }

    /// Whether the user may request an abort: none is pending.
    pub fn may_abort(&self) -> bool {
        self.abort.load(Ordering::Relaxed) == 0
    }

    /// The user requests an abort of command `cid`.
    pub fn ask_to_abort(&self, cid: u16) {
        self.abort.store(WANTED | u32::from(cid), Ordering::Relaxed);
    }

    /// Takes the user's request for an abort, if there is one.
    pub fn take_abort(&self) -> Option<u16> {
        let word = self.abort.swap(0, Ordering::Relaxed);
        (word & WANTED != 0).then_some(word as u16)
    }

    /// Publishes the user's number of completed requests.
    pub fn count(&self, completed: u64) {
        self.completed.store(completed, Ordering::Relaxed);
    }

    /// Number of completed requests.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Number of interrupts raised.
    pub fn interrupts(&self) -> u64 {
        self.interrupt.raised().load(core::sync::atomic::Ordering::Relaxed)
    }

    /// Publishes the size of a namespace.
    pub fn set_sectors(&self, unit: usize, sectors: u64) {
        if let Some(place) = self.sectors.get(unit) {
            place.store(sectors, Ordering::Relaxed);
        }
    }

    /// Size of a namespace.
    pub fn sectors(&self, unit: usize) -> Option<u64> {
        self.sectors.get(unit).map(|sectors| sectors.load(Ordering::Relaxed))
    }
}
