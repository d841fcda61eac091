//! Metrics of sessions with other servers, of devices mapped over them, of remotes over NBD and NVMe/TCP, and of mirrors.

use super::page::Page;
use super::storage::buckets;
use crate::appliance::Appliance;
use crate::remote::path_name;
use crate::status::{NbdStatus, NvmeHostStatus, RemoteSession};
use core::fmt::{Display, Error};
use rtrs::client::{PathState, PathStats, PathStatus};
use rtrs::server::Histogram;
use storage::rnbd::client::DeviceState;
use storage::volume::mirror::Status;

type Family<T> = (&'static str, &'static str, fn(&T) -> u64);
type Latency = (&'static str, &'static str, fn(&PathStats) -> &Histogram);

const PATH: [Family<PathStats>; 9] = [
    ("isthmus_rtrs_client_path_reads_total", "Reads sent.", |s| s.reads),
    ("isthmus_rtrs_client_path_read_bytes_total", "Bytes requested by reads.", |s| s.read_bytes),
    ("isthmus_rtrs_client_path_writes_total", "Writes and commands sent.", |s| s.writes),
    ("isthmus_rtrs_client_path_written_bytes_total", "Bytes written.", |s| s.write_bytes),
    ("isthmus_rtrs_client_path_failovers_total", "Requests taken over from failed paths.", |s| {
        s.failovers
    }),
    ("isthmus_rtrs_client_path_errors_total", "Requests answered with an error.", |s| s.errors),
    ("isthmus_rtrs_client_path_reconnects_total", "Successful reconnects of the path.", |s| {
        s.reconnects
    }),
    ("isthmus_rtrs_client_path_reconnects_failed_total", "Failed reconnects of the path.", |s| {
        s.reconnects_failed
    }),
    ("isthmus_rtrs_client_path_completions_total", "Completions polled.", |s| s.completions),
];

const LATENCIES: [Latency; 2] = [
    ("isthmus_rtrs_client_path_read_seconds", "Time from sending a read to its response.", |s| {
        &s.read_latency
    }),
    ("isthmus_rtrs_client_path_write_seconds", "Time from sending a write to its response.", |s| {
        &s.write_latency
    }),
];

const NBD: [Family<nbd::Stats>; 11] = [
    ("isthmus_nbd_client_reads_total", "Reads sent.", |s| s.reads),
    ("isthmus_nbd_client_read_bytes_total", "Bytes requested by reads.", |s| s.read_bytes),
    ("isthmus_nbd_client_writes_total", "Writes sent.", |s| s.writes),
    ("isthmus_nbd_client_written_bytes_total", "Bytes sent in writes.", |s| s.written_bytes),
    ("isthmus_nbd_client_flushes_total", "Flushes sent.", |s| s.flushes),
    ("isthmus_nbd_client_others_total", "Discards and write-zeroes sent.", |s| s.others),
    ("isthmus_nbd_client_errors_total", "Requests answered with an error.", |s| s.errors),
    ("isthmus_nbd_client_replays_total", "Requests sent again after a lost connection.", |s| {
        s.replays
    }),
    ("isthmus_nbd_client_connects_total", "Successful handshakes.", |s| s.connects),
    ("isthmus_nbd_client_failures_total", "Failed or lost connections.", |s| s.failures),
    ("isthmus_nbd_client_losses_total", "Times that unflushed writes may have been lost.", |s| {
        s.losses
    }),
];

const NVME: [Family<nvme_host::Stats>; 12] = [
    ("isthmus_nvme_host_reads_total", "Reads sent.", |s| s.reads),
    ("isthmus_nvme_host_read_bytes_total", "Bytes requested by reads.", |s| s.read_bytes),
    ("isthmus_nvme_host_writes_total", "Writes sent.", |s| s.writes),
    ("isthmus_nvme_host_written_bytes_total", "Bytes sent in writes.", |s| s.written_bytes),
    ("isthmus_nvme_host_flushes_total", "Flushes sent.", |s| s.flushes),
    ("isthmus_nvme_host_others_total", "Deallocations and write-zeroes sent.", |s| s.others),
    ("isthmus_nvme_host_errors_total", "Requests failed by a controller.", |s| s.errors),
    ("isthmus_nvme_host_retries_total", "Commands sent again after an error.", |s| s.retries),
    ("isthmus_nvme_host_replays_total", "Commands sent again after a lost path.", |s| s.replays),
    ("isthmus_nvme_host_connects_total", "Paths that became live.", |s| s.connects),
    ("isthmus_nvme_host_failures_total", "Failed or lost paths.", |s| s.failures),
    ("isthmus_nvme_host_losses_total", "Times that unflushed writes may have been lost.", |s| {
        s.losses
    }),
];

const MIRROR: [Family<Status>; 3] = [
    (
        "isthmus_mirror_timeouts_total",
        "Times that a member was dropped because it timed out.",
        |s| s.timeouts,
    ),
    ("isthmus_mirror_copied_regions_total", "Regions copied to a member.", |s| s.copied),
    ("isthmus_mirror_dropped_total", "Times that a member was dropped from the mirror.", |s| {
        s.dropped
    }),
];

