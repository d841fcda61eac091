//! The console's verbs for sessions, their paths and the devices that they have open.

use crate::appliance::{Appliance, Told};
use crate::orders::{ClientOrder, Order, PathOrder};
use crate::report::Value;
use crate::storage_rows::StorageRows;

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
