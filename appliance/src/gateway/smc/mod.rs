//! SMC-R on the ports of the first loop: the engine and its users. It is between the data plane, whose provider carries
//! its bytes, and the IP interfaces, whose TCP connections carry its handshakes. So it has a stage of its own in a
//! round. It exists only if the configuration uses it.
//!
//! A round polls only users with events: interfaces name the listeners and connectors with events, the engine's events
//! name their owner, and timers are in a heap.
//!
//! Ports of other loops are served over TCP alone.

mod rules;

use super::network::Network;
use super::plane::DataPlane;
use super::ports::PortSlot;
use super::rdma_stack::RdmaStack;
use super::service::{Service, ServiceContext};
use crate::config::{self, Config, Size};
use crate::families::{self, OfSmc, SMC};
use core::net::IpAddr;
use drivers::hal::{Hold, Instant};
use management::status::SmcStatus;
use messaging::Users;
use messaging::messages::Messages;
use messaging::relay::{Interfaces, Notice, World};
use messaging::rio_cm::RioCmTransport;
use net::Neighbours;
use net::hosts::Hosts;
use net::tcp::Limits;
use net::{Interface, Resolution};
use provider_set::ProviderSet;
use rules::Rules;
use smcr::admission::{Admission, share_of};
use smcr::echo::Echo;
use smcr::engine::{self, BATCH, Device, Engine, Subnet};
use verbs::{Ctx, PathMtu};

/// Bytes of each buffer of a TCP connection of echo and discard: eleven segments for a client without SMC, so most of
/// them are sent in a batch.
const SERVICE_BUFFER: usize = 16 << 10;

/// SMC-R and its users.
pub(super) struct Smc {
    pub engine: Engine,
    /// Echo and discard, if enabled, and the rules.
    pub users: Users,
    pub rules: Rules,
    /// Buffer for one step of a relay.
    piece: Vec<u8>,
    /// Completions may be left after the last poll.
    more: bool,
    /// Generations of the interfaces for which the engine's devices were set.
    generations: Vec<u64>,
}

impl Smc {
    /// Creates it as configured, with these rules, on a machine with `memory` bytes. Errors are logged. None if it is not
    /// needed.
    pub fn of(
        config: &Config,
        rules: &[config::Rule],
        memory: u64,
        plane: &mut DataPlane,
        networks: &mut [Network],
    ) -> Option<OfSmc<Self>> {
        if !config.smc.services && config.rule.is_empty() {
            return None;
        }
        if !SMC {
            log::error!("smc: {}", families::missing("smc"));
            return None;
        }
        let mut ctx = context(plane).or_else(|| {
            log::error!("smc: RoCE is switched off, or there is no port");
            None
        })?;
        let settings = settings(config, ctx.arena.capacity() as u64);
        let made = Engine::new(settings, Vec::new(), &mut ctx);
        let mut engine = made.inspect_err(|why| log::error!("smc: not available: {why}")).ok()?;
        let pool = rules::pool(memory);
        engine.admission = Admission::new(pool, config.limits.connections_per_host);
        let offers = offers(&config.smc);
        if !offers {
            log::warn!(
                "smc: neither smc.ueid nor smc.version1 is set: all clients are served over TCP"
            );
        }
        let connections = config.smc.connections.into();
        let limits = Limits { connections, receive: SERVICE_BUFFER, transmit: SERVICE_BUFFER };
        let share = || share_of(config.smc.connections.into());
        let per_host = config.smc.connections_per_host.map_or_else(share, u32::from);
        let served = if config.smc.services { networks.len() } else { 0 };
        let mut users = Users::default();
        for (at, network) in networks.iter_mut().enumerate().take(served) {
            let (hosts, interface) = (Hosts::new(config.smc.hosts.clone()), &mut network.interface);
            for discard in [false, true] {
                let limits = (limits, per_host);
                let make = |owner| Echo::new(interface, discard, offers, limits, &hosts, owner);
                users.add_service(at, make);
            }
        }
        let mut smc = OfSmc::hold(|| Smc {
            engine,
            users,
            rules: Rules::new(config.smc.clone(), pool),
            piece: Vec::new(),
            more: false,
            generations: Vec::new(),
        })?;
        let now = plane.now;
        smc.apply_rules(rules, networks, plane, now);
        Some(smc)
    }

