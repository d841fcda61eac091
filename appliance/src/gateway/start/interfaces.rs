//! Third stage: opens ports, RapidIO ports and bridges, assigns them to loops, and creates an IP interface over each.

use super::resources::{MachineClock, Resources, seed};
use crate::config::Config;
use crate::families::{OfMeasure, OfNtb};
use crate::gateway::bridge::{Bridge, Engines, TransportPort};
use crate::gateway::cards::{Cards, Found, PortUse};
use crate::gateway::network::Network;
use crate::gateway::port_assignment::Loops;
use crate::gateway::ports::PortSlot;
use crate::gateway::rapidio::{self, RapidioPort};
use crate::gateway::tagged_port;
use drivers::driver::{Device, OpenedPort};
use drivers::hal::{HashKey, Hold, Instant, Port};
use management::UnclaimedDevice;
use net::tls::Tls;
use perf_responders::tcp_control::TcpControl;
use rand_core::Rng;
use std::sync::Arc;

/// The ports and their IP interfaces, and the loops that own them.
pub(super) struct Interfaces<'a> {
    config: &'a Config,
    tls: Option<Arc<Tls>>,
    now: Instant,
    pub loops: Loops,
    /// Opened cards of the first loop.
    pub cards: Cards,
    pub ports: Vec<PortSlot>,
    /// The IP interface of each port.
    pub networks: Vec<Network>,
    pub rapidio: Vec<RapidioPort>,
    pub transports: Vec<OfNtb<TransportPort>>,
}

impl<'a> Interfaces<'a> {
    /// Creates it without ports. `tls` is that of HTTP servers.
    pub fn new(config: &'a Config, tls: Option<Arc<Tls>>, loops: Loops, now: Instant) -> Self {
        Interfaces {
            config,
            tls,
            now,
            loops,
            cards: Cards::default(),
            ports: Vec::new(),
            networks: Vec::new(),
            rapidio: Vec::new(),
            transports: Vec::new(),
        }
    }

    /// Creates the IP interface of a port.
    fn add(&mut self, slot: PortSlot, rng: &mut dyn Rng) {
        let (index, tls) = (self.ports.len(), self.tls.clone());
        self.networks.push(Network::new(&slot, index, self.config, tls, seed(rng), self.now));
        self.ports.push(slot);
    }

    /// Opens Ethernet ports. Those that fail are logged and unclaimed.
    pub fn open_ports(&mut self, found: Vec<Device>, resources: &mut Resources) {
        for device in found {
            let location = device.location().to_string();
            let (config, index) = (self.config, self.ports.len());
            let mtu = |mac| config.net(index, mac, &location).mtu;
            let clock = MachineClock(&*resources.machine);
            match device.open_any_port(&mut *resources.platform, &mtu, &clock) {
                Ok(port) => self.attach(port, &location, device.driver(), resources),
                Err(error) => {
                    log::error!("{location}: {error}");
                    let failed = UnclaimedDevice::failed(location, error.to_string());
                    resources.unclaimed.push(failed);
                }
            }
        }
    }

    /// Assigns an open port to a loop, and creates its IP interface.
    pub fn attach(
        &mut self,
        port: OpenedPort,
        location: &str,
        driver: &'static str,
        resources: &mut Resources,
    ) {
        let slot = self.assign(port, location.into(), driver, resources);
        self.add(slot, &mut *resources.rng);
    }

    /// Assigns a port to a loop. If the first loop is to own it, opens its card.
    fn assign(
        &mut self,
        port: OpenedPort,
        location: String,
        driver: &'static str,
        resources: &mut Resources,
    ) -> PortSlot {
        let Resources { machine, platform, rng, .. } = resources;
        let (config, index) = (self.config, self.ports.len());
        let net = config.net(index, port.port().mac(), &location);
        let (place, name) = (self.loops.own.len(), format!("net{index}"));
        let port = tagged_port::on_vlan(port, net.vlan, &name);
        let mut found = Found { config, arena: platform.arena(), rng: &mut **rng };
        let port = match self.cards.inspect(port, place, &name, &net, &mut found) {
            PortUse::Free(port) => port,
            PortUse::Opened(port) => {
                return self.loops.keep(port, index, location, driver, config);
            }
        };
        let mut split = |port: &mut dyn Port, more: usize| {
            let mut key = HashKey::default();
            key.fill_with(|| rng.next_u32());
            port.split(more, &key, &mut **platform, &MachineClock(&**machine))
        };
        self.loops.assign(port, index, location, driver, config, &mut split)
    }

    /// Opens the configured RapidIO ports.
    pub fn open_rapidio(&mut self, found: Vec<Device>, resources: &mut Resources) {
        let Resources { platform, rng, unclaimed, .. } = resources;
        for one in rapidio::open(self.config, found, &mut **platform, unclaimed) {
            let (index, location) = (self.ports.len(), one.port.location.clone());
            let (port, driver) = (Box::new(one.rionet), one.port.driver);
            let slot = self.loops.keep(port, index, location, driver, self.config);
            self.rapidio.push(one.port.at(slot.place));
            self.add(slot, &mut **rng);
        }
    }

    /// Opens the configured bridges, with the DMA engines `engines`.
    pub fn open_bridges(
        &mut self,
        found: Vec<Device>,
        engines: Vec<Device>,
        resources: &mut Resources,
    ) {
        let Resources { machine, platform, rng, unclaimed, .. } = resources;
        let clock = MachineClock(&**machine);
        let engines = Engines::new(engines, &clock);
        let (config, networks) = (self.config, &mut self.networks);
        let opened =
            Bridge::open(config, found, engines, &mut **platform, networks, &mut **rng, unclaimed);
        for (mut transport, ethernet) in opened.transports {
            let (index, location) = (self.ports.len(), transport.location().to_string());
            let (port, driver) = (Box::new(ethernet), transport.driver());
            let slot = self.loops.keep(port, index, location, driver, config);
            transport.set_place(slot.place);
            self.transports.push(transport);
            self.add(slot, &mut **rng);
        }
        for (bridge, ntrdma) in opened.ntrdma {
            let index = self.ports.len();
            if let Some(slot) = self.loops.assign_bridge(bridge, ntrdma, index) {
                self.add(slot, &mut **rng);
            }
        }
    }

    /// Listens for the TCP connections of measuring tools, on the interfaces of the first loop.
    pub fn listen_for_tools(&mut self) {
        for (network, slot) in self.networks.iter_mut().zip(&self.ports) {
            if !slot.is_first_alone() {
                log::info!("{}: measuring tools work only with RDMA CM there", slot.name);
                continue;
            }
            network.front = OfMeasure::hold(|| TcpControl::new(&mut network.interface));
        }
    }
}

/// Index in the first loop's plane of the port that the section `[[net]]` number `net` configures.
pub(super) fn place_of(config: &Config, ports: &[PortSlot], net: usize) -> Option<usize> {
    let net = config.net.get(net)?;
    let is_it = |(index, slot): &(usize, &PortSlot)| {
        let mentioned = config.mentioned_net(*index, slot.mac, &slot.location);
        mentioned.is_some_and(|mentioned| core::ptr::eq(mentioned, net))
    };
    let (_, slot) = ports.iter().enumerate().find(is_it)?;
    if slot.punt_port.is_none() { Some(slot.place) } else { slot.forwarding }
}
