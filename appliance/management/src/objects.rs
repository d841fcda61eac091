//! The object tree: all readable and writable objects of the appliance by path, for the console's `ls`, `cat` and
//! `write` and for `/api/…` over HTTP. Objects of the RTRS and RNBD servers have the names of Linux's sysfs
//! (`rtrs-srv-sysfs.c`, `rnbd-srv-sysfs.c`).

use crate::appliance::Appliance;
use crate::clients::{
    device_name, exported_name, histogram, live_paths, mode_name, path_name, session_name,
};
use crate::orders::{Capturing, ClientOrder, MirrorOrder, Order, PathOrder};
use crate::pieces::{Entry, Node};
use crate::report::Value;
use crate::words::{accept_one, no_object};
use crate::{linx, manage, ntb, rapidio, remote, show, smc, usnic};
use net::capture::Filter;
use rtrs::server::{PathState, PathStatus};
use storage::rnbd::server::{DeviceStatus, Export, Server};
use storage::rnbd::wire::AccessMode;
use storage::volume::VolumeId;

/// Memory of the capture ring.
const CAPTURE_BYTES: usize = 4 << 20;

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// The tree.
static TREE: Node = Node::Branch(&[
    ("interfaces", Node::Rows(show::interfaces)),
    ("disks", Node::Rows(show::disks)),
    ("devices", Node::Whole(show::devices)),
    ("volumes", Node::Rows(manage::volumes::rows)),
    ("exports", Node::Rows(manage::exports::wanted)),
    ("memory", Node::Whole(show::memory)),
    ("loops", Node::Whole(show::loops)),
    ("ntb", Node::Whole(ntb::report)),
    ("rapidio", Node::Whole(rapidio::report)),
    ("usnic", Node::Guarded(usnic::report, usnic::public_report)),
    ("linx", Node::Whole(linx::report)),
    ("version", Node::Whole(show::version)),
    ("refused", Node::Whole(|appliance| appliance.machine().refused.report())),
    ("log", Node::Rows(show::log)),
    ("time", Node::Whole(show::time)),
    ("capture", Node::Whole(capture_state)),
    ("smc", smc::TREE),
    ("rtrs-server", Node::Entries(rtrs_sessions)),
    (
        "rnbd-server",
        Node::Branch(&[("ctl", Node::Branch(&[("devices", Node::Entries(rnbd_devices))]))]),
    ),
    ("rtrs-client", Node::Whole(remote::rtrs)),
    ("rnbd-client", Node::Whole(remote::rnbd)),
    ("mirrors", Node::Whole(remote::mirrors)),
]);

/// The node that holds `path`, and the rest of the path within the node's value.
pub(crate) fn find(path: &str) -> Result<(&'static Node, Vec<&str>), String> {
    let parts = parts(path);
    let (node, rest) = TREE.find(&parts).ok_or_else(|| no_object(path))?;
    Ok((node, rest.to_vec()))
}

/// Whether a top-level object shows some values only to readers with full access.
pub(crate) fn is_guarded(name: &str) -> bool {
    let Node::Branch(parts) = &TREE else { return true };
    parts.iter().any(|(part, node)| *part == name && matches!(node, Node::Guarded(..)))
}

/// Names below `path`. Names of objects with children end in `/`.
pub(crate) fn list(appliance: &dyn Appliance, path: &str) -> Result<Vec<String>, String> {
    if let (Node::Branch(below), rest) = find(path)?
        && rest.is_empty()
    {
        let end = |(name, node): &(&str, Node)| match node {
            Node::Branch(_) | Node::Entries(_) => format!("{name}/"),
            Node::Rows(_) => (*name).to_string(),
            Node::Whole(make) | Node::Guarded(make, _) => match make(appliance) {
                Value::Object(_) => format!("{name}/"),
                _ => (*name).to_string(),
            },
        };
        return Ok(below.iter().map(end).collect());
    }
    let Value::Object(entries) = read(appliance, path)? else { return Ok(Vec::new()) };
    let end = |value: &Value| if matches!(value, Value::Object(_)) { "/" } else { "" };
    Ok(entries.iter().map(|(name, value)| format!("{name}{}", end(value))).collect())
}

