//! Drivers of non-transparent bridges: two machines that can access a part of each other's memory (terms as in Linux
//! `include/linux/ntb.h`). Drivers are independent of the protocol in that memory.
//!
//! | bridge | hardware or medium |
//! |---|---|
//! | `ivshmem` | memory that two virtual machines share |
//! | `intel`, `amd`, `switchtec` | hardware |
//! | `stream` | a stream of bytes, such as a TCP connection |
//! | `transport` | an Ethernet port over any bridge, to a stock Linux host (`ntb_transport`, `ntb_netdev`) |
//!
//! # Hardware
//!
//! Each driver has an `Error` of its own, because the remedies name the settings of its firmware.
//!
//! `intel` exposes memory that begins at a multiple of the BAR's size, with a limit after its last byte. The driver
//! reads back all registers; the error for a wrong setting of the firmware names the right one. All doorbells go to
//! vector 0 of MSI-X, because vector 32 does not work in these devices. Registers are read while the link comes up, the
//! link's status every 5 ms, and the doorbell before a halt.
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
//! `stream` turns writes to the peer's window into records. The peer checks them and applies them to its exposed
//! memory, in order. A writer checks for room first (`Dma::has_room`), once for each turn of a queue pair, so a ring of
//! two turns suffices. The window provides addresses only.
//!
//! # Ethernet to a stock Linux host
//!
//! `transport` is a port that a plane uses as any other (`gateway/bridge/transport.rs`). In addition it is polled in
//! each round, for the link and for the engine, whose progress is in memory. While a copy is in flight the loop does
//! not halt. Tickets show which frames the engine has read, even if it is never idle. The peer sends no event when it
//! has consumed frames, so a sender without room polls every 200 µs.

pub mod amd;
mod hardware;
pub mod intel;
pub mod ivshmem;
mod shared;
pub mod stream;
pub mod switchtec;
pub mod transport;

pub use shared::{SharedMemory, Side};
pub use stream::Stream;

use crate::dma::{Carrier, Channel, Dma};
use crate::hal::{Arena, Interrupt, Window};
use alloc::boxed::Box;

/// Least number of scratchpads of a bridge.
pub const SCRATCHPADS: usize = 4;

/// A bridge to one peer.
pub trait Ntb {
    /// Whether the peer's side of the bridge is up. The peer's software need not be ready.
    fn link(&self) -> bool;

    /// The memory window to the peer: its exposed memory, from its first byte. Empty while the bridge does not know it;
    /// constant while the link is up. Loads through it may cost a round trip each, see [`Ntb::loads`].
    fn window(&self) -> Window;

    /// This machine's memory that the peer can write and read at any time: the target of the peer's window.
    fn exposed(&self) -> Window;

    /// Whether loads through the window are as cheap as those of own memory, because both machines share it.
    fn loads(&self) -> bool;

    /// Scratchpads of each side: [`SCRATCHPADS`] or more.
    fn scratchpads(&self) -> usize {
        SCRATCHPADS
    }

    /// Number of memory windows that Linux's driver of this bridge offers. Drivers here use the first.
    fn windows(&self) -> usize {
        1
    }

    /// Clears this side's scratchpads, which the peer writes.
    fn clear_scratchpads(&mut self) {}

    /// Scratchpad `n` (below [`Ntb::scratchpads`]) of this side, which the peer writes.
    fn scratchpad(&self, n: usize) -> u32;

    /// Writes the peer's scratchpad. The peer sees it after all earlier ordered writes, and in the order of the calls.
    fn set_peer_scratchpad(&mut self, n: usize, value: u32);

    /// Restores this side's description in memory that the peer can overwrite. To be called periodically.
    fn renew(&mut self) {}

    /// Rings the peer's doorbell, after all earlier writes. It may interrupt the peer.
    fn ring(&mut self);

    /// Whether this side's doorbell was rung since the last call.
    fn rung(&mut self) -> bool;
}

/// A bridge, and the engine that writes through it.
pub trait Bridge: Ntb + Dma {}

impl<T: Ntb + Dma + ?Sized> Bridge for T {}

/// A bridge after its setup, for the loop that runs it.
pub trait NtbDevice: Bridge + Send {
    /// The bridge, for its provider.
    fn bridge(&mut self) -> &mut dyn Bridge;
    /// This machine's side of the bridge.
    fn side(&self) -> Side;
    /// Whether another machine has taken this side, because both are configured for the same one.
    fn is_taken(&self) -> bool;
    /// Whether the bridge can wake a halted core.
    fn wakes(&self) -> bool;
    /// Enables or disables interrupts for doorbells that the peer rings from now on. Earlier ones raise none.
    fn set_interrupts(&mut self, wanted: bool);
    /// Routes interrupts to another core, as messages of `interrupt`, before the bridge is used. False if the bridge
    /// does not support it; then the route is unchanged.
    fn route(&mut self, _interrupt: Interrupt) -> bool {
        false
    }
    /// Number of interrupts so far.
    fn interrupts(&self) -> u64;
    /// Whether the doorbell was rung since [`Ntb::rung`] was called.
    fn pending(&self) -> bool;
    /// Whether signals or ends of requests wait for a DMA engine. Engines raise no interrupts, so the loop has to poll
    /// again soon.
    fn is_busy(&self) -> bool {
        false
    }
    /// The carrier, for bridges that can use a channel of a DMA engine.
    fn carrier(&self) -> Option<&Carrier> {
        None
    }
    /// Uses a channel of a DMA engine for all writes. Must be called before the first write. False if the bridge does
    /// not support it; then the CPU still writes.
    fn use_engine(&mut self, _channel: Box<dyn Channel>, _arena: &mut Arena) -> bool {
        false
    }
    /// Generation of PCI Express and number of lanes, while a PCI Express link is up.
    fn link_speed(&self) -> Option<(u8, u8)> {
        None
    }
}
