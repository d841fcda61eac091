//! Assigns ports and bridges to loops.

use super::bridge::Bridge;
use super::forwarding;
use super::loop_waker::LoopWaker;
use super::plane::Settings;
use super::ports::{PlanePort, PortSlot, QueueSlot};
use super::punt;
use super::worker::{self, AssignedPort, Worker};
use crate::config::Config;
use crate::families::OfNtb;
use crate::machine::SpareCore;
use drivers::driver::OpenedPort;
use drivers::hal::{Interrupt, Port};
use ntrdma::Ntrdma;

/// A core without a loop yet, and the ports and bridges assigned to it.
struct Spare {
    core: Box<dyn SpareCore>,
    waker: LoopWaker,
    ports: Vec<AssignedPort>,
    bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
}

impl Spare {
    fn has_ports(&self) -> bool {
        !self.ports.is_empty() || !self.bridges.is_empty()
    }
}

/// The loops, before they run.
pub(super) struct Loops {
    /// Waker of the first loop, which has the control plane.
    pub waker: LoopWaker,
    /// Ports of the first loop, with their numbers.
    pub own: Vec<(usize, PlanePort)>,
    /// Bridges of the first loop.
    pub own_bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
    /// Additional ports of the first loop, by which its UDP engines reach ports of other loops, with the numbers of
    /// those.
    pub forwarding: Vec<(usize, PlanePort)>,
    /// Further queues of ports, on other loops than the ports.
    pub queues: Vec<QueueSlot>,
    /// The other cores, from 1 on.
    spare: Vec<Spare>,
}

/// Creates ports for up to so many further queues of a port's device.
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

    /// The spare core with number `wanted`, for a device whose interrupts `route` sends there. None for core 0. If the
    /// core does not exist or cannot be interrupted, logs that and returns None.
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

    /// Assigns a bridge to the configured loop, or to the first. Returns the port of its IP interface, number `index`,
    /// if it is to have one.
    pub fn assign_bridge(
        &mut self,
        mut bridge: OfNtb<Bridge>,
        ntrdma: Ntrdma,
        index: usize,
    ) -> Option<PortSlot> {
        let wanted = bridge.core.map_or(0, usize::from);
        let (name, device) = (bridge.name.clone(), &mut bridge.device);
        let found = Self::of_core(&mut self.spare, wanted, &name, |one| device.route(one));
        let Some(spare) = found else {
            let slot = bridge.interface(index, 0, &self.waker, &self.waker);
            self.own_bridges.push((bridge, ntrdma));
            return slot;
        };
        let slot = bridge.interface(index, wanted, &self.waker, &spare.waker);
        spare.bridges.push((bridge, ntrdma));
        slot
    }

    /// Assigns a port to the configured loop, or to the first. If several are configured, each gets a queue.
    pub fn assign(
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
            // Several queues would spread the datagrams of usNIC peers over the cores.
            _ if engines => {
                log::warn!("{}: core {wanted} alone serves it, because it has usNIC", slot.name);
            }
            _ => {
                let port = port.port_mut();
                slot.others = self.assign_queues(port, number, &slot, wanted, others, split);
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
        spare.ports.push(AssignedPort { name, port, roce, punt_queue, forwarded });
        PortSlot { core: wanted, place, punt_port: Some(punt_port), ..slot }
    }

    /// Assigns a queue of the port `slot` to each core of `others`, as far as cores and queues exist. Returns the cores
    /// with a queue.
    fn assign_queues(
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
            log::error!("{name}: some cores of its list do not exist; accepted: 0 to {last}");
        }
        // If the first core does not exist, core 0 takes its place and gets a queue.
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
            // Without an interrupt the loop polls the queue.
            if !spare.core.interrupt().is_some_and(|interrupt| port.route(&interrupt)) {
                log::warn!(
                    "{name}: cannot interrupt core {core}, which polls the port all the time"
                );
            }
            let (punt_port, punt_queue) =
                punt::connect(slot.mac, slot.mtu, punt::RING, control, &spare.waker);
            let place = spare.ports.len();
            let (name, port) = (name.clone(), OpenedPort::Plain(port));
            spare.ports.push(AssignedPort { name, port, roce: None, punt_queue, forwarded: None });
            self.queues.push(QueueSlot { port: number, core, place, punt_port });
        }
        cores
    }

    /// Assigns a port to the first loop that cannot move to another.
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
            log::warn!("{}: its device has no VLAN support: frames are not tagged", slot.name);
        }
        self.own.push((number, PlanePort::new(slot.name.clone(), port, config.services.udp_echo)));
        slot
    }

    /// Loops with ports or bridges: core numbers and wakers.
    pub fn with_ports(&self) -> Vec<(usize, LoopWaker)> {
        let with_ports = self.spare.iter().zip(1..).filter(|(spare, _)| spare.has_ports());
        with_ports.map(|(spare, number)| (number, spare.waker.clone())).collect()
    }

    /// Starts the loops with ports or bridges. `settings` returns the settings for a core, by its number.
    pub fn start(
        self,
        mut settings: impl FnMut(usize, &mut dyn SpareCore, &LoopWaker) -> Settings,
    ) -> Vec<Worker> {
        let with_ports = self.spare.into_iter().zip(1..).filter(|(spare, _)| spare.has_ports());
        let start = |(Spare { mut core, waker, ports, bridges }, number)| {
            let (worker, orders) = worker::orders(number, waker.clone());
            let settings = settings(number, &mut *core, &waker);
            worker::Start { settings, core: number, ports, bridges, orders, waker }.on(core);
            worker
        };
        with_ports.map(start).collect()
    }
}
