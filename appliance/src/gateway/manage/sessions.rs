//! The console's verbs for sessions, their paths and the devices that they have open.

use crate::gateway::objects::{self, path_name, session_name};
use crate::gateway::plane::DataPlane;
use crate::gateway::state::State;
use crate::gateway::storage_rows::StorageRows;
use crate::report::Value;
use rtrs::server::PathStatus;
use storage::rnbd::server::Server;
use storage::volume::Volumes;

pub(in crate::gateway) fn sessions(server: &Server) -> impl Iterator<Item = Value> + '_ {
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

pub(in crate::gateway) fn devices<'a>(
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
            ("access_mode", objects::mode_name(device.mode).into()),
            ("size", Value::Bytes(size)),
        ])
    })
}

pub(in crate::gateway) fn path(server: &Server, path: &PathStatus<'_>) -> Value {
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

/// Has an order carried out by the loop of this core, or by those of others that have what it is about: a row of
/// theirs that `is_meant`. `error` is what to say if nobody has.
fn order(
    state: &mut State,
    rows: impl Fn(&StorageRows) -> &[Value],
    is_meant: impl Fn(&Value) -> bool,
    order: impl Fn(&mut DataPlane) -> bool + Clone + Send + 'static,
    error: String,
) -> Result<(), String> {
    let mut found = order(&mut state.plane);
    for worker in &mut state.workers {
        let theirs = worker.storage_rows();
        if rows(&theirs).iter().any(&is_meant) {
            found = true;
            let order = order.clone();
            let taken = worker.tell(move |plane| {
                order(plane);
            });
            if !taken {
                return Err(format!("core {} is busy; try again", worker.core));
            }
        }
    }
    if found { Ok(()) } else { Err(error) }
}

fn says(row: &Value, key: &str, value: &str) -> bool {
    let Value::Object(entries) = row else { return false };
    entries
        .iter()
        .any(|(name, one)| name == key && matches!(one, Value::Text(text) if text == value))
}

pub(super) fn disconnect(state: &mut State, name: &str) -> Result<(), String> {
    let session = name.to_string();
    let end = move |plane: &mut DataPlane| {
        let Some(server) = &plane.storage.server else { return false };
        let transport = server.transport();
        let of_name = transport.sessions().filter(|one| one.name.as_str() == session);
        let ids: Vec<_> = of_name.map(|session| session.id).collect();
        let paths = transport.paths().filter(|path| ids.contains(&path.session));
        let names: Vec<String> = paths.map(|path| path_name(&path)).collect();
        for path in &names {
            // One that is gone meanwhile is as good as ended.
            let _ = objects::path_command(plane, &session, path, "disconnect");
        }
        !names.is_empty()
    };
    let error = format!("there is no session {name:?}");
    order(state, |rows| &rows.sessions, |row| says(row, "name", name), end, error)
}

pub(super) fn path_order(state: &mut State, name: &str, what: &str) -> Result<(), String> {
    let (path, what) = (name.to_string(), what.to_string());
    let do_it = move |plane: &mut DataPlane| {
        let Some(server) = &plane.storage.server else { return false };
        let paths = server.transport().paths().filter(|one| path_name(one) == path);
        let sessions: Vec<String> = paths.map(|one| session_name(server, one.session)).collect();
        let done = sessions.iter().filter_map(|s| objects::path_command(plane, s, &path, &what));
        done.count() > 0
    };
    let error = format!("there is no path {name:?}; `path list` shows what there is");
    order(state, |rows| &rows.paths, |row| says(row, "name", name), do_it, error)
}

pub(super) fn close_device(state: &mut State, words: &[&str]) -> Result<(), String> {
    let (&name, rest) = words.split_first().ok_or("say the name of the device")?;
    let session = rest.first().copied();
    let (device, of) = (name.to_string(), session.map(str::to_string));
    let close = move |plane: &mut DataPlane| {
        let Some(server) = &mut plane.storage.server else { return false };
        let wanted: Vec<_> = server
            .devices()
            .filter(|one| one.name.as_str() == device)
            .filter(|one| of.as_ref().is_none_or(|s| session_name(server, one.session) == *s))
            .map(|one| (one.session, one.id))
            .collect();
        for &(session, id) in &wanted {
            server.force_close(session, id);
        }
        !wanted.is_empty()
    };
    let meant = |row: &Value| {
        says(row, "name", name) && session.is_none_or(|session| says(row, "session", session))
    };
    let error = format!("no session has {name:?} open; `device list` shows what is open");
    order(state, |rows| &rows.devices, meant, close, error)
}
