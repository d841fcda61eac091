//! Which loop gets which port.

use super::bridge::Bridge;
use super::forwarding;
use super::loop_waker::LoopWaker;
use super::plane::Settings;
use super::ports::{PlanePort, PortSlot, QueueSlot};
use super::punt;
use super::worker::{self, Dealt, Worker};
use crate::config::Config;
use crate::families::OfNtb;
use crate::machine::SpareCore;
use drivers::device::OpenedPort;
use drivers::hal::{Interrupt, Port};
use ntrdma::Ntrdma;

/// A core that has no loop yet, and the ports and bridges that are meant for it.
struct Spare {
    core: Box<dyn SpareCore>,
    waker: LoopWaker,
    ports: Vec<Dealt>,
    bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
}

impl Spare {
    fn is_wanted(&self) -> bool {
        !self.ports.is_empty() || !self.bridges.is_empty()
    }
}

/// The loops, before they run.
pub(super) struct Loops {
    /// That of the first loop, which has the control plane.
    waker: LoopWaker,
    /// Ports of the first loop, with their numbers.
    pub own: Vec<(usize, PlanePort)>,
    /// Its bridges.
    pub own_bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
    /// Ports beside these, by which it reaches those of other loops for its engines over UDP: with the numbers of those.
    pub forwarding: Vec<(usize, PlanePort)>,
    /// Further queues of ports, on other loops than the ports.
    pub queues: Vec<QueueSlot>,
    /// The other cores, from 1 on.
    spare: Vec<Spare>,
}

/// Makes ports of so many further queues of a port's device, or of as many as it has.
pub(super) type Split<'a> = &'a mut dyn FnMut(&mut dyn Port, usize) -> Vec<Box<dyn Port + Send>>;

impl Loops {
    /// The first loop, with `waker`, and one for each spare core.
    pub fn new(spare: Vec<Box<dyn SpareCore>>, waker: LoopWaker) -> Self {
        let spare = spare.into_iter().map(|core| {
            let waker = LoopWaker::new(core.ipi());
            Spare { core, waker, ports: Vec::new(), bridges: Vec::new() }
        });
        Loops {
            waker,
            own: Vec::new(),
            own_bridges: Vec::new(),
            forwarding: Vec::new(),
            queues: Vec::new(),
            spare: spare.collect(),
        }
    }

