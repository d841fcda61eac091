//! The network: routes packets by the tables of switches, and counts those without a route.

use super::board::Board;
use super::endpoint::Endpoint;
use super::packet::{Kind, Packet};
use super::switch::Switch;
use super::topology::Topology;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Most switches that a packet passes.
const MOST_HOPS: usize = 64;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// An end point.
    Endpoint(usize),
    /// A port of a switch.
    Switch(usize, usize),
}

/// A network that several functions share.
pub type Shared = Arc<Mutex<Network>>;

/// The network.
#[derive(Debug, Default)]
pub struct Network {
    endpoints: Vec<Endpoint>,
    switches: Vec<Switch>,
    links: BTreeMap<End, End>,
    cut: BTreeSet<End>,
    next: u16,
    /// Number of maintenance requests by end point, for comparison with Linux.
    maintenance: Vec<u64>,
    /// Packets without a route.
    pub lost: u64,
    /// All sent packets with their source end point, if a test enables the log.
    pub log: Option<Vec<(usize, Packet)>>,
}

impl Network {
    /// Creates a network. End points from `functions` on are boards, which `board` creates.
    pub fn new(
        topology: &Topology,
        functions: usize,
        mut board: impl FnMut(usize) -> Board,
    ) -> Network {
        let count = topology.endpoints.max(functions);
        let mut network = Network {
            endpoints: (0..count)
                .map(|n| Endpoint::new((n >= functions).then(|| board(n))))
                .collect(),
            switches: topology.switches.iter().map(|family| Switch::new(*family)).collect(),
            maintenance: vec![0; count],
            ..Network::default()
        };
        for [one, other] in &topology.links {
            network.links.insert(*one, *other);
            network.links.insert(*other, *one);
        }
        network.update_links();
        network
    }

    /// Number of end points.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// The end point of this number.
    pub fn endpoint(&mut self, number: usize) -> &mut Endpoint {
        &mut self.endpoints[number]
    }

    /// The board of this number. Panics if the end point is not a board.
    pub fn board(&mut self, number: usize) -> &mut Board {
        self.endpoints[number].board.as_mut().expect("end point is a board")
    }

    /// The switch of this number.
    pub fn switch(&mut self, number: usize) -> &mut Switch {
        &mut self.switches[number]
    }

    /// Number of maintenance requests from an end point.
    pub fn maintenance(&self, number: usize) -> u64 {
        self.maintenance[number]
    }

    /// Unplugs the cable of an end, or plugs it in.
    pub fn cut(&mut self, end: End, cut: bool) {
        match cut {
            true => self.cut.insert(end),
            false => self.cut.remove(&end),
        };
        self.update_links();
    }

    /// Connects two ends that had no cable.
    pub fn join(&mut self, one: End, other: End) {
        self.links.insert(one, other);
        self.links.insert(other, one);
        self.update_links();
    }

    /// Powers an end point on or off. Powered off, it loses its state.
    pub fn power(&mut self, number: usize, on: bool) {
        self.endpoints[number].powered = on;
        if !on {
            self.endpoints[number].reset();
        }
        self.update_links();
    }

    fn is_up(&self, end: End) -> bool {
        let Some(&other) = self.links.get(&end) else { return false };
        [end, other].into_iter().all(|end| {
            let is_powered = match end {
                End::Endpoint(number) => self.endpoints[number].powered,
                End::Switch(..) => true,
            };
            is_powered && !self.cut.contains(&end)
        })
    }

    /// Updates the link states of all devices. Switches report changes to their hosts.
    fn update_links(&mut self) {
        for number in 0..self.endpoints.len() {
            let up = self.is_up(End::Endpoint(number));
            self.endpoints[number].set_link(up);
        }
        for switch in 0..self.switches.len() {
            for port in 0..self.switches[switch].ports() {
                let up = self.is_up(End::Switch(switch, port));
                let report = self.switches[switch].set_link(port, up);
                let Some((to, large, words)) = report else { continue };
                let packet = Packet { to, from: 0, large, kind: Kind::PortWrite { words } };
                let out = self.switches[switch].route(0, to);
                let next = out.and_then(|out| self.cross(End::Switch(switch, out)));
                match next.and_then(|next| self.walk(next, to, None)) {
                    Some(End::Endpoint(number)) => self.arrive(number, packet),
                    _ => self.lost += 1,
                }
            }
        }
    }

    /// The other end of a link, if the link passes packets.
    fn cross(&self, end: End) -> Option<End> {
        let other = *self.links.get(&end).filter(|_| self.is_up(end))?;
        let is_closed = |end: End| match end {
            End::Switch(switch, port) => self.switches[switch].is_locked_out(port),
            End::Endpoint(_) => false,
        };
        (!is_closed(end) && !is_closed(other)).then_some(other)
    }

    /// Follows a packet from `at` to its destination: an end point, or the switch at which its hop count ends.
    fn walk(&self, mut at: End, to: u16, mut hops: Option<u8>) -> Option<End> {
        for _ in 0..MOST_HOPS {
            let End::Switch(switch, port) = at else { return Some(at) };
            if hops == Some(0) {
                return Some(at);
            }
            hops = hops.map(|hops| hops - 1);
            let out = self.switches[switch].route(port, to)?;
            at = self.cross(End::Switch(switch, out))?;
        }
        None
    }

