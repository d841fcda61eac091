//! Clients of the storage server: names of sessions, paths and devices, and the rows of their lists.

use crate::report::Value;
use core::fmt;
use rtrs::server::{Histogram, PathState, PathStatus, SessionId};
use storage::rnbd::server::{DeviceStatus, Export, Server};
use storage::rnbd::wire::AccessMode;
use storage::volume::Volumes;

/// A path as Linux names it: `ip:CLIENT@ip:SERVER`.
pub(crate) struct PathName<'a>(pub &'a PathStatus<'a>);

impl fmt::Display for PathName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip:{}@ip:{}", self.0.from, self.0.to)
    }
}

/// A path as Linux names it: `ip:CLIENT@ip:SERVER`, as a string.
pub fn path_name(path: &PathStatus<'_>) -> String {
    PathName(path).to_string()
}

/// Paths that are not closing. Among these, a path name is unique within its session.
pub fn live_paths(server: &Server) -> impl Iterator<Item = PathStatus<'_>> {
    let ends = |path: &PathStatus<'_>| matches!(path.state, PathState::Closing | PathState::Closed);
    server.transport().paths().filter(move |path| !ends(path))
}

/// The name of a session; empty if it is gone.
pub fn session_name(server: &Server, id: SessionId) -> String {
    server.transport().session(id).map_or(String::new(), |s| s.name.as_str().to_string())
}

/// Name under which a device is listed: that of the export through which the client opened it, or the client's own name
/// for it if that export is gone.
pub fn exported_name(server: &Server, device: &DeviceStatus) -> String {
    let (session, name) = (session_name(server, device.session), device.name.as_str());
    let through =
        |export: &&Export| export.volume == device.volume && export.is_meant(&session, name);
    device_name(server.exports().iter().find(through).map_or(name, |export| export.name.as_str()))
}

/// A device name as in sysfs, with `/` replaced by `!`.
pub(crate) fn device_name(name: &str) -> String {
    name.replace('/', "!")
}

/// An access mode as Linux names it.
pub(crate) fn mode_name(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::ReadOnly => "ro",
        AccessMode::ReadWrite => "rw",
        AccessMode::Migration => "migration",
    }
}

/// Non-empty buckets: upper bound in microseconds, and count.
pub(crate) fn histogram(histogram: &Histogram) -> Value {
    let buckets = histogram.buckets().filter(|&(_, count)| count > 0);
    Value::list(buckets.map(|(bound, count)| {
        Value::object([
            ("below_microseconds", (bound.as_nanos() as f64 / 1000.0).into()),
            ("count", count.into()),
        ])
    }))
}

/// `stats/rdma_lat`: reads and writes by classes of milliseconds, the longest of each, and finer histograms.
pub(crate) fn latencies(read: &Histogram, write: &Histogram) -> Value {
    let (reads, writes) = (read.millisecond_classes(), write.millisecond_classes());
    let class = |n: usize| {
        // The last class has no bound.
        let bound = (n + 1 < reads.len()).then(|| 1u32 << n);
        let (read, write) = (reads[n].into(), writes[n].into());
        Value::object([("below_ms", bound.into()), ("read", read), ("write", write)])
    };
    let longest = |one: &Histogram| Value::from(one.max().as_secs_f64() * 1e3);
    let maximum = Value::object([("read", longest(read)), ("write", longest(write))]);
    Value::object([
        ("classes", Value::list((0..reads.len()).map(class))),
        ("maximum_ms", maximum),
        ("read", histogram(read)),
        ("write", histogram(write)),
    ])
}

/// A row for each session.
pub(crate) fn sessions(server: &Server) -> impl Iterator<Item = Value> + '_ {
    server.transport().sessions().map(|session| {
        let paths = || server.transport().paths().filter(move |path| path.session == session.id);
        let sum = |value: fn(&PathStatus<'_>) -> u64| paths().map(|p| value(&p)).sum::<u64>();
        let devices = server.devices().filter(|device| device.session == session.id).count();
        Value::object([
            ("name", session.name.as_str().to_string().into()),
            ("state", if session.up { "connected" } else { "connecting" }.into()),
            ("paths", session.paths.into()),
            ("devices", devices.into()),
            ("queue_depth", session.queue_depth.into()),
            ("chunk_size", Value::Bytes(session.chunk_size.into())),
            ("rx", Value::Bytes(sum(|path| path.stats.write_bytes))),
            ("tx", Value::Bytes(sum(|path| path.stats.read_bytes))),
            ("inflight", sum(|path| path.in_flight.into()).into()),
        ])
    })
}

/// A row for each open device.
pub(crate) fn devices<'a>(
    volumes: &'a Volumes,
    server: &'a Server,
) -> impl Iterator<Item = Value> + 'a {
    server.devices().map(|device| {
        let size =
            volumes.geometry(device.volume).map_or(0, |shape| shape.sectors.saturating_mul(512));
        Value::object([
            ("name", device.name.as_str().to_string().into()),
            ("session", session_name(server, device.session).into()),
            ("volume", volumes.name(device.volume).unwrap_or_default().to_string().into()),
            ("access_mode", mode_name(device.mode).into()),
            ("size", Value::Bytes(size)),
        ])
    })
}

/// The row of a path.
pub(crate) fn path(server: &Server, path: &PathStatus<'_>) -> Value {
    Value::object([
        ("name", path_name(path).into()),
        ("session", session_name(server, path.session).into()),
        ("state", path.state.as_str().into()),
        ("connections", path.connections.into()),
        ("rx", Value::Bytes(path.stats.write_bytes)),
        ("tx", Value::Bytes(path.stats.read_bytes)),
        ("inflight", path.in_flight.into()),
        ("errors", path.stats.errors.into()),
        ("latency_microseconds", (path.latency.as_nanos() as f64 / 1e3).into()),
    ])
}
