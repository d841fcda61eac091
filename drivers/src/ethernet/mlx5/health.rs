//! Health checks of the firmware (Linux: `health.c`).

use super::firmware::Firmware;

const FIRMWARE_VERSION: usize = 0x230;
/// The firmware's reset request, and severity.
const WANTS_RESET: usize = 0x238;
const SYNDROME: usize = 0x23c;
const COUNTER: usize = 0x1010;
const QUEUE_LOW: usize = 0x14;
/// Number of successive checks without a change of the counter after which the firmware seems to hang: 8 s, as in Linux
/// (`MAX_MISSES`, `poll_health`).
const MOST_UNCHANGED: u8 = 8;
/// Bits of [`WANTS_RESET`]: a reset of the function helps; only a cold reset of the machine helps (Linux 7.3,
/// `crr`).
const FUNCTION_RESET: u32 = 1 << 31;
const COLD_RESET: u32 = 1 << 30;
/// Syndrome: the card is locked down, which only a cold reset ends.
const LOCKED_DOWN: u32 = 0x13;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The firmware works.
    Good,
    /// The registers read as all ones.
    Absent,
    /// The firmware has reported a failure.
    Failed,
    /// The firmware has reported a failure that only powering the machine off and on ends.
    NeedsColdReset,
    /// The firmware seems to hang: its counter has stopped.
    Hung,
}

/// State of the checks.
#[derive(Debug, Default)]
pub struct HealthMonitor {
    counter: Option<u32>,
    unchanged: u8,
}

impl HealthMonitor {
    /// Checks the firmware. Call it about once a second.
    pub fn check(&mut self, firmware: &Firmware) -> Health {
        if firmware.read(FIRMWARE_VERSION) == u32::MAX {
            return Health::Absent;
        }
        let wanted = firmware.read(WANTS_RESET);
        let syndrome = firmware.read(SYNDROME) >> 16 & 0xff;
        // The function is disabled by its owner: 1 it is off, 7 it is being reset.
        let interface = firmware.read(QUEUE_LOW) >> 8 & 7;
        let needs_cold_reset = wanted & COLD_RESET != 0 || syndrome == LOCKED_DOWN;
        if syndrome != 0 && needs_cold_reset {
            return Health::NeedsColdReset;
        }
        if wanted & FUNCTION_RESET != 0 && syndrome != 0 || matches!(interface, 1 | 7) {
            return Health::Failed;
        }
        let counter = firmware.read(COUNTER) & 0xff_ffff;
        let moved = self.counter.replace(counter) != Some(counter);
        self.unchanged = if moved { 0 } else { self.unchanged.saturating_add(1) };
        if self.unchanged >= MOST_UNCHANGED { Health::Hung } else { Health::Good }
    }
}
