//! Best-effort disconnect of peers ([`Gateway::say_goodbye`]), after the record of a panic was written: rounds run as
//! before a reboot, for 250 ms at most, so that what waits for an acknowledgement gets it; then the peer across a bridge
//! is notified. No disk is touched.
//!
//! The panic may have left any state half changed. So this runs last, and only after a panic of the first core's loop:
//! after an exception memory may have any contents, and another core's peers stand still with their loop. Another panic
//! or an exception ends it ([`last_words`](super::last_words) runs once), and so does the timer after 300 ms, by an
//! interrupt that does not return.

use super::timer::Timer;
use super::{Clock, apic, idt, interrupts};
use appliance::gateway::Gateway;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

/// How long it may take.
const LIMIT: Duration = Duration::from_millis(300);

/// Taken by who dies.
static GATEWAY: AtomicPtr<Gateway> = AtomicPtr::new(null_mut());
/// The number of the APIC of the core that it runs on.
static CORE: AtomicU32 = AtomicU32::new(0);

/// Runs the appliance on this core.
pub fn run(gateway: Gateway) -> ! {
    let gateway = Box::into_raw(Box::new(gateway));
    CORE.store(apic::id(), Ordering::Relaxed);
    GATEWAY.store(gateway, Ordering::Release);
    // SAFETY: made above and never freed. Only `act` has it besides, when this has panicked.
    unsafe { (*gateway).run() }
}

/// Has the appliance tell its peers; `overtime` ends the machine when that takes too long. False if there is
/// nothing to tell them from.
pub fn act(clock: &Clock, timer: &Timer, overtime: extern "C" fn() -> !) -> bool {
    let gateway = GATEWAY.swap(null_mut(), Ordering::AcqRel);
    if gateway.is_null() || CORE.load(Ordering::Relaxed) != apic::id() {
        return false;
    }
    // Who panicked may hold the log.
    log::set_max_level(log::LevelFilter::Off);
    if !timer.arm(clock.now() + LIMIT) {
        return false;
    }
    // What an earlier deadline has raised is not this one's.
    x86_64::instructions::interrupts::enable();
    x86_64::instructions::nop();
    x86_64::instructions::interrupts::disable();
    // SAFETY: interrupts are off. The CPU pushes five words for an interrupt, on an aligned stack, as if this had
    // been called; it does not return.
    unsafe { idt::set_handler(interrupts::TIMER_VECTOR as u8, overtime as *const () as u64) };
    x86_64::instructions::interrupts::enable();
    #[cfg(feature = "faults")]
    super::fault_injection::last_act();
    // SAFETY: it was never freed. Who had it borrowed is the code on this core that has panicked: it is below us
    // on the stack and never runs again, and no other core has any part of it.
    unsafe { (*gateway).say_goodbye() };
    x86_64::instructions::interrupts::disable();
    true
}
