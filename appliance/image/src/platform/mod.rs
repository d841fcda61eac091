//! The machine under the appliance: Hermit, and PC hardware. Everything unsafe of the image is here.

mod apic;
mod clock;
pub mod cores;
mod entropy;
mod exceptions;
mod idt;
mod image;
mod interrupts;
mod io_apic;
mod machine;
mod paging;
mod pci;
mod ports;
pub mod power;
mod provoke;
mod timer;
pub mod uart;
mod virtio_slots;

pub use clock::Clock;
pub use entropy::from_cpu as entropy_from_cpu;
pub use machine::Pc;
pub use paging::Protection;
pub use pci::ConfigSpace;
pub use ports::Ports;
pub use provoke::fault as provoke_fault;

use crate::memory;
use apic::Apic;
use boot::acpi::Tables;
use boot::{BootInfo, Kind};
use core::ptr::NonNull;
use drivers::hal::{Arena, Interrupt, Platform, Registers, Window};
use drivers::virtio::Slot;
use std::time::{SystemTime, UNIX_EPOCH};
use timer::Timer;
use uart::Uart;

/// The machine, brought up.
#[derive(Debug)]
pub struct Bringup {
    /// What the loop needs.
    pub machine: Pc,
    /// What drivers need.
    pub devices: Devices,
    /// PCI configuration space.
    pub pci: ConfigSpace,
    /// Where a machine without PCI has its virtio devices.
    pub virtio_slots: Vec<Slot>,
    /// The other cores, in order.
    pub spare: Vec<cores::Spare>,
    /// How memory is protected.
    pub protection: Protection,
}

/// Brings the machine up: from what the stub and the kernel left to what the appliance needs.
/// From here on interrupts are off. The error says what the machine lacks.
pub fn bring_up(boot: &'static BootInfo) -> Result<Bringup, String> {
    x86_64::instructions::interrupts::disable();
    memory::detect();
    let uart = Uart::take();
    std::panic::set_hook(Box::new(report_panic));
    exceptions::take();
    let apic = Apic::detect();
    interrupts::take(apic);

    // The kernel read the real-time clock once; from here on our own clock counts on.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let clock = Clock::start(boot.tsc_khz);
    let timer = Timer::new(apic, clock, boot.apic_timer_khz);

    let mut devices = Devices { arena: arena(boot) };
    let image = image::segments();
    let unmapped = [boot.stack_guard];
    paging::tighten(&image, &unmapped, &mut devices.arena)
        .ok_or("no memory for page tables: give the machine more")?;
    let protection = paging::check(&image, &unmapped)?;
    if !paging::stack_is_guarded() {
        return Err("the stack has no guard page".into());
    }
    let ids = cores::check(&clock)?;
    let spare =
        ids.into_iter().zip(1..).map(|(id, core)| cores::Spare { core, id, apic, clock, timer });
    let spare = spare.collect();

    // SAFETY: memory below 4 GiB is mapped one to one (page 0 apart, where no table lies); firmware
    // does not write its tables any more.
    let acpi = unsafe { Tables::new(boot.rsdp) };
    let pci = ConfigSpace::detect(acpi.as_ref(), |address, len| {
        paging::map_registers(address, len, &mut devices.arena)
    });
    let virtio_slots = virtio_slots::find(acpi.as_ref(), boot.command_line());
    timer.start();
    let machine = Pc { clock, timer, apic, uart, acpi, started };
    Ok(Bringup { machine, devices, pci, virtio_slots, spare, protection })
}

/// All DMA memory, which the stub kept from the kernel.
fn arena(boot: &BootInfo) -> Arena {
    let start = NonNull::new(boot.arena.start as *mut u8).unwrap_or(NonNull::dangling());
    // SAFETY: the stub mapped it one to one, and nobody else knows of it; this is called once.
    Arena::new(unsafe { Window::from_raw(start, boot.arena.start, boot.arena.len() as usize) })
}

/// Bytes of memory that the machine has, the arena included.
pub fn total_memory(boot: &BootInfo) -> u64 {
    let ours = |kind| [Kind::RAM, Kind::KEPT, Kind::UNUSED].contains(&kind);
    boot.memory.regions().iter().filter(|r| ours(r.kind)).map(|r| r.len()).sum()
}

/// What drivers ask for at set-up.
#[derive(Debug)]
pub struct Devices {
    arena: Arena,
}

impl Platform for Devices {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        let registers = paging::map_registers(address, len, &mut self.arena)?;
        Some(Box::new(registers))
    }

    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window> {
        paging::map_memory(address, len, &mut self.arena)
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        interrupts::allocate(apic::id())
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

/// Last words of a panic, without the heap.
fn report_panic(info: &std::panic::PanicHookInfo) {
    use core::fmt::Write;
    // Printing cannot fail.
    let _ = writeln!(uart::Printer, "\nisthmus: {info}");
    power::off(power::PANIC)
}
