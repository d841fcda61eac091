//! The platform of the appliance: Hermit, and PC hardware. All unsafe code of the image is here.

mod apic;
mod backtrace;
mod clock;
pub mod cores;
mod entropy;
mod exceptions;
#[cfg(feature = "faults")]
pub mod fault_injection;
// The only condition on uhyve: everything else calls functions of `board`.
#[cfg_attr(not(feature = "uhyve"), path = "pc/mod.rs")]
#[cfg_attr(feature = "uhyve", path = "uhyve/mod.rs")]
pub mod board;
mod idt;
mod image;
mod interrupts;
mod io_apic;
mod iommu;
pub mod last_act;
pub mod last_words;
mod machine;
mod paging;
mod pci;
pub mod power;
mod printer;
mod screen;
mod timer;

pub use board::uart;
pub use clock::{Clock, tsc};
pub use entropy::from_cpu as entropy_from_cpu;
pub use machine::Pc;
pub use paging::Protection;
pub use pci::ConfigSpace;

use apic::Apic;
use appliance::crash::{RECORD_LEN, Record};
use appliance::log_ring::LogRing;
use boot::acpi::Tables;
use boot::{BootInfo, Kind, MemoryMap};
use core::ptr::NonNull;
use drivers::driver::Slot;
use drivers::hal::{Arena, Claim, Claims, Interrupt, Mmio, Platform, Registers, Window};
use std::time::{SystemTime, UNIX_EPOCH};
use timer::Timer;
use uart::Uart;

/// The commit, padded with zeroes to 16 bytes, and its time in seconds since 1970, little-endian. `./isthmus build`
/// writes it after linking, so a commit that does not change the image compiles nothing.
#[used]
#[unsafe(link_section = ".isthmus.commit")]
static COMMIT: [u8; 24] = *b"unknown\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The commit of this build, with a `+` if the tree had uncommitted changes.
pub fn commit() -> &'static str {
    // Hide the initial value from the compiler.
    let bytes: &'static [u8] = core::hint::black_box(&COMMIT);
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    core::str::from_utf8(text).unwrap_or("unknown")
}

/// Time of the commit of this build, in seconds since 1970; 0 if unknown.
pub fn committed() -> u64 {
    let bytes: &'static [u8; 24] = core::hint::black_box(&COMMIT);
    bytes.last_chunk().map_or(0, |time| u64::from_le_bytes(*time))
}

/// Replaces a document that could not be read. Like an invalid document it closes all that the document may restrict.
const NOT_READ: &[u8] = b"(not read)";

/// The machine, brought up.
pub struct Bringup {
    /// The machine, for the loop.
    pub machine: Pc,
    /// The platform, for drivers.
    pub devices: Devices,
    /// PCI configuration space.
    pub pci: ConfigSpace,
    /// The virtio devices of a machine without PCI.
    pub virtio_slots: Vec<Slot>,
    /// The other cores, in order.
    pub spare: Vec<cores::Spare>,
    /// How memory is protected.
    pub protection: Protection,
    /// The record that a panic before this boot has left in memory, and its bytes.
    pub crash: Option<(Record, Box<[u8]>)>,
    /// ID of this build and its symbols.
    pub build_id: &'static str,
}

/// Takes the machine over from the stub and the kernel. From here on interrupts are off. The error names what the
/// machine lacks.
pub fn bring_up(
    boot: &'static BootInfo,
    start_log: impl FnOnce(Clock) -> &'static LogRing,
) -> Result<Bringup, String> {
    x86_64::instructions::interrupts::disable();
    drivers::hal::detect_avx();
    // SAFETY: memory below 4 GiB is mapped one to one, except page 0, where no table lies. Firmware no longer writes
    // its tables.
    let acpi = unsafe { Tables::new(boot.rsdp) };
    let uart = Uart::take(acpi.as_ref().and_then(Tables::console_port));
    std::panic::set_hook(Box::new(report_panic));
    exceptions::take();
    let apic = Apic::detect();
    interrupts::take(apic);

    // The kernel has read the real-time clock once. From here on our own clock counts.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let clock = Clock::start(boot.tsc_khz);
    let timer = Timer::new(apic, clock, boot.apic_timer_khz);

    let (arena, crash_memory) = arena(boot)?;
    let mut devices = Devices { arena, clock, memory: &boot.memory, claims: Claims::new() };
    let image = image::segments();
    if let Some(code) = image.iter().find(|segment| segment.access == image::Access::Code) {
        // SAFETY: the range is the image's code, which is readable and stays mapped.
        unsafe { backtrace::set_code(code.pages.clone()) };
    }
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
    let spare: Vec<cores::Spare> = spare.collect();

    power::set_acpi(acpi);
    let log = start_log(clock);
    if let Some(screen) = boot.screen() {
        attach_screen(screen, &mut devices);
    }
    let mode = if apic == Apic::Msr { "x2APIC" } else { "xAPIC" };
    log::info!("processors: {}, by {mode}", spare.len() + 1);
    let build_id = image::build_id();
    let build = format!("isthmus {} ({}), build {build_id}", env!("CARGO_PKG_VERSION"), commit());
    let crash = last_words::prepare(last_words::Facts {
        clock,
        timer,
        started,
        apic,
        acpi,
        memory: crash_memory,
        log,
        build: build.leak(),
    });
    iommu::turn_off(acpi.as_ref(), &boot.memory, &clock, &mut devices.arena);
    let pci = ConfigSpace::detect(acpi.as_ref(), |at, len| devices.map_config_space(at, len));
    let virtio_slots = board::virtio_slots(acpi.as_ref(), boot.command_line());
    timer.start();
    let button = power::Button::take(acpi.as_ref());
    let machine = Pc { clock, timer, apic, uart, console: None, acpi, button, started };
    Ok(Bringup { machine, devices, pci, virtio_slots, spare, protection, crash, build_id })
}

