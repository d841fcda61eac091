//! Starts the gateway from the platform's findings, in stages: disks, configuration, interfaces, in this order, because
//! the configuration may be on a disk and configures the ports. Then the data plane of the first loop, the loops of
//! other cores, and what uses both.

mod configuration;
mod crash_records;
mod disks;
mod first_loop;
mod interfaces;
mod resources;

use super::linx::Linx;
use super::loop_waker::LoopWaker;
use super::names::{Names, resolved_rules};
use super::network::Network;
use super::nvme::Nvme;
use super::plane::DataPlane;
use super::plane_services::{LinxStage, TcpCarrier};
use super::port_assignment::Loops;
use super::ports::{PortSlot, QueueSlot};
use super::rendezvous::Rendezvous;
use super::revisions;
use super::services::Services;
use super::smc::Smc;
use super::state::State;
use super::syslog::Syslog;
use super::tcp_remotes::TcpRemoteService;
use super::time::{self, Time};
use super::tls::Secure;
use super::udp_engines::UdpEngines;
use super::upgrade::Upgrade;
use super::watchdog::Keeper;
use super::worker::Worker;
use super::{Gateway, LastHalt};
use crate::config::{Config, OemStrings, Sources, slot};
use crate::console::Console;
use crate::crash::Record;
use crate::log_ring::LogRing;
use crate::machine::{Machine, SpareCore, Watchdog};
use crate::randomness::EntropySources;
use configuration::Loaded;
use disks::Disks;
use drivers::driver::{Class, OpenedPort};
use drivers::hal::{Instant, Platform};
use drivers::inventory::Inventory;
use interfaces::{Interfaces, place_of};
pub use management::status::Facts;
use management::status::WallClock;
use management::{Pages, UnclaimedDevice};
use rand_core::Rng;
use resources::Resources;
use std::collections::VecDeque;

/// Findings and resources of the platform.
pub struct Bringup {
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// The cores without work yet: all but the first, in order.
    pub spare: Vec<Box<dyn SpareCore>>,
    /// The platform, for drivers.
    pub platform: Box<dyn Platform>,
    /// The devices found.
    pub inventory: Inventory,
    /// What the VMM says about the configuration.
    pub vmm: FromVmm,
    /// The record that a panic before this boot has left in memory, and its bytes.
    pub crash: Option<(Record, Box<[u8]>)>,
    /// The kernel command line.
    pub command_line: String,
    /// The command line was truncated.
    pub command_line_cut: bool,
    /// The machine's watchdog, if it has a supported one.
    pub watchdog: Option<Box<dyn Watchdog>>,
    /// The CSPRNG.
    pub rng: Box<dyn Rng>,
    /// Sources from which derived generators are reseeded.
    pub entropy: EntropySources,
    /// Facts about build and machine.
    pub facts: Facts,
    /// The log.
    pub log: &'static LogRing,
}

/// What the VMM says about the configuration, beside the command line.
#[derive(Debug, Default)]
pub struct FromVmm {
    /// The file `opt/isthmus/config` of fw_cfg.
    pub fw_cfg: Option<Vec<u8>>,
    /// The file `opt/isthmus/config-disk` of fw_cfg, which names the config disk.
    pub config_disk: Option<String>,
    /// The file `opt/isthmus/seed` of fw_cfg, which names the seed disk.
    pub seed: Option<String>,
    /// Strings in SMBIOS.
    pub smbios: Option<OemStrings>,
}

/// Loops, interfaces and services, ready to run.
struct Running {
    plane: DataPlane,
    /// Numbers of the plane's ports, by their indices there.
    own_ports: Vec<usize>,
    workers: Vec<Worker>,
    ports: Vec<PortSlot>,
    queues: Vec<QueueSlot>,
    services: Services,
}

/// Facts and devices of the control plane.
struct Control {
    platform: Box<dyn Platform>,
    log: &'static LogRing,
    facts: Facts,
    clock: WallClock,
    watchdog: Option<Box<dyn Watchdog>>,
    unclaimed: Vec<UnclaimedDevice>,
    secure: Option<Secure>,
}

impl Gateway {
    /// Sets the gateway up. No error of a device or a document stops it.
    pub fn start(bringup: Bringup) -> Gateway {
        Gateway::start_over(bringup, Vec::new())
    }

