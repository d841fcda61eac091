//! Powers the machine off, and restarts it.
//!
//! Tests see an exit code: with `-device isa-debug-exit,iobase=0xf4,iosize=4` QEMU exits with
//! `(code + 16) * 2 + 1`, where code is 0 or a constant below: 33 is a regular power-off, 35 a panic,
//! 37 a refusal to start, 39 memory that is not protected, 97 + 2 * vector a CPU exception (125 is a page
//! fault). Exit code 1 is a panic of the kernel.
//!
//! uhyve exits with the code itself. uhyve cannot restart a machine, so a restart has an exit code of its own.

use boot::acpi::Tables;
#[cfg(not(feature = "uhyve"))]
use boot::acpi::{PowerOff, Register};
#[cfg(not(feature = "uhyve"))]
use std::sync::OnceLock;
#[cfg(not(feature = "uhyve"))]
use x86_64::instructions::port::Port;

/// The appliance panicked.
pub const PANIC: u8 = 1;
/// The machine lacks something that the appliance needs. (The boot stub uses it as well.)
pub const REFUSED: u8 = 2;
/// Memory protection is incomplete.
pub const UNPROTECTED: u8 = 3;
/// A CPU exception. The vector is added.
pub const EXCEPTION: u8 = 32;

/// Under uhyve: requests a restart from the operator or supervisor of uhyve.
#[cfg(feature = "uhyve")]
const RESTART: i32 = 8;

/// Ends QEMU with an exit code, if it has an isa-debug-exit device.
#[cfg(not(feature = "uhyve"))]
pub fn debug_exit(code: u8) {
    // SAFETY: QEMU's isa-debug-exit, if it is there; no PC has anything else at this port.
    unsafe { Port::<u32>::new(0xf4).write(u32::from(code) + 0x10) };
}

/// ACPI tables, for [`off`].
#[cfg(not(feature = "uhyve"))]
static ACPI: OnceLock<Tables> = OnceLock::new();

/// Stores the ACPI tables for [`off`].
#[cfg(not(feature = "uhyve"))]
pub fn set_acpi(acpi: Option<Tables>) {
    // Called once.
    let _ = acpi.map(|acpi| ACPI.set(acpi));
}

/// Does nothing: uhyve has no ACPI tables.
#[cfg(feature = "uhyve")]
pub fn set_acpi(_: Option<Tables>) {}

/// Does nothing: uhyve has no such device.
#[cfg(feature = "uhyve")]
pub fn debug_exit(_: u8) {}

/// Ends the machine. uhyve exits with `code`.
#[cfg(feature = "uhyve")]
pub fn off(code: u8) -> ! {
    super::uhyve::exit(code.into())
}

/// Ends the machine. uhyve exits with [`RESTART`].
#[cfg(feature = "uhyve")]
pub fn reset(_: Option<&Tables>) -> ! {
    super::uhyve::exit(RESTART)
}

/// Powers the machine off by ACPI, else resets it. Tests see `code`.
#[cfg(not(feature = "uhyve"))]
pub fn off(code: u8) -> ! {
    unsafe extern "C" {
        /// Hermit's exit, which ends the machine at least by a reset.
        safe fn sys_exit(status: i32) -> !;
    }
    debug_exit(code);
    x86_64::instructions::interrupts::disable();
    match ACPI.get().and_then(Tables::power_off) {
        Some(PowerOff::Controls { controls, enable }) => {
            let [(Some(first), _), _] = controls else { sys_exit(code.into()) };
            let is_ours = || read(first) & SCI_ENABLED != 0;
            if let Some((port, value)) = enable.filter(|_| !is_ours()) {
                // SAFETY: ACPI says that this asks firmware to hand power management over.
                unsafe { Port::new(port).write(value) };
                // Each read takes a microsecond.
                let _ = (0..PATIENCE).any(|_| is_ours());
            }
            for bits in [0, SLEEP] {
                for (control, kind) in controls {
                    let Some(control) = control else { continue };
                    write(control, read(control) & !(7 << 10 | SLEEP) | kind << 10 | bits);
                }
            }
        }
        Some(PowerOff::Sleep(control, kind)) => write8(control, (kind << 2) as u8 | 1 << 5),
        None => {}
    }
    // Power-off takes a moment.
    for _ in 0..PATIENCE {
        input(0x80);
    }
    sys_exit(code.into())
}

/// PM1 control bits: the operating system owns power management; enter the sleep state.
#[cfg(not(feature = "uhyve"))]
const SCI_ENABLED: u16 = 1;
#[cfg(not(feature = "uhyve"))]
const SLEEP: u16 = 1 << 13;
/// Reads to wait for a change, of a microsecond each.
#[cfg(not(feature = "uhyve"))]
const PATIENCE: u32 = 300_000;

#[cfg(not(feature = "uhyve"))]
fn input(port: u16) -> u8 {
    // SAFETY: the port of diagnostic codes, whose reading has no effect.
    unsafe { Port::new(port).read() }
}

#[cfg(not(feature = "uhyve"))]
fn read(register: Register) -> u16 {
    match register {
        // SAFETY: ACPI names it as a control register of power management, which may be read.
        Register::Port(port) => unsafe { Port::new(port).read() },
        // SAFETY: the same, in memory.
        Register::Memory(address) => unsafe { (address as usize as *const u16).read_volatile() },
        Register::Config(..) => 0,
    }
}

#[cfg(not(feature = "uhyve"))]
fn write(register: Register, value: u16) {
    match register {
        // SAFETY: ACPI names it as the register that powers the machine off, as the caller intends.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        // SAFETY: the same, in memory.
        Register::Memory(address) => unsafe {
            (address as usize as *mut u16).write_volatile(value);
        },
        Register::Config(..) => {}
    }
}

#[cfg(not(feature = "uhyve"))]
fn write8(register: Register, value: u8) {
    match register {
        // SAFETY: ACPI names it as the register that powers the machine off or resets it, as the caller intends.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        // SAFETY: the same, in memory.
        Register::Memory(address) => unsafe { (address as usize as *mut u8).write_volatile(value) },
        // SAFETY: the same, in the configuration space of a PCI function.
        Register::Config(device, function, offset) => unsafe {
            let function = u32::from(device) << 11 | u32::from(function) << 8;
            Port::new(0xcf8).write(1 << 31 | function | u32::from(offset & 0xfc));
            Port::new(0xcfc + (offset & 3)).write(value);
        },
    }
}

#[cfg(not(feature = "uhyve"))]
/// Restarts the machine by ACPI, else by the keyboard controller, else by a triple fault.
pub fn reset(acpi: Option<&Tables>) -> ! {
    const KEYBOARD_CONTROLLER: Register = Register::Port(0x64);
    const PULSE_RESET: u8 = 0xfe;
    x86_64::instructions::interrupts::disable();
    let by_acpi = acpi.and_then(Tables::reset_register);
    for (register, value) in by_acpi.into_iter().chain([(KEYBOARD_CONTROLLER, PULSE_RESET)]) {
        write8(register, value);
    }
    let nothing =
        x86_64::structures::DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
    // SAFETY: with no handlers at all the breakpoint resets the machine; nothing runs after it.
    unsafe { x86_64::instructions::tables::lidt(&nothing) };
    x86_64::instructions::interrupts::int3();
    unreachable!("a machine without interrupt handlers survived a breakpoint")
}
