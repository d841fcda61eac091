//! The drivers' platform for one PCI function of the host, in a Linux process: registers, configuration space and DMA
//! memory through VFIO (Linux Documentation/driver-api/vfio.rst).
//!
//! The IOMMU maps the arena for the function, and nothing else. There are no interrupts; drivers poll, as in the
//! appliance under load.

mod registers;

use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::time;

use anyhow::{Context, Result};
use drivers::driver::Device;
use drivers::hal::{
    Arena, Clock, ConfigRegionAccess, Instant, Interrupt, PciAddress, Platform, Registers, Window,
};
use drivers::inventory;
use drivers::pci::Function;
use pci_driver::backends::vfio::VfioPciDevice;
use pci_driver::device::PciDevice;
use pci_driver::regions::{PciRegion, Permissions};

/// Bytes of DMA memory.
const MEMORY: usize = 32 << 20;
/// I/O virtual address of the DMA memory if the IOMMU allows it; else the first address that the IOMMU allows.
const PLACE: u64 = 0x1000_0000;
/// First bus address for BARs without one.
const UNPLACED: u32 = 0xe000_0000;
/// BARs of a function.
const BARS: usize = 6;
/// Bytes of configuration space, extended and not.
const EXTENDED: u16 = 4096;
const PLAIN: u16 = 256;

/// The platform of one function.
pub struct Machine {
    function: &'static VfioPciDevice,
    address: PciAddress,
    bars: Vec<Bar>,
    arena: Arena,
}

/// A region of registers.
struct Bar {
    /// Bus address.
    address: u64,
    registers: registers::Region,
}

impl Machine {
    /// Opens the function whose directory in sysfs is `directory`, and resets it if it supports that. The function must
    /// be bound to vfio-pci.
    pub fn open(address: PciAddress, directory: &Path) -> Result<Machine> {
        let function = VfioPciDevice::open(directory).with_context(|| {
            "VFIO could not open the device: check that vfio_iommu_type1 is loaded. If dmesg reports no interrupt \
             remapping, the host is not protected from the device"
        })?;
        // Leaked, because drivers hold registers as long as the process lives.
        let function: &'static VfioPciDevice = Box::leak(Box::new(function));
        // Not every function supports a reset. The drivers reset the others.
        let _ = function.reset();
        let arena = memory(function).context("VFIO could not map memory for the device")?;
        let mut machine = Machine { function, address, bars: Vec::new(), arena };
        let mut next = UNPLACED;
        for index in 0..BARS {
            let Some(region) = function.bar(index) else { continue };
            let at = 0x10 + 4 * index as u64;
            let low = machine.function.config().read_le_u32(at)?;
            if low & 1 != 0 {
                continue; // I/O ports
            }
            let wide = low & 6 == 4;
            let high = if wide { machine.function.config().read_le_u32(at + 4)? } else { 0 };
            let mut address = u64::from(high) << 32 | u64::from(low & !0xf);
            if address == 0 {
                // The physical function defines the BARs of a virtual function. The addresses that VFIO shows for them
                // are the process's choice (`vfio_bar_fixup` in Linux's vfio_pci_config.c).
                address = u64::from(next).next_multiple_of(region.len());
                let low = u32::try_from(address)
                    .context("the registers of the device do not fit below 4 GiB")?;
                next = low
                    .checked_add(region.len() as u32)
                    .context("the registers of the device do not fit below 4 GiB")?;
                machine.function.config().write_le_u32(at, low)?;
            }
            machine.bars.push(Bar { address, registers: registers::Region::new(region) });
        }
        Ok(machine)
    }

    /// The device, if there is a driver for it.
    pub fn device(&self) -> Option<Device> {
        let access: &'static Access =
            Box::leak(Box::new(Access { function: self.function, address: self.address }));
        Function::new(self.address, access).and_then(inventory::device)
    }

    /// Its configuration space: 4096 bytes, or 256 where it has no more.
    pub fn config(&self) -> Vec<u8> {
        let config = self.function.config();
        let end = if config.read_le_u32(u64::from(PLAIN)).is_ok() { EXTENDED } else { PLAIN };
        let words = (0..end).step_by(4).map(|at| config.read_le_u32(at.into()).unwrap_or(u32::MAX));
        words.flat_map(u32::to_le_bytes).collect()
    }

    /// Its memory regions: bus address, size, and whether they are mapped here.
    pub fn regions(&self) -> Vec<(u64, u64, bool)> {
        let region = |bar: &Bar| (bar.address, bar.registers.len(), bar.registers.is_mapped());
        self.bars.iter().map(region).collect()
    }

    /// The process's clock.
    pub fn clock() -> impl Clock {
        ProcessClock(time::Instant::now())
    }
}

/// DMA memory, which the IOMMU maps for this function only.
fn memory(function: &VfioPciDevice) -> io::Result<Arena> {
    let iommu = function.iommu();
    let align = iommu.alignment().max(4096);
    let size = MEMORY as u64;
    // VFIO's ranges end with their last byte.
    let fits =
        |range: &std::ops::Range<u64>, at: u64| range.start <= at && at + size - 1 <= range.end;
    let ranges = iommu.valid_iova_ranges();
    let place = ranges.iter().any(|range| fits(range, PLACE)).then_some(PLACE).or_else(|| {
        let first = |range: &std::ops::Range<u64>| range.start.next_multiple_of(align as u64);
        ranges.iter().find(|range| fits(range, first(range))).map(first)
    });
    let place =
        place.ok_or_else(|| io::Error::other("the IOMMU has no free address range of 32 MiB"))?;
    // Page-aligned and leaked: the holder of a window may use it as long as the process lives.
    let whole = vec![0u64; (MEMORY + align) / 8].leak();
    let skipped = whole.as_ptr().addr().wrapping_neg() % align;
    let start = NonNull::from(&mut whole[skipped / 8..]).cast::<u8>();
    // SAFETY: the memory is leaked, so it outlives the mapping, and this process accesses it by copies of a window
    // only.
    unsafe { iommu.map(place, MEMORY, start.as_ptr(), Permissions::ReadWrite) }?;
    // SAFETY: the memory is leaked, so it stays mapped, and the only reference to it was just given up.
    Ok(Arena::new(unsafe { Window::from_raw(start, place, MEMORY) }))
}

// SAFETY: the IOMMU confines the function to the arena, and only our drivers use them. Only the function's BARs, which
// VFIO maps, are mapped as registers.
unsafe impl Platform for Machine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        let bar = self.bars.iter().find_map(|bar| {
            let offset = address.checked_sub(bar.address)?;
            let end = offset.checked_add(len as u64)?;
            (end <= bar.registers.len()).then_some((bar, offset))
        });
        let (bar, offset) = bar?;
        bar.registers.part(offset, len)
    }

    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        None
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

struct ProcessClock(time::Instant);

impl Clock for ProcessClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

/// Configuration space of the one function. VFIO passes harmless accesses through and emulates the others.
struct Access {
    function: &'static VfioPciDevice,
    address: PciAddress,
}

impl ConfigRegionAccess for Access {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        if address != self.address {
            return u32::MAX;
        }
        self.function.config().read_le_u32(offset.into()).unwrap_or(u32::MAX)
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        if address == self.address {
            // A register keeps its value if VFIO refuses the write; the driver sees that when it reads back.
            let _ = self.function.config().write_le_u32(offset.into(), value);
        }
    }
}
