//! The host's walk: discovers all devices, and assigns locks, tags, ids and routes.

use super::agent;
use super::capabilities::{describe, own_control, own_id};
use super::device::{Device, END_POINT, Kind, MOST_DEVICES, Network};
use super::routes;
use super::walk::{Fabric, Failed, Path};
use alloc::vec::Vec;
use core::time::Duration;
use drivers::rapidio::{IdSize, csr};

/// Maximum number of hops to a switch.
const MOST_HOPS: u8 = 32;
/// Number of attempts to take a lock that a lower host holds.
const LOCK_TRIES: u32 = 10_000;
/// Pause between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Result of a visit to the end of a link.
enum Found {
    /// A new device.
    New(usize),
    /// A device that is known by another way, or no answer.
    Nothing,
}

/// A switch whose ports are being explored.
struct Frame {
    device: usize,
    hops: u8,
    /// The current port.
    port: u8,
    /// While devices behind the port are explored: number of ids assigned before.
    behind: Option<usize>,
    /// Number of ids assigned before the switch was found.
    first: usize,
}

/// A walk that changes the network.
pub struct HostWalk<'a> {
    pub fabric: &'a Fabric,
    pub network: &'a mut Network,
    /// Ids that this walk has assigned, in order.
    assigned: Vec<u16>,
}

/// Enumerates the whole network. After an error the network has the devices found so far, whose locks this host holds.
pub async fn enumerate(fabric: &Fabric, network: &mut Network) -> Result<(), Failed> {
    let host = u32::from(network.own_id);
    let owner = fabric.read_own(csr::HOST_LOCK).await & 0xffff;
    if owner != host {
        fabric.write_own(csr::HOST_LOCK, host).await;
    }
    let owner = fabric.read_own(csr::HOST_LOCK).await & 0xffff;
    if owner != host {
        return Err(Failed::OtherHost(owner as u16));
    }
    if let Some(higher) = higher_host(fabric, network).await {
        return Err(Failed::HigherHost(higher));
    }
    fabric.set_own_id(network.size, network.own_id).await;
    fabric.write_own(csr::COMPONENT_TAG, network.tag(1)).await;
    let mut walk = HostWalk::new(fabric, network);
    walk.explore(0, None).await?;
    walk.complete_routes().await?;
    // Before the locks are released, so that another host can always recognize this one.
    let control = csr::CONTROL_HOST | csr::CONTROL_MASTER | csr::CONTROL_DISCOVERED;
    fabric.write_own(own_control(fabric).await, control).await;
    release(fabric, network).await;
    Ok(())
}

/// Checks that no other host has enumerated the network: it would have changed the own component tag.
pub async fn is_ours(fabric: &Fabric, network: &Network) -> Result<(), Failed> {
    if fabric.read_own(csr::COMPONENT_TAG).await == network.tag(1) {
        return Ok(());
    }
    Err(Failed::OtherHost(fabric.read_own(csr::HOST_LOCK).await as u16))
}

/// If another host has enumerated the own port, searches it along its routes, without changing anything. Its id, if it
/// is higher than the own one.
async fn higher_host(fabric: &Fabric, network: &Network) -> Option<u16> {
    let control = fabric.read_own(own_control(fabric).await).await;
    if control & (csr::CONTROL_HOST | csr::CONTROL_DISCOVERED) != csr::CONTROL_DISCOVERED {
        return None;
    }
    let mut seen = Network::new(network.size, network.own_id);
    // An error ends the search: the devices found so far are checked.
    let _ = agent::discover(fabric, &mut seen).await;
    for device in seen.devices.iter().filter(|device| device.id > network.own_id) {
        if is_host(fabric, device, device.path()).await {
            return Some(device.id);
        }
    }
    None
}

/// Whether a device is a host that has enumerated the network.
async fn is_host(fabric: &Fabric, device: &Device, path: Path) -> bool {
    let Some(serial) = device.serial.filter(|_| !device.is_switch()) else { return false };
    let wanted = csr::CONTROL_HOST | csr::CONTROL_DISCOVERED;
    fabric.read(path, serial.general()).await.is_ok_and(|control| control & wanted == wanted)
}

/// Releases all locks that this host holds, and marks each device as discovered. Skips devices that do not answer.
pub async fn release(fabric: &Fabric, network: &Network) {
    for device in network.devices.iter().filter(|device| device.present) {
        // A device that vanishes meanwhile is noticed by its link.
        let _ = release_one(fabric, network, device).await;
    }
    let host = u32::from(network.own_id);
    if fabric.read_own(csr::HOST_LOCK).await & 0xffff == host {
        fabric.write_own(csr::HOST_LOCK, host).await;
    }
}

