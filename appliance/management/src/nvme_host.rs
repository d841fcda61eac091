//! Objects of remote volumes over NVMe/TCP.

use crate::appliance::Appliance;
use crate::pieces::Entry;
use crate::report::Value;
use drivers::hal::{Features, Geometry};
use nvme_host::{PathStatus, Stats, Status};

/// A remote volume over NVMe/TCP.
pub struct NvmeHostStatus<'a> {
    /// Name of the volume.
    pub name: &'a str,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Address of each path.
    pub addresses: Vec<String>,
    /// Settings.
    pub settings: nvme_host::Settings,
    /// Geometry of the volume.
    pub geometry: Geometry,
    /// State and counts.
    pub status: Status,
}

/// Counts, by name.
const STATS: [(&str, fn(&Stats) -> u64); 12] = [
    ("reads", |s| s.reads),
    ("read_bytes", |s| s.read_bytes),
    ("writes", |s| s.writes),
    ("written_bytes", |s| s.written_bytes),
    ("flushes", |s| s.flushes),
    ("others", |s| s.others),
    ("errors", |s| s.errors),
    ("retries", |s| s.retries),
    ("replays", |s| s.replays),
    ("connects", |s| s.connects),
    ("failures", |s| s.failures),
    ("losses", |s| s.losses),
];

/// `/nvme-host`.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let entry = |one: &NvmeHostStatus<'_>| -> Entry { (one.name.to_string().into(), volume(one)) };
    Value::Object(appliance.remote().nvme.iter().map(entry).collect())
}

fn volume(one: &NvmeHostStatus<'_>) -> Value {
    let status = &one.status;
    let stat = |(name, value): &(&'static str, fn(&Stats) -> u64)| -> Entry {
        ((*name).into(), value(&status.stats).into())
    };
    let failure = status.last_failure.map(|failure| failure.to_string());
    let paths = one.addresses.iter().zip(&status.paths);
    let paths = paths.map(|(address, path)| -> Entry { (address.clone().into(), of_path(path)) });
    let flush = match (one.geometry.features.contains(Features::VOLATILE_CACHE), one.settings) {
        (true, _) => "yes",
        (false, settings) if settings.write_through => "not needed: every write is durable (FUA)",
        _ => "not needed",
    };
    Value::object([
        ("state", status.state.as_str().into()),
        ("nqn", one.subsystem.clone().into()),
        ("nsid", status.namespace.map(|namespace| namespace.nsid).into()),
        ("size", Value::Bytes(one.geometry.sectors.saturating_mul(512))),
        ("block", one.geometry.logical_block.into()),
        ("flush", flush.into()),
        ("requests", status.requests.into()),
        ("last_failure", failure.into()),
        ("paths", Value::Object(paths.collect())),
        ("stats", Value::Object(STATS.iter().map(stat).collect())),
    ])
}

fn of_path(path: &PathStatus) -> Value {
    Value::object([
        ("state", path.state.into()),
        ("ana", path.access.map(|access| access.as_str()).into()),
        ("cntlid", path.cntlid.into()),
        ("queues", path.queues.into()),
        ("in_flight", path.in_flight.into()),
        ("last_failure", path.last_failure.map(|failure| failure.to_string()).into()),
    ])
}

/// The row of `remote list`.
pub(crate) fn row(one: &NvmeHostStatus<'_>) -> Value {
    let status = &one.status;
    let paths = one.addresses.iter().zip(&status.paths).map(|(address, path)| {
        let access = path.access.map(|access| format!(" {}", access.as_str())).unwrap_or_default();
        Value::from(format!("{address} {}{access}", path.state))
    });
    let nsid = status.namespace.map(|namespace| namespace.nsid).or(one.settings.nsid);
    let device = match nsid {
        Some(nsid) => format!("{} {nsid}", one.subsystem),
        None => one.subsystem.clone(),
    };
    Value::object([
        ("name", one.name.to_string().into()),
        ("session", "nvme-tcp".into()),
        ("device_path", device.into()),
        ("state", status.state.as_str().into()),
        ("size", Value::Bytes(one.geometry.sectors.saturating_mul(512))),
        ("requests", status.requests.into()),
        ("last_error", status.last_failure.map(|failure| failure.to_string()).into()),
        ("paths", Value::list(paths)),
    ])
}
