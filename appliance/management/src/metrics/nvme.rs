//! Metrics of the NVMe-oF target.

use super::page::Page;
use crate::appliance::Appliance;
use core::fmt::{Display, Error};
use nvme::NamespaceView;

/// A counter of a namespace: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&NamespaceView) -> u64);

const FAMILIES: [Family; 8] = [
    ("isthmus_nvme_reads_total", "Reads.", |it| it.reads.0),
    ("isthmus_nvme_read_bytes_total", "Bytes read.", |it| it.reads.1),
    ("isthmus_nvme_writes_total", "Writes.", |it| it.writes.0),
    ("isthmus_nvme_write_bytes_total", "Bytes written.", |it| it.writes.1),
    ("isthmus_nvme_errors_total", "Commands that ended in an error.", |it| it.errors),
    ("isthmus_nvme_reservation_conflicts_total", "Commands that a reservation excluded.", |it| {
        it.conflicts
    }),
    ("isthmus_nvme_delayed_total", "Commands that waited for a limit.", |it| it.delays.0),
    (
        "isthmus_nvme_delayed_microseconds_total",
        "Time in which commands waited for a limit.",
        |it| it.delays.1.as_micros() as u64,
    ),
];

const GAUGES: [Family; 2] = [
    ("isthmus_nvme_registrants", "Hosts that are registered for reservations.", |it| {
        it.reservation.1 as u64
    }),
    ("isthmus_nvme_reserved", "Whether a host holds a reservation.", |it| {
        it.reservation.0.is_some().into()
    }),
];

/// Writes nothing without a subsystem.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let Some(target) = appliance.nvme() else { return Ok(()) };
    let help = "Controllers, which are connected hosts.";
    w.gauge("isthmus_nvme_controllers", help)?.sample(&[], target.controllers().count() as u64)?;
    w.gauge("isthmus_nvme_queues", "Queues of hosts.")?.sample(&[], target.queues() as u64)?;
    let counts = target.security_counts();
    let help = "Authentications that have begun and are not complete.";
    w.gauge("isthmus_nvme_authentications_pending", help)?.sample(&[], counts.pending)?;
    for (name, help, ok, failed) in [
        (
            "isthmus_nvme_authentications_total",
            "Authentications of queues by DH-HMAC-CHAP.",
            counts.authenticated,
            counts.failed,
        ),
        (
            "isthmus_nvme_tls_handshakes_total",
            "TLS handshakes of hosts.",
            counts.handshakes,
            counts.handshakes_failed,
        ),
    ] {
        let mut family = w.counter(name, help)?;
        family.sample(&[("result", &"ok" as &dyn Display)], ok)?;
        family.sample(&[("result", &"failed" as &dyn Display)], failed)?;
    }
    let help = "Commands or bytes in a second that the namespace may have.";
    let mut family = w.gauge("isthmus_nvme_limit", help)?;
    for (config, _, namespaces) in target.view() {
        for one in &namespaces {
            let nsid = one.config.nsid;
            for (key, rate) in one.config.limits.entries() {
                let labels: [(&str, &dyn Display); 3] =
                    [("subsystem", &config.nqn), ("nsid", &nsid), ("limit", &key)];
                family.sample(&labels, rate)?;
            }
        }
    }
    let families = FAMILIES.into_iter().map(|family| (family, true));
    let gauges = GAUGES.into_iter().map(|family| (family, false));
    for ((name, help, value), counts) in families.chain(gauges) {
        let mut family = if counts { w.counter(name, help)? } else { w.gauge(name, help)? };
        for (config, _, namespaces) in target.view() {
            for one in &namespaces {
                let nsid = one.config.nsid;
                let labels =
                    [("subsystem", &config.nqn as &dyn Display), ("nsid", &nsid as &dyn Display)];
                family.sample(&labels, value(one))?;
            }
        }
    }
    Ok(())
}