    /// Starts these rules, whose names are resolved, and ends others.
    pub fn apply_rules(
        &mut self,
        wanted: &[config::Rule],
        networks: &mut [Network],
        plane: &mut DataPlane,
        now: Instant,
    ) {
        let Some((mut ctx, mut messages)) = carriers(plane, now) else { return };
        let Smc { engine, users, rules, piece, .. } = self;
        let (interfaces, messages) = (&mut AllInterfaces(networks), &mut messages);
        let mut world = World { interfaces, engine, piece, ctx: &mut ctx, messages };
        rules.apply(wanted, users, &mut world);
        self.engine.flush(&mut ctx);
    }

    /// Status for reports, with that of the provider if there is one.
    pub fn status(&self, rdma_stack: Option<&RdmaStack>) -> SmcStatus<'_> {
        let kept = rdma_stack.map(|rdma_stack| self.engine.kept(&rdma_stack.providers.roce));
        let left_out = &self.rules.left_out;
        SmcStatus { engine: &self.engine, users: &self.users, left_out, kept }
    }

    /// Sets the engine's devices and subnets, when addresses have changed.
    fn update_devices(
        &mut self,
        networks: &[Network],
        ports: &[PortSlot],
        config: &Config,
        provider: &ProviderSet,
    ) {
        let generations = networks.iter().map(|network| network.interface.generation());
        if generations.clone().eq(self.generations.iter().copied()) {
            return;
        }
        self.generations = generations.collect();
        let device = |(port, (slot, network)): (usize, (&PortSlot, &Network))| {
            let (ip, mac) = (*network.interface.local().v4.first()?, slot.mac);
            if slot.place == PortSlot::NO_PORT {
                // Without a PNET ID, because only the bridge's peer is reachable.
                let number: usize = slot.location.strip_prefix("ntb")?.parse().ok()?;
                let address = config.ntb.get(number)?.address?;
                let is_there = provider.bridges().any(|ntrdma| ntrdma.local() == address);
                return is_there.then_some(Device {
                    ip,
                    address,
                    mac,
                    path_mtu: PathMtu::Mtu4096,
                    pnet: None,
                });
            }
            let pnet = config.net(port, mac, &slot.location).pnetid;
            let [(mtu, _), _] = network.interface.mtus();
            let path_mtu = PathMtu::for_ethernet(mtu).filter(|_| slot.is_first_alone())?;
            Some(Device { ip, address: ip.into(), mac, path_mtu, pnet })
        };
        let devices = ports.iter().zip(networks).enumerate().filter_map(device);
        self.engine.set_devices(devices.collect());
        let mut subnets = Vec::new();
        for network in networks.iter().filter(|_| config.smc.version1) {
            let local = network.interface.local();
            let Some(&device) = local.v4.first() else { continue };
            // The GID of version 1 is the link-local address, which is not in use before duplicate address detection.
            if !local.v6.contains(&net::link_local(local.mac)) {
                continue;
            }
            for cidr in network.interface.addresses() {
                let address: IpAddr = cidr.address().into();
                // Link-local addresses are the same subnet everywhere.
                if !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
                    subnets.push(Subnet::new(device, address, cidr.prefix_len()));
                }
            }
        }
        self.engine.set_subnets(subnets);
    }
}

impl Service for Smc {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { networks, plane, ports, config, refused, now, .. } = around;
        let Some((mut ctx, mut messages)) = carriers(plane, *now) else { return 0 };
        self.update_devices(networks, ports, config, ctx.provider);
        let completed = self.engine.poll(&mut ctx);
        self.more = completed >= BATCH;
        let timers = self.engine.handle_timeout(&mut ctx, &mut AllInterfaces(networks));
        let Smc { engine, users, piece, .. } = self;
        let (interfaces, messages) = (&mut AllInterfaces(networks), &mut messages);
        let mut world = World { interfaces, engine, piece, ctx: &mut ctx, messages };
        let done = completed + usize::from(timers) + users.poll(&mut world);
        if done > 0 {
            self.engine.flush(&mut ctx);
            while let Some(notice) = self.engine.poll_notice() {
                log::info!("{notice}");
            }
            while let Some((name, notice)) = self.users.poll_notice() {
                log_notice(name, &notice);
            }
        }
        let refusals = &mut self.engine.admission.refusals;
        if !refusals.is_empty() {
            refused.take(refusals, *now);
        }
        done
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        let more = self.more.then_some(Instant::ZERO);
        Instant::first([more, self.users.poll_timeout(), self.engine.poll_timeout()])
    }

    /// It is polled in brief rounds.
    fn allows_brief_rounds(&self) -> bool {
        true
    }

    fn shut_down(&mut self, around: &mut ServiceContext<'_>) {
        let Some((mut ctx, mut messages)) = carriers(around.plane, around.now) else { return };
        self.engine.shut_down(&mut ctx);
        self.engine.flush(&mut ctx);
        let Smc { engine, users, piece, .. } = self;
        let (interfaces, messages) = (&mut AllInterfaces(around.networks), &mut messages);
        let mut world = World { interfaces, engine, piece, ctx: &mut ctx, messages };
        users.shut_down(&mut world);
    }

    fn is_shut_down(&self) -> bool {
        self.engine.is_shut_down()
    }
}