async fn release_one(fabric: &Fabric, network: &Network, device: &Device) -> Result<(), Failed> {
    let (path, host) = (device.path(), u32::from(network.own_id));
    // Writing the id to a free lock would take it.
    if fabric.read(path, csr::HOST_LOCK).await? & 0xffff == host {
        fabric.write(path, csr::HOST_LOCK, host).await?;
    }
    if let Some(serial) = device.serial {
        let control = fabric.read(path, serial.general()).await?;
        let master = if device.is_switch() { 0 } else { csr::CONTROL_MASTER };
        let found = control | csr::CONTROL_DISCOVERED | master;
        fabric.write(path, serial.general(), found).await?;
    }
    Ok(())
}

/// Releases the locks after a failed walk, without marking devices as discovered. If another host has priority, clears
/// the own host bit, and the discovered bit unless that host has enumerated the own port.
pub async fn retreat(fabric: &Fabric, network: &Network, why: Failed) {
    let host = u32::from(network.own_id);
    if matches!(why, Failed::HigherHost(_) | Failed::OtherHost(_)) {
        let at = own_control(fabric).await;
        // A foreign tag proves that the other host has enumerated the own port.
        let is_discovered = fabric.read_own(csr::COMPONENT_TAG).await != network.tag(1);
        let discovered = if is_discovered { 0 } else { csr::CONTROL_DISCOVERED };
        let control = fabric.read_own(at).await;
        fabric.write_own(at, control & !(csr::CONTROL_HOST | discovered)).await;
    }
    let any = network.size.any();
    for device in &network.devices {
        let path = match device.is_switch() {
            // Its routes may be incomplete: the route of "any" reached it last.
            true => Path { to: any, hops: device.hops },
            false => device.path(),
        };
        if let Ok(owner) = fabric.read(path, csr::HOST_LOCK).await
            && owner & 0xffff == host
        {
            let _ = fabric.write(path, csr::HOST_LOCK, host).await;
        }
    }
    if fabric.read_own(csr::HOST_LOCK).await & 0xffff == host {
        fabric.write_own(csr::HOST_LOCK, host).await;
    }
}

impl<'a> HostWalk<'a> {
    /// A walk that starts from a partly known network.
    pub fn new(fabric: &'a Fabric, network: &'a mut Network) -> Self {
        HostWalk { fabric, network, assigned: Vec::new() }
    }

    /// The path along the route of "any", which the walk directs to the device that it explores.
    fn any(&self, hops: u8) -> Path {
        Path { to: self.network.size.any(), hops }
    }

    /// Explores the device at distance `hops` behind a port of a switch or the own port, and all devices behind it.
    pub async fn explore(&mut self, hops: u8, parent: Option<(usize, u8)>) -> Result<(), Failed> {
        let mut stack: Vec<Frame> = Vec::new();
        self.visit_and_push(hops, parent, &mut stack).await?;
        while let Some(mut frame) = stack.pop() {
            if let Some(before) = frame.behind.take() {
                self.route_behind(&frame, before).await?;
                frame.port += 1;
            }
            if frame.port >= self.network.devices[frame.device].ports() {
                self.finish_switch(&frame).await?;
                continue;
            }
            if !self.open_port(frame.device, frame.port, self.any(frame.hops)).await? {
                frame.port += 1;
                stack.push(frame);
                continue;
            }
            frame.behind = Some(self.assigned.len());
            let (device, port, hops) = (frame.device, frame.port, frame.hops + 1);
            stack.push(frame);
            self.visit_and_push(hops, Some((device, port)), &mut stack).await?;
        }
        Ok(())
    }

    async fn visit_and_push(
        &mut self,
        hops: u8,
        parent: Option<(usize, u8)>,
        stack: &mut Vec<Frame>,
    ) -> Result<(), Failed> {
        if hops >= MOST_HOPS {
            // Only an end point that poses as a switch can be that far away.
            return Ok(());
        }
        let first = self.assigned.len();
        let found = match self.visit(hops, parent).await {
            Err(Failed::NoAnswer) if parent.is_some() => Found::Nothing,
            found => found?,
        };
        if let Found::New(device) = found
            && self.network.devices[device].is_switch()
        {
            stack.push(Frame { device, hops, port: 0, behind: None, first });
        }
        Ok(())
    }

