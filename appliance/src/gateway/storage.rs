//! The storage gateway: volumes, exports and the RNBD server, as configured.

use super::disk_pool::DiskPool;
use super::disk_queues::OwnDisks;
use super::disks::{DiskSlot, Role, number_of};
use super::followers::Followers;
use super::queue_depth::{self, Offered};
use super::tcp_remotes::TcpRemotes;
use crate::config::{self, Config, Volume};
use core::time::Duration;
use drivers::hal::{self, Arena, Features, Instant, Through, TransmitProgress};
use net::hosts::Hosts;
use provider_set::ProviderSet;
use rand_core::Rng;
use rtrs::Name;
use rtrs::server::{self, StartError};
use std::collections::BTreeSet;
use std::sync::Arc;
use storage::rnbd::server::{Export, Server};
use storage::volume::catalog::Catalog;
use storage::volume::{DiskVolume, RamMemory, RamVolume, StillUsed, VolumeId, Volumes};
use verbs::{ChunksOnDemand, Provider, UnderWay};

/// Devices that a session may have open.
pub(super) const MAX_DEVICES: usize = 64;

/// Time for a client to acknowledge its last reads of a deleted volume. The connection of a client that acknowledges
/// nothing fails earlier.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of a deleted volume, to which responses in flight may refer.
pub(super) struct Retired {
    memory: Arc<RamMemory>,
    under_way: UnderWay,
    since: Instant,
}

/// Volumes and their server.
#[derive(Default)]
pub(super) struct Storage {
    pub volumes: Volumes,
    /// Disks that hold volumes.
    pub pools: Vec<DiskPool>,
    /// Memory of deleted volumes to which responses in flight may refer.
    retired: Vec<Retired>,
    /// On the owner's loop: memory that is freed when no other loop refers to it.
    unused: Vec<Arc<RamMemory>>,
    /// On other loops: memory that is dropped when the ports have sent their frames.
    unsent: hal::Retired<Arc<RamMemory>>,
    /// None if it is disabled, or there is no RDMA provider.
    pub server: Option<Server>,
    /// Volumes of other servers over TCP.
    pub tcp_remotes: TcpRemotes,
    /// The queue depth that its clients get.
    pub offered: Option<Offered>,
    /// Errors when exports were applied last. Each is logged once.
    complaints: Vec<String>,
    /// A mirror that is being dissolved. It is not exported by default.
    pub dissolving: Option<String>,
    /// Volumes and mirrors that are removed when nothing uses them. They are not exported by default.
    pub leaving: BTreeSet<String>,
    /// Loops of other cores that serve the same volumes.
    pub followers: Followers,
    /// Disks to which this loop has queues of its own, on a loop of another core.
    pub own_disks: OwnDisks,
    /// The catalog in which the owner publishes the volumes, on a loop of another core.
    pub follows: Option<Arc<Catalog>>,
}

impl Storage {
    /// Creates the local volumes, and the server. Failures are logged. Exports are applied when all volumes exist
    /// ([`Storage::apply_exports`]).
    pub fn new(
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        provider: Option<&mut ProviderSet>,
        rng: &mut dyn Rng,
        wait: impl FnMut() -> bool,
    ) -> Self {
        let mut storage = Storage::default();
        storage.find_pools(config, disks, arena, wait);
        warn_of_positions(config, disks);
        for volume in &config.volume {
            if let Err(why) = storage.add_volume(volume, disks, arena) {
                log::error!("volume {}: {why}", volume.name);
            }
        }
        storage.drop_pools(disks, arena);
        if let Some(provider) = provider.filter(|_| config.rnbd.enabled) {
            storage.serve(config, arena, provider, rng);
        }
        storage
    }

    /// Starts the server.
    fn serve(
        &mut self,
        config: &Config,
        arena: &mut Arena,
        provider: &mut ProviderSet,
        rng: &mut dyn Rng,
    ) {
        if config.rnbd.oversubscribe > 1 {
            give_memory(provider, config, arena);
        }
        let chunk_size = config.rnbd.chunk_size.0 as u32;
        let queue_depth = queue_depth::of(config, arena.capacity() as u64);
        queue_depth::log_depth(config, queue_depth, arena.available() as u64);
        self.offered = Some(Offered::new(config, queue_depth));
        let settings = server::Config {
            port: config.rnbd.port,
            queue_depth,
            chunk_size,
            sessions_per_host: config.limits.sessions_per_host.into(),
            memory_per_host: config.limits.memory_per_host.map(|limit| limit.0),
            always_invalidate: config.rnbd.always_invalidate,
            oversubscribe: config.rnbd.oversubscribe,
            // It shows other appliances that this one was restarted.
            incarnation: rng.next_u64() | 1,
            ..server::Config::default()
        };
        match Server::new(settings, MAX_DEVICES, provider) {
            Ok(mut server) => {
                server.offer_secure_erase(config.rnbd.secure_erase);
                self.server = Some(server);
            }
            Err(StartError::Config(bad)) => log::error!("rnbd: {bad}"),
            Err(StartError::Provider(why)) => log::error!("rnbd: not available: {why}"),
        }
    }

