//! PCI configuration space: memory-mapped (PCI Express, by the ACPI MCFG table), else by ports.

use boot::acpi::Tables;
use drivers::hal::{ConfigRegionAccess, Mmio, PciAddress, Registers};
use std::sync::Mutex;
use x86_64::instructions::port::Port;

/// Configuration space of segment 0.
#[derive(Debug)]
pub enum ConfigSpace {
    /// By the ports 0xcf8 and 0xcfc, which take two steps and so a lock.
    Ports(Mutex<()>),
    /// In memory.
    Memory {
        /// Configuration space from `first_bus` on.
        registers: Mmio,
        /// The bus at the start of it.
        first_bus: u8,
        /// The last bus in it.
        last_bus: u8,
    },
}

/// Bytes of a bus in memory.
const BUS: usize = 1 << 20;

impl ConfigSpace {
    /// What the machine has. `map` maps registers.
    pub fn detect(acpi: Option<&Tables>, map: impl FnOnce(u64, usize) -> Option<Mmio>) -> Self {
        let ecam = acpi.and_then(Tables::ecam).filter(|(_, first, last)| first <= last);
        let memory = ecam.and_then(|(address, first_bus, last_bus)| {
            let skip = u64::from(first_bus) << 20;
            let buses = usize::from(last_bus - first_bus) + 1;
            let registers = map(address.checked_add(skip)?, buses * BUS)?;
            Some(ConfigSpace::Memory { registers, first_bus, last_bus })
        });
        memory.unwrap_or(ConfigSpace::Ports(Mutex::new(())))
    }

    /// Whether there is a PCI bus at all: microvm has none.
    #[cfg(not(feature = "uhyve"))]
    pub fn has_host_bridge(&self) -> bool {
        // SAFETY: reading an identity has no effect.
        unsafe { self.read(PciAddress::new(0, 0, 0, 0), 0) != u32::MAX }
    }

    /// Where a register lies from the start of `registers`; out of range if it is not there.
    fn offset(address: PciAddress, offset: u16, first_bus: u8, last_bus: u8) -> usize {
        let bus = address.bus();
        if address.segment() != 0 || !(first_bus..=last_bus).contains(&bus) {
            return usize::MAX;
        }
        usize::from(bus - first_bus) * BUS
            + (usize::from(address.device()) << 15)
            + (usize::from(address.function()) << 12)
            + usize::from(offset)
    }
}

impl ConfigRegionAccess for ConfigSpace {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        match self {
            ConfigSpace::Memory { registers, first_bus, last_bus } => {
                registers.read32(Self::offset(address, offset, *first_bus, *last_bus))
            }
            ConfigSpace::Ports(lock) => match select(address, offset) {
                // SAFETY: the ports of the host bridge; reading configuration space has no effect.
                Some(select) => unsafe {
                    let _held = lock.lock().unwrap_or_else(|broken| broken.into_inner());
                    Port::new(0xcf8).write(select);
                    Port::new(0xcfc).read()
                },
                None => u32::MAX,
            },
        }
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        match self {
            ConfigSpace::Memory { registers, first_bus, last_bus } => {
                registers.write32(Self::offset(address, offset, *first_bus, *last_bus), value);
            }
            ConfigSpace::Ports(lock) => {
                let Some(select) = select(address, offset) else { return };
                // SAFETY: the ports of the host bridge; the caller promised that the write is good.
                unsafe {
                    let _held = lock.lock().unwrap_or_else(|broken| broken.into_inner());
                    Port::new(0xcf8).write(select);
                    Port::new(0xcfc).write(value);
                }
            }
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
