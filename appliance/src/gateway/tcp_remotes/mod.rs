//! Volumes of other servers over TCP, of NBD servers and NVMe subsystems: moves bytes between the TCP connections of the
//! interfaces and the clients of the volumes.
//!
//! The clients belong to the storage, so that volumes exist before the interfaces do. A client is polled only after a
//! request, an event of one of its connections, or when its timer has expired.

mod engine;
#[cfg(test)]
mod nvme_tests;
mod remote;
#[cfg(test)]
mod tests;

use super::network::Network;
use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use super::storage::{Storage, name};
use crate::config::{self, Config, RemoteKind};
use crate::families::{self, REMOTE};
use drivers::hal::{Arena, Instant};
use engine::Client;
use management::status::{NbdStatus, NvmeHostStatus};
use net::connector::Owner;
use net::dns::Resolver;
use rand_core::Rng;
use remote::{Polled, TcpRemote};
use std::collections::{BTreeSet, HashMap};
use storage::rnbd::client::Bells;

/// The remote volumes over TCP.
#[derive(Default)]
pub(super) struct TcpRemotes {
    /// By number; None where one was removed.
    all: Vec<Option<Box<TcpRemote>>>,
    /// Remotes with work, by number.
    bells: Bells,
    /// Next timers, with the numbers of remotes.
    due: BTreeSet<(Instant, u32)>,
    /// Connectors by interface, with the numbers of their remotes.
    owners: HashMap<(usize, Owner), u32>,
}

impl TcpRemotes {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(Option::is_none)
    }

    fn present(&self) -> impl Iterator<Item = &TcpRemote> {
        self.all.iter().flatten().filter(|one| !one.is_removed).map(|one| &**one)
    }

    /// Statuses of those over NBD, for reports.
    pub fn nbd(&self) -> Vec<NbdStatus<'_>> {
        self.present().filter_map(TcpRemote::nbd_status).collect()
    }

    /// Statuses of those over NVMe/TCP, for reports.
    pub fn nvme(&self) -> Vec<NvmeHostStatus<'_>> {
        self.present().filter_map(TcpRemote::nvme_status).collect()
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.present().any(|one| one.name == name)
    }

    fn find(&mut self, name: &str) -> Option<&mut TcpRemote> {
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
    /// Adds the configured remotes over TCP. Failures are logged.
    pub fn add_tcp_remotes(&mut self, config: &Config, arena: &mut Arena) {
        for remote in config.remote.iter().filter(|remote| remote.kind != RemoteKind::Rnbd) {
            if let Err(why) = self.add_tcp_remote(remote, arena) {
                log::error!("remote {}: {why}", remote.name);
            }
        }
    }

    /// Adds a remote over TCP as a volume, which has no sectors until it is connected.
    pub fn add_tcp_remote(
        &mut self,
        remote: &config::Remote,
        arena: &mut Arena,
    ) -> Result<(), String> {
        if !REMOTE {
            return Err(families::missing("remote"));
        }
        let volume_name = name(&remote.name)?;
        if self.volumes.find(remote.name.as_str()).is_some() {
            return Err("the name is taken".into());
        }
        let client = Client::new(remote, arena)?;
        let remotes = &mut self.tcp_remotes;
        let free = remotes.all.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            remotes.all.push(None);
            remotes.all.len() - 1
        });
        let bell = remotes.bells.bell(number as u32);
        bell.ring();
        let volume = client.volume(bell);
        remotes.all[number] = Some(Box::new(TcpRemote::new(remote, client)));
        let added = self.volumes.add(volume_name, volume);
        added.map(drop).ok_or_else(|| "the name is taken".into())
    }

    /// Removes a remote over TCP, whose volume must be unused. False if there is none of this name.
    pub fn remove_tcp_remote(&mut self, name: &str, now: Instant) -> bool {
        let Some(remote) = self.tcp_remotes.find(name) else { return false };
        remote.is_removed = true;
        remote.engine.borrow_mut().end(now);
        self.ring_tcp_remotes();
        if let Some(id) = self.volumes.find(name) {
            drop(self.volumes.remove(id));
        }
        true
    }

    /// Reads the size of a remote over TCP again, or tries to connect again now. False if there is none of this name.
    pub fn remap_tcp_remote(&mut self, name: &str, now: Instant) -> bool {
        let Some(remote) = self.tcp_remotes.find(name) else { return false };
        remote.engine.borrow_mut().remap(now);
        self.ring_tcp_remotes();
        true
    }

    fn ring_tcp_remotes(&self) {
        (0..self.tcp_remotes.all.len() as u32)
            .for_each(|number| self.tcp_remotes.bells.ring(number));
    }
}

/// The service. It exists once there was a remote over TCP.
#[derive(Default)]
pub(super) struct TcpRemoteService {
    /// All clients disconnect, because the machine ends.
    is_ending: bool,
    /// All have.
    is_over: bool,
}

impl TcpRemoteService {
    /// None without a remote over TCP.
    pub fn of(plane: &DataPlane) -> Option<Box<TcpRemoteService>> {
        (!plane.storage.tcp_remotes.is_empty()).then(Box::default)
    }

    /// Starts the service if there is a remote over TCP.
    pub fn start(service: &mut Option<Box<TcpRemoteService>>, plane: &DataPlane) {
        if service.is_none() {
            *service = TcpRemoteService::of(plane);
        }
    }
}

/// Polls the remotes with work. Returns the amount of work.
fn poll(
    storage: &mut Storage,
    arena: &mut Arena,
    networks: &mut [Network],
    resolver: &mut Resolver,
    rng: &mut dyn Rng,
    now: Instant,
) -> usize {
    let remotes = &mut storage.tcp_remotes;
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
        if remote.is_removed && remote.engine.borrow().is_over() {
            remote.stop(networks);
            if let Some(memory) = remote.client.memory() {
                arena.free(memory);
            }
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

impl Service for TcpRemoteService {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { networks, plane, resolver, now, .. } = around;
        let DataPlane { storage, rng, arena, .. } = &mut **plane;
        let done = poll(storage, arena, networks, resolver, &mut **rng, *now);
        if self.is_ending {
            let mut clients =
                storage.tcp_remotes.all.iter().flatten().map(|one| one.engine.borrow());
            self.is_over = clients.all(|client| client.is_over());
        }
        done
    }

    fn deadline(&self, plane: &DataPlane) -> Option<Instant> {
        let remotes = &plane.storage.tcp_remotes;
        let rung = (remotes.bells.rung() > 0).then_some(Instant::ZERO);
        rung.or(remotes.due.first().map(|&(at, _)| at))
    }

    fn shut_down(&mut self, around: &mut ServiceContext<'_>) {
        let now = around.now;
        let remotes = &around.plane.storage.tcp_remotes;
        remotes.all.iter().flatten().for_each(|one| one.engine.borrow_mut().end(now));
        around.plane.storage.ring_tcp_remotes();
        self.is_ending = true;
        self.poll(around);
    }

    fn is_shut_down(&self) -> bool {
        self.is_over || !self.is_ending
    }
}
