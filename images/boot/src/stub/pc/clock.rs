//! Frequencies of the time-stamp counter and of the local APIC's timer.
//!
//! The TSC frequency in CPUID is used if there is one. Otherwise both are measured against a timer of known
//! frequency for 10 ms, with an error of about 50 ppm: at each end the best of several samples is used.

use crate::acpi::Tables;
use crate::stub::fatal;
use crate::{BootInfo, ClockSource};
use core::arch::x86_64::{__cpuid, _rdtsc};
use x86_64::instructions::port::{Port, PortReadOnly};
use x86_64::registers::model_specific::Msr;

const PM_TIMER_HZ: u64 = 3_579_545;
const PIT_HZ: u64 = 1_193_182;
/// Duration of the measurement.
const MILLISECONDS: u64 = 10;
/// Samples at each end of the measurement.
const SAMPLES: u32 = 8;
/// A timer that has not changed after so many reads is absent.
const MAX_READS: u32 = 100_000;

/// Sets the frequencies and their source.
pub fn measure(boot: &mut BootInfo, acpi: Option<&Tables>) {
    let pm_timer = acpi.and_then(Tables::pm_timer).map(PmTimer::new);
    let measured = pm_timer
        .and_then(|mut t| Some((ClockSource::PmTimer, measure_against(&mut t, PM_TIMER_HZ)?)))
        .or_else(|| Some((ClockSource::Pit, measure_against(&mut Pit::start(), PIT_HZ)?)));
    if let Some((source, (tsc, apic))) = measured {
        (boot.clock_source, boot.tsc_khz, boot.apic_timer_khz) = (source, tsc, apic);
    }
    if let Some(khz) = from_cpuid() {
        (boot.clock_source, boot.tsc_khz) = (ClockSource::Cpuid, khz);
    }
    if boot.tsc_khz == 0 {
        fatal(
            "no clock: the machine has neither an ACPI PM timer nor a PIT, and CPUID has no TSC frequency",
        );
    }
}

/// TSC frequency from the hypervisor (leaf 0x40000010 of VMware, which KVM supports) or
/// from the CPU (leaf 0x15).
fn from_cpuid() -> Option<u64> {
    const HYPERVISOR: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR != 0 && __cpuid(0x4000_0000).eax >= 0x4000_0010 {
        let khz = __cpuid(0x4000_0010).eax;
        if khz != 0 {
            return Some(khz.into());
        }
    }
    if __cpuid(0).eax < 0x15 {
        return None;
    }
    let leaf = __cpuid(0x15);
    let hz = u64::from(leaf.ecx) * u64::from(leaf.ebx);
    hz.checked_div(leaf.eax.into()).map(|hz| hz / 1000).filter(|&khz| khz != 0)
}

/// A counter of known frequency.
trait Timer {
    /// Ticks since a fixed time in the past.
    fn ticks(&mut self) -> u64;
}

/// A sample of all three clocks.
struct Sample {
    ticks: u64,
    tsc: u64,
    apic: u64,
}

/// Measures (TSC, APIC timer) in kHz with a timer of `hz`; `None` if the timer does not run.
fn measure_against(timer: &mut impl Timer, hz: u64) -> Option<(u64, u64)> {
    let apic = ApicTimer::start();
    let first = timer.ticks();
    let mut reads = 0;
    while timer.ticks() == first {
        reads += 1;
        if reads > MAX_READS {
            return None;
        }
    }
    let start = sample(timer, &apic);
    while timer.ticks() - start.ticks < hz * MILLISECONDS / 1000 {
        // Exact samples are needed only at the ends.
        (0..8).for_each(|_| core::hint::spin_loop());
    }
    let end = sample(timer, &apic);
    let khz = |count: u64| count * hz / (end.ticks - start.ticks) / 1000;
    Some((khz(end.tsc - start.tsc), khz(end.apic - start.apic)))
}

/// The sample that took the least time, so that the three clocks were read close together.
fn sample(timer: &mut impl Timer, apic: &ApicTimer) -> Sample {
    let mut best = (u64::MAX, Sample { ticks: 0, tsc: 0, apic: 0 });
    for _ in 0..SAMPLES {
        // SAFETY: every x86-64 CPU has the instruction, and the kernel needs it as well.
        let before = unsafe { _rdtsc() };
        let (apic, ticks) = (apic.count(), timer.ticks());
        // SAFETY: as above.
        let took = unsafe { _rdtsc() } - before;
        if took < best.0 {
            best = (took, Sample { ticks, tsc: before + took / 2, apic });
        }
    }
    best.1
}