    /// Takes a device's lock, reads its capabilities, and assigns tag and id.
    async fn visit(&mut self, hops: u8, parent: Option<(usize, u8)>) -> Result<Found, Failed> {
        let (path, host) = (self.any(hops), u32::from(self.network.own_id));
        let fabric = self.fabric;
        if fabric.read(path, csr::HOST_LOCK).await? & 0xffff == host {
            let tag = fabric.read(path, csr::COMPONENT_TAG).await?;
            // With another tag the lock is left from an interrupted walk of this host.
            let known = self.network.by_tag(tag);
            if known.is_some() || tag == self.network.tag(1) {
                self.set_neighbour(parent, known);
                return Ok(Found::Nothing);
            }
        } else {
            self.lock(path).await?;
        }
        let mut device = describe(fabric, path, parent).await?;
        if is_host(fabric, &device, path).await {
            let id = own_id(fabric, path, self.network.size).await?;
            // A device without an id has not enumerated, even with the bit set: Linux sets it beforehand.
            if u32::from(id) > host && id != path.to {
                fabric.write(path, csr::HOST_LOCK, host).await?;
                return Err(Failed::HigherHost(id));
            }
        }
        if self.network.devices.len() >= MOST_DEVICES {
            return Err(Failed::NoIdLeft);
        }
        // A device that was at this place before gets its previous tag and id.
        let before = self.previous(parent, &device);
        device.tag = match before {
            Some(before) => self.network.devices[before].tag,
            None => self.network.tag(self.network.next_tag),
        };
        fabric.write(path, csr::COMPONENT_TAG, device.tag).await?;
        if has_id(&device) {
            let id = match before {
                Some(before) => self.network.devices[before].id,
                // A device keeps the id of an earlier host or of a previous run of this one, if it is free: its system
                // uses that id, and Linux does not notice a new one.
                None => {
                    let present = own_id(fabric, path, self.network.size).await?;
                    let kept = Some(present).filter(|id| self.network.is_free(*id));
                    kept.or_else(|| self.network.free_id()).ok_or(Failed::NoIdLeft)?
                }
            };
            let is_large = self.network.size == IdSize::Large;
            let value = if is_large { id.into() } else { u32::from(id) << 16 };
            fabric.write(path, csr::BASE_ID, value).await?;
            (device.id, device.hops) = (id, END_POINT);
            self.assigned.push(id);
        }
        let number = match before {
            Some(before) => {
                if device.is_switch() {
                    device.id = self.network.devices[before].id;
                }
                self.network.devices[before] = device;
                before
            }
            None => {
                self.network.next_tag += 1;
                self.network.devices.push(device);
                self.network.devices.len() - 1
            }
        };
        self.set_neighbour(parent, Some(number));
        if self.network.devices[number].is_switch() {
            self.init_switch(number, path).await?;
        }
        Ok(Found::New(number))
    }

    /// The absent device that was at this place before, if it is of the same kind.
    fn previous(&self, parent: Option<(usize, u8)>, device: &Device) -> Option<usize> {
        let devices = self.network.devices.iter();
        devices.clone().position(|known| {
            let is_same = known.parent == parent && known.identity == device.identity;
            is_same && !known.present && known.is_switch() == device.is_switch()
        })
    }

    fn set_neighbour(&mut self, parent: Option<(usize, u8)>, neighbour: Option<usize>) {
        let Some((switch, port)) = parent else { return };
        if let Kind::Switch { neighbours, .. } = &mut self.network.devices[switch].kind
            && let Some(place) = neighbours.get_mut(usize::from(port))
        {
            *place = neighbour;
        }
    }

    /// Takes a lock. Waits while a lower host holds it, and fails if a higher one does.
    async fn lock(&self, path: Path) -> Result<(), Failed> {
        let host = self.network.own_id;
        for _ in 0..LOCK_TRIES {
            self.fabric.write(path, csr::HOST_LOCK, host.into()).await?;
            let owner = self.fabric.read(path, csr::HOST_LOCK).await? as u16;
            if owner == host {
                return Ok(());
            }
            if owner > host {
                return Err(Failed::HigherHost(owner));
            }
            self.fabric.wait(LOCK_PAUSE).await;
        }
        let owner = self.fabric.read(path, csr::HOST_LOCK).await?;
        Err(Failed::StuckLock(owner as u16))
    }

    /// Initializes a new switch: routes all known ids back to the ingress port.
    async fn init_switch(&mut self, number: usize, path: Path) -> Result<(), Failed> {
        let fabric = self.fabric;
        let own = self.network.own_id;
        let mut known: Vec<u16> =
            self.network.devices.iter().filter(|one| !one.is_switch()).map(|one| one.id).collect();
        known.extend(&self.network.reserved);
        known.sort_unstable();
        let device = &mut self.network.devices[number];
        let Kind::Switch { ingress, .. } = device.kind else { return Ok(()) };
        routes::clear(fabric, device, path).await?;
        routes::set(fabric, device, path, own, ingress).await?;
        for id in known {
            routes::set(fabric, device, path, id, ingress).await?;
        }
        Ok(())
    }

