//! Whether the firmware lives (Linux: `health.c`).

use super::firmware::Firmware;

const FIRMWARE_VERSION: usize = 0x230;
/// Whether the firmware wants a reset, and how bad it is; the syndrome.
const WANTS_RESET: usize = 0x238;
const SYNDROME: usize = 0x23c;
const COUNTER: usize = 0x1010;
const QUEUE_LOW: usize = 0x14;
/// Looks in a row at which the counter has not moved.
const MOST_STILL: u8 = 3;

/// What a look has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It lives.
    Good,
    /// Nothing answers.
    Absent,
    /// It says that it has failed.
    Failed,
    /// It does not move any more.
    Still,
}

/// Looks so far.
#[derive(Debug, Default)]
pub struct Watch {
    counter: Option<u32>,
    still: u8,
}

impl Watch {
    /// Looks, once a second or so.
    pub fn look(&mut self, firmware: &Firmware) -> Health {
        if firmware.read(FIRMWARE_VERSION) == u32::MAX {
            return Health::Absent;
        }
        let wants_reset = firmware.read(WANTS_RESET) >> 31 == 1;
        let syndrome = firmware.read(SYNDROME) >> 16 & 0xff;
        // The function was taken from us: 1 it is off, 7 it is being reset.
        let interface = firmware.read(QUEUE_LOW) >> 8 & 7;
        if wants_reset && syndrome != 0 || matches!(interface, 1 | 7) {
            return Health::Failed;
        }
        let counter = firmware.read(COUNTER) & 0xff_ffff;
        let moved = self.counter.replace(counter) != Some(counter);
        self.still = if moved { 0 } else { self.still.saturating_add(1) };
        if self.still >= MOST_STILL { Health::Still } else { Health::Good }
    }
}
