//! State of the first loop: everything the appliance owns except the IP interfaces, which are polled beside it. Reports
//! are made from it.

use super::disks::DiskSlot;
use super::linx::Linx;
use super::names::{Names, resolved_rules};
use super::network::Network;
use super::nvme::Nvme;
use super::path_probes::PathProbes;
use super::plane::DataPlane;
use super::plane_services::LinxStage;
use super::ports::{PortSlot, QueueSlot};
use super::punt::PuntPort;
use super::revisions::Waiting;
use super::services::Services;
use super::smc::Smc;
use super::time::Time;
use super::tls::Secure;
use super::watchdog::Keeper;
use super::worker::Worker;
use crate::audit::{Trail, Write};
use crate::config::disk::ConfigDisk;
use crate::config::{Config, Document, Lifecycle};
use crate::crash::History;
use crate::log_ring::LogRing;
use crate::refused::Refused;
use core::net::IpAddr;
use drivers::hal::{Disk, Instant, Platform, Port};
use management::UnclaimedDevice;
use management::orders::End;
use management::status::{Facts, WallClock};
use management::task::Task;
use net::Interface;
use net::refusal::Refusals;
use std::collections::VecDeque;

use crate::console::Progress;

/// A ping order of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingOrder {
    /// Target, number of requests, and bytes of data in each.
    Start(IpAddr, u16, u16),
    Stop,
}

/// The appliance's state, of which reports are made.
pub(super) struct State {
    pub platform: Box<dyn Platform>,
    pub log: &'static LogRing,
    pub facts: Facts,
    pub started: Instant,
    /// Time of this round.
    pub now: Instant,
    /// The wall clock.
    pub clock: WallClock,
    pub document: Document,
    /// Candidate, revisions and trial of the configuration.
    pub lifecycle: Lifecycle,
    /// The configuration as read or saved last.
    pub kept: Config,
    /// The configuration that is being saved.
    pub saving: Option<Config>,
    /// An order that waits for the config disk.
    pub waiting: Option<Waiting>,
    /// The audit log.
    pub audit: Trail,
    /// The block of the audit log that is being written.
    pub noting: Option<Write>,
    /// A trial is being written, after which the machine reboots.
    pub arming: bool,
    /// The config disk is being erased.
    pub wiping: bool,
    /// Errors of the configuration at boot.
    pub problems: Vec<String>,
    /// Parts of it that were left out.
    pub warnings: Vec<String>,
    /// The ports in the control plane.
    pub ports: Vec<PortSlot>,
    /// Further queues of ports, on other loops.
    pub queues: Vec<QueueSlot>,
    /// The data plane of this loop.
    pub plane: DataPlane,
    /// Services between the data plane and the IP interfaces.
    pub services: Services,
    /// Numbers of this loop's ports, by their indices in its plane.
    pub own_ports: Vec<usize>,
    /// The other loops.
    pub workers: Vec<Worker>,
    pub disks: Vec<DiskSlot>,
    /// Record of refusals.
    pub refused: Refused,
    /// Unused devices, and why.
    pub unclaimed: Vec<UnclaimedDevice>,
    /// TLS of the HTTP servers, if enabled.
    pub secure: Option<Secure>,
    /// Records of panics.
    pub crashes: History,
    /// The config disk, if there is one: number, and engine.
    pub config_disk: Option<(usize, ConfigDisk)>,
    /// Arguments of an `upgrade` that waits for the configuration to be saved.
    pub upgrade_after_save: Option<Vec<String>>,
    /// The machine's watchdog.
    pub watchdog: Keeper,
    /// The DNS client.
    pub names: Names,
    /// The time client.
    pub time: Time,
    /// Probes of paths for `doctor`.
    pub path_probes: PathProbes,
    /// Pending order to start or stop a ping.
    pub ping_order: Option<PingOrder>,
    /// A ping runs.
    pub pinging: bool,
    /// The running command.
    pub task: Task,
    /// Progress of the running command, for who follows it.
    pub progress: VecDeque<Progress>,
    /// When disks are polled next.
    pub capacity_due: Instant,
    /// A changed configuration is not applied to the interfaces yet.
    pub network_changed: bool,
    /// Changed rules are not applied yet.
    pub rules_changed: bool,
    /// Changed subsystems are not applied yet.
    pub subsystems_changed: bool,
    /// Changed links to LINX nodes are not applied yet.
    pub linx_changed: bool,
    pub end: Option<End>,
    /// Until when the end waits for the audit log.
    pub end_by: Option<Instant>,
}

impl State {
    /// Carries bytes of a bridge over TCP, in and out.
    #[inline]
    pub fn poll_tcp_bridge(&mut self, networks: &mut [Network], now: Instant) -> usize {
        self.plane.bridges.iter_mut().map(|bridge| bridge.poll_tcp(networks, now)).sum()
    }

