//! The data plane of one loop: its share of the ports, with all that answers on them without the
//! control plane. Nothing of it is touched by another loop.

use super::bridge::{Bridge, TransportPort};
use super::cards::{self, Cards};
use super::linx::Linx;
use super::perf_responders::Services;
use super::ports::PlanePort;
use super::punt::PuntQueue;
use super::rapidio::RapidioPort;
use super::rdma_stack::RdmaStack;
use super::rping::Rping;
use super::storage::Storage;
use super::storage_cores::Seat;
use super::udp_engines::UdpEngines;
use crate::config::Config;
use crate::families::{OfMeasure, OfNtb};
use crate::loops::{Pace, Stage};
use crate::randomness::{EntropySources, Randomness};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use management::status::{BridgeStatus, PlaneReport, PortReport};
use net::PortAddresses;
use net::capture::Capture;
use ntrdma::Ntrdma;
use rand_core::RngCore;
use verbs::Provider;

/// How soon a loop that halts looks again for a DMA engine beside a bridge, which interrupts nobody.
const ENGINE: Duration = Duration::from_micros(50);

/// One loop's data plane.
pub(super) struct DataPlane {
    /// The present of this round.
    pub now: Instant,
    pub ports: Vec<PlanePort>,
    /// The links of ports were looked at since somebody asked.
    pub links_looked_at: bool,
    /// A frame of this round leaves somebody something to do.
    pub has_work: bool,
    /// Where the memory of sessions comes from: all planes share it.
    pub arena: Arena,
    pub rng: Box<dyn RngCore>,
    /// None if there are no ports, or RoCE is switched off.
    pub rdma_stack: Option<RdmaStack>,
    /// The ways to other appliances; their providers are of the set, in the same order.
    pub bridges: Vec<OfNtb<Bridge>>,
    /// RapidIO networks; their interfaces are among the ports.
    pub rapidio: Vec<RapidioPort>,
    /// Links to LINX nodes, of the first loop; None if the configuration has none.
    pub linx: Option<Box<Linx>>,
    /// Bridges to stock Linux hosts; likewise.
    pub transports: Vec<OfNtb<TransportPort>>,
    pub storage: Storage,
    /// The peers of measuring tools, if they are switched on.
    pub services: Option<OfMeasure<Services>>,
    /// The console's rping, if there is one.
    pub rping: Option<OfMeasure<Rping>>,
    /// Transports over UDP without verbs.
    pub udp_engines: UdpEngines,
    pub capture: Capture,
    pub pace: Pace,
    /// It serves nobody any more: the machine is about to end.
    pub ending: bool,
    /// No other loop runs.
    pub is_alone: bool,
}

/// What the plane of another core is made from, on that core.
pub(super) struct Settings {
    pub config: Config,
    pub arena: Arena,
    /// Of its random numbers.
    pub seed: [u8; 32],
    /// What they are reseeded from.
    pub entropy: EntropySources,
    /// What it serves storage with, if it does.
    pub storage: Option<Seat>,
}

impl DataPlane {
    /// A plane of another core than the first, over `ports` and bridges.
    pub fn new(
        settings: Settings,
        ports: Vec<PlanePort>,
        bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
        cards: Cards,
        now: Instant,
    ) -> Self {
        let Settings { config, arena, seed, entropy, storage } = settings;
        let mut rng = Randomness::new(seed, entropy);
        let (mut bridges, ntrdma): (Vec<_>, Vec<_>) = bridges.into_iter().unzip();
        let mut rdma_stack = config
            .roce
            .enabled
            .then(|| RdmaStack::new(&config, &ports, ntrdma, false, &mut rng))
            .flatten();
        bridges.retain(|_| rdma_stack.is_some());
        if let Some(rdma_stack) = &mut rdma_stack {
            cards.give(&mut rdma_stack.providers);
        }
        let services = Services::of(&config, rdma_stack.as_mut());
        let storage = match (storage, &mut rdma_stack) {
            (Some(seat), Some(stack)) => Storage::following(seat, &mut stack.providers),
            _ => Storage::default(),
        };
        let mut plane = DataPlane {
            now,
            ports,
            links_looked_at: false,
            has_work: false,
            arena,
            rng: Box::new(rng),
            rdma_stack,
            bridges,
            rapidio: Vec::new(),
            linx: None,
            transports: Vec::new(),
            storage,
            services,
            rping: None,
            udp_engines: UdpEngines::default(),
            capture: Capture::new(),
            pace: Pace::new(Duration::from_micros(config.system.idle_after_us.into()), now),
            ending: false,
            is_alone: false,
        };
        plane.wait_for_ports(false);
        plane
    }