    /// Sends a packet from an end point.
    pub fn send(&mut self, from: usize, packet: Packet) {
        if let Some(log) = &mut self.log {
            log.push((from, packet.clone()));
        }
        let hops = match packet.kind {
            Kind::Maintenance { hops, .. } => {
                self.maintenance[from] += 1;
                Some(hops)
            }
            _ => None,
        };
        let start = self.cross(End::Endpoint(from));
        match start.and_then(|start| self.walk(start, packet.to, hops)) {
            Some(End::Endpoint(number)) => self.arrive(number, packet),
            Some(End::Switch(switch, port)) => self.serve_switch(switch, port, packet),
            None => self.lost += 1,
        }
    }

    /// Handles a maintenance request to a switch.
    fn serve_switch(&mut self, switch: usize, port: usize, packet: Packet) {
        let Kind::Maintenance { tid, offset, write, .. } = packet.kind else { return };
        let one = &mut self.switches[switch];
        let value = match write {
            None => one.read(offset, port),
            Some(value) => {
                one.write(offset, value);
                0
            }
        };
        let answer = packet.answer(Kind::Maintained { tid, value: Some(value) });
        // The response leaves by the request's ingress port. From the next switch on it is routed by its id.
        match self.cross(End::Switch(switch, port)).and_then(|at| self.walk(at, answer.to, None)) {
            Some(End::Endpoint(number)) => self.arrive(number, answer),
            _ => self.lost += 1,
        }
    }

    fn arrive(&mut self, number: usize, packet: Packet) {
        let endpoint = &mut self.endpoints[number];
        let is_ours = endpoint.id(packet.large) == packet.to;
        match packet.kind {
            Kind::Maintenance { tid, offset, write, .. } => {
                let value = match write {
                    None => endpoint.read(offset),
                    Some(value) => endpoint.write(offset, value).then_some(0),
                };
                let answer = packet.answer(Kind::Maintained { tid, value });
                self.send(number, answer);
            }
            Kind::Maintained { .. } | Kind::PortWrite { .. } => self.deliver(number, packet),
            _ if is_ours => self.deliver(number, packet),
            _ => self.lost += 1,
        }
    }

    fn deliver(&mut self, number: usize, packet: Packet) {
        let endpoint = &mut self.endpoints[number];
        let Some(board) = &mut endpoint.board else {
            return endpoint.inbox.push_back(packet);
        };
        for answer in board.receive(packet) {
            self.send(number, answer);
        }
    }

    /// The result of enumeration: a line of a name and a number for each id, tag, lock and route.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            let name = format!("endpoint{number}");
            let read = |offset| endpoint.read(offset).unwrap_or(0);
            lines.push(format!("{name}.id {}", endpoint.id(false)));
            lines.push(format!("{name}.tag {}", read(0x6c)));
            lines.push(format!("{name}.lock {}", read(0x68)));
            lines.push(format!("{name}.discovered {}", read(0x13c) >> 29 & 1));
            lines.push(format!("{name}.maintenance {}", self.maintenance[number]));
        }
        for (number, switch) in self.switches.iter().enumerate() {
            let name = format!("switch{number}");
            lines.push(format!("{name}.tag {}", switch.peek(0x6c)));
            lines.push(format!("{name}.lock {}", switch.peek(0x68)));
            lines.push(format!("{name}.port_write_target {}", switch.peek(0x1028)));
            for (id, port) in switch.routes() {
                lines.push(format!("{name}.route{id} {port}"));
            }
            let closed = (0..switch.ports()).filter(|port| switch.is_locked_out(*port)).count();
            lines.push(format!("{name}.locked_out {closed}"));
        }
        lines
    }

    /// Whether a function has packets to receive.
    pub fn is_busy(&self) -> bool {
        self.endpoints.iter().any(|endpoint| !endpoint.inbox.is_empty())
    }

    /// Takes the received packets of a function.
    pub fn take_inbox(&mut self, number: usize) -> VecDeque<Packet> {
        std::mem::take(&mut self.endpoints[number].inbox)
    }

    /// Sends a maintenance request from a board, and returns the response; None if there is none.
    pub fn maintain(
        &mut self,
        board: usize,
        large: bool,
        to: u16,
        hops: u8,
        offset: u32,
        write: Option<u32>,
    ) -> Option<u32> {
        self.next = self.next.wrapping_add(1);
        let tid = self.next;
        let from = self.endpoints[board].id(large);
        let kind = Kind::Maintenance { hops, tid, offset, write };
        self.send(board, Packet { to, from, large, kind });
        let answers = &mut self.board(board).answers;
        let at = answers.iter().position(
            |answer| matches!(answer.kind, Kind::Maintained { tid: found, .. } if found == tid),
        )?;
        match answers.remove(at)?.kind {
            Kind::Maintained { value, .. } => value,
            _ => None,
        }
    }
}
