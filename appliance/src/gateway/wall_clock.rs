//! The wall clock: what the machine's real-time clock showed at boot. The log shows UTC only if that is plausible.

use crate::log_ring::LogRing;
use drivers::hal::Instant;
use management::status::{Facts, WallClock};

/// The wall clock, which showed so many seconds since 1970 at `now`.
pub(super) fn read(seconds: u64, now: Instant, facts: &Facts, log: &LogRing) -> WallClock {
    let clock = WallClock::new(seconds, now, facts.committed);
    if clock.is_plausible {
        log.set_epoch(clock.epoch);
    } else {
        log::warn!(
            "clock: the real-time clock of the machine shows {:.0}, which cannot be: the log shows the time since \
             the boot; set the clock of the machine or of its host, and start the appliance again",
            clock.at(now)
        );
    }
    clock
}
