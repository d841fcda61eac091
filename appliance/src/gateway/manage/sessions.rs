//! The console's verbs for sessions, their paths and the devices that they have open.

use crate::gateway::objects::{self, path_name, session_name};
use crate::gateway::state::State;
use crate::report::Value;
use rtrs::server::PathStatus;
use storage::rnbd::server::Server;

pub(super) fn sessions(server: &Server) -> impl Iterator<Item = Value> + '_ {
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

pub(super) fn devices<'a>(
    state: &'a State,
    server: &'a Server,
) -> impl Iterator<Item = Value> + 'a {
    let volumes = &state.plane.storage.volumes;
    server.devices().map(|device| {
        let size =
            volumes.get(device.volume).map_or(0, |v| v.geometry().sectors.saturating_mul(512));
        Value::object([
            ("name", device.name.as_str().to_string().into()),
            ("session", session_name(server, device.session).into()),
            ("volume", volumes.name(device.volume).unwrap_or_default().to_string().into()),
            ("access_mode", objects::mode_name(device.mode).into()),
            ("size", Value::Bytes(size)),
        ])
    })
}

pub(super) fn path(server: &Server, path: &PathStatus<'_>) -> Value {
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

pub(super) fn disconnect(state: &mut State, name: &str) -> Result<(), String> {
    let nobody = || format!("there is no session {name:?}");
    let server = state.plane.storage.server.as_ref().ok_or_else(nobody)?;
    let transport = server.transport();
    let sessions = transport.sessions().filter(|session| session.name.as_str() == name);
    let ids: Vec<_> = sessions.map(|session| session.id).collect();
    let paths = transport.paths().filter(|path| ids.contains(&path.session));
    let names: Vec<String> = paths.map(|path| path_name(&path)).collect();
    if names.is_empty() {
        return Err(nobody());
    }
    for path in names {
        // One that is gone meanwhile is as good as ended.
        let _ = objects::path_command(state, name, &path, "disconnect");
    }
    Ok(())
}

pub(super) fn path_order(state: &mut State, name: &str, order: &str) -> Result<(), String> {
    let nobody = || format!("there is no path {name:?}; `path list` shows what there is");
    let server = state.plane.storage.server.as_ref().ok_or_else(nobody)?;
    let paths = server.transport().paths().filter(|path| path_name(path) == name);
    let sessions: Vec<String> = paths.map(|path| session_name(server, path.session)).collect();
    if sessions.is_empty() {
        return Err(nobody());
    }
    for session in sessions {
        objects::path_command(state, &session, name, order).ok_or_else(nobody)?;
    }
    Ok(())
}

pub(super) fn close_device(state: &mut State, words: &[&str]) -> Result<(), String> {
    let (&name, rest) = words.split_first().ok_or("say the name of the device")?;
    let session = rest.first().copied();
    let nobody = || format!("no session has {name:?} open; `device list` shows what is open");
    let server = state.plane.storage.server.as_mut().ok_or_else(nobody)?;
    let wanted: Vec<_> = server
        .devices()
        .filter(|device| device.name.as_str() == name)
        .filter(|device| session.is_none_or(|s| session_name(server, device.session) == s))
        .map(|device| (device.session, device.id))
        .collect();
    if wanted.is_empty() {
        return Err(nobody());
    }
    for (session, device) in wanted {
        server.force_close(session, device);
    }
    Ok(())
}
