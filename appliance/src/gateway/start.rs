//! Starts the gateway from the platform's findings: disks, configuration, ports, in this order, because the
//! configuration may be on a disk and configures the ports.

use super::Gateway;
use super::bridge::{Bridge, Engines};
use super::cards::{Cards, Found, PortUse};
use super::disk_queues::{self, DeviceQueues};
use super::disk_transfer::{self, PATIENCE};
use super::disks::{DiskSlot, Role, SharedDisk, set_permanent_names};
use super::known_disks::{self, Outside};
use super::linx::Linx;
use super::loop_waker::LoopWaker;
use super::network::Network;
use super::perf_responders::Services;
use super::plane::{DataPlane, Settings};
use super::port_assignment::Loops;
use super::ports::{PlanePort, PortSlot};
use super::rapidio;
use super::rdma_stack::RdmaStack;
use super::remote_storage::RemoteStorage;
use super::rendezvous::Rendezvous;
use super::smc::Smc;
use super::state::State;
use super::storage::Storage;
use super::syslog::Syslog;
use super::tagged_port;
use super::tls;
use super::udp_engines::UdpEngines;
use super::upgrade::Upgrade;
use super::wall_clock;
use super::watchdog::Keeper;
use crate::config::{Document, Problem, Sources, command_line, slot};
use crate::console::Console;
use crate::crash::{self, Record};
use crate::families::OfMeasure;
use crate::log_ring::LogRing;
use crate::loops::Pace;
use crate::machine::{CrashPlace, Machine, SpareCore, Watchdog};
use crate::randomness::{EntropySources, Randomness};
use core::time::Duration;
use drivers::driver::Class;
use drivers::hal::{Clock, CrashWriter, Features, HashKey, Hold, Instant, Platform, Port};
use drivers::inventory::Inventory;
pub use management::status::Facts;
use management::{Pages, UnclaimedDevice};
use net::capture::Capture;
use perf_responders::tcp_control::TcpControl;
use rand_core::RngCore;
use std::collections::VecDeque;
use verbs::EngineContext;

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
    /// The file `opt/isthmus/config` of fw_cfg.
    pub fw_cfg: Option<Vec<u8>>,
    /// The file `opt/isthmus/config-disk` of fw_cfg, which names the config disk.
    pub config_disk: Option<String>,
    /// The record that a panic before this boot has left in memory, and its bytes.
    pub crash: Option<(Record, Box<[u8]>)>,
    /// The kernel command line.
    pub command_line: String,
    /// The command line was truncated.
    pub command_line_cut: bool,
    /// The machine's watchdog, if it has a supported one.
    pub watchdog: Option<Box<dyn Watchdog>>,
    /// The CSPRNG.
    pub rng: Box<dyn RngCore>,
    /// Sources from which derived generators are reseeded.
    pub entropy: EntropySources,
    /// Facts about build and machine.
    pub facts: Facts,
    /// The log.
    pub log: &'static LogRing,
}