    /// Opens a port of a switch, and routes "any" to it; false if the port has no link, or is the ingress port.
    pub async fn open_port(&mut self, number: usize, port: u8, path: Path) -> Result<bool, Failed> {
        let fabric = self.fabric;
        let any = self.network.size.any();
        let device = &mut self.network.devices[number];
        let Kind::Switch { ingress, .. } = device.kind else { return Ok(false) };
        let Some(serial) = device.serial else { return Ok(false) };
        let is_up = fabric.read(path, serial.status(port)).await? & csr::PORT_OK != 0;
        let control = fabric.read(path, serial.control(port)).await?;
        if ingress != port && !is_up {
            if device.error_management.is_some() {
                let locked = control | csr::PORT_LOCKOUT;
                fabric.write(path, serial.control(port), locked).await?;
            }
            return Ok(false);
        }
        let open = control & !csr::PORT_LOCKOUT | csr::PORT_ENABLED;
        if open != control {
            fabric.write(path, serial.control(port), open).await?;
        }
        if ingress == port {
            return Ok(false);
        }
        routes::set(fabric, device, path, any, port).await?;
        Ok(true)
    }

    /// Routes the ids that were found behind a port to it.
    async fn route_behind(&mut self, frame: &Frame, before: usize) -> Result<(), Failed> {
        let path = self.any(frame.hops);
        for id in self.assigned.iter().skip(before).copied().collect::<Vec<_>>() {
            let device = &mut self.network.devices[frame.device];
            routes::set(self.fabric, device, path, id, frame.port).await?;
        }
        Ok(())
    }

    /// Finishes a switch after all its ports were explored: sets the id by which it is reached.
    async fn finish_switch(&mut self, frame: &Frame) -> Result<(), Failed> {
        let id = match self.assigned.get(frame.first) {
            Some(first) => *first,
            None => {
                let before = self.network.devices[frame.device].id;
                let id = match self.network.reserved.iter().position(|id| *id == before) {
                    Some(at) => self.network.reserved.swap_remove(at),
                    None => self.network.free_id().ok_or(Failed::NoIdLeft)?,
                };
                self.network.reserved.push(id);
                self.assigned.push(id);
                id
            }
        };
        let (path, own) = (self.any(frame.hops), self.network.own_id);
        let is_large = self.network.size == IdSize::Large;
        let device = &mut self.network.devices[frame.device];
        (device.id, device.hops) = (id, frame.hops);
        routes::enable_port_writes(self.fabric, device, path, own, is_large).await
    }

    /// Routes the id "any" to a switch that was known before.
    pub async fn route_any_to(&mut self, switch: usize) -> Result<(), Failed> {
        let any = self.network.size.any();
        let mut route = Vec::new();
        let mut at = switch;
        while let Some((parent, port)) = self.network.devices[at].parent {
            route.push((parent, port));
            at = parent;
        }
        while let Some((parent, port)) = route.pop() {
            let device = &mut self.network.devices[parent];
            let path = device.path();
            routes::set(self.fabric, device, path, any, port).await?;
        }
        Ok(())
    }

    /// Routes the ids that were found behind a port of a switch that was known before.
    pub async fn route_new(&mut self, switch: usize, port: u8) -> Result<(), Failed> {
        for id in core::mem::take(&mut self.assigned) {
            let device = &mut self.network.devices[switch];
            let path = device.path();
            routes::set(self.fabric, device, path, id, port).await?;
        }
        Ok(())
    }

    /// Adds the missing routes of all switches: towards the device if it lies behind the switch, otherwise back.
    pub async fn complete_routes(&mut self) -> Result<(), Failed> {
        let mut ids: Vec<(u16, Option<usize>)> = Vec::new();
        for (number, device) in self.network.devices.iter().enumerate() {
            ids.push((device.id, Some(number)));
        }
        for switch in 0..self.network.devices.len() {
            for &(id, target) in &ids {
                let towards = target.and_then(|target| self.network.port_towards(switch, target));
                let device = &mut self.network.devices[switch];
                let Kind::Switch { ingress, routes, .. } = &device.kind else { break };
                // An empty switch needs no route to itself.
                if routes.contains_key(&id) || device.id == id || !device.present {
                    continue;
                }
                let (port, path) = (towards.unwrap_or(*ingress), device.path());
                routes::set(self.fabric, device, path, id, port).await?;
            }
        }
        Ok(())
    }
}

/// Whether a device has an id: it sends or answers reads, writes or atomics.
fn has_id(device: &Device) -> bool {
    let wanted = csr::OPERATION_READ | csr::OPERATION_WRITE | csr::OPERATION_ATOMICS;
    device.operations.iter().any(|operations| operations & wanted != 0)
}
