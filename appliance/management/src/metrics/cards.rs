//! Metrics of cards with RoCE in hardware.

use super::page::Page;
use crate::appliance::Appliance;
use crate::status::CardReport;
use connectx::{CardCounters, Counters};
use core::fmt::Error;

/// A counter of a card's provider: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const FAMILIES: [Family; 6] = [
    ("isthmus_roce_card_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors),
    ("isthmus_roce_card_refused_total", "Commands that the firmware refused.", |c| c.refused),
    (
        "isthmus_roce_card_completions_lost_total",
        "Completions lost because their queue was full: a fault of the appliance.",
        |c| c.completions_lost,
    ),
    (
        "isthmus_roce_card_completions_unknown_total",
        "Completions that match no queue pair or request: a fault of the card or of the appliance.",
        |c| c.completions_unknown,
    ),
    (
        "isthmus_roce_card_mads_dropped_total",
        "Connection management messages dropped: no connection matches, or the peer's address is unknown.",
        |c| c.mads_dropped,
    ),
    ("isthmus_roce_card_mads_total", "Connection management messages received.", |c| {
        c.mads_received
    }),
];

/// A hardware counter of a card: metric name, help, and value.
type Counted = (&'static str, &'static str, fn(&CardCounters) -> u64);

const COUNTED: [Counted; 12] = [
    (
        "isthmus_roce_card_out_of_buffer_total",
        "Packets received without a posted receive (RNR NAKs sent).",
        |c| c.out_of_buffer,
    ),
    (
        "isthmus_roce_card_out_of_sequence_total",
        "Packets received out of sequence: earlier packets were lost.",
        |c| c.out_of_sequence,
    ),
    ("isthmus_roce_card_duplicate_request_total", "Duplicate requests received.", |c| {
        c.duplicate_request
    }),
    (
        "isthmus_roce_card_rnr_nak_retry_err_total",
        "RNR NAKs received: the peer had no receive posted.",
        |c| c.rnr_nak_retry_err,
    ),
    ("isthmus_roce_card_packet_seq_err_total", "NAKs received for lost packets.", |c| {
        c.packet_seq_err
    }),
    ("isthmus_roce_card_implied_nak_seq_err_total", "Responses received out of sequence.", |c| {
        c.implied_nak_seq_err
    }),
    (
        "isthmus_roce_card_local_ack_timeout_err_total",
        "Requests whose acknowledgement timed out.",
        |c| c.local_ack_timeout_err,
    ),
    (
        "isthmus_roce_card_rx_discards_total",
        "Received frames that the card dropped because of an error.",
        |c| c.rx_discards,
    ),
    ("isthmus_roce_card_cnp_sent_total", "Congestion notifications sent.", |c| c.cnp_sent),
    (
        "isthmus_roce_card_cnp_handled_total",
        "Congestion notifications received that throttled a sender.",
        |c| c.cnp_handled,
    ),
    (
        "isthmus_roce_card_cnp_ignored_total",
        "Congestion notifications received and ignored.",
        |c| c.cnp_ignored,
    ),
    ("isthmus_roce_card_ecn_marked_total", "Packets received with an ECN congestion mark.", |c| {
        c.ecn_marked
    }),
];

/// Writes nothing without such cards.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let ports = appliance.ports();
    let cards: Vec<(&str, &CardReport)> =
        ports.iter().filter_map(|port| Some((port.name, port.report.card.as_ref()?))).collect();
    if cards.is_empty() {
        return Ok(());
    }
    let mut family = w.gauge("isthmus_roce_card_up", "Whether RoCE is active on the card.")?;
    for (port, card) in &cards {
        family.sample(&[("port", port)], u64::from(card.is_active))?;
    }
    let mut family = w.gauge("isthmus_roce_card_queue_pairs", "Queue pairs that exist.")?;
    for (port, card) in &cards {
        family.sample(&[("port", port)], card.queue_pairs as u64)?;
    }
    let connections = "Connections that are open, opening or closing.";
    let mut family = w.gauge("isthmus_roce_card_connections", connections)?;
    for (port, card) in &cards {
        family.sample(&[("port", port)], card.connections as u64)?;
    }
    for (name, help, value) in FAMILIES {
        let mut family = w.counter(name, help)?;
        for (port, card) in &cards {
            family.sample(&[("port", port)], value(&card.counters))?;
        }
    }
    for (name, help, value) in COUNTED {
        let mut family = w.counter(name, help)?;
        for (port, card) in &cards {
            family.sample(&[("port", port)], value(&card.card_counters))?;
        }
    }
    Ok(())
}
