//! The data plane of one loop: its ports, and all users of them that work without the control plane. No other loop
//! accesses it.

use super::bridge::{Bridge, TransportPort};
use super::cards::{self, Cards};
use super::linx::Linx;
use super::plane_user::Setup;
use super::plane_users::PlaneUsers;
use super::ports::PlanePort;
use super::punt::PuntQueue;
use super::rapidio::RapidioPort;
use super::rdma_stack::RdmaStack;
use super::storage::Storage;
use super::storage_cores::Seat;
use super::udp_engines::UdpEngines;
use crate::config::Config;
use crate::families::OfNtb;
use crate::loops::{Pace, Stage};
use crate::randomness::{EntropySources, Randomness};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use management::status::{BridgeStatus, PlaneReport, PortReport};
use net::PortAddresses;
use net::capture::Capture;
use ntrdma::Ntrdma;
use rand_core::Rng;
use verbs::{Ctx, Provider};

/// Poll interval of a bridge's DMA engine during a halt, because the engine raises no interrupts.
const ENGINE: Duration = Duration::from_micros(50);

/// One loop's data plane.
pub(super) struct DataPlane {
    /// Time of this round.
    pub now: Instant,
    pub ports: Vec<PlanePort>,
    /// Links of ports were polled since the control plane last checked this.
    pub links_polled: bool,
    /// A frame of this round leaves work.
    pub has_work: bool,
    /// DMA memory, which all planes share.
    pub arena: Arena,
    pub rng: Box<dyn Rng>,
    /// None if there are no ports, or RoCE is switched off.
    pub rdma_stack: Option<RdmaStack>,
    /// Bridges to other appliances. Their providers are in the set, in the same order.
    pub bridges: Vec<OfNtb<Bridge>>,
    /// RapidIO networks; their interfaces are among the ports.
    pub rapidio: Vec<RapidioPort>,
    /// Links to LINX nodes, of the first loop; None if the configuration has none.
    pub linx: Option<Box<Linx>>,
    /// Bridges to stock Linux hosts. Their interfaces are among the ports.
    pub transports: Vec<OfNtb<TransportPort>>,
    pub storage: Storage,
    /// Other users of verbs than the storage server.
    pub users: PlaneUsers,
    /// Transports over UDP without verbs.
    pub udp_engines: UdpEngines,
    pub capture: Capture,
    pub pace: Pace,
    /// The machine is about to end: no more requests are served.
    pub ending: bool,
    /// No other loop runs.
    pub is_alone: bool,
}

/// Arguments to create the plane of another core, on that core.
pub(super) struct Settings {
    pub config: Config,
    pub arena: Arena,
    /// Seed of its random numbers.
    pub seed: [u8; 32],
    /// Sources from which they are reseeded.
    pub entropy: EntropySources,
    /// Resources to serve storage, if it does.
    pub storage: Option<Seat>,
}

/// Ports and bridges of a loop, and its opened cards.
#[derive(Default)]
pub(super) struct Devices {
    pub ports: Vec<PlanePort>,
    pub bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
    pub cards: Cards,
}

impl DataPlane {
    /// Creates a plane over its devices, with RDMA if it is configured, and without users. `wants_rdma`: even if it has
    /// no devices (see [`RdmaStack::new`]).
    pub fn over(
        devices: Devices,
        config: &Config,
        wants_rdma: bool,
        arena: Arena,
        mut rng: Box<dyn Rng>,
        now: Instant,
    ) -> Self {
        let Devices { ports, bridges, cards } = devices;
        let (mut bridges, ntrdma): (Vec<_>, Vec<_>) = bridges.into_iter().unzip();
        let mut rdma_stack = match config.roce.enabled {
            true => RdmaStack::new(config, &ports, ntrdma, wants_rdma, &mut *rng),
            false => None,
        };
        bridges.retain(|_| rdma_stack.is_some());
        if let Some(rdma_stack) = &mut rdma_stack {
            cards.give(&mut rdma_stack.providers);
        }
        DataPlane {
            now,
            ports,
            links_polled: false,
            has_work: false,
            arena,
            rng,
            rdma_stack,
            bridges,
            rapidio: Vec::new(),
            linx: None,
            transports: Vec::new(),
            storage: Storage::default(),
            users: PlaneUsers::default(),
            udp_engines: UdpEngines::default(),
            capture: Capture::new(),
            pace: Pace::new(Duration::from_micros(config.system.idle_after_us.into()), now),
            ending: false,
            is_alone: true,
        }
    }

    /// Creates the plane of another core than the first.
    pub fn of_core(settings: Settings, devices: Devices, now: Instant) -> Self {
        let Settings { config, arena, seed, entropy, storage } = settings;
        let rng = Box::new(Randomness::new(seed, entropy));
        let mut plane = DataPlane::over(devices, &config, false, arena, rng, now);
        if let (Some(seat), Some(stack)) = (storage, &mut plane.rdma_stack) {
            plane.storage = Storage::following(seat, &mut stack.providers);
        }
        plane.add_users(&config, false);
        plane.wait_for_ports(false);
        plane
    }

