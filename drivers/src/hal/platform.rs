//! What drivers ask of the machine while they set a device up.

use super::{Arena, Registers, Window};
use alloc::boxed::Box;
use core::sync::atomic::AtomicU64;

/// An interrupt that a device raises by writing a message (MSI, MSI-X).
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    /// Bus address that the device writes to.
    pub address: u64,
    /// What it writes.
    pub data: u32,
    /// How often it was raised; the machine's handler counts.
    pub raised: &'static AtomicU64,
}

/// The machine, as drivers see it at set-up. Nothing here is for the data path.
pub trait Platform {
    /// Maps `len` bytes of device registers at bus address `address`, uncached, for ever. None if
    /// it cannot. Stretches may overlap; neither end need be on a page boundary.
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>>;

    /// Maps `len` bytes of a device's memory (not registers) at bus address `address`, cached, for
    /// ever. None if it cannot.
    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window>;

    /// An interrupt that wakes the core which will own the device, or None if there is none left.
    fn allocate_interrupt(&mut self) -> Option<Interrupt>;

    /// All DMA memory.
    fn arena(&mut self) -> &mut Arena;
}
