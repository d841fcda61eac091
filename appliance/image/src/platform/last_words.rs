//! Handles a panic or a CPU exception, on any core: stops the other cores by a non-maskable interrupt, prints and
//! records the event, and restarts the machine, or does what the configuration says.
//!
//! Nothing here allocates or waits for a lock, because the lock's owner may be stopped. The record (`operator::crash`)
//! goes to the serial port, to the first page of the DMA arena, where a reboot that keeps memory finds it, and to the
//! disk that has the configuration, through a virtqueue reserved at boot ([`drivers::hal::CrashWriter`]; the device is
//! reset first, so the state of its driver does not matter). At the next boot a record that is only in memory goes to
//! the disk.
//!
//! Callers are found by addresses behind calls on the stack. Frame pointers would cost the data path a register.

use super::apic::{self, Apic};
use super::timer::Timer;
use super::{Clock, backtrace, board, last_act, power, uart};
use appliance::config::OnPanic;
use appliance::crash::{self, Draft, Header, RECORD_LEN, Record};
use appliance::log_ring::LogRing;
use appliance::machine::CrashPlace;
use boot::acpi::Tables;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use drivers::hal::Window;
use std::sync::OnceLock;

/// Messages of the log that a record holds, as far as they fit.
const LOG_MESSAGES: usize = 16;
/// Seconds before a reboot while the times of earlier panics are unknown.
const BLIND_WAIT: u64 = 5;
/// What a report needs, prepared during bring-up.
struct Context {
    clock: Clock,
    timer: Timer,
    /// Seconds since 1970 when the clock started.
    started: u64,
    apic: Apic,
    acpi: Option<Tables>,
    /// Memory for the record, where the next boot finds it.
    memory: Window,
    log: &'static LogRing,
    /// Version, commit and build ID.
    build: &'static str,
}

/// Place of the next record on disk, and header of the last record.
struct Place {
    last: Option<Header>,
    disk: Option<CrashPlace>,
}

static CONTEXT: OnceLock<Context> = OnceLock::new();
/// The core with the fatal error takes it.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());
/// APIC ID plus one of the core with the fatal error; 0 without one.
static FAILED: AtomicU32 = AtomicU32::new(0);
/// Exit code, which tests see.
static CODE: AtomicU8 = AtomicU8::new(0);
/// Seconds before a reboot.
static WAIT: AtomicU64 = AtomicU64::new(BLIND_WAIT);
static RECORD: Buffer = Buffer(UnsafeCell::new([0; RECORD_LEN]));

/// Memory for one record.
struct Buffer(UnsafeCell<[u8; RECORD_LEN]>);

// SAFETY: only the one core that set `FAILED` accesses it, and only once.
unsafe impl Sync for Buffer {}

/// Arguments of [`prepare`].
pub struct Facts {
    /// The clock.
    pub clock: Clock,
    /// The timer of each core.
    pub timer: Timer,
    /// Seconds since 1970 when the clock started.
    pub started: u64,
    /// Access mode of the APIC.
    pub apic: Apic,
    /// ACPI's tables.
    pub acpi: Option<Tables>,
    /// Memory of [`RECORD_LEN`] bytes for the record alone, at the same address at each boot.
    pub memory: Window,
    /// The log.
    pub log: &'static LogRing,
    /// Version, commit and build ID.
    pub build: &'static str,
}

/// Stores what a later report needs. Returns the record that a panic before this boot has left in memory, and its
/// bytes.
pub fn prepare(facts: Facts) -> Option<(Record, Box<[u8]>)> {
    let Facts { clock, timer, started, apic, acpi, memory, log, build } = facts;
    let mut bytes = vec![0; RECORD_LEN].into_boxed_slice();
    let found = memory.read(0, &mut bytes).ok().and_then(|()| crash::read(&bytes));
    memory.fill(0);
    // Called once.
    let _ = CONTEXT.set(Context { clock, timer, started, apic, acpi, memory, log, build });
    set_place(found.as_ref().map(|record| record.header), None);
    found.map(|record| (record, bytes))
}

/// Sets the place of the next record on disk, and the header of the last record.
pub fn set_place(last: Option<Header>, disk: Option<CrashPlace>) {
    let place = Box::into_raw(Box::new(Place { last, disk }));
    let former = PLACE.swap(place, Ordering::AcqRel);
    if !former.is_null() {
        // SAFETY: made by `Box::into_raw` above. The code that swaps the pointer out owns it.
        drop(unsafe { Box::from_raw(former) });
    }
}

/// Whether another core has a fatal error and has stopped this one.
pub fn is_stopped() -> bool {
    let failed = FAILED.load(Ordering::Acquire);
    failed != 0 && failed != apic::id() + 1
}