    /// Creates the configured users of verbs. `is_first`: the plane is the first loop's.
    pub fn add_users(&mut self, config: &Config, is_first: bool) {
        let DataPlane { users, rdma_stack: Some(stack), storage, arena, rng, now, .. } = self
        else {
            return;
        };
        let (provider, rng) = (&mut stack.providers, &mut **rng);
        let ctx = Ctx { provider, arena, now: *now, rng };
        *users = PlaneUsers::of(&mut Setup { config, is_first, storage, ctx });
    }

    /// Applies settings that can change at run time.
    pub fn configure(&mut self, quiet_time: Duration, echo: bool) {
        self.pace.set_quiet_time(quiet_time);
        self.ports.iter_mut().for_each(|slot| slot.echo = echo);
    }

    /// Status for reports.
    pub fn report(&self) -> PlaneReport {
        let mut report = PlaneReport::default();
        self.report_into(&mut report);
        report
    }

    /// As [`DataPlane::report`], into an existing report: allocates nothing.
    pub fn report_into(&self, report: &mut PlaneReport) {
        report.counters = self.pace.counters;
        report.ports.clear();
        report.ports.extend(self.ports.iter().enumerate().map(|(place, slot)| PortReport {
            counters: slot.port.counters(),
            life: slot.port.life(),
            echoes: slot.echoes,
            card: self.rdma_stack.as_ref().and_then(|stack| cards::report(stack, place)),
        }));
    }

    /// Status of its bridges. `core` is the number of its core.
    pub fn bridge_statuses(&self, core: usize) -> impl Iterator<Item = BridgeStatus> {
        let stacks = self.rdma_stack.iter();
        let ntrdma = stacks.flat_map(|rdma_stack| rdma_stack.providers.bridges());
        let measures = self.users.bridge_measures.as_ref();
        self.bridges.iter().zip(ntrdma).enumerate().map(move |(place, (bridge, ntrdma))| {
            let measured = measures.map_or(Vec::new(), |measures| measures.results(place));
            bridge.status(ntrdma, core, measured)
        })
    }

    /// Queues the control plane's frames for a port. Returns their number.
    pub fn transmit_for_control(
        &mut self,
        place: usize,
        punt_queue: &mut PuntQueue,
        now: Instant,
    ) -> usize {
        let slot = &mut self.ports[place];
        punt_queue.set_link(slot.link);
        let capture = &mut self.capture;
        punt_queue.transmit(|packet| {
            slot.port.transmit(packet)?;
            capture.sent(place, packet, now);
            Ok(())
        })
    }

    /// Whether work of a port, a bridge, a card, or of another loop about volumes is pending.
    #[inline]
    pub fn pending(&self) -> bool {
        self.bridges.iter().any(|bridge| bridge.pending())
            || self.ports.iter().any(|slot| slot.port.pending())
            || self.cards_pending()
            || !self.is_alone && self.storage.pending()
    }

    /// Whether only cards and the storage server need rounds.
    pub fn has_only_cards(&self) -> bool {
        self.bridges.is_empty()
            && self.rapidio.is_empty()
            && self.transports.is_empty()
            && self.udp_engines.is_empty()
            && self.users.is_empty()
            && !self.links_polled
            && !self.ending
    }

    /// Whether completions of a RoCE card are pending.
    #[inline]
    pub fn cards_pending(&self) -> bool {
        self.rdma_stack.as_ref().is_some_and(|stack| stack.providers.cards_pending())
    }

