//! Metrics of the bridge.

use super::Page;
use crate::gateway::bridge::TransportPort;
use crate::gateway::state::State;
use core::fmt::{Display, Error};
use ntrdma::{self, Counters};

/// A counter: its name, its help, where it lies in the provider's, and in a bridge's to a stock Linux host that has it.
type Family = (&'static str, &'static str, fn(&Counters) -> u64, Option<fn(&TransportPort) -> u64>);

const FAMILIES: [Family; 8] = [
    (
        "isthmus_ntb_link_up_total",
        "Times that the link came up.",
        |c| c.link_up,
        Some(TransportPort::ups),
    ),
    ("isthmus_ntb_link_down_total", "Times that the link went down.", |c| c.link_down, None),
    (
        "isthmus_ntb_transmit_entries_total",
        "Requests written to the peer.",
        |c| c.entries_sent,
        None,
    ),
    ("isthmus_ntb_receive_entries_total", "Requests taken from it.", |c| c.entries_received, None),
    (
        "isthmus_ntb_transmit_bytes_total",
        "Payload written to its memory.",
        |c| c.bytes_staged,
        None,
    ),
    ("isthmus_ntb_not_ready_total", "Times that a request had to wait.", |c| c.not_ready, None),
    ("isthmus_ntb_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors, None),
    (
        "isthmus_ntb_violations_total",
        "What the peer wrote that no honest one does.",
        |c| c.violations,
        Some(TransportPort::violations),
    ),
];

/// Nothing without a bridge.
pub(super) fn write(state: &State, w: &mut Page<'_>) -> Result<(), Error> {
    let plane = &state.plane;
    let ntrdma = plane.rdma_stack.as_ref().and_then(|rdma_stack| rdma_stack.providers.ntrdma());
    let bridge = plane.bridge.as_ref().zip(ntrdma);
    if bridge.is_none() && plane.transports.is_empty() {
        return Ok(());
    }
    let label = [("bridge", &"ntb0" as &dyn Display)];
    let mut up = w.gauge("isthmus_ntb_up", "Whether the link to the other machine is up.")?;
    if let Some((_, ntrdma)) = bridge {
        up.sample(&label, u64::from(ntrdma.link() == ntrdma::State::Up))?;
    }
    for one in &plane.transports {
        up.sample(&[("bridge", &one.name as &dyn Display)], u64::from(one.is_up()))?;
    }
    if let Some((bridge, ntrdma)) = bridge {
        let (device, connected) = bridge.device.connected();
        let carried = [label[0], ("device", &device as &dyn Display)];
        let help = "Whether what carries the bridge reaches the other machine.";
        w.gauge("isthmus_ntb_connected", help)?.sample(&carried, u64::from(connected))?;
        w.gauge("isthmus_ntb_queue_pairs", "Queue pairs.")?
            .sample(&label, ntrdma.queue_pairs().0 as u64)?;
    }
    for (name, help, value, of_transport) in FAMILIES {
        let transports = plane.transports.iter().zip(core::iter::repeat(of_transport));
        let transports = transports.filter_map(|(one, value)| Some((one, value?(one))));
        let mut counter = w.counter(name, help)?;
        if let Some((_, ntrdma)) = bridge {
            counter.sample(&label, value(ntrdma.counters()))?;
        }
        for (one, value) in transports {
            counter.sample(&[("bridge", &one.name as &dyn Display)], value)?;
        }
    }
    let mut interrupts =
        w.counter("isthmus_ntb_interrupts_total", "Interrupts that the device raised.")?;
    if let Some((bridge, _)) = bridge {
        interrupts.sample(&label, bridge.device.interrupts())?;
    }
    for one in &plane.transports {
        interrupts.sample(&[("bridge", &one.name as &dyn Display)], one.interrupts())?;
    }
    Ok(())
}
