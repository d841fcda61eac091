//! Best-effort disconnect of peers ([`Gateway::disconnect_all`]) after the record of a panic was written. Rounds run as
//! before a reboot, for 250 ms at most, so that peers can acknowledge. Then the peer across a bridge is notified. No
//! disk is touched.
//!
//! The panic may have left any state half changed. So the disconnect runs last, and only after a panic of the first
//! core's loop: after an exception memory may have any contents, and another core's connections are stopped with its
//! loop. Another panic or an exception ends the disconnect ([`last_words`](super::last_words) runs once). So does the
//! timer after 300 ms, by an interrupt handler that does not return.

use super::timer::Timer;
use super::{Clock, apic, idt, interrupts};
use appliance::gateway::Gateway;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

/// Time limit of the disconnect.
const LIMIT: Duration = Duration::from_millis(300);

/// The gateway. The core with the fatal error takes it.
static GATEWAY: AtomicPtr<Gateway> = AtomicPtr::new(null_mut());
/// APIC ID of the core that runs the gateway.
static CORE: AtomicU32 = AtomicU32::new(0);

/// Runs the gateway on this core.
pub fn run(gateway: Gateway) -> ! {
    let gateway = Box::into_raw(Box::new(gateway));
    CORE.store(apic::id(), Ordering::Relaxed);
    GATEWAY.store(gateway, Ordering::Release);
    // SAFETY: made above and never freed. Only `disconnect_peers` also uses it, after this call has panicked.
    unsafe { (*gateway).run() }
}

/// Disconnects all peers of the gateway. `overtime` ends the machine if the disconnect exceeds its limit. False if no
/// gateway runs on this core.
pub fn disconnect_peers(clock: &Clock, timer: &Timer, overtime: extern "C" fn() -> !) -> bool {
    let gateway = GATEWAY.swap(null_mut(), Ordering::AcqRel);
    if gateway.is_null() || CORE.load(Ordering::Relaxed) != apic::id() {
        return false;
    }
    // The code that panicked may hold the log's lock.
    log::set_max_level(log::LevelFilter::Off);
    if !timer.arm(clock.now() + LIMIT) {
        return false;
    }
    // Deliver an interrupt of an earlier deadline before the handler changes.
    x86_64::instructions::interrupts::enable();
    x86_64::instructions::nop();
    x86_64::instructions::interrupts::disable();
    // SAFETY: interrupts are off. The CPU pushes five words for an interrupt onto an aligned stack, which leaves the
    // stack as a call would. `overtime` does not return.
    unsafe { idt::set_handler(interrupts::TIMER_VECTOR as u8, overtime as *const () as u64) };
    x86_64::instructions::interrupts::enable();
    #[cfg(feature = "faults")]
    super::fault_injection::last_act();
    // SAFETY: it was never freed. Its borrower is the code on this core that has panicked, which is further up the
    // call stack and never runs again. No other core has any part of it.
    unsafe { (*gateway).disconnect_all() };
    x86_64::instructions::interrupts::disable();
    true
}
