//! Hot plug: checks ports of switches again, and enumerates new devices behind them without changing any others.

use super::device::{Kind, Network};
use super::host::{HostWalk, release};
use super::walk::{Fabric, Failed};
use alloc::rc::Rc;
use drivers::rapidio::csr;

/// A port of a switch: number of the switch, and of the port.
pub type Place = (usize, u8);

/// Checks a port; true if a device has come or gone.
pub async fn check_port(
    fabric: &Fabric,
    network: &mut Rc<Network>,
    place: Place,
) -> Result<bool, Failed> {
    let changed = check_or_skip(fabric, network, place).await?;
    if changed {
        complete(fabric, network).await?;
    }
    Ok(changed)
}

/// Checks up to `most` ports from `next` on, each once; true if a device has come or gone.
pub async fn check_next_ports(
    fabric: &Fabric,
    network: &mut Rc<Network>,
    next: &mut Place,
    most: usize,
) -> Result<bool, Failed> {
    let (mut changed, mut first) = (false, None);
    for _ in 0..most {
        let Some(place) = port_from(network, *next).filter(|place| first != Some(*place)) else {
            break;
        };
        first.get_or_insert(place);
        *next = (place.0, place.1.saturating_add(1));
        changed |= check_or_skip(fabric, network, place).await?;
    }
    if changed {
        complete(fabric, network).await?;
    }
    Ok(changed)
}

/// As [`check`], but no change if the switch does not answer. A device on the way to it has gone then, which the check
/// of the port in front of that device finds.
async fn check_or_skip(
    fabric: &Fabric,
    network: &mut Rc<Network>,
    place: Place,
) -> Result<bool, Failed> {
    match check(fabric, network, place).await {
        Err(Failed::NoAnswer) => Ok(false),
        result => result,
    }
}

/// Completes a change: updates the routes of all switches, and releases the locks.
async fn complete(fabric: &Fabric, network: &mut Rc<Network>) -> Result<(), Failed> {
    let network = Rc::make_mut(network);
    HostWalk::new(fabric, network).complete_routes().await?;
    release(fabric, network).await;
    Ok(())
}

/// The first port from `next` on, cyclically, of a switch that is present.
fn port_from(network: &Network, next: Place) -> Option<Place> {
    let count = network.devices.len();
    let numbers = (next.0..count).chain(0..count);
    let mut places = numbers.zip(0..).filter_map(|(number, steps)| {
        let (device, port) = (&network.devices[number], if steps == 0 { next.1 } else { 0 });
        (device.present && port < device.ports()).then_some((number, port))
    });
    places.next()
}

async fn check(
    fabric: &Fabric,
    shared: &mut Rc<Network>,
    (switch, port): Place,
) -> Result<bool, Failed> {
    let network = &**shared;
    let Some(device) = network.devices.get(switch) else { return Ok(false) };
    let (path, hops) = (device.path(), device.hops);
    let (Kind::Switch { ingress, neighbours, .. }, Some(serial), true) =
        (&device.kind, device.serial, device.present)
    else {
        return Ok(false);
    };
    if *ingress == port {
        return Ok(false);
    }
    let neighbour = neighbours.get(usize::from(port)).copied().flatten();
    // A port that closes a loop leads to a device whose route uses another port: its status says nothing about the
    // device.
    let child = neighbour.filter(|child| network.devices[*child].parent == Some((switch, port)));
    let status = fabric.read(path, serial.status(port)).await?;
    let is_up = status & csr::PORT_OK != 0;
    let was_there = match child {
        Some(child) if network.devices[child].present => true,
        Some(_) => network.behind(switch, port).iter().any(|it| network.devices[*it].present),
        None => false,
    };
    if status & csr::PORT_ERRORS != 0 {
        fabric.write(path, serial.status(port), status & csr::PORT_ERRORS).await?;
    }
    if !is_up {
        if was_there {
            mark_absent(shared, switch, port);
        }
        return Ok(was_there);
    }
    if neighbour.is_some() && child.is_none() {
        return Ok(false);
    }
    if was_there && is_same(fabric, network, child).await {
        return Ok(false);
    }
    let network = mark_absent(shared, switch, port);
    let mut walk = HostWalk::new(fabric, network);
    walk.route_any_to(switch).await?;
    if walk.open_port(switch, port, path).await? {
        match walk.explore(hops.saturating_add(1), Some((switch, port))).await {
            Err(Failed::NoAnswer) => {}
            explored => explored?,
        }
        walk.route_new(switch, port).await?;
    }
    Ok(true)
}

/// Marks all devices behind a port as absent.
fn mark_absent(shared: &mut Rc<Network>, switch: usize, port: u8) -> &mut Network {
    let network = Rc::make_mut(shared);
    for number in network.behind(switch, port) {
        network.devices[number].present = false;
    }
    network
}

/// Whether the device at a port is still the known one, by its tag. A board that was power-cycled has lost tag and id.
async fn is_same(fabric: &Fabric, network: &Network, child: Option<usize>) -> bool {
    let Some(device) = child.map(|child| &network.devices[child]) else { return false };
    if !device.present {
        return false;
    }
    let tag = fabric.read(device.path(), csr::COMPONENT_TAG).await;
    tag.is_ok_and(|tag| tag == device.tag)
}