/// The DMA arena, which the stub has reserved, and memory for the record of a panic. The record is at the beginning,
/// because firmware that runs at a reboot tends to use the end of memory.
fn arena(boot: &BootInfo) -> Result<(Arena, Window), String> {
    let start = NonNull::new(boot.arena.start as *mut u8).unwrap_or(NonNull::dangling());
    let len = boot.arena.len() as usize;
    // SAFETY: the stub has mapped it one to one and reserved it, so nothing else uses it. This is called once.
    let all = unsafe { Window::from_raw(start, boot.arena.start, len) };
    let rest = len.checked_sub(RECORD_LEN);
    let parts = rest.and_then(|rest| all.slice(RECORD_LEN, rest).zip(all.slice(0, RECORD_LEN)));
    let (arena, record) = parts.ok_or("no memory for DMA: give the machine more")?;
    Ok((Arena::new(arena), record))
}

/// Copies console output to the screen, if its address range is valid.
fn attach_screen(screen: boot::Screen, devices: &mut Devices) {
    /// Address of a PC's text buffer.
    const TEXT: u64 = 0xb_8000;
    let len = (screen.pitch as usize).saturating_mul(screen.height as usize);
    let free = screen.text && screen.address == TEXT && len <= 0x8000
        || !screen.text && is_of_device(devices.memory, screen.address, len);
    let free = free && devices.claims.take(screen.address, len, Claim::Memory);
    // SAFETY: the range holds no RAM (checked), and it was claimed, so that no driver gets it.
    if !free || !unsafe { screen::take(screen, &mut devices.arena) } {
        log::warn!("screen at {:#x}: invalid address or geometry: not used", screen.address);
    }
}

/// Bytes of the machine's memory, the arena included.
pub fn total_memory(boot: &BootInfo) -> u64 {
    let ours = |kind| [Kind::RAM, Kind::KEPT, Kind::UNUSED].contains(&kind);
    boot.memory.regions().iter().filter(|r| ours(r.kind)).map(|r| r.len()).sum()
}

/// The platform that drivers use at set-up: DMA memory, register mappings, interrupts.
#[derive(Debug)]
pub struct Devices {
    arena: Arena,
    clock: Clock,
    /// All memory of the machine.
    memory: &'static MemoryMap,
    /// Address ranges in use, because a device may report a base address inside another device's range.
    claims: Claims,
}

impl Devices {
    /// Claims an address range that a device reports, if it is valid and free.
    fn claim(&mut self, address: u64, len: usize, what: Claim) -> bool {
        is_of_device(self.memory, address, len) && self.claims.take(address, len, what)
    }

    /// Maps a range of PCI configuration space that ACPI lists.
    fn map_config_space(&mut self, address: u64, len: usize) -> Option<Mmio> {
        if !self.claim(address, len, Claim::Registers) {
            return None;
        }
        // SAFETY: ACPI says that configuration space lies there, and no memory does (checked).
        unsafe { paging::map_registers(address, len, &mut self.arena) }
    }
}

/// Whether a range can belong to a device: it overlaps neither memory nor interrupt controllers. This is checked
/// because a device reports its own address, which may be wrong.
fn is_of_device(memory: &MemoryMap, address: u64, len: usize) -> bool {
    /// I/O APICs, local APICs (Intel SDM vol. 3A, 11.4.1), and chipset registers beside them.
    const CONTROLLERS: core::ops::Range<u64> = 0xfec0_0000..0xfef0_0000;
    /// Below this are interrupt vectors, firmware's data, and video memory.
    const LOW: u64 = 1 << 20;
    let Some(end) = address.checked_add(len as u64) else { return false };
    let taken = |start: u64, stop: u64| start < end && stop > address;
    let in_memory =
        |region: &boot::Region| region.kind.is_memory() && taken(region.start, region.end);
    len > 0
        && address >= LOW
        && !taken(CONTROLLERS.start, CONTROLLERS.end)
        && !memory.regions().iter().any(in_memory)
}

// SAFETY: the machine's devices are trusted like its hypervisor, because there is no IOMMU driver. Each mapped range is
// checked against the memory map.
unsafe impl Platform for Devices {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        if !self.claim(address, len, Claim::Registers) {
            return None;
        }
        // SAFETY: the range holds no RAM and no window of a driver (`claim` has checked it above).
        let registers = unsafe { paging::map_registers(address, len, &mut self.arena)? };
        Some(Box::new(registers))
    }

    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window> {
        if !self.claim(address, len, Claim::Memory) {
            return None;
        }
        // SAFETY: the range holds no RAM, and `claim` has given it to this caller alone (checked above).
        unsafe { paging::map_memory(address, len, &mut self.arena) }
    }

    fn map_window(&mut self, address: u64, len: usize) -> Option<Window> {
        if !self.claim(address, len, Claim::Memory) {
            return None;
        }
        // SAFETY: as above.
        unsafe { paging::map_window(address, len, &mut self.arena) }
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        interrupts::allocate(apic::id())
    }

    fn route_line(&mut self, line: u8) -> Option<Interrupt> {
        io_apic::route(line.into(), None)
    }

    fn clock(&self) -> Option<Box<dyn drivers::hal::Clock + Send>> {
        Some(Box::new(self.clock))
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

/// Panic hook: reports the panic without the heap.
fn report_panic(info: &std::panic::PanicHookInfo) {
    let here = 0u64;
    last_words::report(power::PANIC, (&raw const here) as u64, |out| {
        writeln!(out, "isthmus: {info}")
    })
}
