//! Metrics of the storage gateway: sessions, paths, volumes.

use super::page::Page;
use crate::appliance::Appliance;
use crate::clients::{PathName, live_paths};
use crate::storage_rows::StorageCounts;
use core::fmt::{Display, Error, Formatter};
use rtrs::Name;
use rtrs::server::{Counters, Histogram, PathState, PathStats, PathStatus};
use storage::limits::Limiter;
use storage::rnbd::server::{Server, VolumeStats};
use storage::volume::{VolumeId, Volumes};

/// A counter of a `T`: metric name, help, and value.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const SERVER: [Family<Counters>; 6] = [
    ("isthmus_rtrs_connections_accepted_total", "Connections accepted.", |c| c.accepted),
    ("isthmus_rtrs_connections_refused_total", "Connections refused.", |c| c.refused),
    ("isthmus_rtrs_sessions_displaced_total", "Half-open sessions evicted for new ones.", |c| {
        c.displaced
    }),
    ("isthmus_rtrs_paths_up_total", "Paths that came up.", |c| c.paths_up),
    ("isthmus_rtrs_paths_closed_total", "Paths that ended.", |c| c.paths_closed),
    (
        "isthmus_rtrs_malformed_total",
        "Requests refused because the client violated the protocol.",
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
        "Requests that waited because the send queue had no room for the response.",
        |s| s.parked,
    ),
    (
        "isthmus_rtrs_path_chunk_waits_total",
        "Requests that waited for a request of the same chunk on another path.",
        |s| s.chunk_waits,
    ),
    ("isthmus_rtrs_path_memory_waits_total", "Reads that waited for data memory.", |s| {
        s.memory_waits
    }),
];

/// A gauge of a path: metric name, help, and value.
type PathFamily = (&'static str, &'static str, fn(&Path<'_>) -> u64);

const PATH_NOW: [PathFamily; 2] = [
    ("isthmus_rtrs_path_up", "Whether the path is connected.", |path| u64::from(path.up)),
    ("isthmus_rtrs_path_inflight", "Requests in progress.", |path| path.in_flight),
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

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let storage = appliance.storage();
    let Some(server) = storage.server else { return Ok(()) };
    let transport = server.transport();
    let others: Vec<&StorageCounts> = storage.others.iter().map(|rows| &rows.counts).collect();
    let all = Clients { volumes: storage.volumes, server, others: &others };
    let count = others.iter().map(|other| other.session_count).sum::<usize>();
    w.gauge("isthmus_rtrs_sessions", "Sessions that exist.")?
        .sample(&[], (transport.sessions().count() + count) as u64)?;
    memory(appliance, &all, w)?;
    for (name, help, value) in SERVER {
        let others = others.iter().map(|other| value(&other.server));
        w.counter(name, help)?.sample(&[], value(transport.counters()) + others.sum::<u64>())?;
    }
    all.write_sessions(w)?;
    for (name, help, value) in PATH_NOW {
        let mut family = w.gauge(name, help)?;
        for path in all.paths(family.pass()) {
            family.sample(&path.labels(), value(&path))?;
        }
    }
    for (name, help, value) in PATH {
        let mut family = w.counter(name, help)?;
        for path in all.paths(family.pass()) {
            family.sample(&path.labels(), value(path.stats))?;
        }
    }
    for (name, help, value) in VOLUME {
        let mut family = w.counter(name, help)?;
        for volume in all.volumes(family.pass()) {
            let sum = all.stats(volume).map(value).sum::<u64>();
            family.sample(&[("volume", &volume.1)], sum)?;
        }
    }
    write_limits(server, w)?;
    all.write_latencies(w)
}

const LIMITS: [Family<Limiter>; 2] = [
    ("isthmus_export_delayed_total", "Requests that waited for a limit.", |it| it.delays().0),
    (
        "isthmus_export_delayed_microseconds_total",
        "Time in which requests waited for a limit, of all cores.",
        |it| it.delays().1.as_micros() as u64,
    ),
];

/// Limits of exports, whose loops share them.
fn write_limits(server: &Server, w: &mut Page<'_>) -> Result<(), Error> {
    let help = "Requests or bytes in a second that the export may have.";
    let mut family = w.gauge("isthmus_export_limit", help)?;
    for export in server.exports() {
        for (key, rate) in export.limiter.limits().entries() {
            family.sample(&[("export", &export.name), ("limit", &key)], rate)?;
        }
    }
    for (name, help, value) in LIMITS {
        let mut family = w.counter(name, help)?;
        for export in server.exports() {
            family.sample(&[("export", &export.name)], value(&export.limiter))?;
        }
    }
    Ok(())
}

/// The clients of all loops: of the first loop as they are now, of the others as last published.
struct Clients<'a> {
    volumes: &'a Volumes,
    server: &'a Server,
    others: &'a [&'a StorageCounts],
}

