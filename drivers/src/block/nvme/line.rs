//! What the owner of a controller and the loop of another core, which has a pair of queues of it, tell each other.
//! The rings of that pair are touched by that loop alone; the owner knows where they lie, and has the controller make
//! them queues, and nothing else. So that the controller and the loop never have different notions of a ring:
//!
//! | the owner says | because | the user |
//! |---|---|---|
//! | stopping | the controller is to be reset | leaves its doorbells alone |
//! | quiet | it has stopped (CSTS.RDY is 0), and knows no queues | makes its rings as new, and says so |
//! | made | it has been set up, and has made queues of these rings | sends what waits |
//! | gone | it cannot reach memory any more | ends its requests |
//!
//! Each reset is an epoch. A ring that was made anew for another one is not given to the controller: a user that is slow
//! holds nobody up but itself, and one that acts on what was said before a reset touches no ring that the controller has.
//!
//! `tests/threads` compiles this file a second time, with loom's atomics, and tries every order of steps.

use super::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::hal::{Interrupt, Wake};
use alloc::boxed::Box;

/// What the owner says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Stopping,
    Quiet,
    Made,
    Gone,
}

/// The same, with the epoch that it is of.
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

/// What the user wants of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The controller completed what it was not given.
    Nonsense,
    /// It did not end a request, nor abort it.
    Late,
}

/// Where they tell each other.
pub struct Line {
    word: AtomicU32,
    /// The epoch for which the user's rings are as new.
    ready: AtomicU32,
    /// A reset that the user asks for: the epoch, and why; 0 is none, as there is no trouble before epoch 1.
    trouble: AtomicU32,
    /// A command that the user wants aborted: its identifier and [`WANTED`].
    abort: AtomicU32,
    /// Requests that were completed.
    completed: AtomicU64,
    /// Sectors of each namespace, as the owner knows them.
    sectors: Box<[AtomicU64]>,
    wake: Wake,
    interrupt: Interrupt,
}

const WANTED: u32 = 1 << 16;

impl Line {
    /// In an epoch, from 1 on, in which the rings are new, and not known to the controller yet.
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

    /// What the owner said last; whatever it did before is done.
    #[inline(always)]
    pub fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// The owner says something, and wakes the user.
    pub fn say(&self, epoch: u32, said: Said) {
        self.word.store(Word::new(epoch, said).0, Ordering::Release);
        (self.wake)();
    }

    /// The user's rings are as new, for an epoch.
    pub fn set_ready(&self, epoch: u32) {
        self.abort.store(0, Ordering::Relaxed);
        self.ready.store(epoch, Ordering::Release);
    }

    /// Whether they are.
    pub fn is_ready(&self, epoch: u32) -> bool {
        self.ready.load(Ordering::Acquire) == epoch
    }

    /// The user asks for a reset.
    pub fn ask_for_reset(&self, epoch: u32, why: Trouble) {
        self.trouble.store(epoch << 1 | (why == Trouble::Late) as u32, Ordering::Release);
    }

    /// Why the user asks for one in this epoch, if it does.
    pub fn trouble(&self, epoch: u32) -> Option<Trouble> {
        match self.trouble.swap(0, Ordering::Acquire) {
            word if word >> 1 != epoch & u32::MAX >> 1 => None,
            word if word & 1 == 0 => Some(Trouble::Nonsense),
            _ => Some(Trouble::Late),
        }
    }

    /// Whether the user may ask for a command to be aborted.
    pub fn may_abort(&self) -> bool {
        self.abort.load(Ordering::Relaxed) == 0
    }

    /// The user asks for that.
    pub fn ask_to_abort(&self, cid: u16) {
        self.abort.store(WANTED | u32::from(cid), Ordering::Relaxed);
    }

    /// The command that is to be aborted, once.
    pub fn take_abort(&self) -> Option<u16> {
        let word = self.abort.swap(0, Ordering::Relaxed);
        (word & WANTED != 0).then_some(word as u16)
    }

    /// The user counts.
    pub fn count(&self, completed: u64) {
        self.completed.store(completed, Ordering::Relaxed);
    }

    /// Requests that were completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Interrupts that were raised.
    pub fn interrupts(&self) -> u64 {
        self.interrupt.raised().load(core::sync::atomic::Ordering::Relaxed)
    }

    /// The owner knows another size of a namespace.
    pub fn set_sectors(&self, unit: usize, sectors: u64) {
        if let Some(place) = self.sectors.get(unit) {
            place.store(sectors, Ordering::Relaxed);
        }
    }

    /// Its size.
    pub fn sectors(&self, unit: usize) -> Option<u64> {
        self.sectors.get(unit).map(|sectors| sectors.load(Ordering::Relaxed))
    }
}
