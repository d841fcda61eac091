//! The machine as drivers use it to set a device up: mappings, interrupts, DMA memory.

use super::{Arena, Clock, Registers, Window};
use alloc::boxed::Box;
use core::sync::atomic::AtomicU64;

/// An interrupt that a device raises by writing a message (MSI, MSI-X).
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    address: u64,
    data: u32,
    raised: &'static AtomicU64,
}

impl Interrupt {
    /// The interrupt that a device raises by writing `data` to the bus address `address`. Its handler counts in
    /// `raised`.
    ///
    /// # Safety
    /// A device will write to the address, so it is an interrupt controller's, and the interrupt has a handler.
    pub const unsafe fn new(address: u64, data: u32, raised: &'static AtomicU64) -> Self {
        Interrupt { address, data, raised }
    }

    /// Bus address that the device writes to.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Data that the device writes.
    pub const fn data(&self) -> u32 {
        self.data
    }

    /// How often the interrupt was raised, as counted by the machine's handler.
    pub const fn raised(&self) -> &'static AtomicU64 {
        self.raised
    }
}

/// The machine, as drivers see it at set-up. Nothing here is for the data path.
///
/// # Safety
/// Devices of this machine write only to memory that a driver has given them, and only until they return it. Drivers
/// rely on this promise when they borrow buffers that a device has returned. The code that brings the machine up makes
/// the promise. For untrusted devices it needs an IOMMU, without which they could write to any memory anyway.
///
/// Ranges that `map_registers`, `map_memory` and `map_window` map belong to a device: they contain neither memory of
/// the machine nor its interrupt controllers.
pub unsafe trait Platform {
    /// Maps `len` bytes of device registers at bus address `address`, uncached, for ever. None if that fails, or if the
    /// range is not a device's. Ranges may overlap, and need not begin or end on a page boundary.
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>>;

    /// Maps `len` bytes of a device's memory (not registers) at bus address `address`, cached, for ever. None as for
    /// [`Platform::map_registers`].
    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window>;

    /// Maps `len` bytes of another machine's memory behind a bridge at bus address `address`, uncached, for ever. None
    /// as for [`Platform::map_registers`], and on machines without such bridges.
    fn map_window(&mut self, _address: u64, _len: usize) -> Option<Window> {
        None
    }

    /// Allocates an interrupt on the core that will own the device. None if there is none left.
    fn allocate_interrupt(&mut self) -> Option<Interrupt>;

    /// As [`Platform::allocate_interrupt`], for a device with a legacy line: its number at the interrupt controller.
    fn route_line(&mut self, _line: u8) -> Option<Interrupt> {
        None
    }

    /// A clock that a driver keeps, to limit the time for which it blocks. None on machines without one for drivers.
    fn clock(&self) -> Option<Box<dyn Clock + Send>> {
        None
    }

    /// The allocator of DMA memory.
    fn arena(&mut self) -> &mut Arena;
}