    /// Heeds what can be changed while it runs.
    pub fn configure(&mut self, quiet_time: Duration, echo: bool) {
        self.pace.set_quiet_time(quiet_time);
        self.ports.iter_mut().for_each(|slot| slot.echo = echo);
    }

    /// What is told of it.
    pub fn report(&self) -> PlaneReport {
        let mut report = PlaneReport::default();
        self.report_into(&mut report);
        report
    }

    /// As [`DataPlane::report`], into one that was made before: allocates nothing then.
    pub fn report_into(&self, report: &mut PlaneReport) {
        report.counters = self.pace.counters;
        report.ports.clear();
        report.ports.extend(self.ports.iter().enumerate().map(|(place, slot)| PortReport {
            counters: slot.port.counters(),
            echoes: slot.echoes,
            card: self.rdma_stack.as_ref().and_then(|stack| cards::report(stack, place)),
        }));
    }

    /// What is told of its bridges; it is that of core `core`.
    pub fn bridge_statuses(&self, core: usize) -> impl Iterator<Item = BridgeStatus> {
        let stacks = self.rdma_stack.iter();
        let ntrdma = stacks.flat_map(|rdma_stack| rdma_stack.providers.bridges());
        self.bridges.iter().zip(ntrdma).map(move |(bridge, ntrdma)| bridge.status(ntrdma, core))
    }

    /// Queues the control plane's frames for a port; how many.
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

    /// Whether a port, a bridge, or another loop that has to do with volumes, has something that was not taken
    /// yet.
    #[inline]
    pub fn pending(&self) -> bool {
        self.bridges.iter().any(|bridge| bridge.pending())
            || self.ports.iter().any(|slot| slot.port.pending())
            || self.cards_pending()
            || !self.is_alone && self.storage.pending()
    }

    /// Whether nobody here but cards, and what is served over them, has anything to do now and then.
    pub fn has_cards_alone(&self) -> bool {
        self.bridges.is_empty()
            && self.rapidio.is_empty()
            && self.transports.is_empty()
            && self.linx.is_none()
            && self.services.is_none()
            && self.rping.is_none()
            && self.udp_engines.is_empty()
            && self.storage.remote_storage.is_none()
            && !self.links_looked_at
            && !self.ending
    }

    /// Whether a card that does RoCE itself has done something that was not taken in.
    #[inline(always)]
    pub fn cards_pending(&self) -> bool {
        self.rdma_stack.as_ref().is_some_and(|stack| stack.providers.cards_pending())
    }

