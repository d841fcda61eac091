//! PCI configuration space: memory-mapped (PCI Express, by the ACPI MCFG table), else by ports.

use boot::acpi::Tables;
use core::ops::RangeInclusive;
use drivers::hal::{ConfigRegionAccess, Mmio, PciAddress};
use drivers::pci::Ecam;
use std::sync::Mutex;
use x86_64::instructions::port::Port;

/// Configuration space of all segments.
#[derive(Debug)]
pub struct ConfigSpace {
    /// The memory-mapped part.
    memory: Vec<Ecam<Mmio>>,
    /// Lock of the ports 0xcf8 and 0xcfc, for the other part: an access takes two steps.
    ports: Mutex<()>,
    /// Segments other than 0: number, and memory-mapped buses.
    others: Vec<(u16, RangeInclusive<u8>)>,
    /// Buses of segment 0 that may be root buses.
    roots: RangeInclusive<u8>,
}

impl ConfigSpace {
    /// Detects the machine's configuration space. `map` maps registers.
    pub fn detect(acpi: Option<&Tables>, mut map: impl FnMut(u64, usize) -> Option<Mmio>) -> Self {
        let (mut memory, mut others) = (Vec::new(), Vec::new());
        for ecam in acpi.into_iter().flat_map(Tables::ecams) {
            let first = u64::from(ecam.first_bus) << 20;
            let len = (usize::from(ecam.last_bus - ecam.first_bus) + 1) * Ecam::<Mmio>::BUS;
            let Some(registers) = ecam.address.checked_add(first).and_then(|at| map(at, len))
            else {
                continue;
            };
            memory.push(Ecam::new(registers, ecam.segment, ecam.first_bus));
            if ecam.segment != 0 {
                others.push((ecam.segment, ecam.first_bus..=ecam.last_bus));
            }
        }
        // In a virtual machine a scan of all buses takes longer than the rest of the boot.
        let all = acpi.is_some_and(Tables::has_several_host_bridges);
        let roots = 0..=if all { u8::MAX } else { 0 };
        ConfigSpace { memory, ports: Mutex::new(()), others, roots }
    }

    /// Segments, and their buses to scan for functions that are not behind a bridge.
    pub fn roots(&self) -> impl Iterator<Item = (u16, RangeInclusive<u8>)> {
        [(0, self.roots.clone())].into_iter().chain(self.others.iter().cloned())
    }
}

impl ConfigRegionAccess for ConfigSpace {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        if let Some(value) = self.memory.iter().find_map(|ecam| ecam.read(address, offset)) {
            return value;
        }
        match select(address, offset) {
            // SAFETY: the ports of the host bridge; reading configuration space has no effect.
            Some(select) => unsafe {
                let _held = self.ports.lock().unwrap_or_else(|broken| broken.into_inner());
                Port::new(0xcf8).write(select);
                Port::new(0xcfc).read()
            },
            None => u32::MAX,
        }
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        if self.memory.iter().any(|ecam| ecam.write(address, offset, value)) {
            return;
        }
        let Some(select) = select(address, offset) else { return };
        // SAFETY: the ports of the host bridge. The caller promises that the write is safe.
        unsafe {
            let _held = self.ports.lock().unwrap_or_else(|broken| broken.into_inner());
            Port::new(0xcf8).write(select);
            Port::new(0xcfc).write(value);
        }
    }
}

/// Address for port 0xcf8 that selects a register. Ports reach only segment 0, and the first 256 bytes of a function.
fn select(address: PciAddress, offset: u16) -> Option<u32> {
    const ENABLE: u32 = 1 << 31;
    let function = u32::from(address.device()) << 11 | u32::from(address.function()) << 8;
    let reachable = address.segment() == 0 && offset < 256;
    reachable.then(|| ENABLE | u32::from(address.bus()) << 16 | function | u32::from(offset & 0xfc))
}
