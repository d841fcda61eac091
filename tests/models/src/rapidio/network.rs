//! The network as a whole: packets find their way by the tables of switches, or get lost.

use super::board::Board;
use super::endpoint::Endpoint;
use super::packet::{Kind, Packet};
use super::switch::Switch;
use super::topology::Topology;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Switches that a packet passes at most.
const MOST_HOPS: usize = 64;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// An end point.
    Endpoint(usize),
    /// A port of a switch.
    Switch(usize, usize),
}

/// A network that several functions are on.
pub type Shared = Arc<Mutex<Network>>;

/// The network.
#[derive(Debug, Default)]
pub struct Network {
    endpoints: Vec<Endpoint>,
    switches: Vec<Switch>,
    links: BTreeMap<End, End>,
    cut: BTreeSet<End>,
    next: u16,
    /// Maintenance requests by end point, for comparison with Linux's.
    maintenance: Vec<u64>,
    /// Packets that found no way.
    pub lost: u64,
    /// What went by, if it is to be written down: who sent it, and what.
    pub log: Option<Vec<(usize, Packet)>>,
}

impl Network {
    /// A network in which end points from `functions` on are boards, made by `board`.
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
        network.see_links();
        network
    }

    /// End points.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// An end point.
    pub fn endpoint(&mut self, number: usize) -> &mut Endpoint {
        &mut self.endpoints[number]
    }

    /// A board. Panics if that end point is none.
    pub fn board(&mut self, number: usize) -> &mut Board {
        self.endpoints[number].board.as_mut().expect("end point is a board")
    }

    /// A switch.
    pub fn switch(&mut self, number: usize) -> &mut Switch {
        &mut self.switches[number]
    }

    /// Maintenance requests that an end point has made.
    pub fn maintenance(&self, number: usize) -> u64 {
        self.maintenance[number]
    }

    /// Pulls the cable of an end, or puts it back.
    pub fn cut(&mut self, end: End, cut: bool) {
        match cut {
            true => self.cut.insert(end),
            false => self.cut.remove(&end),
        };
        self.see_links();
    }

    /// Joins two ends that had no cable.
    pub fn join(&mut self, one: End, other: End) {
        self.links.insert(one, other);
        self.links.insert(other, one);
        self.see_links();
    }

    /// An end point is switched on, or off; off, it forgets everything.
    pub fn power(&mut self, number: usize, on: bool) {
        self.endpoints[number].powered = on;
        if !on {
            self.endpoints[number].reset();
        }
        self.see_links();
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

    /// Devices see which links work, and tell their hosts.
    fn see_links(&mut self) {
        for number in 0..self.endpoints.len() {
            let up = self.is_up(End::Endpoint(number));
            self.endpoints[number].set_link(up);
        }
        for switch in 0..self.switches.len() {
            for port in 0..self.switches[switch].ports() {
                let up = self.is_up(End::Switch(switch, port));
                let told = self.switches[switch].set_link(port, up);
                let Some((to, large, words)) = told else { continue };
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

    /// The other end of a link, if packets pass.
    fn cross(&self, end: End) -> Option<End> {
        let other = *self.links.get(&end).filter(|_| self.is_up(end))?;
        let is_closed = |end: End| match end {
            End::Switch(switch, port) => self.switches[switch].is_locked_out(port),
            End::Endpoint(_) => false,
        };
        (!is_closed(end) && !is_closed(other)).then_some(other)
    }

    /// Where a packet ends that has come to `at`: at an end point, or at the switch that its hop count names.
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

    /// An end point sends a packet.
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

    /// A switch is asked for a register.
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
        // It goes back by the port that the request came in by; from the next switch on by its id.
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

    /// What enumeration has left: a line of a name and a number for each id, tag, lock and route.
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

    /// Whether something waits for a function to look at it.
    pub fn is_busy(&self) -> bool {
        self.endpoints.iter().any(|endpoint| !endpoint.inbox.is_empty())
    }

    /// What has arrived at a function.
    pub fn take_inbox(&mut self, number: usize) -> VecDeque<Packet> {
        std::mem::take(&mut self.endpoints[number].inbox)
    }

    /// A board makes a maintenance request of its own, and gets the answer at once; None if there is none.
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
