//! What Linux has in sysfs for the client of RTRS (`rtrs-clt-sysfs.c`, `rtrs-clt-stats.c`,
//! Documentation/ABI/testing/sysfs-class-rtrs-client) and for devices of rnbd-client
//! (`rnbd-clt-sysfs.c`), under the same names; and mirrors.

use super::RemoteStorage;
use super::sessions::{Session, path_name};
use crate::config::{Access, Attempts, MpPolicy, PathPair};
use crate::gateway::objects::{Entry, accept_one, histogram, nothing};
use crate::gateway::state::State;
use crate::report::Value;
use drivers::hal::Instant;
use rtrs::client::PathStatus;
use storage::volume::mirror::{MirrorState, Status};
use verbs::EngineContext;

const WRITE_ONE: &str = "usage: write 1";

fn all_sessions(state: &State) -> impl Iterator<Item = &Session> {
    let remote_storage = state.plane.storage.remote_storage.as_deref();
    let sessions = remote_storage.into_iter().flat_map(|remote_storage| &remote_storage.sessions);
    sessions.map(|session| &**session)
}

/// `/rtrs-client`.
pub(in crate::gateway) fn rtrs(state: &State) -> Value {
    let entry = |s: &Session| -> Entry { (s.name().to_string().into(), session(s)) };
    Value::Object(all_sessions(state).map(entry).collect())
}

/// `/rnbd-client`.
pub(in crate::gateway) fn rnbd(state: &State) -> Value {
    let devices = all_sessions(state).flat_map(device_entries).collect();
    let devices = Value::object([("devices", Value::Object(devices))]);
    Value::object([("ctl", devices)])
}

/// `/mirrors`.
pub(in crate::gateway) fn mirrors(state: &State) -> Value {
    let remote_storage = state.plane.storage.remote_storage.as_deref();
    let now = state.plane.now;
    let mirrors = remote_storage.into_iter().flat_map(|remote_storage| &remote_storage.mirrors);
    let mirrors = mirrors
        .map(|m| -> Entry { (m.name.clone().into(), mirror(&m.members, &m.status.get(), now)) });
    Value::Object(mirrors.collect())
}

fn session(session: &Session) -> Value {
    let transport = session.client.transport();
    let paths = transport.paths().map(|p| -> Entry { (path_name(&p).into(), path(&p)) });
    let shape = transport.shape();
    Value::object([
        ("add_path", "usage: write ip:SOURCE@ip:DESTINATION".into()),
        ("max_reconnect_attempts", attempts(session.max_reconnect_attempts)),
        ("mp_policy", transport.policy().describe().into()),
        ("queue_depth", shape.map(|shape| shape.queue_depth).into()),
        ("max_io_size", shape.map_or(Value::None, |shape| Value::Bytes(shape.max_io_size.into()))),
        ("paths", Value::Object(paths.collect())),
    ])
}

fn attempts(attempts: Option<u16>) -> Value {
    match attempts {
        Some(attempts) => attempts.into(),
        None => "-1".into(),
    }
}

fn path(path: &PathStatus<'_>) -> Value {
    let stats = path.stats;
    let rdma = Value::object([
        ("rd_cnt", stats.reads.into()),
        ("rd_bytes", stats.read_bytes.into()),
        ("wr_cnt", stats.writes.into()),
        ("wr_bytes", stats.write_bytes.into()),
        ("inflight", path.in_flight.into()),
        ("failover", stats.failovers.into()),
        ("errors", stats.errors.into()),
    ]);
    let reconnects = Value::object([
        ("successful", stats.reconnects.into()),
        ("failed", stats.reconnects_failed.into()),
    ]);
    let latency = Value::object([
        ("read", histogram(&stats.read_latency)),
        ("write", histogram(&stats.write_latency)),
    ]);
    let stats = Value::object([
        ("reset_all", WRITE_ONE.into()),
        ("reconnects", reconnects),
        ("rdma_lat", latency),
        ("wc_completion", stats.completions.into()),
        ("rdma", rdma),
        // A session belongs to one loop, and never moves.
        ("cpu_migration", Value::object([("from", 0u8.into()), ("to", 0u8.into())])),
    ]);
    let failure = path.last_failure.map(|reason| reason.to_string());
    Value::object([
        ("state", path.state.as_str().into()),
        ("reconnect", WRITE_ONE.into()),
        ("disconnect", WRITE_ONE.into()),
        ("remove_path", WRITE_ONE.into()),
        ("hca_name", "roce0".into()),
        ("hca_port", 1u8.into()),
        ("src_addr", format!("ip:{}", path.from).into()),
        ("dst_addr", format!("ip:{}", path.to.ip()).into()),
        ("cur_latency_seconds", path.latency.as_secs_f64().into()),
        ("connections", path.connections.into()),
        ("attempts", path.attempts.into()),
        ("last_failure", failure.into()),
        ("stats", stats),
    ])
}

fn device_entries(session: &Session) -> impl Iterator<Item = Entry> + '_ {
    session.devices.iter().filter_map(|(name, _)| {
        let device = session.device(name)?;
        let refused = device.last_error.map(|errno| errno.to_string());
        let value = Value::object([
            ("session", session.name().to_string().into()),
            ("mapping_path", device.name.as_str().to_string().into()),
            ("access_mode", Access(device.mode).to_string().into()),
            ("state", device.state.as_str().into()),
            ("last_error", refused.into()),
            ("size", device.geometry.sectors.into()),
            ("requests", device.requests.into()),
            ("resize", "usage: write 1, the server is asked for the size".into()),
            ("remap_device", WRITE_ONE.into()),
        ]);
        Some((name.clone().into(), value))
    })
}