/// Halts this core for ever.
pub fn halt() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Reports a fatal error, then ends or restarts the machine. `cause` writes the error, in lines. The backtrace starts
/// at `stack`. `code` is the exit code that tests see ([`power::off`]).
pub fn report(code: u8, stack: u64, cause: impl Fn(&mut dyn Write) -> fmt::Result) -> ! {
    x86_64::instructions::interrupts::disable();
    let us = apic::id() + 1;
    match FAILED.compare_exchange(0, us, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => CODE.store(code, Ordering::Relaxed),
        // The report itself has failed.
        Err(other) if other == us => end(),
        Err(_) => halt(),
    }
    let context = CONTEXT.get();
    if let Some(context) = context {
        context.apic.stop_others();
    }
    // SAFETY: accessed only here. Only one core gets here, once.
    let bytes = unsafe { &mut *RECORD.0.get() };
    let mut record = Draft::new(bytes);
    let mut both = Both(&mut record);
    // Printing cannot fail.
    let _ = uart::Printer.write_str("\n");
    let _ = cause(&mut both);
    let now = context.map(|context| context.clock.now().as_nanos() / 1_000_000);
    if let Some(context) = context {
        let _ = writeln!(both, "  {}, core {}", context.build, us - 1);
    }
    let _ = backtrace::write(stack, &mut both);
    let place = PLACE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `Box::into_raw`, just swapped out, and never freed.
    let place = unsafe { place.as_mut() };
    let (Some(context), Some(now), Some(place)) = (context, now, place) else { end() };
    let header = Header::after(place.last, context.started + now / 1000, now);
    WAIT.store(header.wait(), Ordering::Relaxed);
    let _ = writeln!(record, "log:");
    let read = context.log.try_last(LOG_MESSAGES, |entry| {
        let _ = writeln!(record, "{entry}");
    });
    if !read {
        let _ = writeln!(record, "(in use)");
    }
    record.seal(&header);
    let _ = context.memory.write(0, bytes);
    if let Some(CrashPlace { disk, sector }) = &mut place.disk {
        let _ = match disk.write(*sector, bytes) {
            Ok(()) => uart::Printer.write_str("isthmus: recorded; see `show crash`\n"),
            Err(why) => writeln!(uart::Printer, "isthmus: the record is in memory only: {why}"),
        };
    }
    if code == power::PANIC && last_act::disconnect_peers(&context.clock, &context.timer, overtime)
    {
        uart::print("isthmus: peers disconnected\r\n");
    }
    end()
}

/// Replaces the kernel's `sys_abort`, which would power the machine off (build.rs makes the linker wrap it). The
/// standard library calls it when an allocation fails, and when a panic panics. It has printed the reason before.
#[unsafe(no_mangle)]
extern "C" fn __wrap_sys_abort() -> ! {
    let here = 0u8;
    report(power::PANIC, (&raw const here) as u64, |out| {
        writeln!(
            out,
            "isthmus: panicked: aborted: see the reason above; if there is none, memory is exhausted"
        )
    })
}

/// Timer handler: the disconnect of peers has exceeded its limit.
extern "C" fn overtime() -> ! {
    uart::print("isthmus: peers not disconnected in time\r\n");
    end()
}

/// Halts, powers off or reboots, as `system.on_panic` says; a reboot after the wait in `WAIT`. QEMU's isa-debug-exit
/// has precedence: a test that attaches it expects an exit code, not a reboot.
fn end() -> ! {
    let (code, wait) = (CODE.load(Ordering::Relaxed), WAIT.load(Ordering::Relaxed));
    let policy = crash::policy();
    board::notify_of_panic(policy);
    if policy == OnPanic::Halt {
        uart::print("isthmus: halted\r\n");
        halt();
    }
    power::debug_exit(code);
    if policy == OnPanic::PowerOff {
        power::off(code);
    }
    let context = CONTEXT.get();
    if wait > 0 {
        // Printing cannot fail.
        let _ = writeln!(uart::Printer, "isthmus: restarts in {wait} s");
        match context {
            Some(context) => {
                let deadline = context.clock.now() + Duration::from_secs(wait);
                while context.clock.now() < deadline {
                    core::hint::spin_loop();
                }
            }
            None => (0..wait << 30).for_each(|_| core::hint::spin_loop()),
        }
    }
    power::reset(context.and_then(|context| context.acpi.as_ref()))
}

/// Writes to the record and to the serial port.
struct Both<'a, 'b>(&'a mut Draft<'b>);

impl Write for Both<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        uart::Printer.write_str(text)?;
        self.0.write_str(text)
    }
}