    /// The wanted exports: those of the configuration, or every volume if it has none.
    pub fn wanted_exports(&self, config: &Config) -> Vec<config::Export> {
        let mut wanted = config.exports();
        if config.export.is_empty() {
            let exported = wanted.iter().map(|export| export.volume.as_str().to_string());
            let exported: BTreeSet<String> = exported.collect();
            let names = self.volumes.ids().filter_map(|id| self.volumes.name(id));
            for name in names.filter_map(|name| name.parse::<config::Name>().ok()) {
                if !exported.contains(name.as_str())
                    && config.mirror_of(name.as_str()).is_none()
                    && self.dissolving.as_deref() != Some(name.as_str())
                    && !self.leaving.contains(name.as_str())
                    && let Ok(shown) = name.as_str().parse()
                {
                    wanted.push(config::Export::of(shown, name));
                }
            }
        }
        wanted
    }

    /// Applies the wanted exports to the server. Open devices stay open.
    pub fn apply_exports(&mut self, config: &Config) {
        let Some(server) = &self.server else { return };
        let mut complaints = Vec::new();
        let mut wanted = Vec::new();
        for export in self.wanted_exports(config) {
            match self.export(&export) {
                Ok(export) => wanted.push(export),
                // A volume that is being created is exported when it exists.
                Err(_) if self.is_coming(export.volume.as_str()) => {}
                Err(why) => complaints.push(format!("export {}: {why}", export.name)),
            }
        }
        let stale: Vec<Name> =
            server.exports().iter().filter(|e| !wanted.contains(e)).map(|e| e.name).collect();
        let Some(server) = &mut self.server else { return };
        for name in stale {
            server.remove_export(name.as_str());
        }
        for export in wanted {
            if !server.exports().contains(&export) {
                let name = export.name;
                if let Err(why) = server.add_export(export, &self.volumes) {
                    complaints.push(format!("export {}: {why}", name.as_str()));
                }
            }
        }
        for complaint in complaints.iter().filter(|one| !self.complaints.contains(one)) {
            log::error!("{complaint}");
        }
        self.complaints = complaints;
    }

    /// Adds a volume in memory, or on a disk.
    pub fn add_volume(
        &mut self,
        volume: &Volume,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
    ) -> Result<(), String> {
        let name = name(&volume.name)?;
        let volume: Box<dyn storage::volume::Volume> = match &volume.disk {
            None => {
                let bytes = usize::try_from(volume.memory()).unwrap_or(usize::MAX);
                let free = arena.available();
                let short = || format!("{bytes} bytes of memory wanted, {free} free");
                let memory = arena.alloc_from_end(bytes, 4096).ok_or_else(short)?;
                Box::new(RamVolume::new(memory, volume.read_only))
            }
            Some(disk) if volume.size.is_some() => {
                let bytes = volume.size.map_or(0, |size| size.0);
                let number = number_of(disks, disk)?;
                return self.declare(volume.name.as_str(), &disks[number], number, bytes);
            }
            Some(disk) => {
                let number = number_of(disks, disk)?;
                let slot = &mut disks[number];
                slot.check_free()?;
                slot.role = Role::Volume;
                let fixed = slot.geometry.features.contains(Features::READ_ONLY);
                let volume = DiskVolume::new(slot.disk.share(), volume.read_only || fixed);
                Box::new(volume.of_number(number))
            }
        };
        self.volumes.add(name, volume).map(|_| ()).ok_or_else(|| "the name is taken".into())
    }

    /// Prevents further opens of a volume, on all cores. An error if it is open or in use.
    pub fn retire_volume(&self, id: VolumeId, name: &str) -> Result<(), String> {
        let Some(counts) = self.volumes.open_counts(id) else { return Ok(()) };
        counts.retire().map_err(|why| {
            counts.keep();
            match why {
                StillUsed::Open => format!(
                    "{name}: a session on another core has it open; `device list` shows which"
                ),
                StillUsed::Busy => format!("{name}: another core is busy with it; try again"),
            }
        })
    }

    /// Frees the memory of a volume, at once or when nothing in flight and no other loop refers to it. A response may
    /// have to be retransmitted.
    pub fn retire(
        &mut self,
        memory: Arc<RamMemory>,
        arena: &mut Arena,
        provider: Option<&ProviderSet>,
        now: Instant,
    ) {
        let served = |server: &Server| server.transport().paths().next().is_some();
        let provider = provider.filter(|_| self.server.as_ref().is_some_and(served));
        if provider.is_none() && Arc::strong_count(&memory) == 1 {
            return arena.free(memory.window());
        }
        self.let_go(memory, provider, now);
    }

