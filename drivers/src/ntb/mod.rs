//! Non-transparent bridges: two machines that can access a part of each other's memory (terms as in Linux
//! `include/linux/ntb.h`). A driver does not know the protocol that uses the memory.
//!
//! | bridge | what it is |
//! |---|---|
//! | `ivshmem` | memory that two virtual machines share |
//! | `intel`, `amd`, `switchtec` | hardware; the feature `bridges` adds Intel's fourth generation, AMD's and Switchtec's |
//! | `stream` | a stream of bytes, such as a TCP connection |
//! | `transport` | an Ethernet port over any bridge, to a stock Linux host (`ntb_transport`, `ntb_netdev`) |
//!
//! # Hardware
//!
//! `intel` exposes memory that begins at a multiple of the BAR's size, with a limit behind its last byte. The driver
//! reads back all registers; a wrong setting of the firmware is an error that names the right one. All bells go to vector
//! 0 of MSI-X, because vector 32 does not work in these devices. Registers are read while the link comes up, the link's
//! status every 5 ms, and the bell before a halt.
//!
//! When a peer's function is reset, AMD and Switchtec lose registers that the other machine has written. AMD's driver
//! checks them when the peer is ready, Switchtec's with each message.
//!
//! Intel's, AMD's and Switchtec's bridges work on models in one process (`tests/metal/suites`). Stock Linux drivers run
//! on the same models and are the peer of these drivers (suite `ntb_hw`). The suite `ntb_bridges` runs images at both
//! sides.
//!
//! # Streams
//!
//! `stream` turns writes to the peer's window into records. The peer checks them and carries them out on its exposed
//! memory, in order. A writer asks for room first (`Dma::has_room`), once for each turn of a queue pair, so a ring of two
//! turns is all that is stored. The window stands for addresses only.
//!
//! # Ethernet to a stock Linux host
//!
//! `transport` is a port that a plane uses as any other (`gateway/bridge/transport.rs`). In addition it is polled in each
//! round, for the link and for the engine, whose progress is in memory. While a copy is under way the loop does not halt.
//! Tickets show what the engine has read, also while it never rests. The peer sends no event when it has taken frames, so
//! a sender without room polls every 200 µs.

#[cfg(feature = "bridges")]
pub mod amd;
mod hardware;
pub mod intel;
pub mod ivshmem;
mod shared;
pub mod stream;
#[cfg(feature = "bridges")]
pub mod switchtec;
pub mod transport;

pub use shared::{SharedMemory, Side};
pub use stream::Stream;

use crate::dma::{Carrier, Channel, Dma};
use crate::hal::{Arena, Interrupt, Window};
use alloc::boxed::Box;

/// Scratchpads that every bridge has.
pub const SCRATCHPADS: usize = 4;

/// A bridge to one peer.
pub trait Ntb {
    /// Whether the other machine's side of the bridge is there. It says nothing of its software.
    fn link(&self) -> bool;

    /// The memory window to the peer: its exposed memory, from its first byte on. Empty while the
    /// bridge does not know it; the same as long as there is a link. Loads through it may cost a round trip each, see [`Ntb::loads`].
    fn window(&self) -> Window;

    /// Our memory that the peer can write, and read, at any time (what the bridge translates its
    /// window to).
    fn exposed(&self) -> Window;

    /// Whether loads through the window cost no more than those of own memory, as when both
    /// machines share it.
    fn loads(&self) -> bool;

    /// Scratchpads of each side: [`SCRATCHPADS`] or more.
    fn scratchpads(&self) -> usize {
        SCRATCHPADS
    }

    /// Memory windows that Linux's driver of such a bridge offers; the first is used here.
    fn windows(&self) -> usize {
        1
    }

    /// Forgets what the peer has written to our scratchpads.
    fn clear_scratchpads(&mut self) {}

    /// Scratchpad `n` (below [`Ntb::scratchpads`]) of ours, which the peer writes.
    fn scratchpad(&self, n: usize) -> u32;

    /// Writes the peer's scratchpad. It is seen after all that was fenced before, and in the order
    /// of the calls.
    fn set_peer_scratchpad(&mut self, n: usize, value: u32);

    /// Says again what the bridge says of itself in memory that the peer writes as well, in case it was
    /// written over. Wants to be called every now and then.
    fn renew(&mut self) {}

    /// Rings the peer's doorbell, which may interrupt it; after all that was written before.
    fn ring(&mut self);

    /// Whether our doorbell was rung since the last call.
    fn rung(&mut self) -> bool;
}

/// A bridge, and the engine that writes through it.
pub trait Bridge: Ntb + Dma {}

impl<T: Ntb + Dma + ?Sized> Bridge for T {}

/// A bridge that was set up, as whoever runs its loop sees it.
pub trait NtbDevice: Bridge + Send {
    /// As the provider over it has it.
    fn bridge(&mut self) -> &mut dyn Bridge;
    /// Which of its two sides is this machine's.
    fn side(&self) -> Side;
    /// Whether another machine has taken this side: both were given the same.
    fn is_taken(&self) -> bool;
    /// Whether it can end a halt of this machine.
    fn wakes(&self) -> bool;
    /// Asks for interrupts when the peer rings from now on, or for none. What it rang before raises none.
    fn set_interrupts(&mut self, wanted: bool);
    /// Sends its interrupts to another core, as messages of `interrupt`, before it is used. False if it cannot: then they go
    /// where they went.
    fn route(&mut self, _interrupt: Interrupt) -> bool {
        false
    }
    /// Interrupts so far.
    fn interrupts(&self) -> u64;
    /// Whether it was rung since [`Ntb::rung`] was asked.
    fn pending(&self) -> bool;
    /// Whether something waits for a DMA engine, which interrupts nobody: signals, the ends of requests. Who halts looks
    /// again soon.
    fn is_busy(&self) -> bool {
        false
    }
    /// What writes through it, if that can be a channel of a DMA engine.
    fn carrier(&self) -> Option<&Carrier> {
        None
    }
    /// Has a channel of a DMA engine carry everything from now on; nothing may have been written yet. False if it cannot:
    /// then the CPU goes on carrying.
    fn use_engine(&mut self, _channel: Box<dyn Channel>, _arena: &mut Arena) -> bool {
        false
    }
    /// Generation of PCI Express and lanes of the link, while there is one that has such.
    fn link_speed(&self) -> Option<(u8, u8)> {
        None
    }
}