/// A path of any loop.
struct Path<'a> {
    session: Name,
    name: PathLabel<'a>,
    up: bool,
    in_flight: u64,
    stats: &'a PathStats,
}

/// Name of a path.
enum PathLabel<'a> {
    /// Of a path of the first loop.
    Own(PathStatus<'a>),
    /// Of a path that another loop published.
    Published(&'a str),
}

impl Display for PathLabel<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result<(), Error> {
        match self {
            PathLabel::Own(path) => PathName(path).fmt(f),
            PathLabel::Published(name) => f.write_str(name),
        }
    }
}

impl Path<'_> {
    fn labels(&self) -> [(&'static str, &dyn Display); 2] {
        [("session", &self.session), ("path", &self.name)]
    }
}

impl<'a> Clients<'a> {
    fn write_sessions(&self, w: &mut Page<'_>) -> Result<(), Error> {
        let up = || self.server.transport().sessions().filter(|session| session.up);
        let published =
            || self.others.iter().flat_map(|other| &other.sessions).filter(|one| one.up);
        let mut family = w.gauge(
            "isthmus_rtrs_session_queue_depth",
            "Requests that the session may have in flight.",
        )?;
        if !family.is_past() {
            for session in up() {
                family.sample(&[("session", &session.name)], u64::from(session.queue_depth))?;
            }
            for session in published() {
                family.sample(&[("session", &session.name)], session.queue_depth)?;
            }
        }
        let mut family =
            w.gauge("isthmus_rtrs_session_devices", "Devices that the session has open.")?;
        if family.is_past() {
            return Ok(());
        }
        let mut open: Vec<u64> = Vec::new();
        for device in self.server.devices() {
            let at = device.session.index();
            open.resize(open.len().max(at + 1), 0);
            open[at] += 1;
        }
        for session in up() {
            let count = open.get(session.id.index()).copied().unwrap_or(0);
            family.sample(&[("session", &session.name)], count)?;
        }
        for session in published() {
            family.sample(&[("session", &session.name)], session.devices)?;
        }
        Ok(())
    }

