//! The local APIC's timer of the running core, to end a halt. The kernel arms it only for sleeping
//! tasks, of which a core that runs a loop has none.

use super::apic::{Apic, DIVIDE, INITIAL_COUNT, LVT_TIMER};
use super::clock::Clock;
use super::interrupts::TIMER_VECTOR;
use core::arch::x86_64::__cpuid;
use core::time::Duration;
use drivers::hal::Instant;
use x86_64::registers::model_specific::Msr;

const TSC_DEADLINE_MODE: u32 = 1 << 18;
const MASKED: u32 = 1 << 16;
/// As the kernel has it, for its own use of the timer.
const DIVIDE_BY_8: u32 = 0b0010;
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

    /// Raises an interrupt on this core at `deadline` (perhaps earlier, when that is far away).
    /// Returns false, and does nothing, if it has passed.
    pub fn arm(&self, deadline: Instant) -> bool {
        let wait = deadline - self.clock.now();
        if wait == Duration::ZERO {
            return false;
        }
        match self.khz {
            None => {
                self.apic.write(LVT_TIMER, TIMER_VECTOR | TSC_DEADLINE_MODE);
                // In memory mode the line above must arrive first (SDM vol. 3A, 11.5.4.1).
                // SAFETY: a fence; every x86-64 CPU has it.
                unsafe { core::arch::x86_64::_mm_mfence() };
                let mut msr = TSC_DEADLINE;
                // SAFETY: the CPU has the mode (checked), and the interrupt has a handler.
                unsafe { msr.write(self.clock.tsc_at(deadline)) };
            }
            Some(khz) => {
                let ticks = (wait.as_nanos() * u128::from(khz) / 1_000_000).max(1);
                self.apic.write(DIVIDE, DIVIDE_BY_8);
                self.apic.write(LVT_TIMER, TIMER_VECTOR);
                self.apic.write(INITIAL_COUNT, u32::try_from(ticks).unwrap_or(u32::MAX));
            }
        }
        true
    }

    /// Forgets the deadline.
    pub fn disarm(&self) {
        self.apic.write(LVT_TIMER, TIMER_VECTOR | MASKED);
    }
}
