//! Console commands for volumes, exports, sessions, devices, paths, remotes, mirrors and bridges, in the grammar of the
//! `rnbd` tool of Linux hosts: object, command, name, options.

mod bridges;
pub(crate) mod exports;
mod listing;
pub(crate) mod openness;
mod options;
mod remote;
pub(crate) mod sessions;
pub(crate) mod volumes;

use crate::appliance::{Appliance, Told};
use crate::orders::Order;
use crate::words::one_name;

/// Executes or starts a command.
pub(crate) fn act(appliance: &mut dyn Appliance, what: &str, order: &str, rest: &str) -> Told {
    let words: Vec<&str> = rest.split_whitespace().collect();
    match (what, order) {
        ("volume", "create") => volumes::create(appliance, &words),
        ("volume", "grow") => volumes::grow(appliance, &words),
        ("volume", "delete") => volumes::delete(appliance, &words),
        ("export", "add" | "set") => exports::change(appliance, &words, order == "add"),
        ("export", "remove") => exports::remove(appliance, one_name(&words)?),
        (_, "list") => listing::list(appliance, what, None, &words),
        (_, "show") => {
            let (name, options) = words.split_first().ok_or("missing name")?;
            listing::list(appliance, what, Some(name), options)
        }
        ("ntb", "reset") => bridges::reset(appliance, &words),
        ("ntb", _) => bridges::measure(appliance, &words),
        ("upgrade", "confirm") => appliance.carry_out(Order::ConfirmUpgrade),
        ("upgrade", _) => appliance.carry_out(Order::Upgrade(&words)),
        ("usnic", _) => appliance.carry_out(Order::UdpEngine { name: what, order, words: &words }),
        ("remote" | "mirror", _) => remote::act(appliance, what, order, &words),
        ("session", _) => sessions::disconnect(appliance, one_name(&words)?),
        ("device", _) => sessions::close_device(appliance, &words),
        ("path", order) => sessions::path_order(appliance, one_name(&words)?, order),
        _ => Err(format!("unknown command: {what} {order}; `help` lists the commands")),
    }
}
