//! From what the platform found to an appliance: disks, configuration, ports, in this order,
//! because the configuration may lie on a disk and says how ports are set up.

use super::Gateway;
use super::alarm::Alarm;
use super::bridge::Bridge;
use super::dealing::Loops;
use super::disks::{DiskSlot, Role, SharedDisk};
use super::fabric::Fabric;
use super::network::Network;
use super::plane::{Plane, Settings};
use super::ports::PlanePort;
use super::services::Services;
use super::smc::Smc;
use super::state::State;
use super::storage::Storage;
use super::syslog::Syslog;
use crate::config::disk::{ConfigDisk, Event};
use crate::config::{Document, Problem, Sources, slot};
use crate::console::Console;
use crate::log_ring::LogRing;
use crate::loops::Pace;
use crate::machine::{Machine, SpareCore};
use core::time::Duration;
use drivers::found::{Found, Unclaimed};
use drivers::hal::{Clock, Disk, Instant, Platform};
use drivers::virtio::Kind;
use net::capture::Capture;
use rand_core::RngCore;
use rdma::services::front::Front;
use std::collections::VecDeque;

/// How long a disk may take to show whether it holds the configuration.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the machine, for show.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// How it was booted (`pvh`, `multiboot2`, …).
    pub boot: &'static str,
    /// Processors that run.
    pub cpus: usize,
    /// Bytes of RAM in all.
    pub memory: u64,
    /// Where randomness comes from.
    pub entropy: &'static str,
    /// Bytes of the heap that are in use.
    pub heap_used: fn() -> usize,
}

/// What the platform brings.
pub struct Bringup {
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// The cores that nothing runs on yet: all but the first, in order.
    pub spare: Vec<Box<dyn SpareCore>>,
    /// The machine as drivers see it.
    pub platform: Box<dyn Platform>,
    /// The devices that were found.
    pub found: Found,
    /// The file `opt/isthmus/config` of fw_cfg.
    pub fw_cfg: Option<Vec<u8>>,
    /// The kernel command line.
    pub command_line: String,
    /// The CSPRNG.
    pub rng: Box<dyn RngCore>,
    /// What is known of the machine.
    pub facts: Facts,
    /// The log.
    pub log: &'static LogRing,
}

impl Gateway {
    /// Sets everything up. Nothing that a device or a document does stops it.
    pub fn start(bringup: Bringup) -> Gateway {
        let Bringup {
            machine,
            spare,
            mut platform,
            mut found,
            fw_cfg,
            command_line,
            mut rng,
            facts,
            log,
        } = bringup;
        let mut unclaimed: Vec<String> = found.unclaimed.iter().map(tell_unclaimed).collect();
        let mut disks = Vec::new();
        for device in found.take(Kind::Block) {
            let location = device.location().to_string();
            match device.into_disk(&mut *platform) {
                Ok(mut disk) => disks.push(DiskSlot {
                    name: format!("disk{}", disks.len()),
                    serial: disk.serial(&MachineClock(&*machine)),
                    location,
                    geometry: disk.geometry(),
                    disk: SharedDisk::new(Box::new(disk)),
                    role: Role::Free,
                }),
                Err(error) => {
                    log::error!("{location}: {error}");
                    unclaimed.push(format!("{location}: {error}"));
                }
            }
        }
        let mut stored = find_config(&mut disks, &mut *platform, &*machine);
        let (document, problems) = Document::load(&Sources {
            image: slot::embedded(),
            fw_cfg: fw_cfg.as_deref(),
            disk: stored.text.as_deref(),
            disk_before: stored.place.as_ref().and_then(|(_, engine)| engine.before()),
            disk_damaged: stored.place.as_ref().is_some_and(|(_, engine)| engine.is_damaged()),
            command_line: &command_line,
        });
        let config = document.config();
        log::set_max_level(config.system.log_level);
        if document.is_older_copy()
            && let Some((_, engine)) = &mut stored.place
        {
            engine.keep_before();
        }
        let (warnings, problems): (Vec<Problem>, Vec<Problem>) =
            problems.into_iter().partition(Problem::is_warning);
        let told = |list: Vec<Problem>| list.into_iter().map(|problem| problem.to_string());
        let warnings: Vec<String> = told(warnings).collect();
        let problems: Vec<String> = stored.trouble.into_iter().chain(told(problems)).collect();
        for problem in &problems {
            log::error!("configuration: {problem}");
        }
        for warning in &warnings {
            log::warn!("configuration: {warning}");
        }
        if document.is_closed() {
            log::error!(
                "configuration: nothing is exported, relayed or written to until it is mended: see /readyz, \
                 `show config`"
            );
        }
        let now = machine.now();
        let mut ports = Vec::new();
        let mut networks = Vec::new();
        let alarm = Alarm::new(machine.bell());
        let mut loops = Loops::new(spare, alarm.clone());
        for device in found.take(Kind::Network) {
            let location = device.location().to_string();
            let index = ports.len();
            match device.into_port(&mut *platform, &|mac| config.net(index, mac).mtu) {
                Ok(port) => {
                    let slot = loops.deal(port, index, location, config);
                    networks.push(Network::new(&slot, index, config, rng.next_u64(), now));
                    ports.push(slot);
                }
                Err(error) => {
                    log::error!("{location}: {error}");
                    unclaimed.push(format!("{location}: {error}"));
                }
            }
        }
        let bridges = core::mem::take(&mut found.bridges);
        let bridge =
            Bridge::open(config, bridges, &mut *platform, &mut networks, &mut *rng, &mut unclaimed);
        let (mut bridge, ntrdma) = bridge.unzip();
        if let (Some(bridge), Some(mtu)) = (&mut bridge, config.ntb.first().and_then(|n| n.mtu)) {
            let index = ports.len();
            let slot = bridge.interface(mtu, index, &alarm);
            networks.push(Network::new(&slot, index, config, rng.next_u64(), now));
            ports.push(slot);
        }
        let own_ports = loops.own.iter().map(|(index, _)| *index).collect();
        let devices: Vec<PlanePort> = loops.own.drain(..).map(|(_, port)| port).collect();
        let fabric = config.roce.enabled.then(|| Fabric::new(config, &devices, ntrdma, &mut *rng));
        let mut fabric = fabric.flatten();
        let bridge = bridge.filter(|_| fabric.is_some());
        let provider = fabric.as_mut().map(|fabric| &mut fabric.devices);
        let patience = machine.now() + DISK_PATIENCE;
        let arena = platform.arena();
        let storage = Storage::new(config, &mut disks, arena, provider, &mut *rng, now, || {
            machine.now() < patience
        });
        let services = Services::of(config, fabric.as_mut());
        if services.is_some() {
            for (network, slot) in networks.iter_mut().zip(&ports) {
                if slot.uplink.is_some() {
                    log::info!("{}: measuring tools only with RDMA CM", slot.name);
                    continue;
                }
                network.front = Some(Front::new(&mut network.interface));
            }
        }
        let quiet = Duration::from_micros(config.system.idle_after_us.into());
        let epoch = machine.unix_seconds().saturating_mul(1_000_000_000);
        let workers = loops.start(|| {
            let mut seed = [0; 32];
            rng.fill_bytes(&mut seed);
            Settings { config: config.clone(), arena: platform.arena().share(), seed }
        });
        let mut plane = Plane {
            links_looked_at: false,
            stirred: false,
            now,
            ports: devices,
            arena: platform.arena().share(),
            rng,
            fabric,
            bridge,
            storage,
            services,
            rping: None,
            capture: Capture::new(),
            pace: Pace::new(quiet, now),
            ending: false,
        };
        let smc = Smc::of(config, facts.memory, &mut plane, &mut networks);
        let state = State {
            platform,
            log,
            facts,
            started: now,
            now,
            epoch: epoch.saturating_sub(now.as_nanos()),
            document,
            problems,
            warnings,
            ports,
            disks,
            refused: Default::default(),
            unclaimed,
            plane,
            smc,
            own_ports,
            workers,
            downloads: Vec::new(),
            next_download: 0,
            turns: 0,
            config_disk: stored.place,
            ping_order: None,
            pinging: false,
            news: VecDeque::new(),
            capacity_due: Instant::ZERO,
            network_changed: false,
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
            still_until: now,
            control_due: Some(Instant::ZERO),
            networks,
            syslog: Syslog::default(),
            state,
            alarm,
            devices_wake,
            ending: None,
        }
    }
}

