//! Counters of the log.

use super::page::Page;
use crate::appliance::Appliance;
use crate::log_ring::Kind;
use core::fmt::Error;

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let counters = appliance.log().counters();
    let mut lines = w.counter("isthmus_log_lines_total", "Messages that were logged, by kind.")?;
    for (kind, count) in Kind::ALL.iter().zip(counters.kept) {
        lines.sample(&[("kind", &kind.name())], count)?;
    }
    w.counter(
        "isthmus_log_repeats_total",
        "Repeated messages that were counted instead of logged.",
    )?
    .sample(&[], counters.repeats)?;
    w.counter(
        "isthmus_log_lost_total",
        "Messages overwritten before they were sent to the syslog server.",
    )?
    .sample(&[], counters.lost)?;
    w.counter(
        "isthmus_log_slow_followers_total",
        "Clients that followed the log too slowly, and were disconnected.",
    )?
    .sample(&[], counters.slow_followers)?;
    Ok(())
}
