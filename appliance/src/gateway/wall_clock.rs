//! Reads the wall clock from the machine's real-time clock at boot. The log shows UTC only if that time is plausible.

use crate::log_ring::LogRing;
use drivers::hal::Instant;
use management::status::{Facts, WallClock};

/// Creates the wall clock, which showed `seconds` since 1970 at `now`.
pub(super) fn read(seconds: u64, now: Instant, facts: &Facts, log: &LogRing) -> WallClock {
    let clock = WallClock::new(seconds, now, facts.committed);
    if clock.is_plausible {
        log.set_epoch(clock.epoch);
    } else {
        log::warn!(
            "clock: the real-time clock shows {:.0}, which is implausible: the log shows the time since the boot; \
             set the clock of the machine or of its host, and reboot the appliance",
            clock.at(now)
        );
    }
    clock
}