/// The value of the object at `path`, including its children.
pub(crate) fn read(appliance: &dyn Appliance, path: &str) -> Result<Value, String> {
    let (node, mut rest) = find(path)?;
    let mut value = match (node, rest.first().copied()) {
        (Node::Entries(entries), Some(name)) => {
            let found =
                entries(appliance, Some(name), 0, 1).pop().ok_or_else(|| no_object(path))?;
            rest.remove(0);
            found.1
        }
        _ => node.value(appliance),
    };
    for part in rest {
        let Value::Object(entries) = value else { return Err(no_object(path)) };
        let found = entries.into_iter().find(|(name, _)| name == part);
        value = found.ok_or_else(|| no_object(path))?.1;
    }
    Ok(value)
}

/// Writes to the object at `path`.
pub(crate) fn write(appliance: &mut dyn Appliance, path: &str, value: &str) -> Result<(), String> {
    let order = match parts(path).as_slice() {
        ["capture"] => return capture(appliance, value),
        ["rtrs-server", session, "paths", name, rest @ ..] if let Some(what) = path_order(rest) => {
            let session = Some(session.to_string());
            ClientOrder::Path { session, path: name.to_string(), what }
        }
        ["rnbd-server", "ctl", "devices", device, "sessions", session, "force_close"] => {
            let (device, session) = (device.to_string(), session.to_string());
            ClientOrder::CloseExported { device, session }
        }
        ["rtrs-client", parts @ ..] => return remote::write(appliance, path, parts, value),
        ["rnbd-client", "ctl", "devices", volume, "resize" | "remap_device"] => {
            accept_one(value)?;
            let done = appliance.carry_out(Order::Remap(volume));
            return done.map(drop).map_err(|_| no_object(path));
        }
        ["mirrors", mirror, "force"] => {
            accept_one(value)?;
            return appliance.carry_out(Order::Mirror(mirror, MirrorOrder::Force)).map(drop);
        }
        _ => {
            return match read(appliance, path) {
                Ok(_) => Err(format!("{path} is read-only")),
                Err(why) => Err(why),
            };
        }
    };
    accept_one(value)?;
    appliance.carry_out(Order::Clients(order, &[])).map(drop).map_err(|_| no_object(path))
}

/// The order that a write to an object below a path stands for.
fn path_order(below: &[&str]) -> Option<PathOrder> {
    match below {
        ["disconnect"] => Some(PathOrder::Disconnect),
        ["stats", "rdma"] => Some(PathOrder::ResetRdma),
        ["stats", "reset_all"] => Some(PathOrder::Reset),
        _ => None,
    }
}

fn capture(appliance: &mut dyn Appliance, order: &str) -> Result<(), String> {
    let order = match order.split_once(' ').unwrap_or((order, "")) {
        ("start", filter) => {
            let filter = Filter::parse(filter).map_err(|error| error.to_string())?;
            for port in appliance.ports().iter().filter(|port| !port.is_own) {
                let what = match port.forwarding_dropped {
                    Some(_) => "only its usNIC datagrams are captured",
                    None => "its frames are not captured",
                };
                log::warn!("capture: {} is polled by core {}: {what}", port.name, port.core);
            }
            for queue in appliance.queues().iter().filter(|queue| queue.is_further) {
                let (port, core) = (queue.port, queue.core);
                log::warn!("capture: frames that core {core} receives on {port} are not captured");
            }
            Capturing::Start(filter, CAPTURE_BYTES)
        }
        ("stop", "") => Capturing::Stop,
        ("discard", "") => Capturing::Discard,
        _ => return Err("accepted: start [FILTER], stop, discard".into()),
    };
    appliance.carry_out(Order::Capture(order)).map(drop)
}

fn capture_state(appliance: &dyn Appliance) -> Value {
    let capture = appliance.capture();
    let (frames, overwritten) = capture.counts();
    Value::object([
        ("running", capture.running().into()),
        ("frames", frames.into()),
        ("overwritten", overwritten.into()),
    ])
}

