//! The local APIC timer of the running core, which ends a halt. The kernel arms it only for sleeping tasks, and a core
//! that runs a loop has none.

use super::apic::{Apic, DIVIDE, INITIAL_COUNT, LVT_TIMER};
use super::clock::Clock;
use super::interrupts::TIMER_VECTOR;
use core::arch::x86_64::__cpuid;
use drivers::hal::Instant;
use x86_64::registers::model_specific::Msr;

const TSC_DEADLINE_MODE: u32 = 1 << 18;
/// The kernel's setting, for its own use of the timer.
const DIVIDE_BY_8: u32 = 0b0010;
/// Longest wait in nanoseconds. Its product with any frequency in kHz fits 64 bits.
const LONGEST: u64 = 1 << 32;
const TSC_DEADLINE: Msr = Msr::new(0x6e0);

/// The timer.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    apic: Apic,
    clock: Clock,
    /// Ticks per second after the divider; `None` where the TSC itself is the timer.
    khz: Option<u64>,
}

impl Timer {
    /// The timer, which runs at `khz` undivided.
    pub fn new(apic: Apic, clock: Clock, khz: u64) -> Self {
        let has_deadline = __cpuid(1).ecx & 1 << 24 != 0;
        Timer { apic, clock, khz: (!has_deadline).then_some(khz / 8) }
    }

    /// Makes the running core's timer ready. It raises nothing before it is armed.
    pub fn start(&self) {
        let mode = match self.khz {
            None => TSC_DEADLINE_MODE,
            Some(_) => {
                // SAFETY: setting the divider raises no interrupt.
                unsafe { self.apic.write(DIVIDE, DIVIDE_BY_8) };
                0
            }
        };
        // SAFETY: the vector has a handler (`interrupts::take`).
        unsafe { self.apic.write(LVT_TIMER, TIMER_VECTOR | mode) };
        // In xAPIC mode this write must take effect before the first deadline (SDM vol. 3A, 11.5.4.1).
        // SAFETY: a fence; every x86-64 CPU has it.
        unsafe { core::arch::x86_64::_mm_mfence() };
    }

    /// Raises an interrupt on this core at `deadline`, or earlier if that is seconds away. Replaces an earlier
    /// deadline. Returns false, and does nothing, if `deadline` has passed. A loop that another interrupt wakes does
    /// not disarm the timer: its next halt sets another deadline.
    pub fn arm(&self, deadline: Instant) -> bool {
        let wait = deadline.as_nanos().saturating_sub(self.clock.now().as_nanos()).min(LONGEST);
        if wait == 0 {
            return false;
        }
        match self.khz {
            None => {
                let mut msr = TSC_DEADLINE;
                // SAFETY: the CPU has the mode (checked), and the interrupt has a handler.
                unsafe { msr.write(self.clock.tsc_after(wait)) };
            }
            Some(khz) => {
                let ticks = (wait * khz / 1_000_000).max(1);
                let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
                // SAFETY: the interrupt has a handler.
                unsafe { self.apic.write(INITIAL_COUNT, ticks) };
            }
        }
        true
    }
}
