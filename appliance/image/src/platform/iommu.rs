//! IOMMUs: nothing here programs them, so those that firmware has left on are turned off.

use super::{Clock, paging};
use boot::MemoryMap;
use boot::acpi::Tables;
use drivers::hal::Arena;
use drivers::iommu::{self, LEN, Maker, Outcome};

/// Turns them off, and says so.
pub fn turn_off(acpi: Option<&Tables>, memory: &MemoryMap, clock: &Clock, arena: &mut Arena) {
    for unit in acpi.into_iter().flat_map(Tables::iommus) {
        let address = unit.address;
        let end = address.saturating_add(LEN as u64);
        let in_memory = |r: &boot::Region| r.kind.is_memory() && r.start < end && r.end > address;
        if memory.regions().iter().any(in_memory) {
            log::error!(
                "IOMMU at {address:#x}: firmware says that it is where memory is; left as it is"
            );
            continue;
        }
        // SAFETY: ACPI says that an IOMMU lies there, which nobody else uses, and no memory does.
        let registers = unsafe { paging::map_registers(address, LEN, arena) };
        let Some(registers) = registers else { continue };
        let maker = if unit.amd { Maker::Amd } else { Maker::Intel };
        match iommu::turn_off(maker, &registers, clock) {
            Outcome::WasOff => {}
            Outcome::IsOff => {
                log::info!("IOMMU at {address:#x}: firmware had left it on; it is off now");
            }
            Outcome::StaysOn => log::error!(
                "IOMMU at {address:#x}: firmware had left it on, and it does not go off: devices may not reach memory, or \
                 raise interrupts; turn it off in the firmware's setup"
            ),
        }
    }
}