/// Whether the configuration allows SMC-R: version 1, or an EID for version 2.
fn offers(smc: &config::Smc) -> bool {
    smc.version1 || !smc.ueid.is_empty()
}

/// Code of a receive buffer's size.
fn code_of(size: Size) -> u8 {
    (size.0 >> 14).trailing_zeros() as u8
}

/// The engine's settings. `memory` is the size of the arena.
fn settings(config: &Config, memory: u64) -> engine::Config {
    let defaults = engine::Config::default();
    let mut hostname = [b' '; 32];
    for (to, from) in hostname.iter_mut().zip(config.system.hostname.as_str().bytes()) {
        *to = from;
    }
    engine::Config {
        eids: config.smc.ueid.iter().map(|ueid| ueid.0).collect(),
        hostname,
        rmb_size: code_of(config.smc.receive_buffer),
        send_buffer: config.smc.send_buffer.0 as u32,
        max_links: 2,
        memory_per_host: memory - memory / 4,
        ..defaults
    }
}

/// Context of the engine; None without RoCE.
fn context(plane: &mut DataPlane) -> Option<Ctx<'_, ProviderSet>> {
    let provider = &mut plane.rdma_stack.as_mut()?.providers;
    Some(Ctx { provider, arena: &mut plane.arena, now: plane.now, rng: &mut *plane.rng })
}

/// Context of the engine, and message transports, as carriers of connections; None without RoCE.
#[inline]
fn carriers<'a>(
    plane: &'a mut DataPlane,
    now: Instant,
) -> Option<(Ctx<'a, ProviderSet>, Messages<'a>)> {
    let provider = &mut plane.rdma_stack.as_mut()?.providers;
    let ctx = Ctx { provider, arena: &mut plane.arena, now, rng: &mut *plane.rng };
    let linx = plane.linx.as_mut().map(|linx| linx.transport(now));
    let usnic = plane.udp_engines.rules(now);
    let has_rapidio = !plane.rapidio.is_empty();
    let rio_cm = has_rapidio.then_some(RioCmTransport { ports: &mut plane.rapidio, now });
    Some((ctx, Messages { linx, usnic, rio_cm }))
}

#[cold]
fn log_notice(name: &str, notice: &Notice) {
    match notice {
        Notice::Backend { backend, up } => {
            let state = if *up { "answers" } else { "does not answer" };
            log::warn!("rule {name}: {backend} {state}");
        }
        Notice::Ended { why, connections, lost } => {
            log::warn!(
                "rule {name}: connections ended: {connections}, the last because {why}; messages lost: {lost}"
            );
        }
    }
}

/// All interfaces, for rules and to resolve neighbours.
struct AllInterfaces<'a>(&'a mut [Network]);

impl AllInterfaces<'_> {
    fn towards(&mut self, remote: IpAddr) -> Option<&mut Interface> {
        let mut interfaces = self.0.iter_mut().map(|network| &mut network.interface);
        interfaces.find(|interface| interface.next_hop(remote).is_some())
    }
}

impl Interfaces for AllInterfaces<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn get(&mut self, at: usize) -> &mut Interface {
        &mut self.0[at].interface
    }
}

impl Neighbours for AllInterfaces<'_> {
    fn address_towards(&self, remote: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        let mut interfaces = self.0.iter().map(|network| &network.interface);
        let interface = interfaces.find(|interface| interface.next_hop(remote).is_some())?;
        interface.address_towards(remote, preferred)
    }

    fn resolve(&mut self, remote: IpAddr, now: Instant) -> Resolution {
        self.towards(remote).map_or(Resolution::NoRoute, |interface| interface.resolve(remote, now))
    }
}