    /// Applies the rules, if they have changed.
    pub fn poll_rules(&mut self, networks: &mut [Network], now: Instant) {
        if !core::mem::take(&mut self.rules_changed) {
            return;
        }
        let config = self.document.config();
        let rules = resolved_rules(config, Some(&self.names.resolver), networks);
        let (plane, smc) = (&mut self.plane, &mut self.services.smc);
        match smc {
            Some(smc) => smc.apply_rules(&rules, networks, plane, now),
            None if config.rule.is_empty() => {}
            None => *smc = Smc::of(config, &rules, self.facts.memory, plane, networks),
        }
    }

    /// Applies the subsystems, if they have changed.
    pub fn poll_subsystems(&mut self, networks: &mut [Network]) {
        if !core::mem::take(&mut self.subsystems_changed) {
            return;
        }
        let config = self.document.config();
        let nvme = &mut self.services.nvme;
        match nvme {
            Some(nvme) => nvme.configure(config, &self.plane),
            None => *nvme = Nvme::of(config, &mut self.plane, networks),
        }
    }

    /// Applies the links to LINX nodes, if they have changed, and the rules that use them.
    pub fn poll_linx(&mut self, networks: &mut [Network], now: Instant) {
        if !core::mem::take(&mut self.linx_changed) {
            return;
        }
        let config = self.document.config();
        let DataPlane { linx, rapidio, arena, rng, .. } = &mut self.plane;
        match linx {
            Some(linx) => {
                self.rules_changed |= linx.configure(config, rapidio, arena, networks, now);
            }
            None => {
                *linx = Linx::of(config, rapidio, arena, networks, &mut **rng, now);
                self.services.linx = linx.is_some().then(|| Box::new(LinxStage));
                self.rules_changed |= linx.is_some();
            }
        }
    }

    /// Whether rules wait for an end that is not in force yet.
    pub fn rules_wait(&self) -> bool {
        self.services.smc.as_ref().is_some_and(|smc| smc.rules.waits)
    }