/// The paths of all sessions without the first `past`. Empty if `past` is `usize::MAX`.
fn paths<'a>(
    sessions: &'a [RemoteSession<'a>],
    past: usize,
) -> impl Iterator<Item = (&'a RemoteSession<'a>, PathStatus<'a>)> {
    let wanted = if past < usize::MAX { sessions } else { &[] };
    let paths = wanted
        .iter()
        .flat_map(|session| session.client.transport().paths().map(move |path| (session, path)));
    paths.skip(past)
}

/// Remotes over NBD.
fn write_nbd(remotes: &[NbdStatus<'_>], w: &mut Page<'_>) -> Result<(), Error> {
    if remotes.is_empty() {
        return Ok(());
    }
    let mut ready =
        w.gauge("isthmus_nbd_client_connections", "Connections to the server that are up.")?;
    for one in remotes {
        ready.sample(&[("volume", &one.name)], one.status.ready as u64)?;
    }
    for (name, help, value) in NBD {
        let mut family = w.counter(name, help)?;
        for one in remotes {
            family.sample(&[("volume", &one.name)], value(&one.status.stats))?;
        }
    }
    Ok(())
}

/// Remotes over NVMe/TCP.
fn write_nvme(remotes: &[NvmeHostStatus<'_>], w: &mut Page<'_>) -> Result<(), Error> {
    if remotes.is_empty() {
        return Ok(());
    }
    let mut ready = w.gauge("isthmus_nvme_host_paths", "Paths that are live.")?;
    for one in remotes {
        ready.sample(&[("volume", &one.name)], one.status.ready as u64)?;
    }
    for (name, help, value) in NVME {
        let mut family = w.counter(name, help)?;
        for one in remotes {
            family.sample(&[("volume", &one.name)], value(&one.status.stats))?;
        }
    }
    Ok(())
}

pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let remote = appliance.remote();
    write_nbd(&remote.nbd, w)?;
    write_nvme(&remote.nvme, w)?;
    if !remote.is_there {
        return Ok(());
    }
    let sessions = &remote.sessions;
    let mut up = w.gauge("isthmus_rtrs_client_path_up", "Whether the path is connected.")?;
    for session in sessions {
        for path in session.client.transport().paths() {
            let labels: [(_, &dyn Display); 2] =
                [("session", &session.name()), ("path", &path_name(&path))];
            up.sample(&labels, u64::from(path.state == PathState::Connected))?;
        }
    }
    for (name, help, value) in PATH {
        let mut family = w.counter(name, help)?;
        for (session, path) in paths(sessions, family.pass()) {
            let labels: [(_, &dyn Display); 2] =
                [("session", &session.name()), ("path", &path_name(&path))];
            family.sample(&labels, value(path.stats))?;
        }
    }
    for (name, help, histogram) in LATENCIES {
        let mut family = w.histogram(name, help)?;
        for (session, path) in paths(sessions, family.pass()) {
            let (buckets, above, sum) = buckets(histogram(path.stats));
            let labels: [(_, &dyn Display); 2] =
                [("session", &session.name()), ("path", &path_name(&path))];
            family.sample(&labels, buckets, above, sum)?;
        }
    }
    let mut open = w.gauge("isthmus_remote_open", "Whether the remote volume is open.")?;
    for session in sessions {
        for (volume, _) in session.devices {
            let state = session.device(volume).map(|device| device.state);
            open.sample(&[("volume", volume)], u64::from(state == Some(DeviceState::Open)))?;
        }
    }
    let (mirrors, now) = (&remote.mirrors, appliance.machine().now);
    let mut sync =
        w.gauge("isthmus_mirror_in_sync", "Whether the member is in sync and responds.")?;
    for mirror in mirrors {
        for (n, member) in mirror.members.iter().enumerate() {
            let labels: [(_, &dyn Display); 2] = [("mirror", &mirror.name), ("member", member)];
            sync.sample(&labels, u64::from(mirror.status.is_in_sync(n)))?;
        }
    }
    let mut stale = w.gauge("isthmus_mirror_stale_regions", "Regions still to be copied.")?;
    for mirror in mirrors {
        stale.sample(&[("mirror", &mirror.name)], mirror.status.stale as u64)?;
    }
    let mut lag = w.gauge(
        "isthmus_mirror_stale_bytes",
        "Upper bound of the bytes that differ between the members.",
    )?;
    for mirror in mirrors {
        lag.sample(&[("mirror", &mirror.name)], mirror.status.stale_bytes)?;
    }
    let mut out = w.gauge(
        "isthmus_mirror_out_seconds",
        "Time since the member was dropped, including resync; 0 while it is in sync.",
    )?;
    for mirror in mirrors {
        for (member, since) in mirror.members.iter().zip(mirror.out_since) {
            let labels: [(_, &dyn Display); 2] = [("mirror", &mirror.name), ("member", member)];
            let seconds = since.map_or(0, |since| now.since(since).as_secs());
            out.sample(&labels, seconds)?;
        }
    }
    for (name, help, value) in MIRROR {
        let mut family = w.counter(name, help)?;
        for mirror in mirrors {
            family.sample(&[("mirror", &mirror.name)], value(&mirror.status))?;
        }
    }
    Ok(())
}
