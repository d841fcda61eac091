//! The host's walk.

use super::agent;
use super::blocks;
use super::device::{Device, END_POINT, Kind, Network};
use super::routes;
use super::walk::{Fabric, Failed, Path};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::rapidio::{IdSize, csr};

/// Hops to the furthest switch.
const MOST_HOPS: u8 = 32;
/// Devices at most.
const MOST_DEVICES: usize = 256;
/// How long a lock of a lower host is waited for, and how often it is tried.
const LOCK_PATIENCE: u32 = 10_000;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// What was found at the end of a link.
enum Found {
    /// A device that was not known.
    New(usize),
    /// One that was, by another way; or nobody who answers.
    Nothing,
}

/// A switch whose ports are being looked at.
struct Frame {
    device: usize,
    hops: u8,
    /// The next port; and while something is looked for behind it, how many ids there were before.
    port: u8,
    behind: Option<usize>,
    /// How many ids there were before the switch.
    first: usize,
}

/// A walk that changes the network.
pub struct HostWalk<'a> {
    pub fabric: &'a Fabric,
    pub network: &'a mut Network,
    /// Ids that this walk has given out, in order.
    assigned: Vec<u16>,
}

/// Finds everything. At an error the network holds what was found until then, whose locks are the host's.
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
    // Ahead of the locks: another host is to see at any time that there is one.
    let control = csr::CONTROL_HOST | csr::CONTROL_MASTER | csr::CONTROL_DISCOVERED;
    fabric.write_own(own_control(fabric).await, control).await;
    release(fabric, network).await;
    Ok(())
}

/// Where the own general control register is.
pub async fn own_control(fabric: &Fabric) -> u32 {
    (fabric.read_own(csr::ASSEMBLY_INFORMATION).await & 0xfffc) + csr::GENERAL_CONTROL
}

/// Whether the network is still ours: who enumerates it gives us a tag, too.
pub async fn is_ours(fabric: &Fabric, network: &Network) -> Result<(), Failed> {
    if fabric.read_own(csr::COMPONENT_TAG).await == network.tag(1) {
        return Ok(());
    }
    Err(Failed::OtherHost(fabric.read_own(csr::HOST_LOCK).await as u16))
}

/// If another host has enumerated us, it is looked for along its routes, without changing anything: its id, if that is
/// higher.
async fn higher_host(fabric: &Fabric, network: &Network) -> Option<u16> {
    let control = fabric.read_own(own_control(fabric).await).await;
    if control & (csr::CONTROL_HOST | csr::CONTROL_DISCOVERED) != csr::CONTROL_DISCOVERED {
        return None;
    }
    let mut seen = Network::new(network.size, network.own_id);
    // As far as they lead.
    let _ = agent::discover(fabric, &mut seen).await;
    for device in seen.devices.iter().filter(|device| device.id > network.own_id) {
        if is_host(fabric, device, device.path()).await {
            return Some(device.id);
        }
    }
    None
}

/// Whether a board is a host that has enumerated.
async fn is_host(fabric: &Fabric, device: &Device, path: Path) -> bool {
    let Some(serial) = device.serial.filter(|_| !device.is_switch()) else { return false };
    let wanted = csr::CONTROL_HOST | csr::CONTROL_DISCOVERED;
    fabric.read(path, serial.general()).await.is_ok_and(|control| control & wanted == wanted)
}

/// Gives up all locks that are ours, and says of each device that it was found. Who does not answer is passed over.
pub async fn release(fabric: &Fabric, network: &Network) {
    for device in network.devices.iter().filter(|device| device.present) {
        // One that vanishes now is seen by its link.
        let _ = release_one(fabric, network, device).await;
    }
    let host = u32::from(network.own_id);
    if fabric.read_own(csr::HOST_LOCK).await & 0xffff == host {
        fabric.write_own(csr::HOST_LOCK, host).await;
    }
}