impl Gateway {
    /// Sets the gateway up. No error of a device or a document stops it.
    pub fn start(bringup: Bringup) -> Gateway {
        let Bringup {
            mut machine,
            spare,
            mut platform,
            mut inventory,
            fw_cfg,
            config_disk,
            crash,
            command_line,
            command_line_cut,
            watchdog,
            mut rng,
            entropy,
            facts,
            log,
        } = bringup;
        let mut unclaimed: Vec<UnclaimedDevice> =
            inventory.unclaimed.iter().map(UnclaimedDevice::of).collect();
        let mut disks = Vec::new();
        let mut dumps = Vec::new();
        let mut failed = Vec::new();
        let mut device_queues = Vec::new();
        for device in inventory.take(Class::Disks) {
            let location = device.location().to_string();
            match device.open_disks(&mut *platform, &MachineClock(&*machine)) {
                Ok(opened) => {
                    for (location, why) in opened.refused {
                        log::error!("{location}: {why}");
                        unclaimed.push(UnclaimedDevice::failed(location.to_string(), why));
                    }
                    let more = disks.len()..disks.len() + opened.disks.len();
                    let of_device = |queues| DeviceQueues { disks: more.collect(), queues };
                    device_queues.extend(opened.queues.map(of_device));
                    for one in opened.disks {
                        dumps.push(one.crash);
                        disks.push(DiskSlot {
                            name: format!("disk{}", disks.len()),
                            serial: one.serial,
                            model: one.model,
                            firmware: one.firmware,
                            location: one.location.to_string(),
                            device: String::new(),
                            geometry: one.disk.geometry(),
                            disk: SharedDisk::new(one.disk),
                            role: Role::Free,
                        });
                    }
                }
                Err(error) => {
                    log::error!("{location}: {error}");
                    failed.push(location.clone());
                    unclaimed.push(UnclaimedDevice::failed(location, error.to_string()));
                }
            }
        }
        set_permanent_names(&mut disks);
        let mut sources = Sources {
            image: slot::embedded(),
            fw_cfg: fw_cfg.as_deref(),
            disk: None,
            disk_before: None,
            disk_damaged: false,
            disk_unreachable: None,
            command_line: &command_line,
            command_line_cut,
        };
        let (others, _) = Document::load(&sources);
        let others = others.config();
        let of_document = || others.system.config_disk.as_ref().map(ToString::to_string);
        let named = command_line::config_disk(&command_line).or(config_disk).or_else(of_document);
        let outside = Outside {
            named: named.as_deref(),
            command_line: &command_line,
            others,
            failed: &failed,
        };
        let clock = MachineClock(&*machine);
        let mut stored = known_disks::find(&mut disks, &outside, platform.arena(), &clock);
        let upgrade =
            Upgrade::find(&mut disks, stored.slots, &command_line, platform.arena(), &clock);
        sources.disk = stored.text.as_deref();
        sources.disk_before = stored.place.as_ref().and_then(|(_, engine)| engine.before());
        sources.disk_unreachable = stored.unreachable.as_deref();
        sources.disk_damaged = stored.place.as_ref().is_some_and(|(_, engine)| engine.is_damaged());
        let (document, problems) = Document::load(&sources);
        let config = document.config();
        stored.protect(&mut disks, config);
        log::set_max_level(config.system.log_level);
        crash::set_policy(config.system.on_panic);
        if let Err(why) =
            keep_crashes(&mut stored, crash, &mut disks, &mut dumps, &mut *platform, &mut *machine)
        {
            log::error!("a panic cannot be recorded on disk: {why}");
        }
        if document.is_older_copy()
            && let Some((_, engine)) = &mut stored.place
        {
            engine.keep_before();
        }
        let trouble = core::mem::take(&mut stored.trouble);
        let (problems, warnings) = log_problems(&document, trouble, problems);
        let kept = stored.place.as_ref().map(|(number, engine)| (*number, engine.pair()));
        let random = Randomness::new(seed(&mut *rng), entropy);
        let clock = MachineClock(&*machine);
        let secure = tls::start(config, kept, &mut disks, platform.arena(), &clock, random);
        let shared = secure.as_ref().map(|secure| secure.tls.clone());
        let now = machine.now();
        let mut ports = Vec::new();
        let mut networks = Vec::new();
        let waker = LoopWaker::new(machine.ipi());
        let mut loops = Loops::new(spare, waker.clone());
        let mut cards = Cards::default();
        for device in inventory.take(Class::Port) {
            let location = device.location().to_string();
            let index = ports.len();
            let mtu = |mac| config.net(index, mac, &location).mtu;
            match device.open_any_port(&mut *platform, &mtu, &MachineClock(&*machine)) {
                Ok(port) => {
                    let net = config.net(index, port.port().mac(), &location);
                    let mut found = Found { config, arena: platform.arena(), rng: &mut *rng };
                    let (place, name) = (loops.own.len(), format!("net{index}"));
                    let driver = device.driver();
                    let port = tagged_port::on_vlan(port, net.vlan, &name);
                    let slot = match cards.inspect(port, place, &name, &net, &mut found) {
                        PortUse::Free(port) => {
                            let mut split = |port: &mut dyn Port, more: usize| {
                                let mut key = HashKey::default();
                                key.fill_with(|| rng.next_u32());
                                let clock = MachineClock(&*machine);
                                port.split(more, &key, &mut *platform, &clock)
                            };
                            loops.assign(port, index, location, driver, config, &mut split)
                        }
                        PortUse::Opened(port) => loops.keep(port, index, location, driver, config),
                    };
                    networks.push(Network::new(
                        &slot,
                        index,
                        config,
                        shared.clone(),
                        seed(&mut *rng),
                        now,
                    ));
                    ports.push(slot);
                }
                Err(error) => {
                    log::error!("{location}: {error}");
                    unclaimed.push(UnclaimedDevice::failed(location, error.to_string()));
                }
            }
        }
        let found = inventory.take(Class::RapidIo);
        let mut networks_of_rapidio = Vec::new();
        for one in rapidio::open(config, found, &mut *platform, &mut unclaimed) {
            let (index, location) = (ports.len(), one.port.location.clone());
            let slot = loops.keep(Box::new(one.rionet), index, location, one.port.driver, config);
            let (tls, seed) = (shared.clone(), seed(&mut *rng));
            networks.push(Network::new(&slot, index, config, tls, seed, now));
            networks_of_rapidio.push(one.port.at(slot.place));
            ports.push(slot);
        }
        let bridges = inventory.take(Class::Bridge);
        let clock = MachineClock(&*machine);
        let engines = Engines::new(inventory.take(Class::Dma), &clock);
        let opened = Bridge::open(
            config,
            bridges,
            engines,
            &mut *platform,
            &mut networks,
            &mut *rng,
            &mut unclaimed,
        );
        let mut transports = Vec::new();
        for (mut transport, ethernet) in opened.transports {
            let (index, location) = (ports.len(), transport.location().to_string());
            let slot = loops.keep(Box::new(ethernet), index, location, transport.driver(), config);
            let (tls, seed) = (shared.clone(), seed(&mut *rng));
            networks.push(Network::new(&slot, index, config, tls, seed, now));
            transport.set_place(slot.place);
            transports.push(transport);
            ports.push(slot);
        }
        for (bridge, ntrdma) in opened.ntrdma {
            let index = ports.len();
            let core = bridge.core;
            loops.assign_bridge(bridge, ntrdma, core, |bridge, core, control, plane| {
                let Some(slot) = bridge.interface(index, core, control, plane) else { return };
                let (tls, seed) = (shared.clone(), seed(&mut *rng));
                networks.push(Network::new(&slot, index, config, tls, seed, now));
                ports.push(slot);
            });
        }
        let own_bridges = loops.own_bridges.drain(..);
        let (mut bridges, ntrdma): (Vec<_>, Vec<_>) = own_bridges.unzip();
        let mut own_ports: Vec<usize> = loops.own.iter().map(|(index, _)| *index).collect();
        let mut devices: Vec<PlanePort> = loops.own.drain(..).map(|(_, port)| port).collect();
        let others = !loops.with_ports().is_empty();
        let rdma_stack = config
            .roce
            .enabled
            .then(|| RdmaStack::new(config, &devices, ntrdma, others, &mut *rng));
        let mut rdma_stack = rdma_stack.flatten();
        // After the ports with RDMA.
        for (index, port) in loops.forwarding.drain(..) {
            ports[index].forwarding = Some(devices.len());
            own_ports.push(index);
            devices.push(port);
        }
        if let Some(rdma_stack) = &mut rdma_stack {
            cards.give(&mut rdma_stack.providers);
        }
        bridges.retain(|_| rdma_stack.is_some());
        let mut provider = rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers);
        let patience = machine.now() + PATIENCE;
        let arena = platform.arena();
        let wait = || machine.now() < patience;
        let own = provider.as_deref_mut();
        let mut storage = Storage::new(config, &mut disks, arena, own, &mut *rng, wait);
        let remote_storage = provider.and_then(|provider| {
            let mut ctx = EngineContext { provider, arena, now, rng: &mut *rng };
            RemoteStorage::of(config, &mut storage, &mut ctx)
        });
        storage.apply_exports(config);
        let services = Services::of(config, rdma_stack.as_mut());
        if services.is_some() {
            for (network, slot) in networks.iter_mut().zip(&ports) {
                if !slot.is_first_alone() {
                    log::info!("{}: measuring tools work only with RDMA CM there", slot.name);
                    continue;
                }
                network.front = OfMeasure::hold(|| TcpControl::new(&mut network.interface));
            }
        }
        let quiet = Duration::from_micros(config.system.idle_after_us.into());
        let clock = wall_clock::read(machine.unix_seconds(), machine.now(), &facts, log);
        storage.share(&waker, &loops.with_ports());
        let queues = core::mem::take(&mut loops.queues);
        let workers = loops.start(|core, spare, theirs| {
            let seed = seed(&mut *rng);
            let clock = MachineClock(&*machine);
            let storage = storage.seat(core, &waker, theirs, || {
                disk_queues::open(&mut device_queues, core, spare, theirs, &mut *platform, &clock)
            });
            let (config, arena) = (config.clone(), platform.arena().share());
            Settings { config, arena, seed, entropy, storage }
        });
        let place_of = |net: usize| {
            let net = config.net.get(net)?;
            let is_it = |(index, slot): &(usize, &PortSlot)| {
                let mentioned = config.mentioned_net(*index, slot.mac, &slot.location);
                mentioned.is_some_and(|mentioned| core::ptr::eq(mentioned, net))
            };
            let (_, slot) = ports.iter().enumerate().find(is_it)?;
            if slot.punt_port.is_none() { Some(slot.place) } else { slot.forwarding }
        };
        let mut arena = platform.arena().share();
        let udp_engines =
            UdpEngines::of(config, &mut devices, &place_of, &mut arena, &mut *rng, now);
        let mut plane = DataPlane {
            links_polled: false,
            has_work: false,
            now,
            ports: devices,
            arena,
            rng,
            rdma_stack,
            bridges,
            rapidio: networks_of_rapidio,
            linx: None,
            transports,
            storage,
            remote_storage,
            services,
            rping: None,
            udp_engines,
            capture: Capture::new(),
            pace: Pace::new(quiet, now),
            ending: false,
            is_alone: true,
        };
        plane.wait_for_ports(workers.is_empty());
        let DataPlane { rapidio, arena, rng, .. } = &mut plane;
        plane.linx = Linx::of(config, rapidio, arena, &mut networks, &mut **rng, now);
        let engine = plane.udp_engines.exchange();
        let rendezvous =
            engine.map(|engine| Box::new(Rendezvous::new(engine, &own_ports, &mut networks)));
        let smc = Smc::of(config, facts.memory, &mut plane, &mut networks);
        let state = State {
            platform,
            log,
            facts,
            started: now,
            now,
            clock,
            kept: document.config().clone(),
            saving: None,
            document,
            problems,
            warnings,
            ports,
            queues,
            disks,
            refused: Default::default(),
            unclaimed,
            secure,
            crashes: stored.crashes,
            plane,
            smc,
            rendezvous,
            own_ports,
            workers,

            config_disk: stored.place,
            upgrade,
            upgrade_after_save: None,
            watchdog: Keeper::new(watchdog),
            ping_order: None,
            pinging: false,
            progress: VecDeque::new(),
            capacity_due: Instant::ZERO,
            network_changed: false,
            rules_changed: false,
            end: None,
        };
        log::info!("isthmus {} ready", env!("CARGO_PKG_VERSION"));
        let console = Console::default();
        let devices_wake = state.devices_wake();
        Gateway {
            machine,
            console,
            console_due: Instant::ZERO,
            console_quiet: false,
            quiescent_until: now,
            control_due: Some(Instant::ZERO),
            networks,
            syslog: Syslog::default(),
            pages: Pages::default(),
            state,
            waker,
            devices_wake,
            ending: None,
        }
    }
}