    /// As [`Gateway::start`], with further ports that are open already, as tests have them.
    pub(super) fn start_over(bringup: Bringup, opened: Vec<OpenedPort>) -> Gateway {
        let Bringup { spare, mut inventory, crash, watchdog, facts, log, .. } = bringup;
        let Bringup { machine, platform, rng, entropy, .. } = bringup;
        let unclaimed = inventory.unclaimed.iter().map(UnclaimedDevice::of).collect();
        let mut resources = Resources { machine, platform, rng, entropy, unclaimed };
        let mut disks = Disks::open(inventory.take(Class::Disks), &mut resources);
        let sources = Sources {
            image: slot::embedded(),
            fw_cfg: bringup.vmm.fw_cfg.as_deref(),
            smbios: bringup.vmm.smbios.as_ref(),
            command_line: &bringup.command_line,
            command_line_cut: bringup.command_line_cut,
            ..Sources::default()
        };
        let mut loaded = Loaded::load(sources, &bringup.vmm, crash, &mut disks, &mut resources);
        let upgrade = loaded.upgrade.take();
        let config = loaded.document.config();
        let secure = loaded.start_tls(&mut disks, &mut resources);
        let tls = secure.as_ref().map(|secure| secure.tls.clone());
        let now = resources.machine.now();
        let waker = LoopWaker::new(resources.machine.ipi());
        let mut interfaces = Interfaces::new(config, tls, Loops::new(spare, waker.clone()), now);
        interfaces.open_ports(inventory.take(Class::Port), &mut resources);
        opened.into_iter().for_each(|port| interfaces.attach(port, "", "", &mut resources));
        interfaces.open_rapidio(inventory.take(Class::RapidIo), &mut resources);
        let (bridges, engines) = (inventory.take(Class::Bridge), inventory.take(Class::Dma));
        interfaces.open_bridges(bridges, engines, &mut resources);
        let Resources { machine, mut platform, rng, unclaimed, .. } = resources;
        let arena = platform.arena().share();
        let (mut plane, own_ports) = first_loop::plane(&mut interfaces, config, arena, rng, now);
        first_loop::start_users(&mut plane, config, &mut disks, &*machine);
        if plane.users.perf_responders.is_some() {
            interfaces.listen_for_tools();
        }
        let clock = time::read(machine.unix_seconds(), machine.now(), &facts, log);
        let Interfaces { mut loops, ports, mut networks, .. } = interfaces;
        let queues = core::mem::take(&mut loops.queues);
        let workers = first_loop::start_others(
            loops,
            config,
            &mut plane,
            &mut disks,
            &*machine,
            &mut *platform,
            entropy,
        );
        let place_of = |net| place_of(config, &ports, net);
        let DataPlane { ports: devices, arena, rng, .. } = &mut plane;
        plane.udp_engines = UdpEngines::of(config, devices, &place_of, arena, &mut **rng, now);
        plane.wait_for_ports(workers.is_empty());
        let DataPlane { rapidio, arena, rng, .. } = &mut plane;
        plane.linx = Linx::of(config, rapidio, arena, &mut networks, &mut **rng, now);
        let memory = facts.memory;
        let services = services(config, memory, &mut plane, &own_ports, &mut networks, upgrade);
        let running = Running { plane, own_ports, workers, ports, queues, services };
        let control = Control { platform, log, facts, clock, watchdog, unclaimed, secure };
        let mut state = state(loaded, disks, running, control, now);
        state.record_boot();
        log::info!("isthmus {} ready", env!("CARGO_PKG_VERSION"));
        let devices_wake = state.devices_wake();
        Gateway {
            machine,
            console: Console::default(),
            console_due: Instant::ZERO,
            button_due: Instant::ZERO,
            console_quiet: false,
            last_halt: LastHalt::default(),
            control_due: Some(Instant::ZERO),
            networks,
            syslog: Syslog::new(entropy),
            pages: Pages::default(),
            state,
            waker,
            devices_wake,
            ending: None,
        }
    }
}

/// Creates the services of the first loop. `memory` is that of the machine.
fn services(
    config: &Config,
    memory: u64,
    plane: &mut DataPlane,
    own_ports: &[usize],
    networks: &mut [Network],
    upgrade: Option<Box<Upgrade>>,
) -> Services {
    let engine = plane.udp_engines.exchange();
    let rendezvous = engine.map(|engine| Box::new(Rendezvous::new(engine, own_ports, networks)));
    let rules = resolved_rules(config, None, networks);
    Services {
        smc: Smc::of(config, &rules, memory, plane, networks),
        tcp_carrier: (!plane.bridges.is_empty()).then(|| Box::new(TcpCarrier)),
        linx: plane.linx.is_some().then(|| Box::new(LinxStage)),
        rendezvous,
        nvme: Nvme::of(config, plane, networks),
        tcp_remotes: TcpRemoteService::of(plane),
        upgrade,
    }
}

/// The state, at the start.
fn state(loaded: Loaded, disks: Disks, running: Running, control: Control, now: Instant) -> State {
    let Loaded { document, problems, warnings, stored, kept, history, audit, trial, .. } = loaded;
    let Running { mut plane, own_ports, workers, ports, queues, services } = running;
    let Control { platform, log, facts, clock, watchdog, unclaimed, secure } = control;
    let salt = plane.rng.next_u64();
    State {
        platform,
        log,
        facts,
        started: now,
        now,
        clock,
        kept,
        saving: None,
        audit,
        noting: None,
        arming: false,
        wiping: false,
        waiting: None,
        lifecycle: revisions::at_boot(history, trial, salt, now),
        document,
        problems,
        warnings,
        ports,
        queues,
        disks: disks.slots,
        refused: Default::default(),
        unclaimed,
        secure,
        crashes: stored.crashes,
        plane,
        services,
        own_ports,
        workers,
        config_disk: stored.place,
        upgrade_after_save: None,
        watchdog: Keeper::new(watchdog),
        names: Names::new(now),
        time: Time::new(facts.committed),
        path_probes: Default::default(),
        ping_order: None,
        pinging: false,
        task: Default::default(),
        progress: VecDeque::new(),
        capacity_due: Instant::ZERO,
        network_changed: false,
        rules_changed: false,
        subsystems_changed: false,
        linx_changed: false,
        end: None,
        end_by: None,
    }
}
