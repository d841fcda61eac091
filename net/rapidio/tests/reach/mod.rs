//! A port for enumeration directly on the model network, without the model of a bridge.

use drivers::hal::Instant;
use drivers::rapidio::{Busy, IdSize, Maintained, Maintenance, MaintenanceError, PortWrite, csr};
use models::rapidio::{Answer, Board, Kind, Network, Topology};
use rapidio::enumeration::{Event, Master, Reach, Role, State};
use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

/// A network of boards.
pub struct Lab {
    network: Rc<RefCell<Network>>,
    pub switches: usize,
}

impl Lab {
    pub fn new(topology: &str) -> Lab {
        let topology: Topology = topology.parse().unwrap();
        let network = Network::new(&topology, 0, |_| Board::new(Answer::Take, 0));
        Lab { network: Rc::new(RefCell::new(network)), switches: topology.switches.len() }
    }

    pub fn network(&self) -> RefMut<'_, Network> {
        self.network.borrow_mut()
    }
}

/// An end point of the network, with its enumeration.
pub struct Side {
    pub master: Master,
    network: Rc<RefCell<Network>>,
    number: usize,
    size: IdSize,
    answer: Option<Maintained>,
    now: u64,
    requests: u64,
    /// Port-writes to it are dropped.
    pub drops_port_writes: bool,
    /// Seed for random changes of answers, if wanted.
    pub noise: Option<u64>,
}

impl Side {
    pub fn new(lab: &Lab, number: usize, role: Role, size: IdSize) -> Side {
        Side {
            master: Master::new(role, size),
            network: lab.network.clone(),
            number,
            size,
            answer: None,
            now: 0,
            requests: 0,
            drops_port_writes: false,
            noise: None,
        }
    }

    pub fn agent_at(lab: &Lab, number: usize, size: IdSize) -> Side {
        Side::new(lab, number, Role::Agent, size)
    }

    /// Maintenance requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// A round of the loop: at most one request is answered.
    pub fn round(&mut self) {
        self.now += 100_000;
        let mut port = Port {
            network: self.network.clone(),
            number: self.number,
            size: self.size,
            answer: self.answer.take(),
            room: 1,
            drops_port_writes: self.drops_port_writes,
            noise: self.noise,
        };
        self.master.poll(&mut port, Instant::from_nanos(self.now));
        self.requests += 1 - u64::from(port.room);
        (self.answer, self.noise, self.size) = (port.answer, port.noise, port.size);
    }

    pub fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round());
    }

    /// Runs rounds for `time`.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time.as_nanos() as u64;
        while self.now < end {
            self.round();
        }
    }

    /// Runs long enough to handle all port-writes, and in a small network to check all ports.
    pub fn settle(&mut self) {
        self.pass(Duration::from_secs(5));
    }

    pub fn until(&mut self, state: State) {
        for _ in 0..200_000 {
            self.round();
            if self.master.state() == state {
                return;
            }
        }
        panic!("{:?} instead of {state:?}", self.master.state());
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.master.event()).collect()
    }
}

struct Port {
    network: Rc<RefCell<Network>>,
    number: usize,
    size: IdSize,
    answer: Option<Maintained>,
    room: u8,
    drops_port_writes: bool,
    noise: Option<u64>,
}

impl Port {
    fn network(&self) -> RefMut<'_, Network> {
        self.network.borrow_mut()
    }

    fn disturb(&mut self, value: u32) -> u32 {
        let Some(seed) = &mut self.noise else { return value };
        // xorshift64
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        match *seed >> 60 {
            0 => *seed as u32,
            1 => value ^ 1 << (*seed >> 20 & 31),
            _ => value,
        }
    }
}

impl Reach for Port {
    fn link_up(&self) -> bool {
        self.network().endpoint(self.number).link()
    }

    fn set_own_id(&mut self, size: IdSize, id: u16) {
        self.size = size;
        let value = if size == IdSize::Small { u32::from(id) << 16 } else { id.into() };
        self.write_own(csr::BASE_ID, value);
    }

    fn own_id(&mut self) -> u16 {
        self.network().endpoint(self.number).id(self.size == IdSize::Large)
    }

    fn read_own(&mut self, offset: u32) -> u32 {
        self.network().endpoint(self.number).read(offset).unwrap_or(u32::MAX)
    }

    fn write_own(&mut self, offset: u32, value: u32) {
        self.network().endpoint(self.number).write(offset, value);
    }

    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy> {
        self.room = self.room.checked_sub(1).ok_or(Busy)?;
        let Maintenance { to, hops, offset, write } = *request;
        let large = self.size == IdSize::Large;
        let value = self.network().maintain(self.number, large, to, hops, offset, write);
        let value = value.map(|value| self.disturb(value));
        self.answer = Some(value.ok_or(MaintenanceError::NoAnswer));
        Ok(())
    }

    fn maintained(&mut self) -> Option<Maintained> {
        // The answer arrives in the next round.
        if self.room == 0 { None } else { self.answer.take() }
    }

    fn port_write(&mut self) -> Option<PortWrite> {
        let mut network = self.network();
        let answers = &mut network.board(self.number).answers;
        let at = answers.iter().position(|packet| matches!(packet.kind, Kind::PortWrite { .. }))?;
        let Kind::PortWrite { words } = answers.remove(at)?.kind else { return None };
        let [component_tag, port_errors, port, logical_errors] = words;
        let report = PortWrite { component_tag, port_errors, port, logical_errors };
        (!self.drops_port_writes).then_some(report)
    }
}
