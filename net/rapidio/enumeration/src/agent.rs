//! The agent's walk: discovers a network that a host has enumerated, along its routes.

use super::capabilities::{describe, own_control, own_id};
use super::device::{Device, END_POINT, Kind, MOST_DEVICES, Network};
use super::routes;
use super::walk::{Fabric, Failed, Path};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::rapidio::csr;

/// Number of attempts to take the lock of a switch.
const LOCK_TRIES: u32 = 1000;
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Whether a host has enumerated the own port.
pub async fn is_discovered(fabric: &Fabric) -> bool {
    let at = own_control(fabric).await;
    let control = fabric.read_own(at).await;
    if control != u32::MAX && control & csr::CONTROL_HOST != 0 {
        // The bits are left from the time when this end point was a host, and marked itself.
        let cleared = control & !(csr::CONTROL_HOST | csr::CONTROL_DISCOVERED);
        fabric.write_own(at, cleared).await;
        return false;
    }
    control != u32::MAX && control & csr::CONTROL_DISCOVERED != 0
}

/// Finds all devices that the routes reach.
pub async fn discover(fabric: &Fabric, network: &mut Network) -> Result<(), Failed> {
    let mut to_visit: Vec<(Path, Option<(usize, u8)>)> = Vec::new();
    to_visit.push((Path { to: network.size.any(), hops: 0 }, None));
    while let Some((path, parent)) = to_visit.pop() {
        if network.devices.len() >= MOST_DEVICES {
            return Err(Failed::NoIdLeft);
        }
        let mut device = match describe(fabric, path, parent).await {
            Err(Failed::NoAnswer) if parent.is_some() => continue,
            device => device?,
        };
        device.tag = fabric.read(path, csr::COMPONENT_TAG).await?;
        if let Some(known) = network.by_tag(device.tag) {
            join(network, parent, known);
            continue;
        }
        let number = network.devices.len();
        if device.is_switch() {
            let mut ports = read_ports(fabric, &mut device, path, network.own_id).await?;
            // The stack must return them in ascending order.
            ports.reverse();
            let hops = path.hops.saturating_add(1);
            to_visit.extend(
                ports.into_iter().map(|(port, id)| (Path { to: id, hops }, Some((number, port)))),
            );
        } else {
            device.id = own_id(fabric, path, network.size).await?;
            device.hops = END_POINT;
        }
        network.devices.push(device);
        join(network, parent, number);
    }
    Ok(())
}

fn join(network: &mut Network, parent: Option<(usize, u8)>, number: usize) {
    let Some((switch, port)) = parent else { return };
    if let Some(Device { kind: Kind::Switch { neighbours, .. }, .. }) =
        network.devices.get_mut(switch)
        && let Some(place) = neighbours.get_mut(usize::from(port))
    {
        *place = Some(number);
    }
}

/// Ports of a switch with a link, and the lowest id that is routed to each. The switch is locked meanwhile, because a
/// table entry is read in two steps, and other end points may read at the same time.
async fn read_ports(
    fabric: &Fabric,
    device: &mut Device,
    path: Path,
    own: u16,
) -> Result<Vec<(u8, u16)>, Failed> {
    lock(fabric, path, own).await?;
    let read = routes::read(fabric, device, path).await;
    if fabric.read(path, csr::HOST_LOCK).await? & 0xffff == u32::from(own) {
        fabric.write(path, csr::HOST_LOCK, own.into()).await?;
    }
    read?;
    let Kind::Switch { ingress, routes, .. } = &device.kind else { return Ok(Vec::new()) };
    let Some(serial) = device.serial else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for port in (0..device.ports()).filter(|port| port != ingress) {
        if fabric.read(path, serial.status(port)).await? & csr::PORT_OK == 0 {
            continue;
        }
        let lowest = routes.iter().find(|(_, out)| **out == port).map(|(id, _)| *id);
        found.extend(lowest.map(|id| (port, id)));
    }
    Ok(found)
}

async fn lock(fabric: &Fabric, path: Path, own: u16) -> Result<(), Failed> {
    for _ in 0..LOCK_TRIES {
        fabric.write(path, csr::HOST_LOCK, own.into()).await?;
        if fabric.read(path, csr::HOST_LOCK).await? & 0xffff == u32::from(own) {
            return Ok(());
        }
        fabric.wait(LOCK_PAUSE).await;
    }
    let owner = fabric.read(path, csr::HOST_LOCK).await?;
    Err(Failed::StuckLock(owner as u16))
}
