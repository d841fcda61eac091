//! Volumes of NBD servers: moves bytes between the TCP connections of the interfaces and the clients of the volumes.
//!
//! The clients belong to the storage, so that volumes exist before the interfaces do. A client is polled only after a
//! request, an event of one of its connections, or when its timer has expired.

mod remote;
#[cfg(test)]
mod tests;

use super::network::Network;
use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use super::storage::{Storage, name};
use crate::config::{self, Config, RemoteKind};
use crate::families::{self, REMOTE};
use drivers::hal::Instant;
use management::status::NbdStatus;
use net::connector::Owner;
use net::dns::Resolver;
use rand_core::Rng;
use remote::{NbdRemote, Polled};
use std::collections::{BTreeSet, HashMap};
use storage::rnbd::client::Bells;
use storage::volume::NbdVolume;

/// The remote volumes over NBD.
#[derive(Default)]
pub(super) struct NbdRemotes {
    /// By number; None where one was removed.
    all: Vec<Option<Box<NbdRemote>>>,
    /// Remotes with work, by number.
    bells: Bells,
    /// Next timers, with the numbers of remotes.
    due: BTreeSet<(Instant, u32)>,
    /// Connectors by interface, with the numbers of their remotes.
    owners: HashMap<(usize, Owner), u32>,
}

impl NbdRemotes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    /// Statuses for reports.
    pub fn statuses(&self) -> Vec<NbdStatus<'_>> {
        self.all.iter().flatten().filter(|one| !one.is_removed).map(|one| one.status()).collect()
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.all.iter().flatten().any(|one| !one.is_removed && one.name == name)
    }

    fn find(&mut self, name: &str) -> Option<&mut NbdRemote> {
        let mut all = self.all.iter_mut().flatten().filter(|one| !one.is_removed);
        all.find(|one| one.name == name).map(|one| &mut **one)
    }

    fn set_due(&mut self, number: u32, due: Option<Instant>) {
        let Some(Some(remote)) = self.all.get_mut(number as usize) else { return };
        let before = core::mem::replace(&mut remote.due, due);
        if before != due {
            before.map(|at| self.due.remove(&(at, number)));
            due.map(|at| self.due.insert((at, number)));
        }
    }

    /// Rings the bells of remotes with events or expired timers.
    fn ring(&mut self, networks: &[Network], now: Instant) {
        for (place, network) in networks.iter().enumerate() {
            for owner in network.interface.ready() {
                if let Some(&number) = self.owners.get(&(place, *owner)) {
                    self.bells.ring(number);
                }
            }
        }
        for &(_, number) in self.due.iter().take_while(|(at, _)| *at <= now) {
            self.bells.ring(number);
        }
    }
}

impl Storage {
    /// Adds the configured remotes over NBD. Failures are logged.
    pub fn add_nbd_remotes(&mut self, config: &Config) {
        for remote in config.remote.iter().filter(|remote| remote.kind == RemoteKind::Nbd) {
            if let Err(why) = self.add_nbd_remote(remote) {
                log::error!("remote {}: {why}", remote.name);
            }
        }
    }

    /// Adds a remote over NBD as a volume, which has no sectors until it is connected.
    pub fn add_nbd_remote(&mut self, remote: &config::Remote) -> Result<(), String> {
        if !REMOTE {
            return Err(families::missing("remote"));
        }
        let volume_name = name(&remote.name)?;
        if self.volumes.find(remote.name.as_str()).is_some() {
            return Err("the name is taken".into());
        }
        let remotes = &mut self.nbd;
        let free = remotes.all.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            remotes.all.push(None);
            remotes.all.len() - 1
        });
        let made = NbdRemote::new(remote).ok_or("the name of the export is too long")?;
        let bell = remotes.bells.bell(number as u32);
        bell.ring();
        let volume = NbdVolume::new(made.client.clone(), Some(bell));
        remotes.all[number] = Some(Box::new(made));
        let added = self.volumes.add(volume_name, Box::new(volume));
        added.map(drop).ok_or_else(|| "the name is taken".into())
    }

    /// Removes a remote over NBD, whose volume must be unused. False if there is none of this name.
    pub fn remove_nbd_remote(&mut self, name: &str, now: Instant) -> bool {
        let Some(remote) = self.nbd.find(name) else { return false };
        remote.is_removed = true;
        remote.client.borrow_mut().end(now);
        self.ring_nbd_remotes();
        if let Some(id) = self.volumes.find(name) {
            drop(self.volumes.remove(id));
        }
        true
    }

    /// Opens the connections of a remote over NBD anew, to read its size or to try again now. False if there is none of
    /// this name.
    pub fn remap_nbd_remote(&mut self, name: &str, now: Instant) -> bool {
        let Some(remote) = self.nbd.find(name) else { return false };
        remote.client.borrow_mut().remap(now);
        self.ring_nbd_remotes();
        true
    }

    fn ring_nbd_remotes(&self) {
        (0..self.nbd.all.len() as u32).for_each(|number| self.nbd.bells.ring(number));
    }
}