    /// The core of that number, for a device whose interrupts `route` can have sent there; None for the first, or where that
    /// is not possible, which the log is told.
    fn of_core<'a>(
        spare: &'a mut [Spare],
        wanted: usize,
        name: &str,
        route: impl FnOnce(Interrupt) -> bool,
    ) -> Option<&'a mut Spare> {
        let other = wanted.checked_sub(1)?;
        let last = spare.len();
        let Some(spare) = spare.get_mut(other) else {
            log::error!("{name}: there is no core {wanted}; accepted: 0 to {last}");
            return None;
        };
        if !spare.core.interrupt().is_some_and(route) {
            log::warn!("{name}: cannot interrupt core {wanted}; it stays on core 0");
            return None;
        }
        Some(spare)
    }

    /// Gives a bridge to the loop that the configuration names, or to the first. `interface` is told the number of the core,
    /// how the first loop is woken, and how that one is.
    pub fn deal_bridge(
        &mut self,
        mut bridge: OfNtb<Bridge>,
        ntrdma: Ntrdma,
        wanted: Option<u8>,
        interface: impl FnOnce(&mut Bridge, usize, &LoopWaker, &LoopWaker),
    ) {
        let wanted = wanted.map_or(0, usize::from);
        let (name, device) = (bridge.name.clone(), &mut bridge.device);
        let found = Self::of_core(&mut self.spare, wanted, &name, |one| device.route(one));
        let Some(spare) = found else {
            interface(&mut bridge, 0, &self.waker, &self.waker);
            return self.own_bridges.push((bridge, ntrdma));
        };
        interface(&mut bridge, wanted, &self.waker, &spare.waker);
        spare.bridges.push((bridge, ntrdma));
    }

    /// Gives a port to the loop that the configuration names, or to the first; where that names several, each gets a queue.
    pub fn deal(
        &mut self,
        mut port: OpenedPort,
        number: usize,
        location: String,
        driver: &'static str,
        config: &Config,
        split: Split<'_>,
    ) -> PortSlot {
        let name = format!("net{number}");
        let place = self.own.len();
        let mut slot = PortSlot { driver, ..PortSlot::new(name, location, port.port(), place) };
        let wishes = config.net(number, slot.mac, &slot.location);
        let cores = wishes.core.all();
        let (wanted, others) = cores.split_first().map_or((0, &[][..]), |(one, all)| (*one, all));
        let net = config.number_of_net(number, slot.mac, &slot.location);
        let engines = config.usnic.iter().any(|usnic| Some(usize::from(usnic.net)) == net);
        match others {
            [] => {}
            // What its peers say would come to any of them.
            _ if engines => {
                log::warn!("{}: core {wanted} alone serves it, because of usNIC there", slot.name);
            }
            _ => {
                let port = port.port_mut();
                slot.others = self.deal_queues(port, number, &slot, wanted, others, split);
            }
        }
        let route = |interrupt: Interrupt| port.port_mut().route(&interrupt);
        let taken = Self::of_core(&mut self.spare, wanted, &slot.name, route);
        let Some(spare) = taken else {
            if port.is_verbs() {
                log::warn!("{}: RoCE in software: in hardware only on its own core", slot.name);
            }
            let (name, port) = (slot.name.clone(), port.plain());
            self.own.push((number, PlanePort::new(name, port, config.services.udp_echo)));
            return slot;
        };
        let wakers = [&self.waker, &spare.waker];
        let [first, other] = wakers;
        let (punt_port, punt_queue) = punt::connect(slot.mac, slot.mtu, punt::RING, first, other);
        let shape = (slot.mac, slot.mtu);
        let forwarded = forwarding::connect(config, net, &slot.name, shape, wakers);
        let forwarded = forwarded.map(|(port, forwarded)| {
            self.forwarding.push((number, port));
            forwarded
        });
        let place = spare.ports.len();
        let (name, roce) = (slot.name.clone(), wishes.roce);
        spare.ports.push(Dealt { name, port, roce, punt_queue, forwarded });
        PortSlot { core: wanted, place, punt_port: Some(punt_port), ..slot }
    }

    /// Gives each of `others` a queue of the port `slot`, as far as there are such cores and queues; which have one then.
    fn deal_queues(
        &mut self,
        port: &mut dyn Port,
        number: usize,
        slot: &PortSlot,
        first: usize,
        others: &[usize],
        split: Split<'_>,
    ) -> Vec<usize> {
        let (name, last) = (&slot.name, self.spare.len());
        let mut cores: Vec<usize> = others.to_vec();
        cores.retain(|&core| core <= last);
        if cores.len() < others.len() || first > last {
            log::error!("{name}: not all cores of its list are there; accepted: 0 to {last}");
        }
        // Where the first is not there core 0 takes its place, which has a queue of its own then.
        let queues = if cores.is_empty() { Vec::new() } else { split(port, cores.len()) };
        if queues.len() < cores.len() {
            log::warn!(
                "{name}: its device has no queues for cores {:?}, which do not serve it",
                &cores[queues.len()..]
            );
            cores.truncate(queues.len());
        }
        let control = &self.waker;
        for (&core, mut port) in cores.iter().zip(queues) {
            let Some(spare) = core.checked_sub(1).and_then(|other| self.spare.get_mut(other))
            else {
                continue;
            };
            // Without an interrupt a loop looks by itself, often.
            if !spare.core.interrupt().is_some_and(|interrupt| port.route(&interrupt)) {
                log::warn!(
                    "{name}: cannot interrupt core {core}, which has to look at it all the time"
                );
            }
            let (punt_port, punt_queue) =
                punt::connect(slot.mac, slot.mtu, punt::RING, control, &spare.waker);
            let place = spare.ports.len();
            let (name, port) = (name.clone(), OpenedPort::Plain(port));
            spare.ports.push(Dealt { name, port, roce: None, punt_queue, forwarded: None });
            self.queues.push(QueueSlot { port: number, core, place, punt_port });
        }
        cores
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
        let wishes = config.net(number, slot.mac, &slot.location);
        if !wishes.core.is_first_alone() {
            log::warn!("{}: cannot go to other cores; it stays on core 0", slot.name);
        }
        if wishes.vlan.is_some() && port.vlan().is_none() {
            log::warn!("{}: no VLAN there: its frames have no tags", slot.name);
        }
        self.own.push((number, PlanePort::new(slot.name.clone(), port, config.services.udp_echo)));
        slot
    }

    /// The loops that got ports or bridges: the numbers of their cores, and how they are woken.
    pub fn with_ports(&self) -> Vec<(usize, LoopWaker)> {
        let with_ports = self.spare.iter().zip(1..).filter(|(spare, _)| spare.is_wanted());
        with_ports.map(|(spare, number)| (number, spare.waker.clone())).collect()
    }

    /// Starts the loops that got ports or bridges, each with what `settings` gives for its core, by the number.
    pub fn start(
        self,
        mut settings: impl FnMut(usize, &mut dyn SpareCore, &LoopWaker) -> Settings,
    ) -> Vec<Worker> {
        let with_ports = self.spare.into_iter().zip(1..).filter(|(spare, _)| spare.is_wanted());
        let start = |(Spare { mut core, waker, ports, bridges }, number)| {
            let (worker, orders) = worker::orders(number, waker.clone());
            let settings = settings(number, &mut *core, &waker);
            worker::Start { settings, core: number, ports, bridges, orders, waker }.on(core);
            worker
        };
        with_ports.map(start).collect()
    }
}