async fn release_one(fabric: &Fabric, network: &Network, device: &Device) -> Result<(), Failed> {
    let (path, host) = (device.path(), u32::from(network.own_id));
    // To write the id to a lock that is free would take it.
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

/// Gives up the locks that a host has taken which has come to no good end; devices are not marked as found. One that has
/// met a stronger one is a host no more, and not found until that one says so.
pub async fn retreat(fabric: &Fabric, network: &Network, why: Failed) {
    let host = u32::from(network.own_id);
    if matches!(why, Failed::HigherHost(_) | Failed::OtherHost(_)) {
        let at = own_control(fabric).await;
        // Whose tag we have has found us.
        let is_found = fabric.read_own(csr::COMPONENT_TAG).await != network.tag(1);
        let found = if is_found { 0 } else { csr::CONTROL_DISCOVERED };
        let control = fabric.read_own(at).await;
        fabric.write_own(at, control & !(csr::CONTROL_HOST | found)).await;
    }
    let any = network.size.any();
    for device in &network.devices {
        let path = match device.is_switch() {
            // Its routes may not be complete: it was reached by whatever way led on last.
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
    /// A walk through a network of which this much is known.
    pub fn new(fabric: &'a Fabric, network: &'a mut Network) -> Self {
        HostWalk { fabric, network, assigned: Vec::new() }
    }

    /// Who is there, whatever routes there are: ids lead there by the route of "any".
    fn any(&self, hops: u8) -> Path {
        Path { to: self.network.size.any(), hops }
    }

    /// Finds what is so many hops away, behind the port of a switch or the own port, and all behind that.
    pub async fn explore(&mut self, hops: u8, parent: Option<(usize, u8)>) -> Result<(), Failed> {
        let mut stack: Vec<Frame> = Vec::new();
        self.meet(hops, parent, &mut stack).await?;
        while let Some(mut frame) = stack.pop() {
            if let Some(before) = frame.behind.take() {
                self.route_behind(&frame, before).await?;
                frame.port += 1;
            }
            if frame.port >= self.network.devices[frame.device].ports() {
                self.leave(&frame).await?;
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
            self.meet(hops, Some((device, port)), &mut stack).await?;
        }
        Ok(())
    }

    async fn meet(
        &mut self,
        hops: u8,
        parent: Option<(usize, u8)>,
        stack: &mut Vec<Frame>,
    ) -> Result<(), Failed> {
        if hops >= MOST_HOPS {
            // Nobody is that far away, but who says that he is a switch and is none.
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

    /// Takes a device's lock, learns what it is, and gives it tag and id.
    async fn visit(&mut self, hops: u8, parent: Option<(usize, u8)>) -> Result<Found, Failed> {
        let (path, host) = (self.any(hops), u32::from(self.network.own_id));
        let fabric = self.fabric;
        if fabric.read(path, csr::HOST_LOCK).await? & 0xffff == host {
            let tag = fabric.read(path, csr::COMPONENT_TAG).await?;
            // With another tag it is left from a walk of ours that was interrupted.
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
            // One that was not given an id yet has not enumerated, whatever it says: Linux says so beforehand.
            if u32::from(id) > host && id != path.to {
                fabric.write(path, csr::HOST_LOCK, host).await?;
                return Err(Failed::HigherHost(id));
            }
        }
        if self.network.devices.len() >= MOST_DEVICES {
            return Err(Failed::NoIdLeft);
        }
        // One that was here before is given what it had.
        let before = self.before(parent, &device);
        device.tag = match before {
            Some(before) => self.network.devices[before].tag,
            None => self.network.tag(self.network.next_tag),
        };
        fabric.write(path, csr::COMPONENT_TAG, device.tag).await?;
        if has_id(&device) {
            let id = match before {
                Some(before) => self.network.devices[before].id,
                // So is one that was given an id by an earlier host, or by this one in an earlier life: its system uses that,
                // and Linux does not notice that it has another.
                None => {
                    let had = own_id(fabric, path, self.network.size).await?;
                    let kept = Some(had).filter(|had| self.network.is_free(*had));
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
            self.enter(number, path).await?;
        }
        Ok(Found::New(number))
    }

    /// The device that was at this place before, if it is one of the same kind.
    fn before(&self, parent: Option<(usize, u8)>, device: &Device) -> Option<usize> {
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

    /// Takes a lock, in the way that decides between two hosts.
    async fn lock(&self, path: Path) -> Result<(), Failed> {
        let host = self.network.own_id;
        for _ in 0..LOCK_PATIENCE {
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

    /// A new switch: all ids that are known lead back.
    async fn enter(&mut self, number: usize, path: Path) -> Result<(), Failed> {
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

    /// Opens a port of a switch, so that the walk can go on there; false if nobody is there.
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

    /// What was found behind a port is reached by it.
    async fn route_behind(&mut self, frame: &Frame, before: usize) -> Result<(), Failed> {
        let path = self.any(frame.hops);
        for id in self.assigned.iter().skip(before).copied().collect::<Vec<_>>() {
            let device = &mut self.network.devices[frame.device];
            routes::set(self.fabric, device, path, id, frame.port).await?;
        }
        Ok(())
    }

    /// All ports of a switch were looked at: it gets an id by which it is reached.
    async fn leave(&mut self, frame: &Frame) -> Result<(), Failed> {
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

    /// Has the id "any" lead to a switch that was known before.
    pub async fn aim(&mut self, switch: usize) -> Result<(), Failed> {
        let any = self.network.size.any();
        let mut way = Vec::new();
        let mut at = switch;
        while let Some((parent, port)) = self.network.devices[at].parent {
            way.push((parent, port));
            at = parent;
        }
        while let Some((parent, port)) = way.pop() {
            let device = &mut self.network.devices[parent];
            let path = device.path();
            routes::set(self.fabric, device, path, any, port).await?;
        }
        Ok(())
    }

    /// What was found behind a port of a switch that was known before is reached by it.
    pub async fn route_new(&mut self, switch: usize, port: u8) -> Result<(), Failed> {
        for id in core::mem::take(&mut self.assigned) {
            let device = &mut self.network.devices[switch];
            let path = device.path();
            routes::set(self.fabric, device, path, id, port).await?;
        }
        Ok(())
    }

    /// Every switch learns of every id that it does not know: those lie back.
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

/// The id that a board has.
pub async fn own_id(fabric: &Fabric, path: Path, size: IdSize) -> Result<u16, Failed> {
    let id = fabric.read(path, csr::BASE_ID).await?;
    Ok(if size == IdSize::Large { id as u16 } else { (id >> 16) as u16 & 0xff })
}

/// Whether a device has an id: whatever reads, writes or is read or written.
fn has_id(device: &Device) -> bool {
    let wanted = csr::OPERATION_READ | csr::OPERATION_WRITE | csr::OPERATION_ATOMICS;
    device.operations.iter().any(|operations| operations & wanted != 0)
}

/// What a device says of itself.
pub async fn describe(
    fabric: &Fabric,
    path: Path,
    parent: Option<(usize, u8)>,
) -> Result<Device, Failed> {
    let features = fabric.read(path, csr::FEATURES).await?;
    let identity = fabric.read(path, csr::DEVICE_IDENTITY).await?;
    let first = fabric.read(path, csr::ASSEMBLY_INFORMATION).await?;
    let (serial, error_management) = match features & csr::FEATURE_EXTENDED != 0 {
        true => blocks::find(fabric, path, first).await?,
        false => (None, None),
    };
    let source = fabric.read(path, csr::SOURCE_OPERATIONS).await?;
    let destination = fabric.read(path, csr::DESTINATION_OPERATIONS).await?;
    let kind = match features & csr::FEATURE_SWITCH != 0 {
        true => {
            let ports = fabric.read(path, csr::SWITCH_PORTS).await?;
            let neighbours = alloc::vec![None; (ports >> 8 & 0xff) as usize];
            Kind::Switch { ingress: ports as u8, neighbours, routes: BTreeMap::new() }
        }
        false => Kind::EndPoint,
    };
    Ok(Device {
        id: path.to,
        hops: path.hops,
        tag: 0,
        identity,
        operations: [source, destination],
        kind,
        parent,
        present: true,
        features,
        serial,
        error_management,
    })
}
