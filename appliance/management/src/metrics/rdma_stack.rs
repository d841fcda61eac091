//! Metrics of the software RoCE provider.

use super::page::Page;
use crate::appliance::Appliance;
use core::fmt::Error;
use roce::{Counters, Naks, Packets};

/// A counter of the provider: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const FAMILIES: [Family; 8] = [
    ("isthmus_roce_retries_total", "Retransmissions.", |c| c.retries),
    ("isthmus_roce_timeouts_total", "Retransmissions because an ACK timed out.", |c| c.timeouts),
    (
        "isthmus_roce_acks_repeated_total",
        "ACKs repeated after an idle period in case the first was lost.",
        |c| c.acks_repeated,
    ),
    (
        "isthmus_roce_connections_refused_of_host_total",
        "Connections refused because their host reached limits.connections_per_host.",
        |c| c.refused_of_host,
    ),
    (
        "isthmus_roce_connections_gave_way_total",
        "Closed or half-open connections evicted for a new request.",
        |c| c.gave_way,
    ),
    ("isthmus_roce_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors),
    ("isthmus_roce_icrc_errors_total", "Packets with a wrong ICRC.", |c| c.dropped.icrc),
    (
        "isthmus_roce_completions_lost_total",
        "Completions lost because their queue was full: a fault of the appliance.",
        |c| c.completions_lost,
    ),
];

fn packets(packets: &Packets) -> [(&'static str, u64); 7] {
    [
        ("send", packets.sends),
        ("write", packets.writes),
        ("read", packets.reads),
        ("atomic", packets.atomics),
        ("read_response", packets.read_responses),
        ("acknowledge", packets.acknowledges),
        ("connection_manager", packets.connection_manager),
    ]
}

fn naks(naks: &Naks) -> [(&'static str, u64); 5] {
    [
        ("sequence", naks.sequence),
        ("invalid_request", naks.invalid_request),
        ("remote_access", naks.remote_access),
        ("remote_operation", naks.remote_operation),
        ("receiver_not_ready", naks.receiver_not_ready),
    ]
}

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let Some(roce) = appliance.roce() else { return Ok(()) };
    let counters = roce.counters;
    w.gauge("isthmus_roce_queue_pairs", "Queue pairs that exist.")?
        .sample(&[], roce.queue_pairs as u64)?;
    w.gauge("isthmus_roce_connections", "Connections that are open, opening or closing.")?
        .sample(&[], roce.connections as u64)?;
    for (name, help, value) in FAMILIES {
        w.counter(name, help)?.sample(&[], value(counters))?;
    }
    let ways = [("receive", packets(&counters.received)), ("transmit", packets(&counters.sent))];
    let mut family = w.counter("isthmus_roce_packets_total", "Packets accepted or sent.")?;
    for (way, list) in ways {
        for (kind, count) in list {
            family.sample(&[("direction", &way), ("kind", &kind)], count)?;
        }
    }
    let dropped = &counters.dropped;
    let dropped = [
        ("malformed", dropped.malformed),
        ("not_ours", dropped.not_ours),
        ("unknown_qp", dropped.unknown_qp),
        ("wrong_state", dropped.wrong_state),
        ("wrong_peer", dropped.wrong_peer),
        ("no_way_back", dropped.no_way_back),
        ("wrong_key", dropped.wrong_key),
        ("icrc", dropped.icrc),
        ("out_of_sequence", dropped.out_of_sequence),
        ("duplicate", dropped.duplicate),
        ("unexpected_answer", dropped.unexpected_answer),
        ("no_receive", dropped.no_receive),
    ];
    let mut family = w.counter("isthmus_roce_dropped_total", "Packets dropped, by reason.")?;
    for (reason, count) in dropped {
        family.sample(&[("reason", &reason)], count)?;
    }
    let ways =
        [("receive", naks(&counters.naks_received)), ("transmit", naks(&counters.naks_sent))];
    let mut family = w.counter("isthmus_roce_naks_total", "Negative acknowledgements.")?;
    for (way, list) in ways {
        for (reason, count) in list {
            family.sample(&[("direction", &way), ("reason", &reason)], count)?;
        }
    }
    Ok(())
}
