//! Metrics of LINX.

use super::page::Page;
use crate::appliance::Appliance;
use ::linx::{LinkCounters, Phase};
use core::fmt::{Display, Error};

/// A counter of a link: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&LinkCounters) -> u64);

const FAMILIES: [Family; 4] = [
    ("isthmus_linx_link_up_total", "Times that the link came up.", |c| c.ups),
    ("isthmus_linx_transmit_signals_total", "Signals sent.", |c| c.sent),
    ("isthmus_linx_receive_signals_total", "Signals received.", |c| c.received),
    ("isthmus_linx_dropped_signals_total", "Signals dropped because the inbox was full.", |c| {
        c.inbox_full
    }),
];

/// Writes nothing without a link.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let Some(linx) = appliance.linx() else { return Ok(()) };
    let all = || linx.links.iter().filter_map(|(_, status)| status.as_ref());
    let mut up = w.gauge("isthmus_linx_up", "Whether the link is up.")?;
    for status in all() {
        let label = [("link", &status.name as &dyn Display)];
        up.sample(&label, u64::from(status.phase == Phase::Up))?;
    }
    for (name, help, value) in FAMILIES {
        let mut family = w.counter(name, help)?;
        for status in all() {
            let label = [("link", &status.name as &dyn Display)];
            family.sample(&label, value(&status.counters))?;
        }
    }
    let (other_numbers, strangers) = linx.dropped;
    let help = "Signals to a rule's name that were dropped: wrong signal number, or sent by another link's peer.";
    let mut family = w.counter("isthmus_linx_rule_dropped_signals_total", help)?;
    family.sample(&[("reason", &"other_number")], other_numbers)?;
    family.sample(&[("reason", &"stranger")], strangers)?;
    w.counter("isthmus_linx_echoed_total", "Signals echoed.")?.sample(&[], linx.echoed)?;
    Ok(())
}
