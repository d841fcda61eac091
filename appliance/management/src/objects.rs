//! The object tree: all readable and writable objects of the appliance by path, for the console's `ls`, `cat` and
//! `write` and for `/api/…` over HTTP. Objects of the RTRS and RNBD servers have the names of Linux's sysfs
//! (`rtrs-srv-sysfs.c`, `rnbd-srv-sysfs.c`).

use crate::appliance::{Appliance, Told};
use crate::clients::{device_name, exported_name, latencies, live_paths, mode_name};
use crate::config::Role;
use crate::orders::{Capturing, ClientOrder, MirrorOrder, Order, PathOrder};
use crate::pieces::{Entry, Node};
use crate::rdma_devices::RdmaDevices;
use crate::report::Value;
use crate::storage_rows::{DeviceCounts, PathCounts, SessionCounts, StorageCounts, StorageRows};
use crate::words::{accept_one, no_object};
use crate::{doctor, linx, manage, nbd_client, ntb, nvme_host, rapidio, remote, show, smc, usnic};
use net::capture::Filter;
use rtrs::server::SessionStatus;
use storage::rnbd::server::{Export, Server};
use storage::rnbd::wire::AccessMode;

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
    ("linx", Node::Whole(linx::details)),
    ("version", Node::Whole(show::version)),
    ("doctor", Node::Whole(|appliance| doctor::report(&doctor::findings(appliance)))),
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
    ("nbd-client", Node::Whole(nbd_client::report)),
    ("nvme-host", Node::Whole(nvme_host::report)),
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

/// The role that a write to an object needs: that of the command that does the same.
pub(crate) fn role_to_write(path: &str) -> Role {
    match parts(path).as_slice() {
        // As `mirror force`: the other member may be newer.
        ["mirrors", _, "force"] => Role::Admin,
        // As `remote add` and `remote remove`: to which servers data goes.
        ["rtrs-client", _, "add_path" | "max_reconnect_attempts" | "mp_policy"]
        | ["rtrs-client", _, "paths", _, "remove_path"]
        | ["rnbd-client", "ctl", "map_device"]
        | ["rnbd-client", "ctl", "devices", _, "unmap_device"] => Role::Admin,
        _ => Role::Operate,
    }
}

/// Whether a write to an object runs longer than the call, and answers with its result.
pub(crate) fn starts_task(path: &str) -> bool {
    matches!(parts(path).as_slice(), ["rtrs-client", _, "paths", _, "reconnect"])
}

/// Writes to the object at `path`.
pub(crate) fn write(appliance: &mut dyn Appliance, path: &str, value: &str) -> Told {
    let path_parts = parts(path);
    let order = match path_parts.as_slice() {
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
            return done.map_err(|_| no_object(path));
        }
        ["mirrors", mirror, "force"] => {
            accept_one(value)?;
            return appliance.carry_out(Order::Mirror(mirror, MirrorOrder::Force));
        }
        _ => {
            return match read(appliance, path) {
                Ok(_) => Err(format!("{path} is read-only")),
                Err(why) => Err(why),
            };
        }
    };
    match path_parts.last() {
        // As documented for Linux; its code accepts 1.
        Some(&"reset_all") if value == "0" => {}
        _ => accept_one(value)?,
    }
    let others = appliance.storage().others;
    let places = others.iter().enumerate().filter(|(_, rows)| concerns(&order, rows));
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    appliance.carry_out(Order::Clients(order, &places)).map_err(|_| no_object(path))
}

