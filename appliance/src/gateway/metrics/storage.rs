//! Metrics of the storage gateway: sessions, paths, volumes.

use super::Page;
use crate::gateway::objects::{PathName, live_paths};
use crate::gateway::state::State;
use core::fmt::{Display, Error};
use rtrs::Name;
use rtrs::server::{Counters, Histogram, PathState, PathStats, PathStatus};
use storage::rnbd::server::{Server, VolumeStats};
use verbs::Provider;

/// A counter of something: its name, its help, and where it lies.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const SERVER: [Family<Counters>; 6] = [
    ("isthmus_rtrs_connections_accepted_total", "Connections accepted.", |c| c.accepted),
    ("isthmus_rtrs_connections_refused_total", "Connections refused.", |c| c.refused),
    (
        "isthmus_rtrs_sessions_displaced_total",
        "Half-open sessions that made room for others.",
        |c| c.displaced,
    ),
    ("isthmus_rtrs_paths_up_total", "Paths that came up.", |c| c.paths_up),
    ("isthmus_rtrs_paths_closed_total", "Paths that ended.", |c| c.paths_closed),
    (
        "isthmus_rtrs_malformed_total",
        "Requests refused because the client broke the protocol.",
        |c| c.malformed,
    ),
];

const PATH: [Family<PathStats>; 8] = [
    ("isthmus_rtrs_path_reads_total", "Reads answered.", |s| s.reads),
    ("isthmus_rtrs_path_read_bytes_total", "Bytes read.", |s| s.read_bytes),
    ("isthmus_rtrs_path_writes_total", "Writes and commands answered.", |s| s.writes),
    ("isthmus_rtrs_path_written_bytes_total", "Bytes written.", |s| s.write_bytes),
    ("isthmus_rtrs_path_errors_total", "Requests answered with an error.", |s| s.errors),
    (
        "isthmus_rtrs_path_parked_total",
        "Requests that waited for room for their answer in the send queue.",
        |s| s.parked,
    ),
    (
        "isthmus_rtrs_path_chunk_waits_total",
        "Requests that waited for the same chunk's request of another path.",
        |s| s.chunk_waits,
    ),
    ("isthmus_rtrs_path_memory_waits_total", "Reads that waited for memory for their data.", |s| {
        s.memory_waits
    }),
];

