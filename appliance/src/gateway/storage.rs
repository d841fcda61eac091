//! The storage gateway: volumes, exports and the RNBD server, made from the configuration.

use super::disks::{DiskSlot, Role};
use crate::config::{Config, Volume};
use drivers::hal::{Arena, Features};
use rdma::rnbd::server::{Export, Server};
use rdma::roce::Roce;
use rdma::rtrs::Name;
use rdma::rtrs::server::{self, StartError};
use rdma::volume::{DiskVolume, RamVolume, Volumes};

/// Devices that a session may have open.
const MAX_DEVICES: usize = 64;

/// Volumes, and who serves them.
#[derive(Default)]
pub(super) struct Storage {
    pub volumes: Volumes,
    /// None if it is switched off, or there is no fabric.
    pub server: Option<Server>,
}

impl Storage {
    /// Makes volumes and exports; what cannot be made is told in the log and left out.
    pub fn new(
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        provider: Option<&mut Roce>,
    ) -> Self {
        let mut storage = Storage::default();
        for volume in &config.volume {
            if let Err(why) = storage.add_volume(volume, disks, arena) {
                log::error!("volume {}: {why}", volume.name);
            }
        }
        let Some(provider) = provider.filter(|_| config.rnbd.enabled) else { return storage };
        let settings = server::Config {
            port: config.rnbd.port,
            queue_depth: config.rnbd.queue_depth,
            chunk_size: config.rnbd.chunk_size.0 as u32,
            always_invalidate: config.rnbd.always_invalidate,
            ..server::Config::default()
        };
        match Server::new(settings, MAX_DEVICES, provider) {
            Ok(server) => storage.server = Some(server),
            Err(StartError::Config(bad)) => log::error!("rnbd: {bad}"),
            Err(StartError::Provider(why)) => log::error!("rnbd: the fabric refused: {why:?}"),
        }
        for export in config.exports() {
            if let Err(why) = storage.add_export(&export) {
                log::error!("export {}: {why}", export.name);
            }
        }
        storage
    }

    fn add_volume(
        &mut self,
        volume: &Volume,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
    ) -> Result<(), String> {
        let name = name(&volume.name)?;
        let volume: Box<dyn rdma::volume::Volume> = match volume.disk {
            None => {
                let bytes = usize::try_from(volume.memory()).unwrap_or(usize::MAX);
                let free = arena.available();
                let short = || format!("{bytes} bytes of memory wanted, {free} free");
                let memory = arena.alloc(bytes, 4096).ok_or_else(short)?;
                Box::new(RamVolume::new(memory, volume.read_only))
            }
            Some(number) => {
                let slot = disks.get_mut(usize::from(number));
                let slot = slot.ok_or_else(|| format!("there is no disk {number}"))?;
                if slot.role != Role::Free {
                    return Err(format!("disk {number} is in use: {}", slot.role.name()));
                }
                slot.role = Role::Volume;
                let fixed = slot.geometry.features.contains(Features::READ_ONLY);
                Box::new(DiskVolume::new(slot.disk.share(), volume.read_only || fixed))
            }
        };
        self.volumes.add(name, volume).map(|_| ()).ok_or_else(|| "the name is taken".into())
    }

    fn add_export(&mut self, export: &crate::config::Export) -> Result<(), String> {
        let wanted = &export.volume;
        let volume = self.volumes.find(wanted.as_str());
        let volume = volume.ok_or_else(|| format!("there is no volume {wanted}"))?;
        let allow = export.sessions.iter().map(name).collect::<Result<_, _>>()?;
        let export =
            Export { name: name(&export.name)?, volume, read_only: export.read_only, allow };
        let Some(server) = &mut self.server else { return Ok(()) };
        server.add_export(export, &self.volumes).map_err(|error| error.to_string())
    }
}

fn name(text: &impl ToString) -> Result<Name, String> {
    Name::new(&text.to_string()).map_err(|_| "the name is too long for the protocol".into())
}
