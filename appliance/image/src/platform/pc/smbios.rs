//! The OEM strings that the VMM passes in SMBIOS tables.

use appliance::config::OemStrings;
use boot::BootInfo;
use boot::acpi::memory;
use drivers::smbios;

/// Reads the strings that are for the appliance. None if there are none, or no tables.
pub fn read(boot: &BootInfo) -> Option<OemStrings> {
    let table = match boot.smbios() {
        // SAFETY: memory below 4 GiB is mapped one to one, and firmware no longer writes its tables.
        Some(address) => unsafe { memory(address, smbios::ENTRY) }.and_then(smbios::entry_point),
        None => {
            let len = (smbios::SEGMENT.end - smbios::SEGMENT.start) as usize;
            // SAFETY: as above.
            unsafe { memory(smbios::SEGMENT.start, len) }.and_then(smbios::search)
        }
    }?;
    let len = table.len.min(smbios::MOST_BYTES);
    // SAFETY: as above.
    let Some(bytes) = (unsafe { memory(table.address, len) }) else {
        log::warn!(
            "SMBIOS: the firmware's tables at {:#x} are above 4 GiB: its OEM strings are not read",
            table.address
        );
        return None;
    };
    OemStrings::of(smbios::OemStrings::of(bytes))
}
