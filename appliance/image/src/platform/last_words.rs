//! Handles a panic or a CPU exception, on any core: stops the other cores by a non-maskable interrupt, prints and records
//! the event, and restarts the machine, or does what the configuration says.
//!
//! Nothing here allocates or waits for a lock, because the lock's owner may be stopped. The record (`operator::crash`)
//! goes to the serial port, to the first page of the DMA arena, where a reboot that keeps memory finds it, and to the
//! disk that has the configuration, through a virtqueue reserved at boot ([`drivers::hal::CrashWriter`]; the device is
//! reset first, so the state of its driver does not matter). At the next boot a record that is only in memory goes to the
//! disk.
//!
//! Callers are found by addresses behind calls on the stack. Frame pointers would cost the data path a register.

use super::apic::{self, Apic};
use super::timer::Timer;
use super::{Clock, backtrace, last_act, power, uart};
use appliance::config::OnPanic;
use appliance::crash::{self, Draft, Header, RECORD_LEN, Record};
use appliance::log_ring::LogRing;
use appliance::machine::CrashPlace;
use boot::acpi::Tables;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use drivers::hal::Window;
use std::sync::OnceLock;

/// Messages of the log that a record holds, as far as they fit.
const LOG_MESSAGES: usize = 16;
/// Wait before a reboot as long as nothing is known of panics before this one, in seconds.
const BLIND_WAIT: u64 = 5;
/// QEMU's pvpanic (docs/specs/pvpanic.rst): the guest has panicked; it deals with that by itself.
const PANICKED: u8 = 1;
const CRASH_LOADED: u8 = 2;

/// What is known from bring-up on.
struct Known {
    clock: Clock,
    timer: Timer,
    /// Seconds since 1970 when the clock started.
    started: u64,
    apic: Apic,
    acpi: Option<Tables>,
    /// Where a reboot finds the record.
    memory: Window,
    log: &'static LogRing,
    /// What names the build.
    build: &'static str,
}

