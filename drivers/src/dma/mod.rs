//! DMA engines: they copy bytes to memory behind a bridge. The CPU is an engine that always exists ([`CpuCopy`]) and
//! completes at once. Others copy while the CPU continues.
//!
//! # Carrier
//!
//! [`Carrier`] writes through a hardware bridge. With a channel, everything goes through it, also bells and entries:
//! writes of one requester, in a chain that the engine completes in order, keep their order on PCIe, while writes of CPU
//! and engine may pass each other. `order` is the fence bit of the last descriptor, or of an empty one if the engine may
//! already have read the last. Short writes are gathered in the carrier's own memory, and neighbours at the peer become
//! one copy. A batch is one write to the engine's registers. The doorbell is rung when the batch is complete. Registers
//! are read only after a millisecond without a completion.
//!
//! A channel that halts or hangs is reset. What its status shows as incomplete is put at the beginning of its ring again:
//! entries and payload are the same bytes at the same place, and a bell is never older than a completed one. If that
//! fails twice, the CPU writes the rest, behind a read through the window. For an engine that does not answer it is
//! unknown how much of the rest has arrived, and a bell could go backwards. So the link goes down, and comes up with the
//! CPU.
//!
//! # Engines
//!
//! | engine | order | completions |
//! |---|---|---|
//! | `ioat` | A chain is carried out in order. | in memory |
//! | `ptdma` | No promise. Copies behind a fence are submitted when all before it are complete. | a register |
//! | `dsa` | No order between two fences. One batch is under way at a time; later copies form the next. | a record each |
//!
//! A DSA descriptor is one write of 64 bytes, which needs MOVDIR64B (`Registers::write_64_bytes`). Without the
//! instruction the engine is refused, and the CPU copies. After an error or abort a descriptor that is recorded as done
//! is not repeated, since a bell that is written twice could go backwards.
//!
//! Bridges get an engine each while there are enough, and then channels of the same engine.
//!
//! `ptdma` and `dsa` are behind the feature `bridges`, which the image enables. All engines work on models
//! (`tests/models`). DSA in the image, and Debian's own `idxd`, need a host with KVM and MOVDIR64B, and have not run yet.

mod carrier;
#[cfg(feature = "bridges")]
pub mod dsa;
pub mod ioat;
#[cfg(feature = "bridges")]
pub mod ptdma;

pub use carrier::{Carried, Carrier};

use crate::hal::{Instant, Window};
use core::sync::atomic::{Ordering, fence};

/// Number of a copy that was submitted, counted from 1; 0 where copies are done at once.
pub type Ticket = u64;

/// How far an engine has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Copies up to this ticket are complete: their source is not read any more, not even to repeat them.
    pub done: Ticket,
    /// What was under way is lost, and nobody knows how much of it arrived: the engine failed. Said once.
    /// Whoever writes through the bridge has to begin anew with its peer.
    pub lost: bool,
}

/// Writes to memory that is not ours: submitted, ordered, and complete some time later.
///
/// They are seen in any order but for [`Dma::order`]: PCIe lets posted writes of different requesters, and
/// relaxed ones of the same, pass each other, and an engine and a CPU that write combines are both. Only a
/// naturally aligned `put32` is seen whole or not at all.
pub trait Dma {
    /// Submits a copy of `from` to the beginning of `to`, as far as both go. `from` stays as it is, and is
    /// nobody else's, until [`Dma::complete`] has said that the ticket of the copy ([`Dma::submitted`]) is done.
    fn submit(&mut self, to: &Window, from: &Window);

    /// Whether [`Dma::start`] and [`Dma::complete`] want to be called, because something is done later. Where it is not
    /// each copy is complete at once.
    #[inline]
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Whether [`Dma::put`]s to neighbouring memory are carried as one, so that what lies between two costs less than that
    /// they are two.
    #[inline]
    fn gathers(&self) -> bool {
        false
    }

    /// The ticket of the copy that was submitted last.
    fn submitted(&self) -> Ticket {
        0
    }

