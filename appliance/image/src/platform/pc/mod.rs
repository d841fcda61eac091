//! A PC, or a hypervisor's model of one: console, power, watchdog, devices, documents of the host.

mod ports;
pub mod power;
mod pvpanic;
mod smbios;
pub mod uart;
mod virtio_slots;
mod watchdog;

pub use pvpanic::notify as notify_of_panic;
pub use virtio_slots::find as virtio_slots;

use super::apic::Apic;
use super::{ConfigSpace, Devices, NOT_READ, Pc};
use appliance::gateway::FromVmm;
use appliance::machine::Watchdog;
use boot::BootInfo;
use drivers::driver::{Class, Slot};
use drivers::fw_cfg;
use drivers::hal::{ConfigRegionAccess, PciAddress};
use drivers::inventory::Inventory;
use ports::Ports;
use x86_64::registers::model_specific::Msr;

/// fw_cfg file with the host's configuration document.
const CONFIG_FILE: &str = "opt/isthmus/config";
/// fw_cfg file that names the config disk: `serial:…`, `pci:…`.
const CONFIG_DISK_FILE: &str = "opt/isthmus/config-disk";
/// fw_cfg file that names the seed disk.
const SEED_FILE: &str = "opt/isthmus/seed";
/// QEMU's fw_cfg file with the I/O port of its pvpanic device, 16 bits.
const PVPANIC_FILE: &str = "etc/pvpanic-port";
/// Default port of the console.
const COM1: u16 = 0x3f8;

/// ID of the running core's APIC.
pub fn apic_id(apic: Apic) -> u32 {
    const ID: u32 = 0x802;
    match apic {
        // SAFETY: in this mode the APIC's registers are MSRs. Only this register has all 32 bits of the ID.
        Apic::Msr => unsafe { Msr::new(ID).read() as u32 },
        Apic::Memory => core::arch::x86_64::__cpuid(1).ebx >> 24,
    }
}

/// Scans for devices, and finds the watchdog.
pub fn find_devices(
    pci: ConfigSpace,
    virtio_slots: &[Slot],
    inventory: &mut Inventory,
    devices: &mut Devices,
) -> Option<Box<dyn Watchdog>> {
    if !has_host_bridge(&pci) {
        inventory.scan_virtio_mmio(virtio_slots, devices);
        return None;
    }
    let pci = &*Box::leak(Box::new(pci));
    pci.roots().for_each(|(segment, roots)| inventory.scan_segment(segment, roots, pci));
    watchdog::find(pci, devices)
}

/// Whether there is a PCI bus at all: microvm has none.
fn has_host_bridge(pci: &ConfigSpace) -> bool {
    // SAFETY: reading an identity has no effect.
    unsafe { pci.read(PciAddress::new(0, 0, 0, 0), 0) != u32::MAX }
}

/// Selects the console: the serial port, else virtio-console.
pub fn with_console(mut machine: Pc, inventory: &mut Inventory, devices: &mut Devices) -> Pc {
    match machine.uart.base() {
        Some(COM1) => return machine,
        Some(port) => {
            log::info!("console: the serial port at {port:#x}");
            return machine;
        }
        None => {}
    }
    for device in inventory.take(Class::Console) {
        let location = device.location();
        match device.open_console(devices) {
            Ok(console) => {
                log::info!("console: {location}");
                machine.console = Some(console);
                return machine;
            }
            Err(why) => log::error!("console: {location}: {why}"),
        }
    }
    log::warn!(
        "console: no serial port and no virtio-console: configure the appliance over the network"
    );
    machine
}

/// QEMU's configuration document, the names of config disk and seed disk, and strings in SMBIOS.
pub fn documents(boot: &BootInfo) -> FromVmm {
    let fw_cfg = fw_cfg::read_file(&mut Ports, CONFIG_FILE).unwrap_or_else(|error| {
        log::error!("fw_cfg: {error}");
        Some(NOT_READ.into())
    });
    let name_in = |file| {
        let name = fw_cfg::read_file(&mut Ports, file).unwrap_or_else(|error| {
            log::error!("fw_cfg: {file}: {error}");
            // The name is unknown. This value acts as the name of a disk that is missing.
            Some(NOT_READ.into())
        });
        name.map(|name| String::from_utf8_lossy(&name).trim().to_string())
    };
    let (config_disk, seed) = (name_in(CONFIG_DISK_FILE), name_in(SEED_FILE));
    let pvpanic = fw_cfg::read_file(&mut Ports, PVPANIC_FILE).unwrap_or(None);
    if let Some(&[low, high]) = pvpanic.as_deref().and_then(|port| port.first_chunk()) {
        pvpanic::set_port(u16::from_le_bytes([low, high]));
    }
    FromVmm { fw_cfg, config_disk, seed, smbios: smbios::read(boot) }
}
