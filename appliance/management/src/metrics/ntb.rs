//! Metrics of bridges.

use super::page::Page;
use crate::appliance::Appliance;
use crate::status::{BridgeStatus, Hardware, TransportStatus};
use core::fmt::{Display, Error};
use drivers::ntb::transport::State;
use ntrdma::Counters;

/// A counter: metric name, help, value of an NTRDMA bridge, and value of a bridge to a stock Linux host if it has one.
type Family =
    (&'static str, &'static str, fn(&Counters) -> u64, Option<fn(&TransportStatus<'_>) -> u64>);

const FAMILIES: [Family; 8] = [
    (
        "isthmus_ntb_link_up_total",
        "Times that the link came up.",
        |c| c.link_up,
        Some(|one| one.ups),
    ),
    ("isthmus_ntb_link_down_total", "Times that the link went down.", |c| c.link_down, None),
    (
        "isthmus_ntb_transmit_entries_total",
        "Requests written to the peer.",
        |c| c.entries_sent,
        None,
    ),
    (
        "isthmus_ntb_receive_entries_total",
        "Requests received from the peer.",
        |c| c.entries_received,
        None,
    ),
    (
        "isthmus_ntb_transmit_bytes_total",
        "Payload written to the peer's memory.",
        |c| c.bytes_staged + c.bytes_placed,
        None,
    ),
    (
        "isthmus_ntb_not_ready_total",
        "Times that a request had to wait for the peer.",
        |c| c.not_ready,
        None,
    ),
    ("isthmus_ntb_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors, None),
    (
        "isthmus_ntb_violations_total",
        "Protocol violations in data that the peer wrote.",
        |c| c.violations,
        Some(|one| one.violations),
    ),
];

/// A value of a hardware bridge: metric name, help, and value.
type OfHardware = (&'static str, &'static str, fn(&Hardware) -> u64);

const GAUGES: [OfHardware; 4] = [
    (
        "isthmus_ntb_link_generation",
        "PCI Express generation of the bridge's link; 0 while the link is down.",
        |h| h.link.0.into(),
    ),
    ("isthmus_ntb_link_lanes", "Lanes of the bridge's link; 0 while the link is down.", |h| {
        h.link.1.into()
    }),
    ("isthmus_ntb_window_bytes", "Memory of the peer that the appliance can write.", |h| h.window),
    ("isthmus_ntb_exposed_bytes", "Memory of the appliance that the peer can write.", |h| {
        h.exposed
    }),
];

const COUNTERS: [OfHardware; 4] = [
    ("isthmus_ntb_cpu_bytes_total", "Bytes written through the bridge by the CPU.", |h| h.by_cpu),
    (
        "isthmus_ntb_engine_bytes_total",
        "Bytes written through the bridge by the DMA engine.",
        |h| h.by_engine,
    ),
    ("isthmus_ntb_engine_resets_total", "Resets of the engine's channel.", |h| h.resets),
    (
        "isthmus_ntb_engine_completions_missed_total",
        "Completions that the DMA engine failed to signal.",
        |h| h.missed,
    ),
];

/// The label that names a bridge.
fn label(name: &dyn Display) -> [(&'static str, &dyn Display); 1] {
    [("bridge", name)]
}

/// Writes nothing without a bridge.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let (bridges, transports) = (appliance.bridges(), appliance.transports());
    if bridges.is_empty() && transports.is_empty() {
        return Ok(());
    }
    let mut up = w.gauge("isthmus_ntb_up", "Whether the link to the other machine is up.")?;
    for bridge in &bridges {
        up.sample(&label(&bridge.name), u64::from(bridge.link == ntrdma::State::Up))?;
    }
    for one in &transports {
        up.sample(&label(&one.name), u64::from(one.state == State::Up))?;
    }
    if !bridges.is_empty() {
        let help = "Whether the device below the bridge reaches the other machine.";
        let mut reached = w.gauge("isthmus_ntb_connected", help)?;
        for bridge in &bridges {
            let [name] = label(&bridge.name);
            let device = ("device", &bridge.reached.0 as &dyn Display);
            reached.sample(&[name, device], u64::from(bridge.reached.1))?;
        }
        let mut pairs = w.gauge("isthmus_ntb_queue_pairs", "Queue pairs.")?;
        for bridge in &bridges {
            pairs.sample(&label(&bridge.name), bridge.queue_pairs.0 as u64)?;
        }
    }
    for (name, help, value, of_transport) in FAMILIES {
        let transports = transports.iter().zip(core::iter::repeat(of_transport));
        let transports = transports.filter_map(|(one, value)| Some((one, value?(one))));
        let mut counter = w.counter(name, help)?;
        for bridge in &bridges {
            counter.sample(&label(&bridge.name), value(&bridge.counters))?;
        }
        for (one, value) in transports {
            counter.sample(&label(&one.name), value)?;
        }
    }
    let mut interrupts =
        w.counter("isthmus_ntb_interrupts_total", "Interrupts that the device raised.")?;
    for bridge in &bridges {
        interrupts.sample(&label(&bridge.name), bridge.carrier.interrupts)?;
    }
    for one in &transports {
        interrupts.sample(&label(&one.name), one.carrier.interrupts)?;
    }
    hardware(&bridges, &transports, w)
}

/// Writes nothing without a hardware bridge.
fn hardware(
    bridges: &[BridgeStatus],
    transports: &[TransportStatus<'_>],
    w: &mut Page<'_>,
) -> Result<(), Error> {
    let ntrdma =
        bridges.iter().filter_map(|bridge| Some((bridge.name.as_str(), bridge.carrier.hardware?)));
    let others = transports.iter().filter_map(|one| Some((one.name, one.carrier.hardware?)));
    let all: Vec<(&str, Hardware)> = ntrdma.chain(others).collect();
    if all.is_empty() {
        return Ok(());
    }
    for (name, help, value) in GAUGES {
        let mut gauge = w.gauge(name, help)?;
        for (bridge, hardware) in &all {
            gauge.sample(&label(bridge), value(hardware))?;
        }
    }
    for (name, help, value) in COUNTERS {
        let mut counter = w.counter(name, help)?;
        for (bridge, hardware) in &all {
            counter.sample(&label(bridge), value(hardware))?;
        }
    }
    Ok(())
}