/// The service. It exists once there was a remote over NBD.
#[derive(Default)]
pub(super) struct NbdService {
    /// All clients disconnect, because the machine ends.
    is_ending: bool,
    /// All have.
    is_over: bool,
}

impl NbdService {
    /// None without a remote over NBD.
    pub fn of(plane: &DataPlane) -> Option<Box<NbdService>> {
        (!plane.storage.nbd.is_empty()).then(Box::default)
    }

    /// Starts the service if there is a remote over NBD.
    pub fn start(service: &mut Option<Box<NbdService>>, plane: &DataPlane) {
        if service.is_none() {
            *service = NbdService::of(plane);
        }
    }
}

/// Polls the remotes with work. Returns the amount of work.
fn poll(
    storage: &mut Storage,
    networks: &mut [Network],
    resolver: &mut Resolver,
    rng: &mut dyn Rng,
    now: Instant,
) -> usize {
    let remotes = &mut storage.nbd;
    remotes.ring(networks, now);
    let (mut done, mut is_changed) = (0, false);
    // A remote whose bell rings meanwhile is polled in the next round.
    for _ in 0..remotes.bells.rung() {
        let Some(number) = remotes.bells.answer() else { break };
        let Some(Some(remote)) = remotes.all.get_mut(number as usize) else { continue };
        let Polled { moved, has_more, changed } = remote.poll(networks, resolver, rng, now);
        done += moved;
        is_changed |= changed;
        for (place, owner) in remote.new_owners.drain(..) {
            remotes.owners.insert((place, owner), number);
        }
        let due = if has_more { Some(now) } else { remote.deadline() };
        if remote.is_removed && remote.client.borrow().is_over() {
            remote.stop(networks);
            remotes.set_due(number, None);
            remotes.all[number as usize] = None;
            remotes.owners.retain(|_, of| *of != number);
            continue;
        }
        remotes.set_due(number, due);
    }
    if is_changed {
        storage.volumes.note_changed_geometry();
        storage.check_geometries();
    }
    done
}

impl Service for NbdService {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { networks, plane, resolver, now, .. } = around;
        let DataPlane { storage, rng, .. } = &mut **plane;
        let done = poll(storage, networks, resolver, &mut **rng, *now);
        if self.is_ending {
            let mut clients = storage.nbd.all.iter().flatten().map(|one| one.client.borrow());
            self.is_over = clients.all(|client| client.is_over());
        }
        done
    }

    fn deadline(&self, plane: &DataPlane) -> Option<Instant> {
        let remotes = &plane.storage.nbd;
        let rung = (remotes.bells.rung() > 0).then_some(Instant::ZERO);
        rung.or(remotes.due.first().map(|&(at, _)| at))
    }

    fn shut_down(&mut self, around: &mut ServiceContext<'_>) {
        let now = around.now;
        let remotes = &around.plane.storage.nbd;
        remotes.all.iter().flatten().for_each(|one| one.client.borrow_mut().end(now));
        around.plane.storage.ring_nbd_remotes();
        self.is_ending = true;
        self.poll(around);
    }

    fn is_shut_down(&self) -> bool {
        self.is_over || !self.is_ending
    }
}
