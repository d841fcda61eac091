//! The local APIC of the running core (Intel SDM vol. 3A, chapter 11). The kernel has enabled it, in xAPIC or x2APIC
//! mode.

use super::board;
use x86_64::registers::model_specific::Msr;

const BASE_MSR: u32 = 0x1b;
const X2APIC_ENABLED: u64 = 1 << 10;
/// Page of the registers. The boot stub maps it uncached and one to one.
pub const PAGE: usize = 0xfee0_0000;

/// Interrupt command register: its low half and, in memory mode, the high half with the target.
const COMMAND: u32 = 0x30;
const COMMAND_TARGET: u32 = 0x31;
const LEVEL_ASSERT: u32 = 1 << 14;

/// Timer entry of the local vector table.
pub const LVT_TIMER: u32 = 0x32;
/// Start of the timer's countdown.
pub const INITIAL_COUNT: u32 = 0x38;
/// Divider of the timer's clock.
pub const DIVIDE: u32 = 0x3e;

/// Access to the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apic {
    /// In memory (xAPIC).
    Memory,
    /// As MSRs (x2APIC).
    Msr,
}

impl Apic {
    /// The mode that the kernel has set, which is the same on every core.
    pub fn detect() -> Self {
        // SAFETY: every x86-64 CPU has the register.
        match unsafe { Msr::new(BASE_MSR).read() } & X2APIC_ENABLED {
            0 => Apic::Memory,
            _ => Apic::Msr,
        }
    }

    /// Writes a register, named by its x2APIC number less 0x800.
    ///
    /// # Safety
    /// An interrupt that this causes, here or on other cores, has a handler.
    pub unsafe fn write(self, register: u32, value: u32) {
        match self {
            // SAFETY: writes to local APIC registers do not access our memory. The caller promises a handler.
            Apic::Msr => unsafe { Msr::new(0x800 + register).write(value.into()) },
            // SAFETY: as above; the page is mapped for ever.
            Apic::Memory => unsafe {
                ((PAGE + ((register as usize) << 4)) as *mut u32).write_volatile(value)
            },
        }
    }

    /// Raises the interrupt `vector` on the core whose APIC has the ID `target`. Earlier stores of this core are
    /// visible to its handler.
    ///
    /// # Safety
    /// The vector has a handler on every core.
    pub unsafe fn send(self, target: u32, vector: u32) {
        let command = vector | LEVEL_ASSERT;
        // As an MSR the register is not ordered after stores (SDM vol. 3A, 11.12.3).
        // SAFETY: a fence; every x86-64 CPU has it.
        unsafe { core::arch::x86_64::_mm_mfence() };
        match self {
            // SAFETY: the caller's promise.
            Apic::Msr => unsafe {
                let mut msr = Msr::new(0x800 + COMMAND);
                msr.write(u64::from(target) << 32 | u64::from(command));
            },
            // Interrupts are off, so nothing writes the registers between the two.
            // SAFETY: the caller's promise.
            Apic::Memory => unsafe {
                self.write(COMMAND_TARGET, target << 24);
                self.write(COMMAND, command);
            },
        }
    }
}

impl Apic {
    /// Stops all other cores by a non-maskable interrupt, whose handler halts for ever.
    pub fn stop_others(self) {
        const NMI: u32 = 4 << 8;
        const ALL_BUT_SELF: u32 = 3 << 18;
        // SAFETY: a fence; every x86-64 CPU has it.
        unsafe { core::arch::x86_64::_mm_mfence() };
        // SAFETY: the NMI has a handler: `exceptions::report`, which halts, or the kernel's.
        unsafe { self.write(COMMAND, NMI | LEVEL_ASSERT | ALL_BUT_SELF) };
    }
}

/// ID of the running core's APIC, the target of interrupts to it.
pub fn id() -> u32 {
    board::apic_id(Apic::detect())
}
