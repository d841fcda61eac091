//! Registers of a BAR: mapped if VFIO can map the BAR, else accessed through VFIO's file.

use std::ptr::NonNull;
use std::sync::Arc;

use drivers::hal::{Mmio, Registers};
use pci_driver::regions::{MappedOwningPciRegion, OwningPciRegion, PciRegion, Permissions};

/// A BAR.
pub(crate) enum Region {
    /// Mapped as long as the process lives.
    Mapped(&'static MappedOwningPciRegion),
    /// Accessed by reads and writes of the file.
    File(Arc<OwningPciRegion>),
}

impl Region {
    pub(crate) fn new(region: OwningPciRegion) -> Region {
        match region.map(.., Permissions::ReadWrite) {
            Ok(mapped) => Region::Mapped(Box::leak(Box::new(mapped))),
            Err(_) => Region::File(Arc::new(region)),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Region::Mapped(region) => region.len(),
            Region::File(region) => region.len(),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self, Region::Mapped(_))
    }

    /// The registers of `len` bytes from `offset` on, which must lie inside the BAR.
    pub(crate) fn part(&self, offset: u64, len: usize) -> Option<Box<dyn Registers>> {
        match self {
            Region::Mapped(region) => {
                let start = region.as_mut_ptr()?.wrapping_add(usize::try_from(offset).ok()?);
                // SAFETY: VFIO maps the BAR uncached, and the mapping is leaked, so it stays; the part lies inside; no
                // Rust object lies there.
                Some(Box::new(unsafe { Mmio::new(NonNull::new(start)?, len) }))
            }
            Region::File(region) => Some(Box::new(Part { region: region.clone(), offset, len })),
        }
    }
}

/// A part of a BAR that is not mapped.
struct Part {
    region: Arc<OwningPciRegion>,
    offset: u64,
    len: usize,
}

impl Part {
    /// The offset in the BAR of `size` bytes at `offset`, if they are inside the part and aligned.
    fn at(&self, offset: usize, size: usize) -> Option<u64> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        (inside && offset.is_multiple_of(size)).then_some(self.offset + offset as u64)
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $t:ty, $load:ident, $store:ident) => {
        fn $read(&self, offset: usize) -> $t {
            let at = self.at(offset, size_of::<$t>());
            at.and_then(|at| self.region.$load(at).ok()).unwrap_or(<$t>::MAX)
        }

        fn $write(&self, offset: usize, value: $t) {
            if let Some(at) = self.at(offset, size_of::<$t>()) {
                // A write that VFIO refuses is lost, as on PCI.
                let _ = self.region.$store(at, value);
            }
        }
    };
}

impl Registers for Part {
    fn len(&self) -> usize {
        self.len
    }
    access!(read8, write8, u8, read_u8, write_u8);
    access!(read16, write16, u16, read_le_u16, write_le_u16);
    access!(read32, write32, u32, read_le_u32, write_le_u32);

    // In halves, the lower first, as Linux's lo_hi_readq.
    fn read64(&self, offset: usize) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset.wrapping_add(4))) << 32
    }

    fn write64(&self, offset: usize, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset.wrapping_add(4), (value >> 32) as u32);
    }
}
