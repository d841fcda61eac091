//! QEMU's pvpanic device, which notifies the hypervisor of a panic (docs/specs/pvpanic.rst).

use appliance::config::OnPanic;
use core::sync::atomic::{AtomicU16, Ordering};
use x86_64::instructions::port::Port;

/// Events. `PANICKED`: the hypervisor handles it. `CRASH_LOADED`: the guest
/// handles it itself.
const PANICKED: u8 = 1;
const CRASH_LOADED: u8 = 2;

/// I/O port of pvpanic; 0 if there is none.
static PVPANIC: AtomicU16 = AtomicU16::new(0);

/// Sets the port of pvpanic.
pub fn set_port(port: u16) {
    PVPANIC.store(port, Ordering::Relaxed);
}

/// Notifies the hypervisor by its pvpanic device, if there is one.
pub fn notify(policy: OnPanic) {
    let event = if policy == OnPanic::Reboot { CRASH_LOADED } else { PANICKED };
    let port = PVPANIC.load(Ordering::Relaxed);
    if port == 0 {
        return;
    }
    let mut port = Port::<u8>::new(port);
    // SAFETY: QEMU says that its pvpanic device is at this port, which does not access memory of ours.
    unsafe {
        if port.read() & event != 0 {
            port.write(event);
        }
    }
}