    /// Frees memory of volumes that are no more, once nothing points into it.
    #[inline]
    pub fn free_retired(&mut self, now: Instant) {
        if self.storage.has_retired() {
            let provider = self.rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers);
            self.storage.free_retired(&mut self.arena, provider, now);
        }
    }

    /// Ends all RDMA connections in order, and serves nobody any more.
    pub fn shut_down(&mut self, now: Instant) {
        self.ending = true;
        self.rapidio.iter_mut().for_each(|one| one.end_point.leave());
        if let Some(rdma_stack) = &mut self.rdma_stack {
            rdma_stack.providers.disconnect_all(now);
        }
    }

    /// Tells the machines across bridges that the link is over, after all else was said: nothing goes over it
    /// any more.
    pub fn leave_bridges(&mut self) {
        self.transports.iter_mut().for_each(|one| one.leave());
        let Some(rdma_stack) = &mut self.rdma_stack else { return };
        for (number, bridge) in self.bridges.iter_mut().enumerate() {
            if let Some(ntrdma) = rdma_stack.providers.ntrdma_mut(number) {
                ntrdma.shut_down(bridge.device.bridge());
            }
        }
    }

    /// Whether all peers know that their connections are over, and no port has frames that it has not sent.
    pub fn is_shut_down(&mut self) -> bool {
        self.rdma_stack.as_ref().is_none_or(|rdma_stack| rdma_stack.providers.is_disconnected())
            && !self.ports.iter_mut().any(|slot| slot.port.is_sending())
    }

    /// Whether every port and bridge can end a halt.
    pub fn wakes(&self) -> bool {
        self.bridges.iter().all(|bridge| bridge.device.wakes())
            && self.ports.iter().all(|slot| slot.port.wakes())
    }

    /// Has ports and bridges raise interrupts, or not.
    #[inline]
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.bridges.iter_mut().for_each(|bridge| bridge.device.set_interrupts(wanted));
        self.ports.iter_mut().for_each(|slot| slot.port.set_interrupts(wanted));
        if let Some(rdma_stack) = self.rdma_stack.as_mut().filter(|_| wanted) {
            rdma_stack.providers.arm_cards();
        }
    }

    /// Has devices raise interrupts, before a halt. Where a message is under way, whose next frames leave
    /// nothing to do until the last, that one is waited for: true then, and the halt must not be long,
    /// because it may not come, and other frames may.
    #[inline]
    pub fn ask_for_interrupts(&mut self) -> bool {
        self.set_interrupts(true);
        let Some(rdma_stack) = &mut self.rdma_stack else { return false };
        rdma_stack.providers.roce.set_timers_right();
        let expected = rdma_stack.providers.roce.expected();
        if let Some((port, frames)) = expected.filter(|&(_, frames)| frames > 1)
            && let Some(slot) = self.ports.get_mut(port)
        {
            slot.port.interrupt_at(frames);
            return true;
        }
        false
    }

    /// Runs the provider's timers, if one has come; true if there was one and it left nothing to do, as
    /// most do: they are moved far more often than they expire. An ACK that is said again is sent.
    pub fn expires_idly(&mut self, now: Instant) -> bool {
        let Some(rdma_stack) = &mut self.rdma_stack else { return false };
        let roce = &mut rdma_stack.providers.roce;
        if roce.poll_timeout().is_none_or(|at| at > now) || roce.run_due(now) {
            return false;
        }
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

    /// Whether the frames of this round leave nothing to do. Measuring tools look for what was written to
    /// their memory by themselves.
    pub fn is_quiescent(&self) -> bool {
        !self.has_work && self.services.is_none() && self.rping.is_none() && !self.cards_pending()
    }

    /// When something here is due though nothing arrives.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = self.ports.iter().map(|slot| slot.link_due).min();
        let udp = self.udp_engines.due();
        let memory = self.retired_timeout();
        let transports = self.transports.iter().map(|one| one.deadline(self.now)).min();
        let rapidio = self.rapidio.iter().filter_map(|one| one.end_point.deadline()).min();
        let engines = self.bridges.iter().any(|bridge| bridge.device.is_busy());
        let engines = engines.then(|| self.now + ENGINE);
        let fabric = self.fabric_timeout();
        Instant::first([link, rapidio, transports, engines, fabric, udp, memory])
    }

    /// Takes note of the addresses that a port has now.
    pub fn set_addresses(&mut self, place: usize, local: &PortAddresses) {
        // The bridge has no use for them.
        let Some(slot) = self.ports.get_mut(place) else { return };
        slot.local = local.clone();
        if let Some(rdma_stack) = &mut self.rdma_stack {
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