/// Where the next record goes, and what the last one was.
struct Place {
    last: Option<Header>,
    disk: Option<CrashPlace>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();
/// Taken by the core that dies.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());
/// I/O port of pvpanic; 0 if there is none.
static PVPANIC: AtomicU16 = AtomicU16::new(0);
/// One more than the APIC's number of the core that dies; 0 while none does.
static DYING: AtomicU32 = AtomicU32::new(0);
/// How its end is to be: what a test sees, and the wait before a reboot.
static CODE: AtomicU8 = AtomicU8::new(0);
static WAIT: AtomicU64 = AtomicU64::new(BLIND_WAIT);
static RECORD: Buffer = Buffer(UnsafeCell::new([0; RECORD_LEN]));

/// Memory for one record.
struct Buffer(UnsafeCell<[u8; RECORD_LEN]>);

// SAFETY: only the one core that set `DYING` touches it, and only once.
unsafe impl Sync for Buffer {}

/// What [`prepare`] wants to know.
pub struct Facts {
    /// The clock.
    pub clock: Clock,
    /// The timer of each core.
    pub timer: Timer,
    /// Seconds since 1970 when it started.
    pub started: u64,
    /// How the APIC is reached.
    pub apic: Apic,
    /// ACPI's tables.
    pub acpi: Option<Tables>,
    /// Memory of [`RECORD_LEN`] bytes that nobody else uses, the same at each boot.
    pub memory: Window,
    /// The log.
    pub log: &'static LogRing,
    /// What names the build.
    pub build: &'static str,
}

/// Takes note of what is needed for last words; returns the record that a panic before this boot has left
/// in memory, and its bytes.
pub fn prepare(facts: Facts) -> Option<(Record, Box<[u8]>)> {
    let Facts { clock, timer, started, apic, acpi, memory, log, build } = facts;
    let mut bytes = vec![0; RECORD_LEN].into_boxed_slice();
    let found = memory.read(0, &mut bytes).ok().and_then(|()| crash::read(&bytes));
    memory.fill(0);
    // Called once.
    let _ = KNOWN.set(Known { clock, timer, started, apic, acpi, memory, log, build });
    set_place(found.as_ref().map(|record| record.header), None);
    found.map(|record| (record, bytes))
}

/// Sets where the next record goes, and what the last one was.
pub fn set_place(last: Option<Header>, disk: Option<CrashPlace>) {
    let place = Box::into_raw(Box::new(Place { last, disk }));
    let former = PLACE.swap(place, Ordering::AcqRel);
    if !former.is_null() {
        // SAFETY: made by `Box::into_raw` above, and whoever swaps it out owns it.
        drop(unsafe { Box::from_raw(former) });
    }
}

/// Sets the port of pvpanic.
#[cfg(not(feature = "uhyve"))]
pub fn set_pvpanic(port: u16) {
    PVPANIC.store(port, Ordering::Relaxed);
}

/// Whether another core dies: then this one was stopped.
pub fn is_stopped() -> bool {
    let dying = DYING.load(Ordering::Acquire);
    dying != 0 && dying != apic::id() + 1
}

/// Stands still for ever.
pub fn halt() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Ends this life of the machine. `say` tells what happened, in lines; `stack` is where the addresses of
/// callers begin, `code` what a test sees ([`power::off`]).
pub fn speak(code: u8, stack: u64, say: impl Fn(&mut dyn Write) -> fmt::Result) -> ! {
    x86_64::instructions::interrupts::disable();
    let us = apic::id() + 1;
    match DYING.compare_exchange(0, us, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => CODE.store(code, Ordering::Relaxed),
        // Last words that go wrong themselves: enough was said.
        Err(other) if other == us => end(),
        Err(_) => halt(),
    }
    let known = KNOWN.get();
    if let Some(known) = known {
        known.apic.stop_others();
    }
    // SAFETY: only here, and only one core comes here, once.
    let bytes = unsafe { &mut *RECORD.0.get() };
    let mut record = Draft::new(bytes);
    let mut both = Both(&mut record);
    // Printing cannot fail.
    let _ = uart::Printer.write_str("\n");
    let _ = say(&mut both);
    let now = known.map(|known| known.clock.now().as_nanos() / 1_000_000);
    if let Some(known) = known {
        let _ = writeln!(both, "  {}, core {}", known.build, us - 1);
    }
    let _ = backtrace::write(stack, &mut both);
    let place = PLACE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, and just swapped out; it is never freed.
    let place = unsafe { place.as_mut() };
    let (Some(known), Some(now), Some(place)) = (known, now, place) else { end() };
    let header = Header::after(place.last, known.started + now / 1000, now);
    WAIT.store(header.wait(), Ordering::Relaxed);
    let _ = writeln!(record, "log:");
    let said = known.log.try_last(LOG_MESSAGES, |entry| {
        let _ = writeln!(record, "{entry}");
    });
    if !said {
        let _ = writeln!(record, "(in use)");
    }
    record.seal(&header);
    let _ = known.memory.write(0, bytes);
    if let Some(CrashPlace { disk, sector }) = &mut place.disk {
        let _ = match disk.write(*sector, bytes) {
            Ok(()) => uart::Printer.write_str("isthmus: recorded; see `show crash`\n"),
            Err(why) => writeln!(uart::Printer, "isthmus: the record is in memory only: {why}"),
        };
    }
    if code == power::PANIC && last_act::act(&known.clock, &known.timer, overtime) {
        uart::print("isthmus: peers were told\r\n");
    }
    end()
}

/// What the standard library calls in place of the kernel's `sys_abort` (build.rs has the linker do that), which
/// would end the machine for good: when an allocation fails, and when a panic is told of and another comes. It has
/// printed why.
#[unsafe(no_mangle)]
extern "C" fn __wrap_sys_abort() -> ! {
    let here = 0u8;
    speak(power::PANIC, (&raw const here) as u64, |out| {
        writeln!(
            out,
            "isthmus: panicked: aborted, for the reason above; without one, memory ran out"
        )
    })
}

/// The last act takes too long.
extern "C" fn overtime() -> ! {
    uart::print("isthmus: peers could not be told in time\r\n");
    end()
}

/// Does what the configuration says; a reboot after the wait that was found. QEMU's isa-debug-exit comes
/// first: whoever attaches it wants to see how the machine ended, not have it back.
fn end() -> ! {
    let (code, wait) = (CODE.load(Ordering::Relaxed), WAIT.load(Ordering::Relaxed));
    let policy = crash::policy();
    tell_pvpanic(policy);
    if policy == OnPanic::Halt {
        uart::print("isthmus: halted\r\n");
        halt();
    }
    power::debug_exit(code);
    if policy == OnPanic::PowerOff {
        power::off(code);
    }
    let known = KNOWN.get();
    if wait > 0 {
        // Printing cannot fail.
        let _ = writeln!(uart::Printer, "isthmus: starts again in {wait} s");
        match known {
            Some(known) => {
                let deadline = known.clock.now() + Duration::from_secs(wait);
                while known.clock.now() < deadline {
                    core::hint::spin_loop();
                }
            }
            None => (0..wait << 30).for_each(|_| core::hint::spin_loop()),
        }
    }
    power::reset(known.and_then(|known| known.acpi.as_ref()))
}

/// Tells whoever runs the machine, as far as there is a device for it.
fn tell_pvpanic(policy: OnPanic) {
    let event = if policy == OnPanic::Reboot { CRASH_LOADED } else { PANICKED };
    let port = PVPANIC.load(Ordering::Relaxed);
    if port == 0 {
        return;
    }
    let mut port = x86_64::instructions::port::Port::<u8>::new(port);
    // SAFETY: QEMU says that its pvpanic device is there; it touches no memory of ours.
    unsafe {
        if port.read() & event != 0 {
            port.write(event);
        }
    }
}

/// Writes to the record and to the serial port.
struct Both<'a, 'b>(&'a mut Draft<'b>);

impl Write for Both<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        uart::Printer.write_str(text)?;
        self.0.write_str(text)
    }
}