    /// The live paths of named sessions without the first `past`. Empty if `past` is `usize::MAX`.
    fn paths(&self, past: usize) -> impl Iterator<Item = Path<'a>> {
        let wanted = past < usize::MAX;
        let own = wanted.then(|| live_paths(self.server)).into_iter().flatten();
        let server = self.server;
        let own = own.filter_map(|path| {
            let session = server.transport().session(path.session)?.name;
            (!session.as_str().is_empty()).then_some(Path {
                session,
                up: path.state == PathState::Connected,
                in_flight: path.in_flight.into(),
                stats: path.stats,
                name: PathLabel::Own(path),
            })
        });
        let others = self.others.iter().filter(move |_| wanted).flat_map(|other| &other.paths);
        let others = others.map(|path| Path {
            session: path.session,
            name: PathLabel::Published(&path.name),
            up: path.state == PathState::Connected,
            in_flight: path.in_flight,
            stats: &path.stats,
        });
        own.chain(others).skip(past)
    }

    /// The volumes that a client has used, with their names, without the first `past`. Empty if `past` is `usize::MAX`.
    fn volumes(&self, past: usize) -> impl Iterator<Item = (VolumeId, &'a str)> {
        let wanted = (past < usize::MAX).then(|| self.volumes.ids()).into_iter().flatten();
        let named = wanted.map(|id| (id, self.volumes.name(id).unwrap_or_default()));
        named.filter(|volume| self.stats(*volume).next().is_some()).skip(past)
    }

    /// Statistics of a volume from each loop that served it.
    fn stats(&self, (id, name): (VolumeId, &'a str)) -> impl Iterator<Item = &'a VolumeStats> {
        let others = self.others.iter().filter_map(move |other| other.volumes.get(name));
        self.server.volume_stats(id).into_iter().chain(others)
    }
}

/// Memory promised to sessions, and the pool that they share.
fn memory(appliance: &dyn Appliance, all: &Clients<'_>, w: &mut Page<'_>) -> Result<(), Error> {
    let others = all.others.iter().map(|other| other.promised).sum::<u64>();
    w.gauge("isthmus_memory_promised_bytes", "Queue depth times chunk size of all sessions.")?
        .sample(&[], all.server.transport().promised() + others)?;
    let Some(pool) = appliance.roce().and_then(|roce| roce.on_demand) else { return Ok(()) };
    w.gauge("isthmus_memory_shared_size_bytes", "Memory that sessions share.")?
        .sample(&[], pool.capacity as u64)?;
    w.gauge("isthmus_memory_shared_free_bytes", "Free part of the memory that sessions share.")?
        .sample(&[], pool.available as u64)?;
    w.gauge("isthmus_memory_shared_lowest_bytes", "Lowest value ever of the free shared memory.")?
        .sample(&[], pool.lowest as u64)?;
    w.counter(
        "isthmus_memory_short_total",
        "Writes deferred with an RNR NAK because the shared memory was exhausted.",
    )?
    .sample(&[], pool.short)?;
    Ok(())
}

/// A histogram of a path: metric name, help, and value.
type PathLatency = (&'static str, &'static str, fn(&PathStats) -> &Histogram);

const PATH_LATENCIES: [PathLatency; 2] = [
    ("isthmus_rtrs_path_read_seconds", "Time from the arrival of a read to its response.", |s| {
        &s.read_latency
    }),
    ("isthmus_rtrs_path_write_seconds", "Time from the arrival of a write to its response.", |s| {
        &s.write_latency
    }),
];

/// Buckets with their upper bounds in seconds, the count above the last bound, and the sum.
pub(super) fn buckets(histogram: &Histogram) -> (Vec<(f64, u64)>, u64, f64) {
    let mut buckets: Vec<(f64, u64)> =
        histogram.buckets().map(|(bound, n)| (bound.as_secs_f64(), n)).collect();
    // The last bucket also holds everything above its bound.
    let (_, above) = buckets.pop().unwrap_or_default();
    (buckets, above, histogram.sum().as_secs_f64())
}

/// A histogram of a volume: metric name, help, and value.
type Latency = (&'static str, &'static str, fn(&VolumeStats) -> &Histogram);

const LATENCIES: [Latency; 2] = [
    ("isthmus_volume_read_seconds", "Time from the arrival of a read to its response.", |s| {
        &s.read_latency
    }),
    ("isthmus_volume_write_seconds", "Time from the arrival of a write to its response.", |s| {
        &s.write_latency
    }),
];

impl Clients<'_> {
    fn write_latencies(&self, w: &mut Page<'_>) -> Result<(), Error> {
        for (name, help, histogram) in PATH_LATENCIES {
            let mut family = w.histogram(name, help)?;
            for path in self.paths(family.pass()) {
                let (buckets, above, sum) = buckets(histogram(path.stats));
                family.sample(&path.labels(), buckets, above, sum)?;
            }
        }
        for (name, help, histogram) in LATENCIES {
            let mut family = w.histogram(name, help)?;
            for volume in self.volumes(family.pass()) {
                let mut sum = Histogram::default();
                self.stats(volume).for_each(|stats| sum.add(histogram(stats)));
                let (buckets, above, sum) = buckets(&sum);
                family.sample(&[("volume", &volume.1)], buckets, above, sum)?;
            }
        }
        Ok(())
    }
}
