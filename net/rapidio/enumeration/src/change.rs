//! Boards that come and go: ports of switches are looked at again, and what is new behind them is enumerated without
//! touching anything else.

use super::device::{Kind, Network};
use super::host::{HostWalk, release};
use super::walk::{Fabric, Failed};
use alloc::vec::Vec;
use drivers::rapidio::csr;

/// Looks at a port of a switch, or at all of all switches; whether anything has come or gone.
pub async fn look(
    fabric: &Fabric,
    network: &mut Network,
    only: Option<(usize, u8)>,
) -> Result<bool, Failed> {
    let mut changed = false;
    let switches: Vec<usize> =
        (0..network.devices.len()).filter(|n| network.devices[*n].is_switch()).collect();
    for switch in switches {
        for port in 0..network.devices[switch].ports() {
            if only.is_some_and(|only| only != (switch, port)) {
                continue;
            }
            match look_at(fabric, network, switch, port).await {
                // Somebody between has gone: that is seen at the port that leads there.
                Err(Failed::NoAnswer) => {}
                result => changed |= result?,
            }
        }
    }
    if changed {
        let mut walk = HostWalk::new(fabric, network);
        walk.complete_routes().await?;
        release(fabric, network).await;
    }
    Ok(changed)
}

async fn look_at(
    fabric: &Fabric,
    network: &mut Network,
    switch: usize,
    port: u8,
) -> Result<bool, Failed> {
    let device = &network.devices[switch];
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
    // A port that leads round to somebody who is reached by another way tells nothing of him.
    let child = neighbour.filter(|child| network.devices[*child].parent == Some((switch, port)));
    let status = fabric.read(path, serial.status(port)).await?;
    let is_up = status & csr::PORT_OK != 0;
    let behind = network.behind(switch, port);
    let was_there = behind.iter().any(|number| network.devices[*number].present);
    if status & csr::PORT_ERRORS != 0 {
        fabric.write(path, serial.status(port), status & csr::PORT_ERRORS).await?;
    }
    if !is_up {
        for number in &behind {
            network.devices[*number].present = false;
        }
        return Ok(was_there);
    }
    if neighbour.is_some() && child.is_none() {
        return Ok(false);
    }
    if was_there && is_same(fabric, network, child).await {
        return Ok(false);
    }
    for number in behind {
        network.devices[number].present = false;
    }
    let mut walk = HostWalk::new(fabric, network);
    walk.aim(switch).await?;
    if walk.open_port(switch, port, path).await? {
        match walk.explore(hops.saturating_add(1), Some((switch, port))).await {
            Err(Failed::NoAnswer) => {}
            explored => explored?,
        }
        walk.route_new(switch, port).await?;
    }
    Ok(true)
}

/// Whether who is at the port is who was: a board that was switched off and on has forgotten its id.
async fn is_same(fabric: &Fabric, network: &Network, child: Option<usize>) -> bool {
    let Some(device) = child.map(|child| &network.devices[child]) else { return false };
    if !device.present {
        return false;
    }
    let tag = fabric.read(device.path(), csr::COMPONENT_TAG).await;
    tag.is_ok_and(|tag| tag == device.tag)
}