/// Whether a loop has a client that an order of this tree is for.
fn concerns(order: &ClientOrder, rows: &StorageRows) -> bool {
    match order {
        ClientOrder::Path { session, path, .. } => {
            let is_session = |name: &str| session.as_ref().is_none_or(|session| session == name);
            let mut paths = rows.counts.paths.iter();
            paths.any(|one| one.name == *path && is_session(one.session.as_str()))
        }
        ClientOrder::CloseExported { device, session } => {
            let mut devices = rows.counts.devices.iter();
            devices.any(|one| one.exported == *device && one.session == *session)
        }
        ClientOrder::EndSession(_) | ClientOrder::Close { .. } => false,
    }
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

fn capture(appliance: &mut dyn Appliance, order: &str) -> Told {
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
    appliance.carry_out(Order::Capture(order))
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

/// A session: of the first loop as it is now, of another loop as last published.
enum Listed<'a> {
    Own(&'a Server, Box<SessionStatus>),
    Published(&'a StorageCounts, &'a SessionCounts),
}

impl Listed<'_> {
    fn entry(&self, devices: &RdmaDevices) -> Entry {
        let path =
            |path: &PathCounts| -> Entry { (path.name.clone().into(), path_tree(path, devices)) };
        match self {
            Listed::Own(server, session) => {
                let paths = live_paths(server).filter(|path| path.session == session.id);
                let paths = paths.map(|one| path(&PathCounts::of(&one, session.name)));
                session_entry(&SessionCounts::of(session), paths.collect())
            }
            Listed::Published(counts, session) => {
                let paths = counts.paths.iter().filter(|path| path.session_id == session.id);
                session_entry(session, paths.map(path).collect())
            }
        }
    }
}

/// Named sessions of all loops: at most `count` from index `from`, or only the one called `name`.
fn rtrs_sessions(
    appliance: &dyn Appliance,
    name: Option<&str>,
    from: usize,
    count: usize,
) -> Vec<Entry> {
    let storage = appliance.storage();
    let Some(server) = storage.server else { return Vec::new() };
    let named = |one: &str| !one.is_empty() && name.is_none_or(|name| one == name);
    let own = server.transport().sessions().filter(|session| named(session.name.as_str()));
    let own = own.map(|session| Listed::Own(server, Box::new(session)));
    let others = storage.others.iter().flat_map(|rows| {
        let sessions = rows.counts.sessions.iter().filter(|one| named(one.name.as_str()));
        sessions.map(|session| Listed::Published(&rows.counts, session))
    });
    let devices = RdmaDevices::of(appliance);
    own.chain(others).skip(from).take(count).map(|one| one.entry(&devices)).collect()
}

fn session_entry(session: &SessionCounts, paths: Vec<Entry>) -> Entry {
    let value = Value::object([
        ("queue_depth", session.queue_depth.into()),
        ("chunk_size", Value::Bytes(session.chunk_size.into())),
        ("up", session.up.into()),
        ("paths", Value::Object(paths)),
    ]);
    (session.name.as_str().to_string().into(), value)
}

fn path_tree(path: &PathCounts, devices: &RdmaDevices) -> Value {
    let stats = &path.stats;
    let rdma = Value::object([
        ("rd_cnt", stats.reads.into()),
        ("rd_bytes", stats.read_bytes.into()),
        ("wr_cnt", stats.writes.into()),
        ("wr_bytes", stats.write_bytes.into()),
        ("inflight", path.in_flight.into()),
        ("errors", stats.errors.into()),
    ]);
    let completions = Value::object([
        ("max", stats.runs.max.into()),
        ("total", stats.completions.into()),
        ("calls", stats.runs.calls.into()),
    ]);
    Value::object([
        ("state", path.state.as_str().into()),
        ("disconnect", "usage: write 1".into()),
        ("hca_name", devices.hca_name(path.to)),
        ("hca_port", RdmaDevices::PORT.into()),
        ("src_addr", format!("ip:{}", path.from).into()),
        ("dst_addr", format!("ip:{}", path.to).into()),
        ("connections", path.connections.into()),
        ("cur_latency_seconds", path.latency.as_secs_f64().into()),
        (
            "stats",
            Value::object([
                ("rdma", rdma),
                ("wc_completion", completions),
                ("rdma_lat", latencies(&stats.read_latency, &stats.write_latency)),
                ("reset_all", "usage: write 1".into()),
            ]),
        ),
    ])
}

/// Exports with the sessions of all loops that have them open: at most `count` from index `from`. Devices that are
/// still open under a withdrawn export's name follow the last export.
fn rnbd_devices(
    appliance: &dyn Appliance,
    name: Option<&str>,
    from: usize,
    count: usize,
) -> Vec<Entry> {
    let storage = appliance.storage();
    let Some(server) = storage.server else { return Vec::new() };
    let mut devices: Vec<(String, String, Vec<Entry>)> = Vec::new();
    let exports = server.exports();
    let volume = |id| storage.volumes.name(id).unwrap_or_default().to_string();
    let of_export = |export: &Export| device_name(export.name.as_str());
    let wanted = |shown: &str| name.is_none_or(|name| name == shown);
    for export in exports.iter().filter(|e| wanted(&of_export(e))).skip(from).take(count) {
        let name = of_export(export);
        let open = server.devices().filter(|device| device.volume == export.volume);
        let open = open.filter(|device| exported_name(server, device) == name);
        let open = open.map(|device| DeviceCounts::of(server, storage.volumes, &device));
        let mut open: Vec<Entry> = open.map(|device| open_device(&device)).collect();
        let others = storage.others.iter().flat_map(|rows| &rows.counts.devices);
        open.extend(others.filter(|device| device.exported == name).map(open_device));
        devices.push((name, volume(export.volume), open));
    }
    // Devices of withdrawn exports are few, so they are all listed with the last exports.
    if from.saturating_add(count) > exports.len() && from <= exports.len() {
        let own = server.devices().map(|one| DeviceCounts::of(server, storage.volumes, &one));
        let mut withdrawn = |device: &DeviceCounts| {
            let shown = &device.exported;
            if !wanted(shown) || exports.iter().any(|export| of_export(export) == *shown) {
                return;
            }
            let open = open_device(device);
            match devices.iter_mut().find(|(other, ..)| other == shown) {
                Some((_, _, sessions)) => sessions.push(open),
                None => devices.push((shown.clone(), device.volume.clone(), vec![open])),
            }
        };
        own.for_each(|device| withdrawn(&device));
        storage.others.iter().flat_map(|rows| &rows.counts.devices).for_each(withdrawn);
    }
    let entry = |(name, volume, sessions): (String, String, Vec<Entry>)| -> Entry {
        let value =
            Value::object([("block_dev", volume.into()), ("sessions", Value::Object(sessions))]);
        (name.into(), value)
    };
    devices.into_iter().map(entry).collect()
}

fn open_device(device: &DeviceCounts) -> Entry {
    let value = Value::object([
        ("read_only", (device.mode == AccessMode::ReadOnly).into()),
        ("access_mode", mode_name(device.mode).into()),
        ("mapping_path", device.mapping.clone().into()),
        ("force_close", "usage: write 1".into()),
    ]);
    (device.session.clone().into(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma_devices::tests::devices;
    use core::time::Duration;
    use rtrs::server::{PathState, PathStats};

    /// Attributes of a path of `/sys/class/rtrs-server` (`Documentation/ABI/testing/sysfs-class-rtrs-server`).
    const PATH: [&str; 5] = ["disconnect", "hca_name", "hca_port", "src_addr", "dst_addr"];
    /// Attributes of a session in `/sys/class/rnbd-server/ctl/devices/DEVICE/sessions` (`sysfs-class-rnbd-server`), and
    /// `force_close` of later versions.
    const OPEN: [&str; 4] = ["read_only", "mapping_path", "access_mode", "force_close"];

    /// The JSON of the value below `name`.
    fn at(value: &Value, name: &str) -> String {
        let Value::Object(entries) = value else { panic!("{name}: not in an object") };
        let found = entries.iter().find(|(one, _)| one == name);
        found.unwrap_or_else(|| panic!("{name} is missing")).1.to_json()
    }

    #[test]
    fn path_and_open_device_have_the_attributes_of_linux() {
        let mut stats = PathStats { reads: 1, read_bytes: 2, writes: 3, ..PathStats::default() };
        (stats.write_bytes, stats.completions) = (4, 4);
        [1, 1, 1, 2].into_iter().for_each(|run| stats.runs.count(run));
        let path = PathCounts {
            session_id: 0,
            session: rtrs::Name::new("s1").unwrap(),
            name: String::new(),
            from: "10.0.1.2".parse().unwrap(),
            to: "10.0.1.1".parse().unwrap(),
            state: PathState::Connected,
            connections: 2,
            in_flight: 5,
            latency: Duration::ZERO,
            stats,
        };
        let tree = path_tree(&path, &devices());
        for name in PATH {
            assert_ne!(at(&tree, name), "null", "{name}");
        }
        assert_eq!(
            (at(&tree, "hca_name"), at(&tree, "hca_port")),
            ("\"roce1\"".into(), "1".into())
        );
        assert_eq!(at(&tree, "src_addr"), "\"ip:10.0.1.2\"");
        assert_eq!(at(&tree, "dst_addr"), "\"ip:10.0.1.1\"");
        let stats = at(&tree, "stats");
        // <read-count> <read-total-size> <write-count> <write-total-size> <inflights>
        let rdma =
            "{\"rdma\":{\"rd_cnt\":1,\"rd_bytes\":2,\"wr_cnt\":3,\"wr_bytes\":4,\"inflight\":5,";
        assert!(stats.starts_with(rdma), "{stats}");
        assert!(stats.contains("\"wc_completion\":{\"max\":3,\"total\":4,\"calls\":2}"), "{stats}");
        let (name, tree) = open_device(&DeviceCounts {
            exported: "a".into(),
            session: "s1".into(),
            volume: "v".into(),
            mode: AccessMode::ReadOnly,
            mapping: "dir/a".into(),
        });
        assert_eq!(name, "s1");
        for name in OPEN {
            assert_ne!(at(&tree, name), "null", "{name}");
        }
        assert_eq!(
            (at(&tree, "read_only"), at(&tree, "access_mode")),
            ("true".into(), "\"ro\"".into())
        );
    }

    #[test]
    fn order_goes_to_the_loops_with_its_client() {
        let rows = StorageRows {
            counts: StorageCounts {
                devices: vec![DeviceCounts {
                    exported: "a".into(),
                    session: "s1".into(),
                    volume: "v".into(),
                    mode: AccessMode::ReadWrite,
                    mapping: "a".into(),
                }],
                ..StorageCounts::default()
            },
            ..StorageRows::default()
        };
        let close = |device: &str, session: &str| {
            let (device, session) = (device.to_string(), session.to_string());
            ClientOrder::CloseExported { device, session }
        };
        assert!(concerns(&close("a", "s1"), &rows));
        assert!(!concerns(&close("a", "s2"), &rows));
        assert!(!concerns(&close("a", "s1"), &StorageRows::default()));
    }

    #[test]
    fn writes_need_the_role_of_their_command() {
        for (path, role) in [
            ("/mirrors/m/force", Role::Admin),
            ("/rtrs-client/s/add_path", Role::Admin),
            ("/rtrs-client/s/paths/ip:10.0.0.1@ip:10.0.0.2/remove_path", Role::Admin),
            ("/rtrs-client/s/paths/ip:10.0.0.1@ip:10.0.0.2/reconnect", Role::Operate),
            ("/rtrs-server/s/paths/p/disconnect", Role::Operate),
            ("/rnbd-client/ctl/map_device", Role::Admin),
            ("/rnbd-client/ctl/devices/far/unmap_device", Role::Admin),
            ("//capture", Role::Operate),
        ] {
            assert_eq!(role_to_write(path), role, "{path}");
        }
    }
}