/// How a mirror stands.
pub(super) fn mirror(members: &[String; 2], status: &Status, now: Instant) -> Value {
    let member = |n: usize| -> Value {
        Value::object([
            ("name", members[n].clone().into()),
            ("state", status.members[n].as_str().into()),
            ("seconds", status.since[n].map(|since| now.since(since).as_secs()).into()),
            ("left_out", status.why[n].map(|why| why.to_string()).into()),
        ])
    };
    Value::object([
        ("state", status.state.to_string().into()),
        ("members", Value::list([member(0), member(1)])),
        ("regions", status.regions.into()),
        ("stale", status.stale.into()),
        ("stale_bytes", Value::Bytes(status.stale_bytes)),
        ("copied", status.copied.into()),
        ("dropped", status.dropped.into()),
        ("timeouts", status.timeouts.into()),
        ("records", status.records.into()),
        ("force", "usage: write 1, uses the one member that can be read".into()),
    ])
}

fn session_mut<'a>(remote_storage: &'a mut RemoteStorage, name: &str) -> Option<&'a mut Session> {
    let mut sessions = remote_storage.sessions.iter_mut().map(|session| &mut **session);
    sessions.find(|session| session.name() == name)
}

/// Writes to an object of a session with a server.
pub(in crate::gateway) fn write_rtrs(
    state: &mut State,
    path: &str,
    parts: &[&str],
    value: &str,
) -> Result<(), String> {
    let plane = &mut state.plane;
    let nobody = || nothing(path);
    let remote_storage = plane.storage.remote_storage.as_mut().ok_or_else(nobody)?;
    let provider = &mut plane.rdma_stack.as_mut().ok_or_else(nobody)?.providers;
    let (arena, now) = (&mut plane.arena, plane.now);
    let mut ctx = EngineContext { provider, arena, now, rng: &mut *plane.rng };
    remote_storage.ways_due = Some(now);
    let [name, parts @ ..] = parts else { return Err(nobody()) };
    let session = session_mut(remote_storage, name).ok_or_else(nobody)?;
    match parts {
        ["add_path"] => {
            let pair: PathPair = value.parse()?;
            session.add_path(pair, &mut ctx).map(|_| ()).map_err(|why| why.to_string())
        }
        ["max_reconnect_attempts"] => {
            let attempts: Attempts = value.parse()?;
            session.max_reconnect_attempts = attempts.0;
            session.client.transport_mut().set_max_reconnect_attempts(attempts.0);
            Ok(())
        }
        ["mp_policy"] => {
            let accepted = |_| "accepted: round-robin, min-inflight, min-latency".to_string();
            let policy: MpPolicy = value.parse().map_err(accepted)?;
            session.client.transport_mut().set_policy(policy.0);
            Ok(())
        }
        ["paths", pair, order @ ..] => {
            let pair: PathPair = pair.parse().map_err(|_| nobody())?;
            let id = session.path_between(pair.from, pair.to).ok_or_else(nobody)?.id;
            let transport = session.client.transport_mut();
            accept_one(value)?;
            match order {
                ["reconnect"] => transport.reconnect(id, &mut ctx),
                ["disconnect"] => transport.disconnect(id, &mut ctx),
                ["remove_path"] => transport.remove_path(id, &mut ctx),
                ["stats", "reset_all"] => transport.reset_stats(id),
                _ => return Err(format!("{path} can only be read")),
            };
            Ok(())
        }
        _ => Err(format!("{path} can only be read")),
    }
}

/// Has a device opened anew: one that the server closed, or to learn its size.
pub(in crate::gateway) fn remap(state: &mut State, volume: &str) -> Option<()> {
    let plane = &mut state.plane;
    let provider = &mut plane.rdma_stack.as_mut()?.providers;
    let (arena, now) = (&mut plane.arena, plane.now);
    let mut ctx = EngineContext { provider, arena, now, rng: &mut *plane.rng };
    let sessions = &mut plane.storage.remote_storage.as_mut()?.sessions;
    sessions.iter_mut().find_map(|session| {
        let id = session.device(volume)?.id;
        session.client.remap(id, &mut ctx).then_some(())
    })
}

/// Has a mirror use the one member that can be read.
pub(in crate::gateway) fn force(state: &mut State, mirror: &str) -> Result<(), String> {
    let mut mirrors = state.plane.storage.remote_storage.iter().flat_map(|one| &one.mirrors);
    let found = mirrors.find(|one| one.name == mirror);
    let slot = found.ok_or_else(|| format!("there is no mirror {mirror:?}"))?;
    match slot.status.get().state {
        MirrorState::Alone => slot.forced.set(true),
        MirrorState::Running => return Err("it runs: there is nothing to force".into()),
        MirrorState::Waiting => return Err("no member can be read yet".into()),
        MirrorState::Strangers => {
            let why = MirrorState::Strangers;
            return Err(format!("{why}; {}", slot.how_to_make()));
        }
    }
    Ok(())
}
