//! Drivers of DMA engines, which copy bytes to memory behind a bridge. The CPU is an engine that always exists
//! ([`CpuCopy`]) and completes at once. The other engines copy while the CPU continues.
//!
//! # Carrier
//!
//! [`Carrier`] writes through a hardware bridge. With a channel, all writes go through it, including doorbells and ring
//! entries: writes of one requester, in a chain that the engine completes in order, keep their order on PCIe, while
//! writes of CPU and engine may pass each other. `order` is the fence bit of the last descriptor, or of an empty one if
//! the engine may already have read the last. Short writes are gathered in the carrier's own memory, and writes to
//! adjacent addresses become one copy. A batch is one write to the engine's registers. The doorbell is rung when the
//! batch is complete. Registers are read only after a millisecond without a completion.
//!
//! A channel that halts or hangs is reset. The copies that its status shows as incomplete are put at the beginning of
//! its ring again. Entries and payload are the same bytes at the same address, and a doorbell is never older than a
//! completed one. If that fails twice, the CPU writes the rest, after a read through the window. For an engine that
//! does not answer it is unknown how much of the rest has arrived, and a doorbell could go backwards. So the link goes
//! down, and comes up with the CPU.
//!
//! # Engines
//!
//! | engine | order | completions |
//! |---|---|---|
//! | `ioat` | A chain is executed in order. | in memory |
//! | `ptdma` | No guarantee. Copies after a fence are submitted when all before it are complete. | a register |
//! | `dsa` | No order between two fences. One batch is in flight; later copies form the next. | a record each |
//!
//! A DSA descriptor is one write of 64 bytes, which needs MOVDIR64B (`Registers::write_64_bytes`). Without the
//! instruction the engine is refused, and the CPU copies. After an error or abort a descriptor that is recorded as done
//! is not repeated, since a doorbell that is written twice could go backwards.
//!
//! Each bridge gets an engine while there are enough engines. Further bridges get channels of the same engines.
//!
//! All engines work on models (`tests/models`). DSA in the image, and Debian's own `idxd`, need a host with KVM and MOVDIR64B, and have not run
//! yet.

mod backlog;
mod carrier;
pub mod dsa;
pub mod ioat;
pub mod ptdma;

pub use carrier::{Carried, Carrier};

use crate::hal::{Instant, Window};
use core::sync::atomic::{Ordering, fence};

/// Number of a submitted copy, counted from 1; 0 if copies complete at once.
pub type Ticket = u64;

/// Progress of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Copies up to this ticket are complete: their source is not read any more, not even to repeat them.
    pub done: Ticket,
    /// The engine failed, and its copies in flight are lost: an unknown part of them has arrived. Reported once. The
    /// user of the bridge has to restart the protocol with its peer.
    pub lost: bool,
}

/// Writes to memory of the peer: submitted, ordered, and complete some time later.
///
/// Without [`Dma::order`] the peer sees writes in any order. PCIe lets posted writes of different requesters pass each
/// other, as well as relaxed writes of the same requester; an engine beside a CPU that combines writes is both. Only a
/// naturally aligned `put32` is seen whole or not at all.
pub trait Dma {
    /// Submits a copy of `from` to the beginning of `to`, up to the shorter length. The caller must neither change nor
    /// reuse `from` until [`Dma::complete`] reports the copy's ticket ([`Dma::submitted`]) as done.
    fn submit(&mut self, to: &Window, from: &Window);

    /// Whether [`Dma::start`] and [`Dma::complete`] have to be called, because copies complete later. Otherwise each
    /// copy is complete at once.
    #[inline]
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Whether adjacent [`Dma::put`]s are gathered into one copy. Then it is cheaper to write the gap between two, too.
    #[inline]
    fn gathers(&self) -> bool {
        false
    }

    /// The ticket of the last submitted copy.
    fn submitted(&self) -> Ticket {
        0
    }

    /// Writes little-endian words to the beginning of `to`, up to its length; `to` is aligned to 8. `words` may be
    /// reused after the call.
    fn put(&mut self, to: &Window, words: &[u64]);

    /// Writes a little-endian 32-bit cell at the beginning of `to`, which is aligned to 4.
    fn put32(&mut self, to: &Window, value: u32);

    /// Orders writes: later writes are not seen before all earlier ones.
    fn order(&mut self);

    /// [`Dma::order`] and [`Dma::put32`]: writes a cell that announces the earlier writes.
    #[inline]
    fn announce(&mut self, to: &Window, value: u32) {
        self.order();
        self.put32(to, value);
    }

    /// Passes the submitted copies to the engine. The caller calls it after its last write for now. True if copies are
    /// in flight, so that [`Dma::complete`] has to be called soon.
    #[inline]
    fn start(&mut self) -> bool {
        false
    }

    /// Polls the engine for completions, and recovers it if it has failed.
    #[inline]
    fn complete(&mut self, _now: Instant) -> Progress {
        Progress::default()
    }

    /// Whether all writes have arrived, so that the peer sees them before any write from now on.
    fn settled(&mut self) -> bool;

    /// Whether there is room for a turn of writes ([`TURN`]). False for an engine whose queue is full.
    fn has_room(&self) -> bool {
        true
    }
}

/// Most bytes to write after [`Dma::has_room`], with 16 more for each write.
pub const TURN: usize = 1 << 20;

/// State of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The channel works, or is being reset.
    Good,
    /// The channel is given up and stopped. The caller takes its incomplete copies with [`Channel::take_rest`].
    Failed,
    /// The channel does not answer any more. An unknown part of its incomplete copies was executed.
    Lost,
}

/// Counters of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounters {
    /// Completed copies.
    pub copies: u64,
    /// Bytes of completed copies.
    pub bytes: u64,
    /// Times that the device was notified of new copies.
    pub batches: u64,
    /// Resets of the channel.
    pub resets: u64,
    /// Completions that were not written to memory, or that named no copy in flight.
    pub missed: u64,
    /// Completions that named no copy in flight.
    pub nonsense: u64,
}

/// A channel of an engine: a queue of copies.
pub trait Channel: Send {
    /// Number of copies that can be added.
    fn room(&self) -> usize;

    /// Adds a copy between windows of the same length, at most [`LONGEST`]. Returns its number, counted from 1; None
    /// without room. The caller must not change the source until the copy is complete. The device reads nothing before
    /// [`Channel::start`].
    fn push(&mut self, to: &Window, from: &Window) -> Option<u64>;

    /// Adds a fence: copies added so far are complete before later ones begin.
    fn order(&mut self);

    /// Notifies the device of the added copies, with one write to its registers.
    fn start(&mut self);

    /// Polls for completions: the number of the last copy that is complete with all before it, and the state of the
    /// channel. Reads registers only after some time without a completion in memory.
    fn complete(&mut self, now: Instant) -> (u64, Health);

    /// Takes the next incomplete copy of a failed channel: target and source.
    fn take_rest(&mut self) -> Option<(Window, Window)>;

    /// The channel's counters.
    fn counters(&self) -> ChannelCounters;

    /// The channel's number in its engine.
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
            // The length fits.
            let _ = to.write_window(0, &from);
        }
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        // The length fits.
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
        // Stores to write-back memory are seen in the order that the compiler keeps. Write-combining memory needs its
        // buffers flushed as well.
        fence(Ordering::Release);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction needs SSE, which every x86-64 CPU has.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }

    fn settled(&mut self) -> bool {
        self.order();
        true
    }
}