    /// Frees memory of deleted volumes, once nothing refers to it.
    #[inline]
    pub fn free_retired(&mut self, now: Instant) {
        if self.storage.has_retired() {
            let provider = self.rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers);
            self.storage.free_retired(&mut self.arena, provider, now);
        }
    }

    /// Disconnects all RDMA connections, and serves no more requests.
    pub fn shut_down(&mut self, now: Instant) {
        self.ending = true;
        self.rapidio.iter_mut().for_each(|one| one.end_point.leave());
        if let Some(rdma_stack) = &mut self.rdma_stack {
            rdma_stack.providers.disconnect_all(now);
        }
    }

    /// Notifies the machines across bridges that the link ends. Call it last: nothing is sent over the bridges
    /// afterwards.
    pub fn leave_bridges(&mut self) {
        self.transports.iter_mut().for_each(|one| one.leave());
        let Some(rdma_stack) = &mut self.rdma_stack else { return };
        for (number, bridge) in self.bridges.iter_mut().enumerate() {
            if let Some(ntrdma) = rdma_stack.providers.ntrdma_mut(number) {
                ntrdma.shut_down(bridge.device.bridge());
            }
        }
    }

    /// Whether all connections are disconnected, and no port has unsent frames.
    pub fn is_shut_down(&mut self) -> bool {
        self.rdma_stack.as_ref().is_none_or(|rdma_stack| rdma_stack.providers.is_disconnected())
            && !self.ports.iter_mut().any(|slot| slot.port.is_sending())
    }

    /// Whether every port and bridge can end a halt.
    pub fn wakes(&self) -> bool {
        self.bridges.iter().all(|bridge| bridge.device.wakes())
            && self.ports.iter().all(|slot| slot.port.wakes())
    }

    /// Enables or disables interrupts of ports and bridges.
    #[inline]
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.bridges.iter_mut().for_each(|bridge| bridge.device.set_interrupts(wanted));
        self.ports.iter_mut().for_each(|slot| slot.port.set_interrupts(wanted));
        if let Some(rdma_stack) = self.rdma_stack.as_mut().filter(|_| wanted) {
            rdma_stack.providers.arm_cards();
        }
    }

    /// Enables interrupts before a halt. In the middle of a message whose next frames leave no work until the last one,
    /// the device is to interrupt at the last one. Returns true then: the halt must be short, because that frame may be
    /// lost, and other frames may arrive.
    #[inline]
    pub fn ask_for_interrupts(&mut self) -> bool {
        self.set_interrupts(true);
        let Some(rdma_stack) = &mut self.rdma_stack else { return false };
        rdma_stack.providers.roce.set_timers_right_before(self.now);
        let expected = rdma_stack.providers.roce.expected();
        if let Some((port, frames)) = expected.filter(|&(_, frames)| frames > 1)
            && let Some(slot) = self.ports.get_mut(port)
        {
            slot.port.interrupt_at(frames);
            return true;
        }
        false
    }

    /// Handles the provider's expired timers. True if there was one and it left no work. Most leave none, because
    /// timers are postponed lazily. A repeated ACK is sent here.
    pub fn expires_idly(&mut self, now: Instant) -> bool {
        let Some(rdma_stack) = &mut self.rdma_stack else { return false };
        let roce = &mut rdma_stack.providers.roce;
        if roce.poll_timeout().is_none_or(|at| at > now) || roce.run_due(now) {
            return false;
        }
        // The loop was idle until now, so no other outdated entry is to end the rest of the halt.
        roce.set_timers_right();
        if !roce.wants_transmit() {
            return true;
        }
        let sent = self.transmit_fabric(now);
        self.flush();
        self.pace.counters.work(Stage::Transmit, sent);
        self.rdma_stack
            .as_ref()
            .is_some_and(|rdma_stack| !rdma_stack.providers.roce.wants_transmit())
    }

    /// Whether frames that leave no work move no timer but the provider's.
    pub fn frames_move_only_provider_timers(&self) -> bool {
        self.transports.is_empty() && self.rapidio.is_empty()
    }

    /// Whether the frames of this round leave no work.
    pub fn is_quiescent(&self) -> bool {
        !self.has_work && self.users.are_idle() && !self.cards_pending()
    }

    /// When the next timer expires, or a poll is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.provider_timeout(), self.timeout_of_others()])
    }

    /// As [`DataPlane::poll_timeout`], without the provider's timers.
    #[inline]
    pub fn timeout_of_others(&self) -> Option<Instant> {
        let link = self.ports.iter().map(|slot| slot.link_due).min();
        let udp = self.udp_engines.due();
        let memory = self.retired_timeout();
        let transports = self.transports.iter().map(|one| one.deadline(self.now)).min();
        let rapidio = self.rapidio.iter().filter_map(|one| one.end_point.deadline()).min();
        let engines = self.bridges.iter().any(|bridge| bridge.device.is_busy());
        let engines = engines.then(|| self.now + ENGINE);
        let server = self.storage.server.as_ref().and_then(|server| server.poll_timeout());
        let users = self.users.deadline();
        Instant::first([link, rapidio, transports, engines, server, users, udp, memory])
    }

    /// Limits the paths to hosts to packets of some bytes (layer 3), until a time.
    pub fn limit_paths(&mut self, paths: &[(IpAddr, usize, Instant)]) {
        let Some(rdma_stack) = &mut self.rdma_stack else { return };
        for &(ip, mtu, until) in paths {
            rdma_stack.providers.limit_path(ip, mtu, until);
        }
    }

    /// Sets the addresses of a port, and the largest packets of its network in bytes over IPv4 and over IPv6.
    pub fn set_addresses(&mut self, place: usize, local: &PortAddresses, mtus: [usize; 2]) {
        // An interface over a bridge has no port.
        let Some(slot) = self.ports.get_mut(place) else { return };
        slot.local = local.clone();
        self.udp_engines.limit_packets(place, mtus[0]);
        if let Some(rdma_stack) = &mut self.rdma_stack {
            rdma_stack.providers.set_mtus(place, mtus);
            let v4 = local.v4.iter().map(|&ip| ip.into());
            let v6 = local.v6.iter().map(|&ip| ip.into());
            if !rdma_stack.providers.set_addresses(place, v4.chain(v6).collect()) {
                log::warn!(
                    "a card has no room for all addresses of its port: RDMA uses the first ones"
                );
            }
        }
    }
}