/// Named sessions: at most `count` from index `from`, or only the one called `name`.
fn rtrs_sessions(
    appliance: &dyn Appliance,
    name: Option<&str>,
    from: usize,
    count: usize,
) -> Vec<Entry> {
    let storage = appliance.storage();
    let Some(server) = storage.server else { return Vec::new() };
    let sessions = server.transport().sessions().filter(|s| !s.name.as_str().is_empty());
    let wanted = sessions.filter(|s| name.is_none_or(|name| s.name.as_str() == name));
    let entries = wanted.skip(from).take(count).map(|session| -> Entry {
        let paths = live_paths(server).filter(|path| path.session == session.id);
        let paths = paths.map(|path| -> Entry { (path_name(&path).into(), path_tree(&path)) });
        let value = Value::object([
            ("queue_depth", session.queue_depth.into()),
            ("chunk_size", Value::Bytes(session.chunk_size.into())),
            ("up", session.up.into()),
            ("paths", Value::Object(paths.collect())),
        ]);
        (session.name.as_str().to_string().into(), value)
    });
    entries.collect()
}

fn path_tree(path: &PathStatus<'_>) -> Value {
    let stats = path.stats;
    let rdma = Value::object([
        ("rd_cnt", stats.reads.into()),
        ("rd_bytes", stats.read_bytes.into()),
        ("wr_cnt", stats.writes.into()),
        ("wr_bytes", stats.write_bytes.into()),
        ("inflight", path.in_flight.into()),
        ("errors", stats.errors.into()),
    ]);
    let state = match path.state {
        PathState::Connecting => "connecting",
        PathState::Connected => "connected",
        PathState::Closing => "closing",
        PathState::Closed => "closed",
    };
    Value::object([
        ("state", state.into()),
        ("disconnect", "usage: write 1".into()),
        ("hca_name", "roce0".into()),
        ("hca_port", 1u8.into()),
        ("src_addr", format!("ip:{}", path.from).into()),
        ("dst_addr", format!("ip:{}", path.to).into()),
        ("connections", path.connections.into()),
        ("cur_latency_seconds", path.latency.as_secs_f64().into()),
        (
            "stats",
            Value::object([
                ("rdma", rdma),
                ("wc_completion", stats.completions.into()),
                ("read_latency", histogram(&stats.read_latency)),
                ("write_latency", histogram(&stats.write_latency)),
                ("reset_all", "usage: write 1".into()),
            ]),
        ),
    ])
}

/// Exports with the sessions that have them open: at most `count` from index `from`. Devices that are still open under
/// a withdrawn export's name follow the last export.
fn rnbd_devices(
    appliance: &dyn Appliance,
    name: Option<&str>,
    from: usize,
    count: usize,
) -> Vec<Entry> {
    let storage = appliance.storage();
    let Some(server) = storage.server else { return Vec::new() };
    let mut devices: Vec<(String, VolumeId, Vec<Entry>)> = Vec::new();
    let exports = server.exports();
    let of_export = |export: &Export| device_name(export.name.as_str());
    let wanted = |shown: &str| name.is_none_or(|name| name == shown);
    for export in exports.iter().filter(|e| wanted(&of_export(e))).skip(from).take(count) {
        let (name, volume) = (of_export(export), export.volume);
        let open = server.devices().filter(|device| device.volume == volume);
        let open = open.filter(|device| exported_name(server, device) == name);
        let open = open.map(|device| open_device(server, &device)).collect();
        devices.push((name, volume, open));
    }
    // Devices of withdrawn exports are few, so they are all listed with the last exports.
    if from.saturating_add(count) > exports.len() && from <= exports.len() {
        for device in server.devices() {
            let shown = exported_name(server, &device);
            if !wanted(&shown) || exports.iter().any(|export| of_export(export) == shown) {
                continue;
            }
            let open = open_device(server, &device);
            match devices.iter_mut().find(|(other, ..)| *other == shown) {
                Some((_, _, sessions)) => sessions.push(open),
                None => devices.push((shown, device.volume, vec![open])),
            }
        }
    }
    let entry = |(name, volume, sessions): (String, VolumeId, Vec<Entry>)| -> Entry {
        let volume = storage.volumes.name(volume).unwrap_or_default();
        let value = Value::object([
            ("block_dev", volume.to_string().into()),
            ("sessions", Value::Object(sessions)),
        ]);
        (name.into(), value)
    };
    devices.into_iter().map(entry).collect()
}

fn open_device(server: &Server, device: &DeviceStatus) -> Entry {
    let value = Value::object([
        ("read_only", (device.mode == AccessMode::ReadOnly).into()),
        ("access_mode", mode_name(device.mode).into()),
        ("mapping_path", device.name.as_str().to_string().into()),
        ("force_close", "usage: write 1".into()),
    ]);
    (session_name(server, device.session).into(), value)
}
