//! Console commands for sessions, their paths and their open devices.

use crate::appliance::{Appliance, Told};
use crate::orders::{ClientOrder, Order, PathOrder};
use crate::report::Value;
use crate::storage_rows::StorageRows;

/// Gives an order to the loop of this core, and to each other loop with a row that `is_match` accepts.
fn order(
    appliance: &mut dyn Appliance,
    order: ClientOrder,
    rows: fn(&StorageRows) -> &[Value],
    is_match: &dyn Fn(&Value) -> bool,
) -> Told {
    let others = appliance.storage().others;
    let matching = others.iter().enumerate().filter(|(_, other)| rows(other).iter().any(is_match));
    let places: Vec<usize> = matching.map(|(place, _)| place).collect();
    appliance.carry_out(Order::Clients(order, &places))
}

pub(super) fn disconnect(appliance: &mut dyn Appliance, name: &str) -> Told {
    let end = ClientOrder::EndSession(name.into());
    order(appliance, end, |rows| &rows.sessions, &|row| row.has_text("name", name))
}

pub(super) fn path_order(appliance: &mut dyn Appliance, name: &str, what: PathOrder) -> Told {
    let of_path = ClientOrder::Path { session: None, path: name.into(), what };
    order(appliance, of_path, |rows| &rows.paths, &|row| row.has_text("name", name))
}

pub(super) fn close_device(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (&name, rest) = words.split_first().ok_or("missing device name")?;
    let session = rest.first().copied();
    let close = ClientOrder::Close { device: name.into(), session: session.map(str::to_string) };
    let is_match = |row: &Value| {
        row.has_text("name", name) && session.is_none_or(|session| row.has_text("session", session))
    };
    order(appliance, close, |rows| &rows.devices, &is_match)
}
