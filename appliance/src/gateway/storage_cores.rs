//! Storage on cores other than the first. Each loop has a server for the clients of its own ports. The first loop owns
//! the volumes and publishes them in a catalog: another loop has a share of each RAM volume, a queue of its own to a
//! disk if the disk has one ([`super::disk_queues`]), and a channel to the first loop for all other volumes.
//! `appliance/storage` describes the three.

use super::disk_queues::{LoopQueue, OwnDisks};
use super::loop_waker::LoopWaker;
use super::storage::{MAX_DEVICES, Storage};
use drivers::hal::Instant;
use provider_set::ProviderSet;
use rtrs::server::{Config, Directory, Wake};
use std::sync::Arc;
use storage::rnbd::server::Server;
use storage::volume::catalog::{Catalog, Listed, Listing};
use storage::volume::channel::{Channel, Served, channel};
use storage::volume::{OnDisk, OpenCounts, VolumeId, Volumes};

/// Resources of another core's loop to serve storage. They are moved to that core.
pub(super) struct Seat {
    core: usize,
    settings: Config,
    secure_erase: bool,
    catalog: Arc<Catalog>,
    directory: Arc<Directory>,
    channel: Channel,
    queues: Vec<LoopQueue>,
}

impl Storage {
    /// Prepares to share storage with loops on other cores. `own` wakes this loop, `others` are numbers and wakers of
    /// the others.
    pub fn share(&mut self, own: &LoopWaker, others: &[(usize, LoopWaker)]) {
        let (Some(server), Some((last, _))) = (&mut self.server, others.last()) else { return };
        let waker = |core: usize| match core {
            0 => Some(own.clone()),
            _ => others.iter().find(|(number, _)| *number == core).map(|(_, waker)| waker.clone()),
        };
        let wakes = (0..=*last).map(|core| match waker(core) {
            Some(waker) => Box::new(move || waker.wake()) as Wake,
            None => Box::new(|| ()),
        });
        let directory = Arc::new(Directory::new(wakes.collect()));
        server.transport_mut().share_sessions(directory.clone(), 0);
        self.followers.directory = Some(directory);
    }

    /// Resources of a core's loop to serve storage, with the disk queues that `open` returns. None if it serves none.
    pub fn seat(
        &mut self,
        core: usize,
        own: &LoopWaker,
        waker: &LoopWaker,
        open: impl FnOnce() -> Vec<LoopQueue>,
    ) -> Option<Seat> {
        let server = self.server.as_ref()?;
        let directory = self.followers.directory.clone()?;
        let settings = *server.transport().config();
        if settings.oversubscribe > 1 {
            log::warn!(
                "core {core}: its ports serve no storage, because rnbd.oversubscribe is {}: memory is shared \
                 by the sessions of one core",
                settings.oversubscribe
            );
            return None;
        }
        let (ours, theirs) = (own.clone(), waker.clone());
        let (channel, served) =
            channel(core as u16, Box::new(move || ours.wake()), Box::new(move || theirs.wake()));
        self.followers.served.push(served);
        self.followers.wake.push(waker.clone());
        let secure_erase = server.offers_secure_erase();
        let catalog = self.followers.catalog.clone();
        Some(Seat { core, settings, secure_erase, catalog, directory, channel, queues: open() })
    }

    /// Creates the storage of another loop than the first.
    pub fn following(seat: Seat, provider: &mut ProviderSet) -> Storage {
        let Seat { core, settings, secure_erase, catalog, directory, channel, queues } = seat;
        let server = match Server::new(settings, MAX_DEVICES, provider) {
            Ok(mut server) => {
                server.offer_secure_erase(secure_erase);
                server.transport_mut().share_sessions(directory, core);
                Some(server)
            }
            Err(why) => {
                log::error!("core {core}: its ports serve no storage: {why}");
                None
            }
        };
        let mut storage = Storage::default();
        storage.volumes = Volumes::over(channel);
        storage.own_disks = OwnDisks::new(queues);
        (storage.server, storage.follows) = (server, Some(catalog));
        storage
    }

    /// Adopts the volumes and exports that their owner has published, if they are new. Returns whether they were.
    pub fn follow(&mut self, provider: &ProviderSet, now: Instant) -> bool {
        let Some(catalog) = self.follows.as_ref() else { return false };
        let share = |place: &OnDisk, counts: &Arc<OpenCounts>| self.own_disks.share(place, counts);
        let Some((listing, gone)) = self.volumes.adopt(catalog, share) else { return false };
        self.own_disks.update_sizes();
        if let Some(server) = &mut self.server {
            server.set_exports(&listing.exports);
        }
        for memory in gone {
            self.let_go(memory, Some(provider), now);
        }
        true
    }

    /// Publishes volumes and exports to the other loops, if they have changed.
    pub fn publish(&mut self) {
        let Some(server) = &self.server else { return };
        let now = (self.volumes.revision(), server.exports_revision());
        if self.followers.served.is_empty() || now == self.followers.published {
            return;
        }
        self.followers.published = now;
        let exports = server.exports().to_vec();
        self.followers.listing = Arc::new(Listing { volumes: self.volumes.listed(), exports });
        self.followers.catalog.publish(self.followers.listing.clone());
        self.followers.wake.iter().for_each(LoopWaker::wake);
    }

    /// Makes [`Storage::publish`] publish again if a volume's geometry has changed. Call it about once a second.
    pub fn check_geometries(&mut self) {
        let listed = self.followers.listing.volumes.iter().zip(0..);
        let changed = |(one, number): (&Option<Listed>, u32)| {
            let now = self.volumes.geometry(VolumeId(number));
            one.as_ref().is_some_and(|one| now.is_some_and(|now| now != one.geometry))
        };
        if listed.into_iter().any(changed) {
            self.followers.published = Default::default();
        }
    }

    /// Executes requests of other loops for volumes. Returns their number.
    pub fn serve_followers(&mut self) -> usize {
        let mut done = 0;
        for served in &mut self.followers.served {
            done += served.poll(&mut self.volumes);
        }
        // Completions that another user's poll has kept.
        done + usize::from(self.volumes.has_kept())
    }

    /// Whether requests, completions or published changes of other loops are pending.
    pub fn pending(&self) -> bool {
        self.followers.served.iter().any(Served::pending)
            || self.follows.as_ref().is_some_and(|catalog| self.volumes.has_news(catalog))
    }
}
