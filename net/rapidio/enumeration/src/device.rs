//! The model of a network: devices, topology, ids and routes.

use super::blocks::Serial;
use super::walk::Path;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use drivers::rapidio::{IdSize, csr};

/// Maximum number of devices.
pub const MOST_DEVICES: usize = 256;
/// Hop count of end points, which ignore it.
pub const END_POINT: u8 = 0xff;

/// Kind of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A board.
    EndPoint,
    /// A switch.
    Switch {
        /// The port towards the own end point.
        ingress: u8,
        /// Devices at the ports, by their number in [`Network::devices`].
        neighbours: Vec<Option<usize>>,
        /// Routes as written or read: port by id.
        routes: BTreeMap<u16, u8>,
    },
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Id of an end point. For a switch, the id by which it is reached: the first one behind it.
    pub id: u16,
    /// Number of switches on the way; 255 for end points.
    pub hops: u8,
    /// Component tag.
    pub tag: u32,
    /// Device in the upper 16 bits, vendor in the lower.
    pub identity: u32,
    /// Transactions that the device can send, and that it answers ([`csr`]).
    pub operations: [u32; 2],
    /// Kind of the device.
    pub kind: Kind,
    /// Number of the switch behind which it was found, and the port of that switch.
    pub parent: Option<(usize, u8)>,
    /// The device answers.
    pub present: bool,
    pub(super) features: u32,
    pub(super) serial: Option<Serial>,
    pub(super) error_management: Option<u32>,
}

impl Device {
    /// Whether it is a switch.
    pub fn is_switch(&self) -> bool {
        matches!(self.kind, Kind::Switch { .. })
    }

    /// Whether the device sends and receives messages and doorbells, as `rionet` and `rio_cm` need.
    pub fn has_messages(&self) -> bool {
        let wanted = csr::OPERATION_MESSAGE | csr::OPERATION_DOORBELL;
        self.operations.iter().all(|operations| operations & wanted == wanted)
    }

    pub(super) fn path(&self) -> Path {
        Path { to: self.id, hops: self.hops }
    }

    /// Number of ports of a switch; 0 for end points.
    pub fn ports(&self) -> u8 {
        match &self.kind {
            Kind::Switch { neighbours, .. } => neighbours.len() as u8,
            Kind::EndPoint => 0,
        }
    }
}

/// A line of [`Network::tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of switches above the device.
    pub depth: usize,
    /// Port of the switch above.
    pub port: Option<u8>,
    /// Number of the device in [`Network::devices`].
    pub device: usize,
    /// The device has another place in the tree: this port is a second way to it.
    pub is_loop: bool,
}

/// A network, as discovered by one of its end points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Width of ids.
    pub size: IdSize,
    /// Own id.
    pub own_id: u16,
    /// Devices other than the own port, in the order of discovery.
    pub devices: Vec<Device>,
    /// Component tag of the next device.
    pub(super) next_tag: u32,
    /// Upper bits of the component tags of this walk.
    pub(super) nonce: u16,
    /// Ids of switches without devices behind them.
    pub(super) reserved: Vec<u16>,
}

impl Network {
    /// A network without other devices.
    pub fn new(size: IdSize, own_id: u16) -> Self {
        Network { size, own_id, next_tag: 2, ..Network::default() }
    }

    /// The component tag of device number `number`. The lower 17 bits are as in Linux. The others distinguish this walk
    /// from an interrupted one, whose tags devices may still have.
    pub(super) fn tag(&self, number: u32) -> u32 {
        u32::from(self.nonce) << 17 | number
    }

    /// The end point with this id.
    pub fn end_point(&self, id: u16) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id && !device.is_switch())
    }

    /// End points that answer.
    pub fn end_points(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.present && !device.is_switch())
    }

    /// The number of the device with this component tag.
    pub fn by_tag(&self, tag: u32) -> Option<usize> {
        self.devices.iter().position(|device| device.tag == tag)
    }

    /// The network as a tree for display: each switch is followed by the devices at its ports.
    pub fn tree(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let first = (0..self.devices.len()).filter(|n| self.devices[*n].parent.is_none());
        let mut left: Vec<Row> =
            first.map(|device| Row { depth: 0, port: None, device, is_loop: false }).collect();
        left.reverse();
        while let Some(row) = left.pop() {
            rows.push(row);
            let Kind::Switch { neighbours, .. } = &self.devices[row.device].kind else { continue };
            if row.is_loop {
                continue;
            }
            for (port, neighbour) in neighbours.iter().enumerate().rev() {
                let Some(device) = *neighbour else { continue };
                let port = port as u8;
                let is_loop = self.devices[device].parent != Some((row.device, port));
                left.push(Row { depth: row.depth + 1, port: Some(port), device, is_loop });
            }
        }
        rows
    }

    /// The lowest unused id.
    pub(super) fn free_id(&self) -> Option<u16> {
        (0..self.size.any()).find(|id| self.is_free(*id))
    }

    /// Whether the id is valid and unused.
    pub(super) fn is_free(&self, id: u16) -> bool {
        let is_used =
            id == self.own_id || self.reserved.contains(&id) || self.end_point(id).is_some();
        id < self.size.any() && !is_used
    }

    /// The port of `ancestor` behind which `device` lies; None if it does not lie behind `ancestor`.
    pub(super) fn port_towards(&self, ancestor: usize, device: usize) -> Option<u8> {
        let mut at = device;
        // Parents were discovered earlier than their children, so the loop ends.
        while let Some((parent, port)) = self.devices.get(at)?.parent {
            if parent == ancestor {
                return Some(port);
            }
            at = parent;
        }
        None
    }

    /// All devices behind a port of a switch.
    pub(super) fn behind(&self, switch: usize, port: u8) -> Vec<usize> {
        let all = 0..self.devices.len();
        all.filter(|&device| self.port_towards(switch, device) == Some(port)).collect()
    }
}