/// The ACPI power-management timer (ACPI 6.5, 4.8.3.3): 24 bits or more, of which 24 are used.
struct PmTimer {
    port: PortReadOnly<u32>,
    last: u32,
    elapsed: u64,
}

impl PmTimer {
    fn new(port: u16) -> Self {
        PmTimer { port: PortReadOnly::new(port), last: 0, elapsed: 0 }
    }
}

impl Timer for PmTimer {
    fn ticks(&mut self) -> u64 {
        // SAFETY: ACPI names this port as the timer; reading has no effect.
        let now = unsafe { self.port.read() };
        self.elapsed += u64::from(now.wrapping_sub(self.last) & 0xff_ffff);
        self.last = now;
        self.elapsed
    }
}

/// Channel 0 of the 8254, counting down once. Read through the latch command, which needs no port 0x61
/// (QEMU's microvm has none).
struct Pit {
    last: u16,
    elapsed: u64,
}

impl Pit {
    fn start() -> Self {
        const CHANNEL_0_ONE_SHOT: u8 = 0x30;
        // SAFETY: the ports of the 8254, which nothing else uses; its interrupt is masked.
        unsafe {
            Port::<u8>::new(0x43).write(CHANNEL_0_ONE_SHOT);
            Port::<u8>::new(0x40).write(0xff);
            Port::<u8>::new(0x40).write(0xff);
        }
        Pit { last: 0xffff, elapsed: 0 }
    }
}

impl Timer for Pit {
    fn ticks(&mut self) -> u64 {
        const LATCH_CHANNEL_0: u8 = 0;
        // SAFETY: as in `start`.
        let now = unsafe {
            Port::<u8>::new(0x43).write(LATCH_CHANNEL_0);
            let mut data = Port::<u8>::new(0x40);
            u16::from_le_bytes([data.read(), data.read()])
        };
        self.elapsed += u64::from(self.last.wrapping_sub(now));
        self.last = now;
        self.elapsed
    }
}

/// The local APIC's timer, masked, counting down undivided. The APIC is in the mode that the firmware
/// has set.
struct ApicTimer {
    x2apic: bool,
}

impl ApicTimer {
    const LVT_TIMER: u32 = 0x32;
    const INITIAL_COUNT: u32 = 0x38;
    const CURRENT_COUNT: u32 = 0x39;
    const DIVIDE: u32 = 0x3e;
    const MASKED: u32 = 1 << 16;
    const UNDIVIDED: u32 = 0b1011;

    fn start() -> Self {
        // SAFETY: every x86-64 CPU has the register.
        let base = unsafe { Msr::new(0x1b).read() };
        let timer = ApicTimer { x2apic: base & 1 << 10 != 0 };
        timer.write(Self::LVT_TIMER, Self::MASKED);
        timer.write(Self::DIVIDE, Self::UNDIVIDED);
        timer.write(Self::INITIAL_COUNT, u32::MAX);
        timer
    }

    /// Ticks since `start`.
    fn count(&self) -> u64 {
        u64::from(u32::MAX - self.read(Self::CURRENT_COUNT))
    }

    fn read(&self, register: u32) -> u32 {
        if self.x2apic {
            // SAFETY: in this mode the APIC's registers are these MSRs.
            unsafe { Msr::new(0x800 + register).read() as u32 }
        } else {
            // SAFETY: in this mode they lie in memory at 0xfee00000, mapped uncached.
            unsafe { (Self::address(register)).read_volatile() }
        }
    }

    fn write(&self, register: u32, value: u32) {
        if self.x2apic {
            // SAFETY: as in `read`; a masked timer raises no interrupt.
            unsafe { Msr::new(0x800 + register).write(value.into()) };
        } else {
            // SAFETY: as in `read`; a masked timer raises no interrupt.
            unsafe { Self::address(register).write_volatile(value) };
        }
    }

    fn address(register: u32) -> *mut u32 {
        (0xfee0_0000 + ((register as usize) << 4)) as *mut u32
    }
}