fn tell_unclaimed(device: &Unclaimed) -> String {
    let (vendor, id) = device.id;
    let why = device.error.map_or("no driver".to_string(), |error| error.to_string());
    let told =
        format!("{}: {vendor:04x}:{id:04x} class {:06x}: {why}", device.location, device.class);
    // What every machine has (bridges, a display, buses for slow devices) is of no use here.
    match (device.error, device.class >> 16) {
        (Some(_), _) => log::error!("{told}"),
        (None, 0x01 | 0x02 | 0x12) => {
            log::warn!("{told}: it is not used (show devices lists what there is)");
        }
        (None, _) => log::debug!("{told}"),
    }
    told
}

/// The machine's clock, for drivers that wait.
struct MachineClock<'a>(&'a dyn Machine);

impl Clock for MachineClock<'_> {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// The configuration as it lies on a disk.
#[derive(Debug, Default)]
struct Stored {
    /// Which disk, and its engine.
    place: Option<(usize, ConfigDisk)>,
    /// The document.
    text: Option<Vec<u8>>,
    /// What went wrong on the way.
    trouble: Vec<String>,
}

/// Asks each disk whether it holds the configuration; the first that does is taken.
fn find_config(
    disks: &mut [DiskSlot],
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) -> Stored {
    let mut stored = Stored::default();
    let trouble = &mut stored.trouble;
    for (index, slot) in disks.iter_mut().enumerate() {
        let Some(mut engine) = ConfigDisk::new(slot.geometry, platform.arena()) else {
            trouble.push(format!("{}: no memory to look for a configuration", slot.name));
            break;
        };
        match wait(&mut engine, &mut slot.disk, machine) {
            Some(Event::Loaded(text)) => {
                slot.role = Role::Configuration;
                stored.text = text;
                stored.place = Some((index, engine));
                break;
            }
            // The device may still write into the buffer, so that it is not given back.
            None => trouble.push(format!("{}: does not answer", slot.name)),
            Some(Event::Failed(why)) => {
                trouble.push(format!("{}: {why}", slot.name));
                platform.arena().free(engine.into_buffer());
            }
            Some(_) => platform.arena().free(engine.into_buffer()),
        }
    }
    stored
}

fn wait(engine: &mut ConfigDisk, disk: &mut dyn Disk, machine: &dyn Machine) -> Option<Event> {
    let deadline = machine.now() + DISK_PATIENCE;
    loop {
        if let Some(event) = engine.poll(disk) {
            return Some(event);
        }
        if machine.now() > deadline {
            return None;
        }
        core::hint::spin_loop();
    }
}
