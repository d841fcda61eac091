//! The storage gateway: volumes, exports and the RNBD server, made from the configuration.

use super::alarm::Alarm;
use super::disks::{DiskSlot, Role};
use super::hub::Hub;
use crate::config::{Config, Volume};
use drivers::hal::{Arena, Features};
use rdma::rnbd::server::{Common, Export, Server};
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
    /// Volumes that other loops use as well.
    hubs: Vec<Hub>,
}

/// The volumes as another loop has them, in the order of their ids.
pub(super) type Shares = Vec<(Name, Box<dyn rdma::volume::Volume + Send>)>;

/// The loops that share the volumes.
pub(super) struct Loops<'a> {
    /// That of this one.
    pub own: &'a Alarm,
    /// Those of the others, and what each gets.
    pub others: &'a [Alarm],
    pub shares: &'a mut [Shares],
}

impl Storage {
    /// Makes volumes; what cannot be made is told in the log and left out.
    pub fn new(
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        loops: &mut Loops<'_>,
    ) -> Self {
        let mut storage = Storage::default();
        for volume in &config.volume {
            if let Err(why) = storage.add_volume(volume, disks, arena, loops) {
                log::error!("volume {}: {why}", volume.name);
            }
        }
        storage
    }

    /// The volumes of the first loop, at another one.
    pub fn of_shares(shares: Shares) -> Self {
        let mut storage = Storage::default();
        for (name, volume) in shares {
            // Their names are different already.
            let _ = storage.volumes.add(name, volume);
        }
        storage
    }

    /// Lets volumes that are shared with other loops go on; how much was done.
    pub fn turn(&self) -> usize {
        self.hubs.iter().map(Hub::turn).sum()
    }

    /// Serves the volumes over `provider`, as server number `number` of those that share `common`.
    pub fn serve(
        &mut self,
        config: &Config,
        provider: Option<&mut Roce>,
        common: &Common,
        number: usize,
    ) {
        let Some(provider) = provider.filter(|_| config.rnbd.enabled) else { return };
        let settings = server::Config {
            port: config.rnbd.port,
            queue_depth: config.rnbd.queue_depth,
            chunk_size: config.rnbd.chunk_size.0 as u32,
            always_invalidate: config.rnbd.always_invalidate,
            ..server::Config::default()
        };
        match Server::new(settings, MAX_DEVICES, provider) {
            Ok(mut server) => {
                server.share(common, number as u32);
                self.server = Some(server);
            }
            Err(StartError::Config(bad)) => log::error!("rnbd: {bad}"),
            Err(StartError::Provider(why)) => log::error!("rnbd: the fabric refused: {why:?}"),
        }
        for export in config.exports() {
            if let Err(why) = self.add_export(&export) {
                log::error!("export {}: {why}", export.name);
            }
        }
    }

    fn add_volume(
        &mut self,
        volume: &Volume,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        loops: &mut Loops<'_>,
    ) -> Result<(), String> {
        let name = name(&volume.name)?;
        if self.volumes.find(name.as_str()).is_some() {
            return Err("the name is taken".into());
        }
        let volume: Box<dyn rdma::volume::Volume> = match volume.disk {
            None => {
                let bytes = usize::try_from(volume.memory()).unwrap_or(usize::MAX);
                let free = arena.available();
                let short = || format!("{bytes} bytes of memory wanted, {free} free");
                let memory = arena.alloc(bytes, 4096).ok_or_else(short)?;
                let ram = RamVolume::new(memory, volume.read_only);
                for shares in &mut *loops.shares {
                    shares.push((name, Box::new(ram.share())));
                }
                Box::new(ram)
            }
            Some(number) => {
                let slot = disks.get_mut(usize::from(number));
                let slot = slot.ok_or_else(|| format!("there is no disk {number}"))?;
                if slot.role != Role::Free {
                    return Err(format!("disk {number} is in use: {}", slot.role.name()));
                }
                slot.role = Role::Volume;
                let fixed = slot.geometry.features.contains(Features::READ_ONLY);
                let disk = DiskVolume::new(slot.disk.share(), volume.read_only || fixed);
                self.shared(name, Box::new(disk), loops)
            }
        };
        self.volumes.add(name, volume).map(|_| ()).ok_or_else(|| "the name is taken".into())
    }

    /// A volume that stays with this loop, as all loops use it.
    fn shared(
        &mut self,
        name: Name,
        volume: Box<dyn rdma::volume::Volume>,
        loops: &mut Loops<'_>,
    ) -> Box<dyn rdma::volume::Volume> {
        if loops.others.is_empty() {
            return volume;
        }
        let (hub, remotes) = Hub::new(volume, loops.own, loops.others);
        for (shares, remote) in loops.shares.iter_mut().zip(remotes) {
            shares.push((name, Box::new(remote)));
        }
        self.hubs.push(hub.clone());
        Box::new(hub)
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
