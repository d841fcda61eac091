//! Ending the machine, and starting it anew.
//!
//! A test sees how it ended: with `-device isa-debug-exit,iobase=0xf4,iosize=4` QEMU exits with
//! `(code + 16) * 2 + 1`, where code is 0 or one of those below: 33 is a regular power-off, 35 a panic,
//! 37 a refusal to start, 39 memory that is not protected, 97 + 2 * vector a CPU exception (125 is a page
//! fault). Exit code 1 is a panic of the kernel.
//!
//! uhyve exits with the code itself, and for a machine that is to start anew with one of its own: it cannot do that.

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
/// Memory is not protected as it should be.
pub const UNPROTECTED: u8 = 3;
/// A CPU exception: plus the vector.
pub const EXCEPTION: u8 = 32;

/// Under uhyve: whoever runs it is to start it anew.
#[cfg(feature = "uhyve")]
const START_ANEW: i32 = 8;

/// Ends QEMU with a code that a test sees, if it has an isa-debug-exit.
#[cfg(not(feature = "uhyve"))]
pub fn debug_exit(code: u8) {
    // SAFETY: QEMU's isa-debug-exit, if it is there; no PC has anything else at this port.
    unsafe { Port::<u32>::new(0xf4).write(u32::from(code) + 0x10) };
}

/// What [`off`] goes by.
#[cfg(not(feature = "uhyve"))]
static ACPI: OnceLock<Tables> = OnceLock::new();

/// Takes note of the machine's tables.
#[cfg(not(feature = "uhyve"))]
pub fn know(acpi: Option<Tables>) {
    // Called once.
    let _ = acpi.map(|acpi| ACPI.set(acpi));
}

/// There are none.
#[cfg(feature = "uhyve")]
pub fn know(_: Option<Tables>) {}

/// There is no such device.
#[cfg(feature = "uhyve")]
pub fn debug_exit(_: u8) {}

/// Ends the machine with a code that whoever runs uhyve sees.
#[cfg(feature = "uhyve")]
pub fn off(code: u8) -> ! {
    super::uhyve::exit(code.into())
}

/// Ends the machine; whoever runs uhyve starts it anew.
#[cfg(feature = "uhyve")]
pub fn reset(_: Option<&Tables>) -> ! {
    super::uhyve::exit(START_ANEW)
}

/// Ends the machine with a code that a test sees: by ACPI, else by a reset.
#[cfg(not(feature = "uhyve"))]
pub fn off(code: u8) -> ! {
    unsafe extern "C" {
        /// Hermit: ends the machine by a reset, if by nothing else.
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
                // Each look takes a microsecond.
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
    // It takes a moment.
    for _ in 0..PATIENCE {
        input(0x80);
    }
    sys_exit(code.into())
}

/// In a control register of power management: it is not firmware's, and the machine goes to sleep.
#[cfg(not(feature = "uhyve"))]
const SCI_ENABLED: u16 = 1;
#[cfg(not(feature = "uhyve"))]
const SLEEP: u16 = 1 << 13;
/// Looks for which something is waited, of a microsecond each.
#[cfg(not(feature = "uhyve"))]
const PATIENCE: u32 = 300_000;

#[cfg(not(feature = "uhyve"))]
fn input(port: u16) -> u8 {
    // SAFETY: the port of diagnostic codes, which has no effect when it is read.
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
        // SAFETY: ACPI names it as the register that switches the machine off, as the caller wants.
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
        // SAFETY: ACPI names it as the register that switches the machine off or resets it, as the caller wants.
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
/// Starts the machine anew: as ACPI says, else by the keyboard controller, else by a triple fault.
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
