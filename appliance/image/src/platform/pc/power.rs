//! Powers a PC off, and restarts it, by ACPI; and its power button.

use boot::acpi::{self, PowerOff, Register, Tables};
use std::sync::OnceLock;
use x86_64::instructions::port::Port;

/// Ends QEMU with an exit code, if it has an isa-debug-exit device.
pub fn debug_exit(code: u8) {
    // SAFETY: QEMU's isa-debug-exit, if it is there; no PC has anything else at this port.
    unsafe { Port::<u32>::new(0xf4).write(u32::from(code) + 0x10) };
}

/// ACPI tables, for [`off`].
static ACPI: OnceLock<Tables> = OnceLock::new();

/// Stores the ACPI tables for [`off`].
pub fn set_acpi(acpi: Option<Tables>) {
    // Called once.
    let _ = acpi.map(|acpi| ACPI.set(acpi));
}

/// Powers the machine off by ACPI, else resets it. Tests see `code`.
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
            take_over(first, enable);
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

/// Asks the firmware to hand power management over, unless it has. Returns whether it did.
fn take_over(control: Register, enable: Option<(u16, u8)>) -> bool {
    let is_ours = || read(control) & SCI_ENABLED != 0;
    if is_ours() {
        return true;
    }
    let Some((port, value)) = enable else { return false };
    // SAFETY: ACPI says that this asks firmware to hand power management over.
    unsafe { Port::new(port).write(value) };
    // Each read takes a microsecond.
    (0..PATIENCE).any(|_| is_ours())
}

/// Bit of the power button in PM1 status and enable registers.
const POWER_BUTTON: u16 = 1 << 8;

/// The power button, whose event is polled: its interrupt (SCI) only ends a halt.
#[derive(Debug)]
pub struct Button {
    events: [Option<(Register, Register)>; 2],
}

impl Button {
    /// Takes the button over from the firmware, which would otherwise switch the machine off at once. None if there is
    /// no fixed button, or the firmware keeps it.
    pub fn take(acpi: Option<&Tables>) -> Option<Button> {
        let acpi::PowerButton { events, control, enable } = acpi?.power_button()?;
        if !take_over(control, enable) {
            return None;
        }
        for (status, enable) in events.into_iter().flatten() {
            // A one clears the event of an earlier press.
            write(status, POWER_BUTTON);
            write(enable, read(enable) | POWER_BUTTON);
        }
        Some(Button { events })
    }

    /// Whether the button was pressed since the last call.
    pub fn was_pressed(&mut self) -> bool {
        let mut pressed = false;
        for (status, _) in self.events.into_iter().flatten() {
            if read(status) & POWER_BUTTON != 0 {
                write(status, POWER_BUTTON);
                pressed = true;
            }
        }
        pressed
    }
}

/// PM1 control bits: the operating system owns power management; enter the sleep state.
const SCI_ENABLED: u16 = 1;
const SLEEP: u16 = 1 << 13;
/// Reads to wait for a change, of a microsecond each.
const PATIENCE: u32 = 300_000;

fn input(port: u16) -> u8 {
    // SAFETY: the port of diagnostic codes, whose reading has no effect.
    unsafe { Port::new(port).read() }
}

fn read(register: Register) -> u16 {
    match register {
        // SAFETY: ACPI names it as a register of power management, which may be read.
        Register::Port(port) => unsafe { Port::new(port).read() },
        // SAFETY: the same, in memory.
        Register::Memory(address) => unsafe { (address as usize as *const u16).read_volatile() },
        Register::Config(..) => 0,
    }
}

fn write(register: Register, value: u16) {
    match register {
        // SAFETY: ACPI names it as a register of power management: control, or status and enable bits of the button.
        Register::Port(port) => unsafe { Port::new(port).write(value) },
        // SAFETY: the same, in memory.
        Register::Memory(address) => unsafe {
            (address as usize as *mut u16).write_volatile(value);
        },
        Register::Config(..) => {}
    }
}

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
