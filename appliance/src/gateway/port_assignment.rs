//! Which loop gets which port.

use super::forwarding;
use super::loop_waker::LoopWaker;
use super::plane::Settings;
use super::ports::{PlanePort, PortSlot};
use super::punt;
use super::worker::{self, Dealt, Worker};
use crate::config::Config;
use crate::machine::SpareCore;
use drivers::hal::Port;

/// A core that has no loop yet, and the ports that are meant for it.
struct Spare {
    core: Box<dyn SpareCore>,
    waker: LoopWaker,
    ports: Vec<Dealt>,
}

/// The loops, before they run.
pub(super) struct Loops {
    /// That of the first loop, which has the control plane.
    waker: LoopWaker,
    /// Ports of the first loop, with their numbers.
    pub own: Vec<(usize, PlanePort)>,
    /// Ports beside these, by which it reaches those of other loops for its engines over UDP: with the numbers of those.
    pub forwarding: Vec<(usize, PlanePort)>,
    /// The other cores, from 1 on.
    spare: Vec<Spare>,
}

impl Loops {
    /// The first loop, with `waker`, and one for each spare core.
    pub fn new(spare: Vec<Box<dyn SpareCore>>, waker: LoopWaker) -> Self {
        let spare = spare.into_iter().map(|core| {
            let waker = LoopWaker::new(core.ipi());
            Spare { core, waker, ports: Vec::new() }
        });
        Loops { waker, own: Vec::new(), forwarding: Vec::new(), spare: spare.collect() }
    }

    /// Gives a port to the loop that the configuration names, or to the first.
    pub fn deal(
        &mut self,
        mut port: Box<dyn Port + Send>,
        number: usize,
        location: String,
        driver: &'static str,
        config: &Config,
    ) -> PortSlot {
        let name = format!("net{number}");
        let place = self.own.len();
        let slot = PortSlot { driver, ..PortSlot::new(name, location, &*port, place) };
        let wanted = config.net(number, slot.mac, &slot.location).core.map_or(0, usize::from);
        let taken = wanted.checked_sub(1).and_then(|other| {
            let last = self.spare.len();
            let Some(spare) = self.spare.get_mut(other) else {
                log::error!("{}: there is no core {wanted}; accepted: 0 to {last}", slot.name);
                return None;
            };
            if !spare.core.interrupt().is_some_and(|interrupt| port.route(&interrupt)) {
                log::warn!("{}: cannot interrupt core {wanted}; it stays on core 0", slot.name);
                return None;
            }
            Some(spare)
        });
        let Some(spare) = taken else {
            self.own
                .push((number, PlanePort::new(slot.name.clone(), port, config.services.udp_echo)));
            return slot;
        };
        let wakers = [&self.waker, &spare.waker];
        let [first, other] = wakers;
        let (punt_port, punt_queue) = punt::connect(slot.mac, slot.mtu, punt::RING, first, other);
        let net = config.number_of_net(number, slot.mac, &slot.location);
        let shape = (slot.mac, slot.mtu);
        let forwarded = forwarding::connect(config, net, &slot.name, shape, wakers);
        let forwarded = forwarded.map(|(port, forwarded)| {
            self.forwarding.push((number, port));
            forwarded
        });
        let place = spare.ports.len();
        spare.ports.push(Dealt { name: slot.name.clone(), port, punt_queue, forwarded });
        PortSlot { core: wanted, place, punt_port: Some(punt_port), ..slot }
    }

    /// Gives the first loop a port that cannot go to another.
    pub fn keep(
        &mut self,
        port: Box<dyn Port>,
        number: usize,
        location: String,
        driver: &'static str,
        config: &Config,
    ) -> PortSlot {
        let (name, place) = (format!("net{number}"), self.own.len());
        let slot = PortSlot { driver, ..PortSlot::new(name, location, &*port, place) };
        let wanted = config.net(number, slot.mac, &slot.location).core;
        if let Some(core) = wanted.filter(|core| *core > 0) {
            log::warn!("{}: cannot go to core {core}; it stays on core 0", slot.name);
        }
        self.own.push((number, PlanePort::new(slot.name.clone(), port, config.services.udp_echo)));
        slot
    }

    /// The loops that got ports: the numbers of their cores, and how they are woken.
    pub fn with_ports(&self) -> Vec<(usize, LoopWaker)> {
        let with_ports = self.spare.iter().zip(1..).filter(|(spare, _)| !spare.ports.is_empty());
        with_ports.map(|(spare, number)| (number, spare.waker.clone())).collect()
    }

    /// Starts the loops that got ports, each with what `settings` gives for the number of its core.
    pub fn start(self, mut settings: impl FnMut(usize, &LoopWaker) -> Settings) -> Vec<Worker> {
        let with_ports = self.spare.into_iter().zip(1..).filter(|(s, _)| !s.ports.is_empty());
        let start = |(Spare { core, waker, ports }, number)| {
            let (worker, orders) = worker::orders(number, waker.clone());
            let settings = settings(number, &waker);
            worker::Start { settings, ports, orders, waker }.on(core);
            worker
        };
        with_ports.map(start).collect()
    }
}