    /// Writes little-endian words to the beginning of `to`, as far as it goes; `to` is aligned to 8.
    /// They have been read when this returns.
    fn put(&mut self, to: &Window, words: &[u64]);

    /// Writes a little-endian 32-bit cell at the beginning of `to`, which is aligned to 4.
    fn put32(&mut self, to: &Window, value: u32);

    /// Nothing that is written later is seen before all that was written earlier.
    fn order(&mut self);

    /// [`Dma::order`] and [`Dma::put32`]: a cell that announces what was written before.
    #[inline]
    fn announce(&mut self, to: &Window, value: u32) {
        self.order();
        self.put32(to, value);
    }

    /// Hands what was submitted to the engine; whether anything is under way, so that [`Dma::complete`] has to be
    /// asked soon. Whoever has written calls it when it has no more for now.
    #[inline]
    fn start(&mut self) -> bool {
        false
    }

    /// Looks how far the engine has got, and after it where it is in trouble.
    #[inline]
    fn complete(&mut self, _now: Instant) -> Progress {
        Progress::default()
    }

    /// Whether all that was written has arrived, so that nothing of it can be seen later than what
    /// is written from now on.
    fn settled(&mut self) -> bool;

    /// Whether there is room for a turn of writes ([`TURN`]). An engine that has to keep what it is
    /// given says no while it is full.
    fn has_room(&self) -> bool {
        true
    }
}

/// Bytes that may be written between two questions for room, each write counted with 16 more.
pub const TURN: usize = 1 << 20;

/// How a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works, or is being reset.
    Good,
    /// It is given up, and stopped: what it has not completed is left to whoever asks [`Channel::take_rest`].
    Failed,
    /// It does not answer any more. Nobody knows what of the rest it has carried out.
    Lost,
}

/// What a channel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Copies carried out, and their bytes.
    pub copies: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Times that the device was told of new copies.
    pub batches: u64,
    /// Times that it was reset.
    pub resets: u64,
    /// Completions that it did not write to memory, and such as name no copy under way.
    pub missed: u64,
    /// The latter.
    pub nonsense: u64,
}

/// A channel of an engine: it carries out copies in the order in which they were given.
pub trait Channel: Send {
    /// Copies that can be added.
    fn room(&self) -> usize;

    /// Adds a copy between stretches of the same length, at most [`LONGEST`]: its number, counted from 1; None without
    /// room. The source stays as it is until the copy is complete. Nothing is read before [`Channel::start`].
    fn push(&mut self, to: &Window, from: &Window) -> Option<u64>;

    /// What was added is complete before what is added from now on begins.
    fn order(&mut self);

    /// Tells the device of what was added, with one write to its registers.
    fn start(&mut self);

    /// The number of the last copy that is complete, with all before it; and how the channel is. Looks at
    /// memory, and at registers only after it where nothing has been completed for long.
    fn complete(&mut self, now: Instant) -> (u64, Health);

    /// Takes what a channel that failed has not completed, in order: target and source.
    fn take_rest(&mut self) -> Option<(Window, Window)>;

    /// What it has counted.
    fn counters(&self) -> ChannelCounters;

    /// Which it is: the device's name and its number there.
    fn number(&self) -> u8;
}

/// Most bytes of one copy of a [`Channel`].
pub const LONGEST: usize = 1 << 20;

/// The CPU as DMA engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuCopy;

impl Dma for CpuCopy {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        if let Some(from) = from.slice(0, from.len().min(to.len())) {
            // It was made to fit.
            let _ = to.write_window(0, &from);
        }
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        // It was made to fit.
        let _ = to.write_words(0, &words[..words.len().min(to.len() / 8)]);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        if to.len() >= 4 {
            to.store32(0, value);
        }
    }

    #[inline]
    fn order(&mut self) {
        // For memory that is mapped write-back, stores of a CPU are seen in order once the compiler
        // keeps it; what is mapped write-combining also needs its buffers emptied.
        fence(Ordering::Release);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE, which every x86-64 has.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }

    fn settled(&mut self) -> bool {
        self.order();
        true
    }
}
