//! Metrics of cards that do RoCE themselves.

use super::page::Page;
use crate::appliance::Appliance;
use crate::status::CardReport;
use connectx::{CardCounters, Counters};
use core::fmt::Error;

/// A counter of a card's provider: its name, its help, and where it lies.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const FAMILIES: [Family; 6] = [
    ("isthmus_roce_card_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors),
    ("isthmus_roce_card_refused_total", "Commands that the firmware refused.", |c| c.refused),
    (
        "isthmus_roce_card_completions_lost_total",
        "Completions that found their queue full: a mistake of the appliance.",
        |c| c.completions_lost,
    ),
    (
        "isthmus_roce_card_completions_unknown_total",
        "Completions of nothing that is known: a mistake of the card's, or of the appliance.",
        |c| c.completions_unknown,
    ),
    (
        "isthmus_roce_card_mads_dropped_total",
        "Messages about connections that were dropped: of nobody's, or of hosts that are not found.",
        |c| c.mads_dropped,
    ),
    ("isthmus_roce_card_mads_total", "Messages about connections that came.", |c| c.mads_received),
];

/// What a card counts by itself: its name, its help, and where it lies.
type Counted = (&'static str, &'static str, fn(&CardCounters) -> u64);

const COUNTED: [Counted; 12] = [
    (
        "isthmus_roce_card_out_of_buffer_total",
        "Packets that came and found no receive posted (RNR NAKs that were sent).",
        |c| c.out_of_buffer,
    ),
    (
        "isthmus_roce_card_out_of_sequence_total",
        "Packets that came out of sequence: some before them were lost.",
        |c| c.out_of_sequence,
    ),
    ("isthmus_roce_card_duplicate_request_total", "Requests that came a second time.", |c| {
        c.duplicate_request
    }),
    (
        "isthmus_roce_card_rnr_nak_retry_err_total",
        "RNR NAKs that came: the peer had no receive posted.",
        |c| c.rnr_nak_retry_err,
    ),
    ("isthmus_roce_card_packet_seq_err_total", "NAKs that came because packets were lost.", |c| {
        c.packet_seq_err
    }),
    ("isthmus_roce_card_implied_nak_seq_err_total", "Answers that came out of sequence.", |c| {
        c.implied_nak_seq_err
    }),
    (
        "isthmus_roce_card_local_ack_timeout_err_total",
        "Requests that were not acknowledged in time.",
        |c| c.local_ack_timeout_err,
    ),
    (
        "isthmus_roce_card_rx_discards_total",
        "Frames that the card dropped on their way in because of an error.",
        |c| c.rx_discards,
    ),
    ("isthmus_roce_card_cnp_sent_total", "Congestion notifications that were sent.", |c| {
        c.cnp_sent
    }),
    ("isthmus_roce_card_cnp_handled_total", "Congestion notifications that were heeded.", |c| {
        c.cnp_handled
    }),
    ("isthmus_roce_card_cnp_ignored_total", "Congestion notifications passed over.", |c| {
        c.cnp_ignored
    }),
    ("isthmus_roce_card_ecn_marked_total", "Packets that came with a mark of congestion.", |c| {
        c.ecn_marked
    }),
];

/// Nothing without such cards.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let ports = appliance.ports();
    let cards: Vec<(&str, &CardReport)> =
        ports.iter().filter_map(|port| Some((port.name, port.report.card.as_ref()?))).collect();
    if cards.is_empty() {
        return Ok(());
    }
    let mut family = w.gauge("isthmus_roce_card_up", "Whether the card does RoCE now.")?;
    for (port, card) in &cards {
        family.sample(&[("port", port)], u64::from(card.is_active))?;
    }
    let mut family = w.gauge("isthmus_roce_card_queue_pairs", "Queue pairs that there are.")?;
    for (port, card) in &cards {
        family.sample(&[("port", port)], card.queue_pairs as u64)?;
    }
    let connections = "Connections, made, being made and ending.";
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