    /// Whether work of a device, another loop or a bridge is pending.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        self.plane.pending()
            || self.disks.iter().any(|slot| slot.disk.pending())
            || self.punt_ports().any(Port::pending)
            || self.queues.iter().any(|queue| queue.punt_port.pending())
    }

    /// Whether every device can end a halt.
    pub fn devices_wake(&self) -> bool {
        self.plane.wakes() && self.disks.iter().all(|slot| slot.disk.wakes())
    }

    /// Connections to ports of other loops, and to bridges.
    fn punt_ports(&self) -> impl Iterator<Item = &PuntPort> {
        self.ports.iter().filter_map(|slot| slot.punt_port.as_ref())
    }

    /// Executes an order on every data plane: on this loop at once, on others soon.
    pub fn order_planes(&mut self, order: impl Fn(&mut DataPlane) + Clone + Send + 'static) {
        order(&mut self.plane);
        for worker in &mut self.workers {
            if !worker.send_order(order.clone()) {
                log::error!("core {}: an order was dropped, because too many wait", worker.core);
            }
        }
    }

    /// Collects the refusals of other loops.
    pub fn take_refusals_of_others(&mut self, now: Instant) {
        let mut refused = Refusals::default();
        self.workers.iter().for_each(|worker| worker.take_refusals(&mut refused));
        self.refused.take(&mut refused, now);
    }

    /// Collects the refusals of this loop, and makes the log print counted repeats.
    #[inline]
    pub fn take_refusals(&mut self, now: Instant) {
        self.log.settle(now);
        if let Some(server) = &mut self.plane.storage.server
            && !server.transport_mut().refusals().is_empty()
        {
            self.refused.take(server.transport_mut().refusals(), now);
        }
        if let Some(rdma_stack) = &mut self.plane.rdma_stack
            && !rdma_stack.providers.roce.refusals().is_empty()
        {
            self.refused.take(rdma_stack.providers.roce.refusals(), now);
        }
        if let Some(rdma_stack) = &mut self.plane.rdma_stack {
            for refusals in rdma_stack.providers.card_refusals() {
                if !refusals.is_empty() {
                    self.refused.take(refusals, now);
                }
            }
        }
        let bridges = self.plane.bridges.iter_mut().filter_map(|one| one.device.refusals());
        let linx = self.plane.linx.as_mut().map(|linx| linx.refusals());
        let tools = self.plane.users.perf_responders.as_mut().map(|tools| tools.refusals());
        for refusals in bridges.chain(linx).chain(tools) {
            if !refusals.is_empty() {
                self.refused.take(refusals, now);
            }
        }
        self.plane.udp_engines.take_refusals(|refusals| self.refused.take(refusals, now));
    }

    /// The MAC address of a port of this loop, if it has changed: that of a RapidIO port depends on its ID.
    pub fn poll_mac(&mut self, port: usize) -> Option<[u8; 6]> {
        let slot = &mut self.ports[port];
        let mac = self.plane.ports.get(slot.place).filter(|_| slot.punt_port.is_none())?.local.mac;
        (core::mem::replace(&mut slot.mac, mac) != mac).then_some(mac)
    }

    /// Polls the link of a port. True if it came up.
    pub fn poll_link(&mut self, port: usize) -> bool {
        let slot = &mut self.ports[port];
        let up = match &mut slot.punt_port {
            Some(punt_port) => punt_port.link_up(),
            None => self.plane.ports[slot.place].link,
        };
        slot.note_link(up)
    }

    /// Sends our addresses and MTUs on a port to its loops. False if a loop's ring is full.
    pub fn set_addresses(&mut self, port: usize, interface: &Interface) -> bool {
        let local = interface.local().clone();
        let mtus = interface.mtus().map(|(mtu, _)| mtu);
        if let Some(place) = self.ports[port].forwarding {
            if let Some(slot) = self.plane.ports.get_mut(place) {
                slot.local = local.clone();
            }
            self.plane.udp_engines.limit_packets(place, mtus[0]);
        }
        self.on_loops_of(port, move |plane, place| plane.set_addresses(place, &local, mtus))
    }

    /// Sends path MTUs below that of a port, as [`net::Interface::small_paths`] has them, to the loops of the port.
    /// False if a loop's ring is full.
    pub fn limit_paths(&mut self, port: usize, paths: Vec<(IpAddr, usize, Instant)>) -> bool {
        self.on_loops_of(port, move |plane, _| plane.limit_paths(&paths))
    }

    /// Lets each loop of a port execute `act`, with the index of the port there. False if a loop's ring is full: others
    /// may have executed it.
    fn on_loops_of(
        &mut self,
        port: usize,
        act: impl Fn(&mut DataPlane, usize) + Clone + Send + 'static,
    ) -> bool {
        let PortSlot { core: own, place, .. } = self.ports[port];
        let queues = self.queues.iter().filter(|queue| queue.port == port);
        let queues = queues.map(|queue| (queue.core, queue.place));
        for (core, place) in queues.chain([(own, place)]) {
            let act = act.clone();
            let is_sent = match self.workers.iter_mut().find(|worker| worker.core == core) {
                Some(worker) => worker.send_order(move |plane| act(plane, place)),
                None if core == own => {
                    act(&mut self.plane, place);
                    true
                }
                None => false,
            };
            if !is_sent {
                return false;
            }
        }
        true
    }

    /// Enables interrupts before a halt. True if the halt must be short (see [`DataPlane::ask_for_interrupts`]).
    #[inline]
    pub fn ask_for_interrupts(&mut self) -> bool {
        self.disks.iter_mut().for_each(|slot| slot.disk.set_interrupts(true));
        self.plane.ask_for_interrupts()
    }

    /// Disables interrupts of devices.
    #[inline]
    pub fn stop_interrupts(&mut self) {
        self.plane.set_interrupts(false);
        self.disks.iter_mut().for_each(|slot| slot.disk.set_interrupts(false));
    }

    /// Whether the control plane has work without a frame or a timer: requests for it, or users that need each round.
    pub fn wants_control(&mut self, now: Instant) -> bool {
        let plane = &mut self.plane;
        core::mem::take(&mut plane.links_polled)
            || plane.udp_engines.next_hops.take_queries()
            || plane.rdma_stack.as_mut().is_some_and(|stack| stack.pending_neighbours.take_new())
            || self.network_changed
            || self.names.wants_poll()
            || self.time.is_changed
            || self.ping_order.is_some()
            || self.path_probes.wants_poll()
            || plane.users.want_control(now)
            || self.ports.iter().any(PortSlot::has_news)
            || self.queues.iter().any(|queue| queue.punt_port.has_requests())
    }

    /// When the next timer expires, apart from the provider's.
    #[inline]
    pub fn timeout_of_others(&self) -> Option<Instant> {
        let lifecycle = &self.lifecycle;
        let waits = self.rules_wait() || lifecycle.trial.is_some() || !lifecycle.leaving.is_empty();
        let capacity = (waits || !self.disks.is_empty()).then_some(self.capacity_due);
        let changed = self.rules_changed || self.subsystems_changed || self.linx_changed;
        let rules = changed.then_some(Instant::ZERO);
        let plane = self.plane.timeout_of_others();
        let services = self.services.deadline(&self.plane);
        let end = self.end.map(|_| Instant::ZERO);
        let audit = Instant::first([self.audit.due(), end]);
        Instant::first([capacity, rules, services, plane, audit, self.watchdog.deadline()])
    }
}
