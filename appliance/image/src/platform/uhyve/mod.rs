//! uhyve's machine: hypercalls for console, power and the configuration document; at most a network device.

mod hypercalls;
pub mod power;
pub mod uart;

use super::apic::{Apic, PAGE};
use super::{ConfigSpace, Devices, NOT_READ, Pc};
use appliance::config::OnPanic;
use appliance::gateway::FromVmm;
use appliance::machine::Watchdog;
use boot::BootInfo;
use boot::acpi::Tables;
use drivers::driver::{Class, Slot};
use drivers::inventory::Inventory;
use hypercalls::{CONFIG_FILE, Ports, with_console_memory};
use x86_64::registers::model_specific::Msr;

/// ID of the running core's APIC, read from the APIC itself: under uhyve CPUID reports the APIC ID of a host core.
pub fn apic_id(apic: Apic) -> u32 {
    const ID: u32 = 2;
    match apic {
        // SAFETY: a register of the local APIC, which every core has; reading it has no effect.
        Apic::Msr => unsafe { Msr::new(0x800 + ID).read() as u32 },
        // SAFETY: as above; the page is mapped for ever.
        Apic::Memory => unsafe {
            ((PAGE + ((ID as usize) << 4)) as *const u32).read_volatile() >> 24
        },
    }
}

/// None: uhyve has a PCI bus.
pub fn virtio_slots(_: Option<&Tables>, _: &str) -> Vec<Slot> {
    Vec::new()
}

/// Scans for a network device. There is no watchdog.
pub fn find_devices(
    pci: ConfigSpace,
    _: &[Slot],
    inventory: &mut Inventory,
    _: &mut Devices,
) -> Option<Box<dyn Watchdog>> {
    let pci = &*Box::leak(Box::new(pci));
    pci.roots().for_each(|(segment, roots)| inventory.scan_segment(segment, roots, pci));
    // If there is no network device, reads from its address return the last value written to any port.
    inventory.unclaimed.retain(|one| one.id.0 != 0);
    if !inventory.has(Class::Port) {
        log::error!("uhyve runs without a network device: start it with --net tap:NAME");
    }
    None
}

/// The console is uhyve's output.
pub fn with_console(machine: Pc, _: &mut Inventory, _: &mut Devices) -> Pc {
    machine
}

/// uhyve's configuration document.
pub fn documents(_: &BootInfo) -> FromVmm {
    let read = with_console_memory(|uhyve| {
        uhyve.read_file(&mut Ports, CONFIG_FILE).unwrap_or_else(|error| {
            log::error!("{CONFIG_FILE}: {error}");
            Some(NOT_READ.into())
        })
    });
    FromVmm { fw_cfg: read, ..FromVmm::default() }
}

/// Does nothing: uhyve learns of a panic by the exit code.
pub fn notify_of_panic(_: OnPanic) {}
