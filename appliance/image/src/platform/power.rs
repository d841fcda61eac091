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

/// Ends the machine with a code that a test sees.
#[cfg(not(feature = "uhyve"))]
pub fn off(code: u8) -> ! {
    unsafe extern "C" {
        /// Hermit: ends the machine by ACPI, or by a reset where that is how to end it.
        safe fn sys_exit(status: i32) -> !;
    }
    debug_exit(code);
    sys_exit(code.into())
}

#[cfg(not(feature = "uhyve"))]
/// Starts the machine anew: as ACPI says, else by the keyboard controller, else by a triple fault.
pub fn reset(acpi: Option<&Tables>) -> ! {
    const KEYBOARD_CONTROLLER: u16 = 0x64;
    const PULSE_RESET: u8 = 0xfe;
    x86_64::instructions::interrupts::disable();
    let by_acpi = acpi.and_then(Tables::reset_port);
    for (port, value) in by_acpi.into_iter().chain([(KEYBOARD_CONTROLLER, PULSE_RESET)]) {
        // SAFETY: these ports reset the machine, which is what is wanted.
        unsafe { Port::new(port).write(value) };
    }
    let nothing =
        x86_64::structures::DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
    // SAFETY: with no handlers at all the breakpoint resets the machine; nothing runs after it.
    unsafe { x86_64::instructions::tables::lidt(&nothing) };
    x86_64::instructions::interrupts::int3();
    unreachable!("a machine without interrupt handlers survived a breakpoint")
}