/// A gauge of a path: its name, its help, and where it lies.
type PathFamily = (&'static str, &'static str, fn(&PathStatus<'_>) -> u64);

const PATH_NOW: [PathFamily; 2] = [
    ("isthmus_rtrs_path_up", "Whether the path is connected.", |path| {
        u64::from(path.state == PathState::Connected)
    }),
    ("isthmus_rtrs_path_inflight", "Requests that are being worked on.", |path| {
        path.in_flight.into()
    }),
];

const VOLUME: [Family<VolumeStats>; 7] = [
    ("isthmus_volume_reads_total", "Reads.", |s| s.reads),
    ("isthmus_volume_read_bytes_total", "Bytes read.", |s| s.read_bytes),
    ("isthmus_volume_writes_total", "Writes.", |s| s.writes),
    ("isthmus_volume_written_bytes_total", "Bytes written.", |s| s.write_bytes),
    ("isthmus_volume_commands_total", "Flushes, discards, write-zeroes.", |s| s.others),
    ("isthmus_volume_errors_total", "Requests that ended in an error.", |s| s.errors),
    ("isthmus_volume_waits_total", "Requests that waited because the volume was busy.", |s| {
        s.waits
    }),
];

pub(super) fn write(state: &State, w: &mut Page<'_>) -> Result<(), Error> {
    let Some(server) = &state.plane.storage.server else { return Ok(()) };
    let transport = server.transport();
    w.gauge("isthmus_rtrs_sessions", "Sessions that there are.")?
        .sample(&[], transport.sessions().count() as u64)?;
    memory(state, w)?;
    for (name, help, value) in SERVER {
        w.counter(name, help)?.sample(&[], value(transport.counters()))?;
    }
    sessions(server, w)?;
    for (name, help, value) in PATH_NOW {
        let mut family = w.gauge(name, help)?;
        for (session, path) in paths(server, family.pass()) {
            family.sample(&[("session", &session), ("path", &PathName(&path))], value(&path))?;
        }
    }
    for (name, help, value) in PATH {
        let mut family = w.counter(name, help)?;
        for (session, path) in paths(server, family.pass()) {
            let labels: [(_, &dyn Display); 2] =
                [("session", &session), ("path", &PathName(&path))];
            family.sample(&labels, value(path.stats))?;
        }
    }
    for (name, help, value) in VOLUME {
        let mut family = w.counter(name, help)?;
        for (volume, stats) in volumes(state, server, family.pass()) {
            family.sample(&[("volume", &volume)], value(stats))?;
        }
    }
    latencies(state, server, w)
}

fn sessions(server: &Server, w: &mut Page<'_>) -> Result<(), Error> {
    let up = || server.transport().sessions().filter(|session| session.up);
    let mut family = w.gauge(
        "isthmus_rtrs_session_queue_depth",
        "Requests that the session may have in flight.",
    )?;
    if !family.is_past() {
        for session in up() {
            family.sample(&[("session", &session.name)], u64::from(session.queue_depth))?;
        }
    }
    let mut family =
        w.gauge("isthmus_rtrs_session_devices", "Devices that the session has open.")?;
    if family.is_past() {
        return Ok(());
    }
    let mut open: Vec<u64> = Vec::new();
    for device in server.devices() {
        let at = device.session.index();
        open.resize(open.len().max(at + 1), 0);
        open[at] += 1;
    }
    for session in up() {
        let count = open.get(session.id.index()).copied().unwrap_or(0);
        family.sample(&[("session", &session.name)], count)?;
    }
    Ok(())
}

/// The paths that have a name of their own, with their sessions', but for the first `past`; none if those are
/// `usize::MAX`.
fn paths(server: &Server, past: usize) -> impl Iterator<Item = (Name, PathStatus<'_>)> {
    let wanted = (past < usize::MAX).then(|| live_paths(server)).into_iter().flatten();
    let named = wanted.filter_map(|path| {
        let name = server.transport().session(path.session)?.name;
        (!name.as_str().is_empty()).then_some((name, path))
    });
    named.skip(past)
}

/// The volumes that anybody has used, but for the first `past`; none if those are `usize::MAX`.
fn volumes<'a>(
    state: &'a State,
    server: &'a Server,
    past: usize,
) -> impl Iterator<Item = (&'a str, &'a VolumeStats)> {
    let volumes = &state.plane.storage.volumes;
    let wanted = (past < usize::MAX).then(|| volumes.ids()).into_iter().flatten();
    let used = wanted
        .filter_map(|id| Some((volumes.name(id).unwrap_or_default(), server.volume_stats(id)?)));
    used.skip(past)
}

/// What sessions were promised, and the memory that they share.
fn memory(state: &State, w: &mut Page<'_>) -> Result<(), Error> {
    if let Some(server) = &state.plane.storage.server {
        w.gauge("isthmus_memory_promised_bytes", "Queue depth times chunk size of all sessions.")?
            .sample(&[], server.transport().promised())?;
    }
    let pool = state
        .plane
        .rdma_stack
        .as_ref()
        .and_then(|rdma_stack| rdma_stack.providers.roce.on_demand());
    let Some(pool) = pool else { return Ok(()) };
    w.gauge("isthmus_memory_shared_size_bytes", "Memory that sessions share.")?
        .sample(&[], pool.capacity as u64)?;
    w.gauge("isthmus_memory_shared_free_bytes", "What of it is free.")?
        .sample(&[], pool.available as u64)?;
    w.gauge("isthmus_memory_shared_lowest_bytes", "The least that was ever free.")?
        .sample(&[], pool.lowest as u64)?;
    w.counter("isthmus_memory_short_total", "Times a client was put off for want of memory.")?
        .sample(&[], pool.short)?;
    Ok(())
}

/// A histogram of a path: its name, its help, and where it lies.
type PathLatency = (&'static str, &'static str, fn(&PathStats) -> &Histogram);

const PATH_LATENCIES: [PathLatency; 2] = [
    ("isthmus_rtrs_path_read_seconds", "From the arrival of reads to their answer.", |s| {
        &s.read_latency
    }),
    ("isthmus_rtrs_path_write_seconds", "From the arrival of writes to their answer.", |s| {
        &s.write_latency
    }),
];

/// Buckets with their bounds in seconds; what is above the last; the sum.
pub(in crate::gateway) fn buckets(histogram: &Histogram) -> (Vec<(f64, u64)>, u64, f64) {
    let mut buckets: Vec<(f64, u64)> =
        histogram.buckets().map(|(bound, n)| (bound.as_secs_f64(), n)).collect();
    // The last bucket also holds everything above its bound.
    let (_, above) = buckets.pop().unwrap_or_default();
    (buckets, above, histogram.sum().as_secs_f64())
}

/// A histogram of a volume: its name, its help, and where it lies.
type Latency = (&'static str, &'static str, fn(&VolumeStats) -> &Histogram);

const LATENCIES: [Latency; 2] = [
    ("isthmus_volume_read_seconds", "From the arrival of reads to their answer.", |s| {
        &s.read_latency
    }),
    ("isthmus_volume_write_seconds", "From the arrival of writes to their answer.", |s| {
        &s.write_latency
    }),
];

fn latencies(state: &State, server: &Server, w: &mut Page<'_>) -> Result<(), Error> {
    for (name, help, histogram) in PATH_LATENCIES {
        let mut family = w.histogram(name, help)?;
        for (session, path) in paths(server, family.pass()) {
            let (buckets, above, sum) = buckets(histogram(path.stats));
            let labels: [(_, &dyn Display); 2] =
                [("session", &session), ("path", &PathName(&path))];
            family.sample(&labels, buckets, above, sum)?;
        }
    }
    for (name, help, histogram) in LATENCIES {
        let mut family = w.histogram(name, help)?;
        for (volume, stats) in volumes(state, server, family.pass()) {
            let (buckets, above, sum) = buckets(histogram(stats));
            family.sample(&[("volume", &volume)], buckets, above, sum)?;
        }
    }
    Ok(())
}
