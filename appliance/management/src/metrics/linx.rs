//! Metrics of LINX.

use super::page::Page;
use crate::appliance::Appliance;
use crate::linx::{RIOCM, STRAYS};
use crate::status::LinxStatus;
use ::linx::{LinkCounters, Phase};
use core::fmt::{Display, Error};

/// A counter of a link: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&LinkCounters) -> u64);

const FAMILIES: [Family; 11] = [
    ("isthmus_linx_link_up_total", "Times that the link came up.", |c| c.ups),
    ("isthmus_linx_transmit_signals_total", "Signals sent.", |c| c.sent),
    ("isthmus_linx_receive_signals_total", "Signals received.", |c| c.received),
    ("isthmus_linx_dropped_signals_total", "Signals dropped because the inbox was full.", |c| {
        c.inbox_full
    }),
    (
        "isthmus_linx_unknown_destination_signals_total",
        "Signals to a link address without an endpoint.",
        |c| c.unknown_destination,
    ),
    (
        "isthmus_linx_unknown_source_signals_total",
        "Signals of an unpublished sender that could not be stored.",
        |c| c.unknown_source,
    ),
    (
        "isthmus_linx_bad_signals_total",
        "Signals without a number, or with an invalid link address.",
        |c| c.bad_signals,
    ),
    ("isthmus_linx_refused_hunts_total", "Hunts of the peer that were refused.", |c| {
        c.hunts_refused
    }),
    (
        "isthmus_linx_unpublished_names_total",
        "Own names that were not published for want of a link address.",
        |c| c.no_address,
    ),
    ("isthmus_linx_ignored_messages_total", "RLNH messages that were ignored.", |c| c.ignored),
    ("isthmus_linx_unnamed_addresses_total", "Peer addresses whose name was not stored.", |c| {
        c.unnamed
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
    connections(&linx, w)?;
    let (other_numbers, strangers) = linx.dropped;
    let help = "Signals to a rule's name that were dropped: wrong signal number, or sent by another link's peer.";
    let mut family = w.counter("isthmus_linx_rule_dropped_signals_total", help)?;
    family.sample(&[("reason", &"other_number")], other_numbers)?;
    family.sample(&[("reason", &"stranger")], strangers)?;
    w.counter("isthmus_linx_echoed_total", "Signals echoed.")?.sample(&[], linx.echoed)?;
    Ok(())
}

/// Counters of RIOCM connections and of packets without one, under their names in `show linx NAME`.
fn connections(linx: &LinxStatus<'_>, w: &mut Page<'_>) -> Result<(), Error> {
    let links = linx.links.iter().filter_map(|(_, status)| status.as_ref());
    let links = links.filter_map(|status| Some((&status.name, status.riocm.as_ref()?)));
    let help = "Counts of RIOCM connections: packets, bytes, messages, faults.";
    let mut family = w.counter("isthmus_linx_riocm_total", help)?;
    for (name, riocm) in links {
        for (count, value) in RIOCM {
            let labels: [(&'static str, &dyn Display); 2] = [("link", name), ("count", &count)];
            family.sample(&labels, value(&riocm.counters))?;
        }
    }
    let help = "RapidIO messages in LINX's mailboxes that belong to no connection.";
    let mut family = w.counter("isthmus_linx_stray_packets_total", help)?;
    for (reason, value) in STRAYS {
        family.sample(&[("reason", &reason)], value(&linx.strays))?;
    }
    Ok(())
}
