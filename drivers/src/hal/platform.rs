//! What drivers ask of the machine while they set a device up.

use super::{Arena, Registers, Window};
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
    /// The interrupt that a device raises by writing `data` to the bus address `address`, and that is
    /// counted in `raised`.
    ///
    /// # Safety
    /// The address is that of an interrupt controller, and the interrupt has a handler: a device will write
    /// there.
    pub const unsafe fn new(address: u64, data: u32, raised: &'static AtomicU64) -> Self {
        Interrupt { address, data, raised }
    }

    /// Bus address that the device writes to.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// What it writes.
    pub const fn data(&self) -> u32 {
        self.data
    }

    /// How often it was raised; the machine's handler counts.
    pub const fn raised(&self) -> &'static AtomicU64 {
        self.raised
    }
}

/// The machine, as drivers see it at set-up. Nothing here is for the data path.
///
/// # Safety
/// Devices of this machine keep to what they were told: they write to memory that a driver has given them,
/// while they have it, and to no other. Drivers hand out references to buffers that a device has given back
/// on that promise. Whoever brings up a machine makes it: for devices that are not trusted by means of an
/// IOMMU, without which they could write to any memory anyway.
///
/// What is mapped by `map_registers`, `map_memory` and `map_window` belongs to a device: neither memory of the machine nor
/// its interrupt controllers lie there.
pub unsafe trait Platform {
    /// Maps `len` bytes of device registers at bus address `address`, uncached, for ever. None if
    /// it cannot, or if something else than a device lies there. Stretches may overlap; neither end need be on a page boundary.
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>>;

    /// Maps `len` bytes of a device's memory (not registers) at bus address `address`, cached, for
    /// ever. None likewise.
    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window>;

    /// Maps `len` bytes of another machine's memory behind a bridge at bus address `address`, uncached, for ever. None
    /// likewise, and where there are no such bridges.
    fn map_window(&mut self, _address: u64, _len: usize) -> Option<Window> {
        None
    }

    /// An interrupt that wakes the core which will own the device, or None if there is none left.
    fn allocate_interrupt(&mut self) -> Option<Interrupt>;

    /// The same for a device that has only a line, the one of this number at the interrupt controller.
    #[cfg(feature = "uhyve")]
    fn route_line(&mut self, _line: u8) -> Option<Interrupt> {
        None
    }

    /// All DMA memory.
    fn arena(&mut self) -> &mut Arena;
}
