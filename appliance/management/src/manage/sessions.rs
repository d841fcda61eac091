//! The console's verbs for sessions, their paths and the devices that they have open.

use crate::objects::{self, path_name, session_name};
use crate::orders::{ClientOrder, Order, PathOrder};
use crate::report::Value;
use crate::storage_rows::StorageRows;
use crate::{Appliance, Told};
use rtrs::server::PathStatus;
use storage::rnbd::server::Server;
use storage::volume::Volumes;

pub(crate) fn sessions(server: &Server) -> impl Iterator<Item = Value> + '_ {
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

pub(crate) fn devices<'a>(
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

pub(crate) fn path(server: &Server, path: &PathStatus<'_>) -> Value {
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

/// Has an order carried out by the loop of this core, and by those of others that have what it is about: a row of
/// theirs that `is_meant`.
fn order(
    appliance: &mut dyn Appliance,
    order: ClientOrder,
    rows: fn(&StorageRows) -> &[Value],
    is_meant: &dyn Fn(&Value) -> bool,
) -> Told {
    let others = appliance.storage().others;
    let meant = others.iter().enumerate().filter(|(_, theirs)| rows(theirs).iter().any(is_meant));
    let places: Vec<usize> = meant.map(|(place, _)| place).collect();
    appliance.carry_out(Order::Clients(order, &places))
}

fn says(row: &Value, key: &str, value: &str) -> bool {
    let Value::Object(entries) = row else { return false };
    entries
        .iter()
        .any(|(name, one)| name == key && matches!(one, Value::Text(text) if text == value))
}

pub(super) fn disconnect(appliance: &mut dyn Appliance, name: &str) -> Told {
    let end = ClientOrder::EndSession(name.into());
    order(appliance, end, |rows| &rows.sessions, &|row| says(row, "name", name))
}

pub(super) fn path_order(appliance: &mut dyn Appliance, name: &str, what: &str) -> Told {
    let what = if what == "reset" { PathOrder::Reset } else { PathOrder::Disconnect };
    let of_path = ClientOrder::Path { session: None, path: name.into(), what };
    order(appliance, of_path, |rows| &rows.paths, &|row| says(row, "name", name))
}

pub(super) fn close_device(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (&name, rest) = words.split_first().ok_or("say the name of the device")?;
    let session = rest.first().copied();
    let close = ClientOrder::Close { device: name.into(), session: session.map(str::to_string) };
    let is_meant = |row: &Value| {
        says(row, "name", name) && session.is_none_or(|session| says(row, "session", session))
    };
    order(appliance, close, |rows| &rows.devices, &is_meant)
}