    /// Makes memory of deleted volumes wait for `ports` ports.
    pub fn wait_for_ports(&mut self, ports: usize) {
        self.unsent = hal::Retired::new(ports, 0);
    }

    /// Whether memory of deleted volumes waits for a port.
    pub fn is_waiting_for_ports(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Records the transmit progress of a port. Call it for the ports in order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.unsent.note(port, progress, drop);
    }

    /// Whether memory of deleted volumes waits to be freed.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty() || !self.unused.is_empty()
    }

    /// Keeps memory of a deleted volume until nothing in flight refers to it.
    pub fn let_go(&mut self, memory: Arc<RamMemory>, provider: Option<&ProviderSet>, now: Instant) {
        let under_way = provider.map_or_else(UnderWay::default, Provider::under_way);
        self.retired.push(Retired { memory, under_way, since: now });
    }

    /// Frees retired memory to which nothing refers. On a loop of another core, drops it. A connection whose peer takes
    /// too long to acknowledge is ended.
    pub fn free_retired(
        &mut self,
        arena: &mut Arena,
        mut provider: Option<&mut ProviderSet>,
        now: Instant,
    ) {
        let over = self.retired.extract_if(.., |Retired { under_way, since, .. }| {
            provider.as_mut().is_none_or(|provider| {
                if now.since(*since) >= PATIENCE {
                    for qp in under_way.queue_pairs() {
                        // An error means that the queue pair is gone, with its responses.
                        let _ = provider.fail_qp(qp);
                        log::warn!(
                            "connection ended: its peer has not acknowledged reads of a deleted volume for \
                             {} s",
                            PATIENCE.as_secs()
                        );
                    }
                }
                provider.is_done(under_way)
            })
        });
        for Retired { memory, .. } in over {
            match self.follows {
                Some(_) => drop(self.unsent.put(memory, Through::Any)),
                None => self.unused.push(memory),
            }
        }
        self.unused.retain(|memory| {
            let alone = Arc::strong_count(memory) == 1;
            if alone {
                arena.free(memory.window());
            }
            !alone
        });
    }

    fn export(&self, export: &config::Export) -> Result<Export, String> {
        let wanted = &export.volume;
        let volume = self.volumes.find(wanted.as_str());
        let volume = volume.ok_or_else(|| format!("there is no volume {wanted}"))?;
        let allow = export.sessions.iter().map(name).collect::<Result<_, _>>()?;
        let hosts = Hosts::new(export.hosts.clone());
        let (name, read_only) = (name(&export.name)?, export.read_only);
        // Open devices of an earlier export of that name have its limits.
        let mut known = self.server.iter().flat_map(Server::exports);
        let limiter = known.find(|one| one.name == name).map(|one| one.limiter.clone());
        let limiter = limiter.unwrap_or_default();
        limiter.set(&export.limits());
        Ok(Export { name, volume, read_only, allow, hosts, limiter })
    }
}

/// Warns of disks that are named by position, which changes with other disks.
fn warn_of_positions(config: &Config, disks: &[DiskSlot]) {
    let ours =
        |slot: &&DiskSlot| matches!(slot.role, Role::Boot | Role::Configuration | Role::Seed);
    if disks.len() - disks.iter().filter(ours).count() < 2 {
        return;
    }
    for volume in &config.volume {
        let Some(config::DeviceName::Position(position)) = volume.disk else { continue };
        let Some(slot) = disks.get(usize::from(position)) else { continue };
        log::warn!(
            "volume {}: disk = {position} is a position, which changes when disks are added or removed: \
             use disk = \"{}\"",
            volume.name,
            slot.device
        );
    }
}

/// Gives most of the free arena to the provider, for chunks on demand. The rest is for volumes that are created later,
/// and for paths while they connect.
fn give_memory(provider: &mut ProviderSet, config: &Config, arena: &mut Arena) {
    let chunk = config.rnbd.chunk_size.0 as usize;
    let mut bytes = arena.available() / 4 * 3 / 4096 * 4096;
    // The free memory may be fragmented.
    let memory = core::iter::from_fn(|| {
        let tried = bytes;
        bytes = bytes / 2 / 4096 * 4096;
        (tried >= 4 * chunk).then_some(tried)
    })
    .find_map(|bytes| arena.alloc(bytes, 4096));
    match memory.map(|memory| provider.give_memory(memory, chunk)) {
        Some(Ok(())) => {}
        Some(Err(why)) => log::error!("rnbd.oversubscribe: not available: {why}"),
        None => log::error!("rnbd.oversubscribe: less than four chunks of memory are free"),
    }
}

/// Converts a name for the protocol.
pub(super) fn name(text: &impl ToString) -> Result<Name, String> {
    Name::new(&text.to_string()).map_err(|_| "the name is too long for the protocol".into())
}
