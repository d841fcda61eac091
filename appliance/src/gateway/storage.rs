//! The storage gateway: volumes, exports and the RNBD server, made from the configuration.

use super::disk_pool::DiskPool;
use super::disk_queues::OwnDisks;
use super::disks::{DiskSlot, Role, number_of};
use super::followers::Followers;
use super::queue_depth::{self, Offered};
use super::remote_storage::RemoteStorage;
use crate::config::{self, Config, Volume};
use core::time::Duration;
use drivers::hal::{self, Arena, Features, Instant, Through, TransmitProgress};
use net::hosts::Hosts;
use provider_set::ProviderSet;
use rand_core::RngCore;
use rtrs::Name;
use rtrs::server::{self, StartError};
use std::sync::Arc;
use storage::rnbd::server::{Export, Server};
use storage::volume::catalog::Catalog;
use storage::volume::{DiskVolume, RamMemory, RamVolume, StillUsed, VolumeId, Volumes};
use verbs::EngineContext;
use verbs::{Provider, UnderWay};

/// Devices that a session may have open.
pub(super) const MAX_DEVICES: usize = 64;

/// For so long a client may take to acknowledge what was read of a volume that is no more. One that
/// acknowledges nothing has lost its connection before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of a volume that is no more, which answers that are under way may point into.
pub(super) struct Retired {
    memory: Arc<RamMemory>,
    under_way: UnderWay,
    since: Instant,
}

/// Volumes, and who serves them.
#[derive(Default)]
pub(super) struct Storage {
    pub volumes: Volumes,
    /// Disks that hold volumes.
    pub pools: Vec<DiskPool>,
    /// Memory of volumes that are no more, as long as something is under way; on the loop that owns them, what is free
    /// when no other loop has it; on others, what is let go when the ports have sent it.
    retired: Vec<Retired>,
    unused: Vec<Arc<RamMemory>>,
    unsent: hal::Retired<Arc<RamMemory>>,
    /// None if it is switched off, or there is no RDMA provider.
    pub server: Option<Server>,
    /// The queue depth that its clients are given.
    pub offered: Option<Offered>,
    /// What was complained about when the exports were made what is wanted: it is said once.
    complaints: Vec<String>,
    /// What comes from other servers, and mirrors; None if there is nothing of it.
    pub remote_storage: Option<Box<RemoteStorage>>,
    /// The loops of other cores, which serve the same volumes.
    pub followers: Followers,
    /// Disks that this loop has queues of its own to, if it is that of another core.
    pub own_disks: OwnDisks,
    /// Where the owner of the volumes tells of them, if this is the loop of another core.
    pub follows: Option<Arc<Catalog>>,
}

impl Storage {
    /// Makes volumes and exports; what cannot be made is told in the log and left out.
    pub fn new(
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        provider: Option<&mut ProviderSet>,
        rng: &mut dyn RngCore,
        now: Instant,
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
        let Some(provider) = provider else { return storage };
        if config.rnbd.enabled {
            storage.serve(config, arena, provider, rng);
        }
        let mut ctx = EngineContext { provider, arena, now, rng };
        storage.add_remotes(config, &mut ctx);
        storage.add_mirrors(config, arena, now);
        storage.apply_exports(config);
        storage
    }

