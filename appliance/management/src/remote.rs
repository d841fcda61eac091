//! Objects of the RTRS client and of remote devices, under the names of Linux's sysfs (`rtrs-clt-sysfs.c`,
//! `rtrs-clt-stats.c`, Documentation/ABI/testing/sysfs-class-rtrs-client, `rnbd-clt-sysfs.c`); and mirrors.

use crate::appliance::{Appliance, Told};
use crate::clients::latencies;
use crate::config::{Access, Attempts, MpPolicy, Name, PathPair};
use crate::console::{ObjectVerb, RemoteVerb};
use crate::orders::{Order, RemotePathOrder, SessionOrder};
use crate::pieces::Entry;
use crate::rdma_devices::{RdmaDevices, local_address};
use crate::report::Value;
use crate::status::{MirrorStatus, RemoteSession};
use crate::words::{accept_one, no_object};
use core::net::{IpAddr, Ipv6Addr};
use drivers::hal::Instant;
use rtrs::client::{PathStatus, Policy, Shape};
use storage::rnbd::client::DeviceStatus;

const WRITE_ONE: &str = "usage: write 1";
const MAP_DEVICE: &str = "usage: write sessname=NAME path=[SOURCE,]DESTINATION device_path=PATH \
                          [access_mode=ro|rw|migration] [name=NAME]";

/// A path as Linux names it: `ip:CLIENT@ip:SERVER`.
pub fn path_name(path: &PathStatus<'_>) -> String {
    PathPair { from: path.from, to: path.to.ip() }.to_string()
}

/// `/rtrs-client`.
pub(crate) fn rtrs(appliance: &dyn Appliance) -> Value {
    let sessions = appliance.remote().sessions;
    if sessions.is_empty() {
        return Value::object([]);
    }
    let devices = RdmaDevices::of(appliance);
    let entry =
        |s: &RemoteSession<'_>| -> Entry { (s.name().to_string().into(), session(s, &devices)) };
    Value::Object(sessions.iter().map(entry).collect())
}

/// `/rnbd-client`.
pub(crate) fn rnbd(appliance: &dyn Appliance) -> Value {
    let devices = appliance.remote().sessions.iter().flat_map(device_entries).collect();
    let ctl =
        Value::object([("map_device", MAP_DEVICE.into()), ("devices", Value::Object(devices))]);
    Value::object([("ctl", ctl)])
}

/// `/mirrors`.
pub(crate) fn mirrors(appliance: &dyn Appliance) -> Value {
    let now = appliance.machine().now;
    let entry = |m: &MirrorStatus<'_>| -> Entry { (m.name.to_string().into(), mirror(m, now)) };
    Value::Object(appliance.remote().mirrors.iter().map(entry).collect())
}

fn session(session: &RemoteSession<'_>, devices: &RdmaDevices) -> Value {
    let transport = session.client.transport();
    let paths = transport.paths().map(|p| -> Entry { (path_name(&p).into(), path(&p, devices)) });
    let most_attempts = session.max_reconnect_attempts;
    session_tree(most_attempts, transport.policy(), transport.shape(), paths.collect())
}

fn session_tree(
    most_attempts: Option<u16>,
    policy: Policy,
    shape: Option<Shape>,
    paths: Vec<Entry>,
) -> Value {
    Value::object([
        ("add_path", "usage: write [SOURCE,]DESTINATION, each as ip:ADDRESS or gid:GID".into()),
        ("max_reconnect_attempts", attempts(most_attempts)),
        ("mp_policy", policy.describe().into()),
        ("queue_depth", shape.map(|shape| shape.queue_depth).into()),
        ("max_io_size", shape.map_or(Value::None, |shape| Value::Bytes(shape.max_io_size.into()))),
        ("paths", Value::Object(paths)),
    ])
}

fn attempts(attempts: Option<u16>) -> Value {
    match attempts {
        Some(attempts) => attempts.into(),
        None => "-1".into(),
    }
}

fn path(path: &PathStatus<'_>, devices: &RdmaDevices) -> Value {
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
    let average = stats.completions.checked_div(stats.runs.calls).unwrap_or(0);
    let completions = Value::object([("max", stats.runs.max.into()), ("average", average.into())]);
    let stats = Value::object([
        ("reset_all", WRITE_ONE.into()),
        ("reconnects", reconnects),
        ("rdma_lat", latencies(&stats.read_latency, &stats.write_latency)),
        ("wc_completion", completions),
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
        ("hca_name", devices.hca_name(path.from)),
        ("hca_port", RdmaDevices::PORT.into()),
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
        let tree = device_tree(&device, session.name(), session.poll_queues());
        Some((name.clone().into(), tree))
    })
}

