//! The other cores. The kernel has brought them up. Each runs the kernel's idle loop until work is spawned on it.

use super::apic::{self, Apic};
use super::clock::Clock;
use super::interrupts::{self, BELL_VECTOR};
use super::paging;
use super::timer::Timer;
use appliance::machine::{Core, Ipi, SpareCore, Work};
use core::time::Duration;
use drivers::hal::{Instant, Interrupt};
use std::sync::mpsc;
use x86_64::registers::control::Cr3;

/// Stack size of a loop. The kernel adds unmapped pages at both ends.
const STACK: usize = 256 << 10;
/// The kernel's normal priority.
const PRIORITY: u8 = 2;

unsafe extern "C" {
    safe fn sys_available_parallelism() -> usize;
    fn sys_spawn2(
        function: unsafe extern "C" fn(usize),
        argument: usize,
        priority: u8,
        stack: usize,
        core: isize,
    ) -> i32;
}

/// Number of cores, this one included.
pub fn count() -> usize {
    sys_available_parallelism().max(1)
}

/// Checks on every core that page protection is enabled. Returns the APIC IDs of the other cores.
pub fn check(clock: &Clock) -> Result<Vec<u32>, String> {
    /// A core answers within microseconds, but a busy host may delay it.
    const PATIENCE: Duration = Duration::from_secs(10);
    let fault = |core: usize, why: &str| format!("core {core} {why}");
    paging::check_core().map_err(|why| fault(0, why))?;
    let mut ids = Vec::new();
    for core in 1..count() {
        let (answer, answers) = mpsc::sync_channel(1);
        let work = move || {
            // Fails only if the receiver has timed out.
            let _ = answer.try_send(paging::check_core().map(|()| apic::id()));
        };
        spawn_on(core, Box::new(work));
        let deadline = clock.now() + PATIENCE;
        loop {
            match answers.try_recv() {
                Ok(checked) => break ids.push(checked.map_err(|why| fault(core, why))?),
                Err(_) if clock.now() > deadline => return Err(fault(core, "does not answer")),
                Err(_) => core::hint::spin_loop(),
            }
        }
    }
    Ok(ids)
}

/// A core on which nothing runs yet.
#[derive(Debug)]
pub struct Spare {
    pub(super) core: usize,
    /// ID of its APIC.
    pub(super) id: u32,
    pub(super) apic: Apic,
    pub(super) clock: Clock,
    pub(super) timer: Timer,
}

impl SpareCore for Spare {
    fn interrupt(&mut self) -> Option<Interrupt> {
        interrupts::allocate(self.id)
    }

    fn ipi(&self) -> Box<dyn Ipi> {
        Box::new(Ring { apic: self.apic, target: self.id })
    }

    fn start(self: Box<Self>, work: Work) {
        let Spare { core, clock, timer, .. } = *self;
        // Cannot fail: the core has answered `check`.
        spawn_on(
            core,
            Box::new(move || {
                timer.start();
                work(Box::new(Running { clock, timer }));
            }),
        );
    }
}

/// The core that a loop runs on.
struct Running {
    clock: Clock,
    timer: Timer,
}

impl Core for Running {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn halt_until(&mut self, deadline: Option<Instant>) {
        // Interrupts are off, as always outside of the halt. The APIC keeps an interrupt that is raised from now
        // on, and it ends the halt.
        if deadline.is_none_or(|deadline| self.timer.arm(deadline)) {
            x86_64::instructions::interrupts::enable_and_hlt();
            x86_64::instructions::interrupts::disable();
        }
    }
}

/// Interrupts a core.
pub(super) struct Ring {
    pub(super) apic: Apic,
    /// ID of the core's APIC.
    pub(super) target: u32,
}

impl Ipi for Ring {
    fn ring(&self) {
        // SAFETY: `interrupts::take` has given the vector a handler, on the table that all cores share.
        unsafe { self.apic.send(self.target, BELL_VECTOR) };
    }
}

/// Runs `work` on core `core` (below [`count`]), with interrupts off. The work may halt, but must not block:
/// a core belongs to its loop. False if there is no such core.
pub fn spawn_on(core: usize, work: Box<dyn FnOnce() + Send>) -> bool {
    if core >= count() {
        return false;
    }
    let argument = Box::into_raw(Box::new(work));
    // SAFETY: `start` takes exactly what `argument` is, once.
    unsafe { sys_spawn2(start, argument as usize, PRIORITY, STACK, core as isize) >= 0 }
}

unsafe extern "C" fn start(argument: usize) {
    // SAFETY: made by `spawn_on` for this one call.
    let work = unsafe { Box::from_raw(argument as *mut Box<dyn FnOnce() + Send>) };
    x86_64::instructions::interrupts::disable();
    // Flush the TLB: it may still have entries from before the page tables were tightened.
    let (table, flags) = Cr3::read();
    // SAFETY: the same tables again.
    unsafe { Cr3::write(table, flags) };
    work();
}
