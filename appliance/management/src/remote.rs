//! Objects of the RTRS client and of remote devices, under the names of Linux's sysfs (`rtrs-clt-sysfs.c`,
//! `rtrs-clt-stats.c`, Documentation/ABI/testing/sysfs-class-rtrs-client, `rnbd-clt-sysfs.c`); and mirrors.

use crate::appliance::Appliance;
use crate::clients::histogram;
use crate::config::{Access, Attempts, MpPolicy, PathPair};
use crate::orders::{Order, RemotePathOrder, SessionOrder};
use crate::pieces::Entry;
use crate::report::Value;
use crate::status::{MirrorStatus, RemoteSession};
use crate::words::{accept_one, no_object};
use drivers::hal::Instant;
use rtrs::client::PathStatus;

const WRITE_ONE: &str = "usage: write 1";

/// A path as Linux names it: `ip:CLIENT@ip:SERVER`.
pub fn path_name(path: &PathStatus<'_>) -> String {
    PathPair { from: path.from, to: path.to.ip() }.to_string()
}

/// `/rtrs-client`.
pub(crate) fn rtrs(appliance: &dyn Appliance) -> Value {
    let entry = |s: &RemoteSession<'_>| -> Entry { (s.name().to_string().into(), session(s)) };
    Value::Object(appliance.remote().sessions.iter().map(entry).collect())
}

/// `/rnbd-client`.
pub(crate) fn rnbd(appliance: &dyn Appliance) -> Value {
    let devices = appliance.remote().sessions.iter().flat_map(device_entries).collect();
    let devices = Value::object([("devices", Value::Object(devices))]);
    Value::object([("ctl", devices)])
}

/// `/mirrors`.
pub(crate) fn mirrors(appliance: &dyn Appliance) -> Value {
    let now = appliance.machine().now;
    let entry = |m: &MirrorStatus<'_>| -> Entry { (m.name.to_string().into(), mirror(m, now)) };
    Value::Object(appliance.remote().mirrors.iter().map(entry).collect())
}

fn session(session: &RemoteSession<'_>) -> Value {
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

fn device_entries<'a>(session: &'a RemoteSession<'_>) -> impl Iterator<Item = Entry> + 'a {
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
            ("resize", "usage: write 1 to ask the server for the size".into()),
            ("remap_device", WRITE_ONE.into()),
        ]);
        Some((name.clone().into(), value))
    })
}

/// State of a mirror and its members.
pub(crate) fn mirror(mirror: &MirrorStatus<'_>, now: Instant) -> Value {
    let MirrorStatus { members, status, .. } = mirror;
    let member = |n: usize| -> Value {
        Value::object([
            ("name", members[n].clone().into()),
            ("state", status.member(n).into()),
            ("size", Value::Bytes(status.member_sectors[n].saturating_mul(512))),
            ("seconds", status.since[n].map(|since| now.since(since).as_secs()).into()),
            ("left_out", status.why[n].map(|why| why.to_string()).into()),
        ])
    };
    Value::object([
        ("state", status.to_string().into()),
        ("size", Value::Bytes(status.sectors.saturating_mul(512))),
        ("members", Value::list([member(0), member(1)])),
        ("growing", status.grows.into()),
        ("regions", status.regions.into()),
        ("stale", status.stale.into()),
        ("stale_bytes", Value::Bytes(status.stale_bytes)),
        ("copied", status.copied.into()),
        ("dropped", status.dropped.into()),
        ("timeouts", status.timeouts.into()),
        ("records", status.records.into()),
        ("force", "usage: write 1 to run on the only readable member".into()),
    ])
}

/// Writes to an object of a session with a remote server.
pub(crate) fn write(
    appliance: &mut dyn Appliance,
    path: &str,
    parts: &[&str],
    value: &str,
) -> Result<(), String> {
    let missing = || no_object(path);
    let [name, parts @ ..] = parts else { return Err(missing()) };
    let remote = appliance.remote();
    let session = remote.sessions.iter().find(|session| session.name() == *name);
    let session = session.ok_or_else(missing)?;
    let order = match parts {
        ["add_path"] => SessionOrder::AddPath(value.parse()?),
        ["max_reconnect_attempts"] => SessionOrder::Attempts(value.parse::<Attempts>()?),
        ["mp_policy"] => {
            let accepted = |_| "accepted: round-robin, min-inflight, min-latency".to_string();
            SessionOrder::Policy(value.parse::<MpPolicy>().map_err(accepted)?)
        }
        ["paths", pair, order @ ..] => {
            let pair: PathPair = pair.parse().map_err(|_| missing())?;
            let mut paths = session.client.transport().paths();
            let known = paths.any(|path| path.from == pair.from && path.to.ip() == pair.to);
            known.then_some(()).ok_or_else(missing)?;
            accept_one(value)?;
            let order = match order {
                ["reconnect"] => RemotePathOrder::Reconnect,
                ["disconnect"] => RemotePathOrder::Disconnect,
                ["remove_path"] => RemotePathOrder::Remove,
                ["stats", "reset_all"] => RemotePathOrder::Reset,
                _ => return Err(format!("{path} is read-only")),
            };
            SessionOrder::Path(pair, order)
        }
        _ => return Err(format!("{path} is read-only")),
    };
    appliance.carry_out(Order::Session(name, order)).map(drop)
}