fn device_tree(device: &DeviceStatus, session: &str, poll_queues: u16) -> Value {
    let refused = device.last_error.map(|errno| errno.to_string());
    Value::object([
        ("session", session.to_string().into()),
        ("mapping_path", device.name.as_str().to_string().into()),
        ("access_mode", Access(device.mode).to_string().into()),
        ("state", device.state.as_str().into()),
        ("last_error", refused.into()),
        ("size", device.geometry.sectors.into()),
        ("requests", device.requests.into()),
        ("resize", "usage: write 1 to ask the server for the size".into()),
        ("remap_device", WRITE_ONE.into()),
        ("unmap_device", "usage: write normal".into()),
        ("nr_poll_queues", poll_queues.into()),
    ])
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

/// Reads a path as Linux writes it: `[SOURCE,]DESTINATION` or `[SOURCE@]DESTINATION`, each as `ip:ADDRESS` or `gid:GID`.
/// Without a source it is the appliance's address in the destination's network.
pub(crate) fn path_pair(appliance: &dyn Appliance, text: &str) -> Result<PathPair, String> {
    if let Some((from, to)) = text.split_once([',', '@']) {
        return PathPair::of(end(from)?, end(to)?);
    }
    let to = end(text)?;
    let from = local_address(&appliance.ports(), &appliance.bridges(), to).ok_or_else(|| {
        format!("no interface of the first core leads to {to}: give the path as SOURCE,DESTINATION")
    })?;
    PathPair::of(from, to)
}

/// An end of a path: `ip:ADDRESS`, `gid:GID` or an address. The GID of a RoCE port is its IPv6 address, or its IPv4
/// address in mapped form.
fn end(text: &str) -> Result<IpAddr, String> {
    let wrong = || format!("{text:?} is not an address; accepted: ip:ADDRESS, gid:GID");
    match text.strip_prefix("gid:") {
        Some(gid) => {
            let gid: Ipv6Addr = gid.parse().map_err(|_| wrong())?;
            Ok(IpAddr::V6(gid).to_canonical())
        }
        None => text.strip_prefix("ip:").unwrap_or(text).parse().map_err(|_| wrong()),
    }
}

/// The command that a write to `map_device` or `unmap_device` stands for, with its arguments; None for other objects.
pub(crate) fn command(path: &str, value: &str) -> Option<Result<(ObjectVerb, String), String>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["rnbd-client", "ctl", "map_device"] => Some(mapping(value)),
        ["rnbd-client", "ctl", "devices", name, "unmap_device"] => Some(match value {
            "normal" => Ok((ObjectVerb::Remote(RemoteVerb::Remove), (*name).to_string())),
            _ => Err("accepted: normal".into()),
        }),
        _ => None,
    }
}

/// Arguments of `remote add` for the options of `map_device`. Without `name=` the volume is called like the device, with
/// `.` for `/`.
fn mapping(value: &str) -> Result<(ObjectVerb, String), String> {
    let mut words: Vec<&str> = value.split_whitespace().collect();
    let of_key = |words: &[&str], key: &str| words.iter().position(|word| word.starts_with(key));
    let name = match of_key(&words, "name=") {
        Some(at) => words.remove(at)["name=".len()..].to_string(),
        None => {
            let at = of_key(&words, "device_path=").ok_or(MAP_DEVICE)?;
            let device = &words[at]["device_path=".len()..];
            device.trim_start_matches('/').replace('/', ".")
        }
    };
    name.parse::<Name>().map_err(|_| format!("{name:?} is not a volume name: give name=NAME"))?;
    Ok((ObjectVerb::Remote(RemoteVerb::Add), format!("{name} {}", words.join(" "))))
}

/// Writes to an object of a session with a remote server.
pub(crate) fn write(
    appliance: &mut dyn Appliance,
    path: &str,
    parts: &[&str],
    value: &str,
) -> Told {
    let missing = || no_object(path);
    let [name, parts @ ..] = parts else { return Err(missing()) };
    let remote = appliance.remote();
    let session = remote.sessions.iter().find(|session| session.name() == *name);
    let session = session.ok_or_else(missing)?;
    let order = match parts {
        ["add_path"] => SessionOrder::AddPath(path_pair(appliance, value)?),
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
            match order {
                // As documented for Linux; its code accepts 1.
                ["stats", "reset_all"] if value == "0" => {}
                _ => accept_one(value)?,
            }
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
    appliance.carry_out(Order::Session(name, order))
}

#[cfg(test)]
#[path = "remote_tests.rs"]
mod tests;
