//! Finds the virtio-mmio devices of a machine without PCI (QEMU's microvm): from ACPI, else from the kernel command
//! line in Linux's syntax (`virtio_mmio.device=512@0xfeb00e00:12`, which QEMU appends).

use crate::platform::io_apic;
use boot::acpi::Tables;
use drivers::driver::Slot;

/// All slots, with interrupts routed to this core.
pub fn find(acpi: Option<&Tables>, command_line: &str) -> Vec<Slot> {
    let mut places: Vec<(u64, u32)> = acpi.into_iter().flat_map(Tables::virtio_mmio).collect();
    if places.is_empty() {
        let words = command_line.split_ascii_whitespace();
        places.extend(words.filter_map(|word| parse(word.strip_prefix("virtio_mmio.device=")?)));
    }
    let slot = |(address, line)| Slot { address, wakes: io_apic::route(line, acpi).is_some() };
    places.into_iter().map(slot).collect()
}

/// Parses address and interrupt line from `512@0xfeb00e00:12`.
fn parse(device: &str) -> Option<(u64, u32)> {
    let (_size, place) = device.split_once('@')?;
    let mut parts = place.split(':');
    let address = u64::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((address, parts.next()?.parse().ok()?))
}
