//! Turns off IOMMUs that firmware has left enabled, because nothing here programs them.

use super::{Clock, paging};
use boot::MemoryMap;
use boot::acpi::Tables;
use drivers::hal::Arena;
use drivers::iommu::{self, LEN, Maker, Outcome};

/// Turns off all IOMMUs that ACPI lists, and logs each outcome.
pub fn turn_off(acpi: Option<&Tables>, memory: &MemoryMap, clock: &Clock, arena: &mut Arena) {
    for unit in acpi.into_iter().flat_map(Tables::iommus) {
        let address = unit.address;
        let end = address.saturating_add(LEN as u64);
        let in_memory = |r: &boot::Region| r.kind.is_memory() && r.start < end && r.end > address;
        if memory.regions().iter().any(in_memory) {
            log::error!(
                "IOMMU at {address:#x}: ACPI places its registers inside RAM: left unchanged"
            );
            continue;
        }
        // SAFETY: ACPI says that an IOMMU lies there. No memory lies there (checked), and nothing else uses it.
        let registers = unsafe { paging::map_registers(address, LEN, arena) };
        let Some(registers) = registers else { continue };
        let maker = if unit.amd { Maker::Amd } else { Maker::Intel };
        match iommu::turn_off(maker, &registers, clock) {
            Outcome::WasOff => {}
            Outcome::IsOff => {
                log::info!("IOMMU at {address:#x}: firmware left it enabled: disabled now");
            }
            Outcome::StaysOn => log::error!(
                "IOMMU at {address:#x}: still enabled after the disable write: devices may be unable to reach memory or \
                 raise interrupts: disable it in the firmware setup"
            ),
        }
    }
}
