//! Metrics of the bridge.

use super::Page;
use crate::gateway::state::State;
use core::fmt::Error;
use ntrdma::{self, Counters};

/// A counter of the provider: its name, its help, and where it lies.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const FAMILIES: [Family; 8] = [
    ("isthmus_ntb_link_up_total", "Times that the link came up.", |c| c.link_up),
    ("isthmus_ntb_link_down_total", "Times that the link went down.", |c| c.link_down),
    ("isthmus_ntb_transmit_entries_total", "Requests written to the peer.", |c| c.entries_sent),
    ("isthmus_ntb_receive_entries_total", "Requests taken from it.", |c| c.entries_received),
    ("isthmus_ntb_transmit_bytes_total", "Payload written to its memory.", |c| c.bytes_staged),
    ("isthmus_ntb_not_ready_total", "Times that a request had to wait.", |c| c.not_ready),
    ("isthmus_ntb_queue_pair_errors_total", "Queue pairs that failed.", |c| c.qp_errors),
    ("isthmus_ntb_violations_total", "What the peer wrote that no honest one does.", |c| {
        c.violations
    }),
];

/// Nothing without a bridge.
pub(super) fn write(state: &State, w: &mut Page<'_>) -> Result<(), Error> {
    let plane = &state.plane;
    let ntrdma = plane.rdma_stack.as_ref().and_then(|rdma_stack| rdma_stack.providers.ntrdma());
    let (Some(bridge), Some(ntrdma)) = (&plane.bridge, ntrdma) else { return Ok(()) };
    let label = [("bridge", &"ntb0" as &dyn core::fmt::Display)];
    w.gauge("isthmus_ntb_up", "Whether the link to the other machine is up.")?
        .sample(&label, u64::from(ntrdma.link() == ntrdma::State::Up))?;
    let (device, connected) = bridge.device.connected();
    let carried = [label[0], ("device", &device as &dyn core::fmt::Display)];
    w.gauge("isthmus_ntb_connected", "Whether what carries the bridge reaches the other machine.")?
        .sample(&carried, u64::from(connected))?;
    w.gauge("isthmus_ntb_queue_pairs", "Queue pairs.")?
        .sample(&label, ntrdma.queue_pairs().0 as u64)?;
    for (name, help, value) in FAMILIES {
        w.counter(name, help)?.sample(&label, value(ntrdma.counters()))?;
    }
    w.counter("isthmus_ntb_interrupts_total", "Interrupts that the device raised.")?
        .sample(&label, bridge.device.interrupts())?;
    Ok(())
}