    /// Starts the server.
    fn serve(
        &mut self,
        config: &Config,
        arena: &mut Arena,
        provider: &mut ProviderSet,
        rng: &mut dyn RngCore,
    ) {
        if config.rnbd.oversubscribe > 1 {
            give_memory(provider, config, arena);
        }
        let chunk_size = config.rnbd.chunk_size.0 as u32;
        let queue_depth = queue_depth::of(config, arena.capacity() as u64);
        queue_depth::tell(config, queue_depth, arena.available() as u64);
        self.offered = Some(Offered::new(config, queue_depth));
        let settings = server::Config {
            port: config.rnbd.port,
            queue_depth,
            chunk_size,
            sessions_per_host: config.limits.sessions_per_host.into(),
            memory_per_host: config.limits.memory_per_host.map(|limit| limit.0),
            always_invalidate: config.rnbd.always_invalidate,
            oversubscribe: config.rnbd.oversubscribe,
            // Other appliances see by it that this one was restarted.
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

    /// Whether it is a mirror that is being taken apart.
    fn is_ending(&self, volume: &str) -> bool {
        self.remote_storage.as_ref().is_some_and(|one| one.ending.as_deref() == Some(volume))
    }

    /// What is to be exported: as the configuration says, or without a word of it every volume.
    pub fn wanted_exports(&self, config: &Config) -> Vec<config::Export> {
        let mut wanted = config.exports();
        if config.export.is_empty() {
            let names = self.volumes.ids().filter_map(|id| self.volumes.name(id));
            for name in names.filter_map(|name| name.parse().ok()) {
                if wanted.iter().all(|export| export.volume != name)
                    && config.mirror_of(name.as_str()).is_none()
                    && !self.is_ending(name.as_str())
                    && let Ok(shown) = name.as_str().parse()
                {
                    let sessions = Vec::new();
                    let export = config::Export {
                        name: shown,
                        volume: name,
                        read_only: false,
                        sessions,
                        hosts: Vec::new(),
                    };
                    wanted.push(export);
                }
            }
        }
        wanted
    }

    /// Makes the exports what is wanted. Devices that are open stay open.
    pub fn apply_exports(&mut self, config: &Config) {
        let Some(server) = &self.server else { return };
        let mut complaints = Vec::new();
        let mut wanted = Vec::new();
        for export in self.wanted_exports(config) {
            match self.export(&export) {
                Ok(export) => wanted.push(export),
                // One that is being made is exported once it is there.
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

    /// Makes a volume in memory, or of a disk.
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

    /// Lets nobody open a volume any more, on whichever core; an error if one has it open or works on it.
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

    /// Gives the memory of a volume back: at once, or when nothing that is under way points into it any
    /// more, and no other loop has it. An answer may have to be sent again.
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

    /// Has memory of volumes that are no more wait for `ports` ports.
    pub fn wait_for_ports(&mut self, ports: usize) {
        self.unsent = hal::Retired::new(ports, 0);
    }

    /// Whether such memory waits for a port.
    pub fn is_waiting_for_ports(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes note of what a port has sent. To be called for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.unsent.note(port, progress, drop);
    }

    /// Whether there is memory of volumes that are no more, and that may be free.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty() || !self.unused.is_empty()
    }

    /// Keeps memory of a volume that is no more until nothing that is under way points into it.
    pub fn let_go(&mut self, memory: Arc<RamMemory>, provider: Option<&ProviderSet>, now: Instant) {
        let under_way = provider.map_or_else(UnderWay::default, Provider::under_way);
        self.retired.push(Retired { memory, under_way, since: now });
    }

    /// Frees what was retired, is not pointed to any more, and no loop of another core has; on such a loop, lets it
    /// go. A connection whose peer takes too long to
    /// acknowledge ends.
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
                        // If it is gone, so is what it had to send.
                        let _ = provider.fail_qp(qp);
                        log::warn!(
                            "a connection ends whose peer has not acknowledged in {} s what was read of a \
                             volume that was deleted",
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
        Ok(Export { name: name(&export.name)?, volume, read_only: export.read_only, allow, hosts })
    }
}

/// Says which disks are named by a position, which another disk would shift.
fn warn_of_positions(config: &Config, disks: &[DiskSlot]) {
    let ours = |slot: &&DiskSlot| matches!(slot.role, Role::Boot | Role::Configuration);
    if disks.len() - disks.iter().filter(ours).count() < 2 {
        return;
    }
    for volume in &config.volume {
        let Some(config::DeviceName::Position(position)) = volume.disk else { continue };
        let Some(slot) = disks.get(usize::from(position)) else { continue };
        log::warn!(
            "volume {}: disk = {position} is a position, which changes when disks are added or taken \
             away; disk = \"{}\" stays",
            volume.name,
            slot.device
        );
    }
}

/// Gives most of what is free of the arena to the provider, for chunks on demand; the rest is for
/// volumes that are made later, and for what paths need while they come up.
fn give_memory(provider: &mut ProviderSet, config: &Config, arena: &mut Arena) {
    let chunk = config.rnbd.chunk_size.0 as usize;
    let mut bytes = arena.available() / 4 * 3 / 4096 * 4096;
    // Perhaps it is not in one piece.
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

/// A name as the protocol has it.
pub(super) fn name(text: &impl ToString) -> Result<Name, String> {
    Name::new(&text.to_string()).map_err(|_| "the name is too long for the protocol".into())
}
