//! `show rapidio`: the ports, and the network of each as a tree.

use crate::appliance::Appliance;
use crate::report::Value;
use crate::status::RapidioStatus;
use ::rapidio::enumeration::{Device, Failed, Kind, Network, Role, Row, State as Progress};
use drivers::rapidio::IdSize;

/// All ports.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    Value::list(appliance.rapidio().iter().map(port_status))
}

fn port_status(port: &RapidioStatus<'_>) -> Value {
    let end_point = port.end_point;
    let (driver, location) = port.device;
    let (master, device) = (end_point.master(), end_point.port().borrow());
    let (network, counters) = (master.network(), device.counters());
    let (members, channels) = (end_point.members(), end_point.channels().counters());
    let is_known = master.state() == Progress::Ready;
    let rows = match is_known {
        true => core::iter::once(own_row(network)).chain(tree(network)).collect::<Vec<_>>(),
        false => Vec::new(),
    };
    let (echoed, echo_channels) = end_point.echoed();
    Value::object([
        ("name", port.name.to_string().into()),
        ("device", format!("{driver}, {location}").into()),
        ("configuration", format!("rapidio.{}", port.number).into()),
        ("interface", port.interface.map(Value::display).into()),
        ("link", if device.link_up() { "up" } else { "down" }.into()),
        ("role", if master.role() == Role::Agent { "agent" } else { "host" }.into()),
        ("id_size", if device.id_size() == IdSize::Large { 16u8 } else { 8 }.into()),
        ("id", is_known.then_some(u64::from(network.own_id)).into()),
        ("state", progress(master.state()).into()),
        ("rionet_peers", members.active_count().into()),
        ("rx_messages", counters.rx_messages.into()),
        ("tx_messages", counters.tx_messages.into()),
        ("undelivered", counters.tx_undelivered.into()),
        ("rx_doorbells", counters.rx_doorbells.into()),
        ("tx_doorbells", counters.tx_doorbells.into()),
        ("maintenance", counters.maintenance.into()),
        ("maintenance_failed", counters.maintenance_failed.into()),
        ("port_writes", counters.port_writes.into()),
        ("rx_errors", counters.rx_errors.into()),
        ("restarts", counters.restarts.into()),
        ("interrupts", counters.interrupts.into()),
        ("echoed", echoed.into()),
        ("echo_channels", echo_channels.into()),
        ("rio_cm_overflowed", channels.overflowed.into()),
        ("rio_cm_refused", (channels.refused + channels.stale).into()),
        ("rio_cm_stray", (channels.stray + channels.malformed).into()),
        ("network", Value::list(rows)),
    ])
}

fn progress(state: Progress) -> String {
    match state {
        Progress::NoLink => "no link".into(),
        Progress::Waiting => "waits for a host".into(),
        Progress::Enumerating => "enumerates".into(),
        Progress::Ready => "ready".into(),
        Progress::Failed(why) => cause(why),
    }
}

/// Cause of a failed enumeration, for the operator.
pub fn cause(why: Failed) -> String {
    match why {
        Failed::NoAnswer => "a device does not answer".into(),
        Failed::LinkDown => "the link went down".into(),
        Failed::HigherHost(id) => {
            format!("host {id}, which has the higher id, enumerates this network")
        }
        Failed::OtherHost(id) => format!("host {id} owns this network"),
        Failed::StuckLock(id) => {
            format!(
                "host {id} holds the lock of a device and does not proceed: restart that host or the device"
            )
        }
        Failed::NoIdLeft => "more devices than ids: set `id_size = 16` on the whole network".into(),
    }
}

fn row(port: String, id: Option<u16>, device: String, state: &'static str, near: String) -> Value {
    Value::object([
        ("port", port.into()),
        ("id", id.map(u64::from).into()),
        ("device", device.into()),
        ("state", state.into()),
        ("neighbours", near.into()),
    ])
}

fn own_row(network: &Network) -> Value {
    let near = network.tree().into_iter().find(|row| row.depth == 0);
    let near = near.and_then(|row| network.devices.get(row.device)).map(name).unwrap_or_default();
    row(String::new(), Some(network.own_id), "this appliance".into(), "present", near)
}

/// Rows of the devices below the appliance's own row. `port` is the port of the switch above.
fn tree(network: &Network) -> impl Iterator<Item = Value> {
    network.tree().into_iter().filter_map(move |at: Row| {
        let device = network.devices.get(at.device)?;
        let indent = "  ".repeat(at.depth + 1);
        let state = match (device.present, at.is_loop) {
            (true, true) => "another way",
            (true, false) => "present",
            (false, _) => "gone",
        };
        let port = at.port.map(|port| port.to_string()).unwrap_or_default();
        let id = (!device.is_switch()).then_some(device.id);
        let near = if at.is_loop { String::new() } else { neighbours(network, device) };
        Some(row(port, id, format!("{indent}{}", name(device)), state, near))
    })
}

/// Neighbours of a device, as `PORT:NAME`.
fn neighbours(network: &Network, device: &Device) -> String {
    let above = match device.parent {
        Some((parent, port)) => network.devices.get(parent).map(|it| (port, name(it))),
        None => None,
    };
    let Kind::Switch { ingress, neighbours, .. } = &device.kind else {
        return above.map_or("this appliance".into(), |(port, name)| format!("{name} port {port}"));
    };
    let above = above.map_or("this appliance".into(), |(_, name)| name);
    let mut all = vec![(usize::from(*ingress), above)];
    let below = neighbours.iter().enumerate().filter_map(|(port, neighbour)| {
        let device = network.devices.get((*neighbour)?)?;
        Some((port, name(device))).filter(|_| port != usize::from(*ingress))
    });
    all.extend(below);
    all.sort_unstable();
    all.iter().map(|(port, name)| format!("{port}:{name}")).collect::<Vec<_>>().join(" ")
}

/// Name of a device: a switch by its component tag, an end point by its id; with its model if known.
fn name(device: &Device) -> String {
    let (vendor, number) = (device.identity & 0xffff, device.identity >> 16);
    let model = match (vendor, number) {
        (0x38, 0x0374) => "CPS-1848".into(),
        (0x38, 0x0375) => "CPS-1432".into(),
        (0x38, 0x0379) => "CPS-1616".into(),
        (0x38, 0x80e5) => "RXS1632".into(),
        (0x38, 0x80e6) => "RXS2448".into(),
        (0x38, 0x80ab) => "Tsi721".into(),
        _ => format!("{vendor:04x}:{number:04x}"),
    };
    match device.is_switch() {
        // The lower 17 bits are the number, as in Linux. The upper bits identify the enumeration.
        true => format!("switch-{} ({model})", device.tag & 0x1ffff),
        false => format!("board-{} ({model})", device.id),
    }
}
