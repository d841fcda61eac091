//! The data plane of one loop: its share of the ports, with all that answers on them without the
//! control plane. Nothing of it is touched by another loop.

use super::alarm::Alarm;
use super::fabric::Fabric;
use super::ports::PlanePort;
use super::services::Services;
use super::storage::{Shares, Storage};
use super::uplink::Downlink;
use crate::config::Config;
use crate::loops::{LoopCounters, Pace};
use core::time::Duration;
use drivers::hal::{Arena, Instant, Port, PortCounters};
use net::Local;
use net::capture::Capture;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use rdma::rnbd::server::Common;

/// One loop's data plane.
pub(super) struct Plane {
    /// The present of this round.
    pub now: Instant,
    /// The other loops, to be called when a session of theirs is replaced by one here.
    pub others: Vec<Alarm>,
    /// State of the servers' directory that this plane has heeded.
    pub sessions_seen: u32,
    pub ports: Vec<PlanePort>,
    /// Where the memory of sessions comes from: all planes share it.
    pub arena: Arena,
    pub rng: Box<dyn RngCore>,
    /// None if there are no ports, or RoCE is switched off.
    pub fabric: Option<Fabric>,
    pub storage: Storage,
    /// The peers of measuring tools, if they are switched on.
    pub services: Option<Services>,
    pub capture: Capture,
    pub pace: Pace,
}

/// What the plane of another core is made from, on that core.
pub(super) struct Settings {
    /// Number of the core.
    pub core: usize,
    pub config: Config,
    pub arena: Arena,
    /// Of its random numbers.
    pub seed: [u8; 32],
    /// The volumes, as this loop has them.
    pub volumes: Shares,
    /// What the storage servers of all loops share.
    pub common: Common,
    /// The alarms of all loops.
    pub others: Vec<Alarm>,
}

/// What is told of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortReport {
    pub counters: PortCounters,
    pub echoes: u64,
}

impl Plane {
    /// A plane over `ports`.
    pub fn new(
        settings: Settings,
        ports: Vec<(usize, Box<dyn Port + Send>)>,
        now: Instant,
    ) -> Self {
        let Settings { core, config, arena, seed, volumes, common, others } = settings;
        let mut rng = ChaCha12Rng::from_seed(seed);
        let echo = config.services.udp_echo;
        let ports = ports.into_iter().map(|(number, port)| PlanePort::new(number, port, echo));
        let ports: Vec<_> = ports.collect();
        let mut fabric = config.roce.enabled.then(|| Fabric::new(&ports, &mut rng)).flatten();
        let mut storage = Storage::of_shares(volumes);
        storage.serve(&config, fabric.as_mut().map(|fabric| &mut fabric.roce), &common, core);
        let services = Services::of(&config, fabric.as_mut());
        Plane {
            now,
            others,
            sessions_seen: 0,
            ports,
            arena,
            rng: Box::new(rng),
            fabric,
            storage,
            services,
            capture: Capture::new(),
            pace: Pace::new(Duration::from_micros(config.system.idle_after_us.into()), now),
        }
    }

    /// Heeds what can be changed while it runs.
    pub fn configure(&mut self, quiet_time: Duration, echo: bool) {
        self.pace.set_quiet_time(quiet_time);
        self.ports.iter_mut().for_each(|slot| slot.echo = echo);
    }

    /// What is told of the ports.
    pub fn port_reports(&mut self) -> Vec<PortReport> {
        let report =
            |slot: &PlanePort| PortReport { counters: slot.port.counters(), echoes: slot.echoes };
        self.ports.iter().map(report).collect()
    }

    /// What the loop did with its time.
    pub fn counters(&mut self) -> LoopCounters {
        self.pace.counters
    }

    /// Queues the control plane's frames for a port; how many.
    pub fn transmit_for_control(
        &mut self,
        place: usize,
        downlink: &mut Downlink,
        now: Instant,
    ) -> usize {
        let slot = &mut self.ports[place];
        downlink.set_link(slot.link);
        let (capture, number) = (&mut self.capture, slot.number);
        downlink.transmit(&mut *slot.port, |packet| capture.sent(number, packet, now))
    }

    /// Interrupts that ports have raised so far.
    pub fn interrupts(&self) -> u64 {
        self.ports.iter().map(|slot| slot.port.interrupts()).sum()
    }

    /// Whether a port has something that was not taken yet.
    pub fn pending(&self) -> bool {
        self.ports.iter().any(|slot| slot.port.pending())
    }

    /// Whether every port can end a halt.
    pub fn wakes(&self) -> bool {
        self.ports.iter().all(|slot| slot.port.wakes())
    }

    /// Has ports raise interrupts, or not.
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.ports.iter_mut().for_each(|slot| slot.port.set_interrupts(wanted));
    }

    /// When something here is due though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = self.ports.iter().map(|slot| slot.link_due).min();
        [link, self.fabric_timeout()].into_iter().flatten().min()
    }

    /// Takes note of the addresses that a port has now.
    pub fn set_addresses(&mut self, place: usize, local: &Local) {
        self.ports[place].local = local.clone();
        if let Some(fabric) = &mut self.fabric {
            let v4 = local.v4.iter().map(|&ip| ip.into());
            let v6 = local.v6.iter().map(|&ip| ip.into());
            fabric.roce.set_addresses(place, v4.chain(v6).collect());
        }
    }
}