/// Logs the sources of the configuration, its problems, and warnings about parts that were left out. Returns warnings
/// and problems.
fn log_problems(
    document: &Document,
    trouble: Vec<String>,
    problems: Vec<Problem>,
) -> (Vec<String>, Vec<String>) {
    let (warnings, problems): (Vec<Problem>, Vec<Problem>) =
        problems.into_iter().partition(Problem::is_warning);
    let texts = |list: Vec<Problem>| list.into_iter().map(|problem| problem.to_string());
    let warnings: Vec<String> = texts(warnings).collect();
    let problems: Vec<String> = trouble.into_iter().chain(texts(problems)).collect();
    log::info!("configuration: {}", document.sources_line());
    for problem in &problems {
        log::error!("configuration: {problem}");
    }
    for warning in &warnings {
        log::warn!("configuration: {warning}");
    }
    if document.is_closed() {
        log::error!(
            "configuration rejected: nothing is exported, relayed or written until it is corrected: see /readyz, \
             `show config`"
        );
    }
    (problems, warnings)
}

/// The machine's clock, for drivers.
struct MachineClock<'a>(&'a dyn Machine);

impl Clock for MachineClock<'_> {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// Logs panics, writes a record that is only in memory to the config disk, and prepares the record of the next panic
/// there. The error says why the next record will be only in memory and on the serial port.
fn keep_crashes(
    stored: &mut known_disks::Known,
    crash: Option<(Record, Box<[u8]>)>,
    disks: &mut [DiskSlot],
    dumps: &mut [Option<Box<dyn CrashWriter>>],
    platform: &mut dyn Platform,
    machine: &mut dyn Machine,
) -> Result<(), String> {
    let place = stored.place.as_ref().map(|(number, engine)| (*number, engine.crashes()));
    let sector =
        |first: u64, record: u64| first + (crash::place(record) * crash::RECORD_LEN / 512) as u64;
    let mut result = Ok(());
    let first_line = |record: &Record| record.text.lines().next().unwrap_or_default().to_string();
    match (crash, stored.crashes.last()) {
        (Some((record, bytes)), _) => {
            log::error!("started again after: {}; see `show crash`", first_line(&record));
            if let Some((number, first)) = place.filter(|_| !stored.crashes.has(&record)) {
                let at = sector(first, record.header.sequence);
                let slot = &mut disks[number];
                result = disk_transfer::write(
                    slot,
                    at,
                    &bytes,
                    platform.arena(),
                    &MachineClock(machine),
                );
            }
            stored.crashes.add(record);
        }
        (None, Some(last)) => {
            let (count, line) = (last.header.sequence, first_line(last));
            log::warn!("panics on record: {count}, the last: {line}; see `show crash`");
        }
        (None, None) => {}
    }
    let last = stored.crashes.last().map(|record| record.header);
    let Some((number, first)) = place else {
        machine.keep_crashes(last, None);
        return result;
    };
    let fixed = disks[number].geometry.features.contains(Features::READ_ONLY);
    let dump = dumps[number].take().filter(|_| !fixed);
    let disk = dump.and_then(|mut dump| {
        if dump.prepare(crash::RECORD_LEN, platform.arena()) {
            return Some(dump);
        }
        result = Err("DMA arena is full: give the machine more memory".into());
        None
    });
    let next = last.map_or(1, |last| last.sequence.saturating_add(1));
    let sector = sector(first, next);
    machine.keep_crashes(last, disk.map(|disk| CrashPlace { disk, sector }));
    result
}

/// A new seed from the generator.
fn seed(rng: &mut dyn RngCore) -> [u8; 32] {
    let mut seed = [0; 32];
    rng.fill_bytes(&mut seed);
    seed
}
