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
    /// What of it lies in memory.
    memory: Vec<Ecam<Mmio>>,
    /// For what does not: the ports 0xcf8 and 0xcfc, which take two steps and so a lock.
    ports: Mutex<()>,
    /// Where segments begin, 0 apart: its number, and its buses in memory.
    others: Vec<(u16, RangeInclusive<u8>)>,
    /// The buses of segment 0 on which no bridge of another need lead.
    roots: RangeInclusive<u8>,
}

impl ConfigSpace {
    /// What the machine has. `map` maps registers.
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
        // To look at all buses takes a virtual machine longer than all else of its boot.
        let all = acpi.is_some_and(Tables::has_several_host_bridges);
        let roots = 0..=if all { u8::MAX } else { 0 };
        ConfigSpace { memory, ports: Mutex::new(()), others, roots }
    }

    /// Segments, and the buses on which functions are to be looked for that no bridge leads to.
    pub fn roots(&self) -> impl Iterator<Item = (u16, RangeInclusive<u8>)> {
        [(0, self.roots.clone())].into_iter().chain(self.others.iter().cloned())
    }

    /// Whether there is a PCI bus at all: microvm has none.
    #[cfg(not(feature = "uhyve"))]
    pub fn has_host_bridge(&self) -> bool {
        // SAFETY: reading an identity has no effect.
        unsafe { self.read(PciAddress::new(0, 0, 0, 0), 0) != u32::MAX }
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
        // SAFETY: the ports of the host bridge; the caller promised that the write is good.
        unsafe {
            let _held = self.ports.lock().unwrap_or_else(|broken| broken.into_inner());
            Port::new(0xcf8).write(select);
            Port::new(0xcfc).write(value);
        }
    }
}

/// What selects a register by ports, which reach only the first 256 bytes of segment 0.
fn select(address: PciAddress, offset: u16) -> Option<u32> {
    const ENABLE: u32 = 1 << 31;
    let function = u32::from(address.device()) << 11 | u32::from(address.function()) << 8;
    let reachable = address.segment() == 0 && offset < 256;
    reachable.then(|| ENABLE | u32::from(address.bus()) << 16 | function | u32::from(offset & 0xfc))
}
