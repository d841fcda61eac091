//! Disks that hold volumes as extents. They are examined when the appliance starts, and changed by the console and by
//! the configuration while the volumes are in use.

use super::disk_pool::{DiskPool, Order};
use super::disks::{DiskSlot, Role};
use super::known_disks::gives_away;
use super::storage::Storage;
use crate::config::{Config, Name, Size, Volume};
use drivers::hal::{Arena, Disk, Instant};
use provider_set::ProviderSet;
use std::cell::RefCell;
use std::rc::Rc;
use storage::volume::extents::{StoreEvent, StoreState, WIPED};
use storage::volume::{DiskVolume, Extents};

/// Result of [`Storage::poll_pools`].
#[derive(Default)]
pub(super) struct PoolsPolled {
    /// Number of finished steps.
    pub steps: usize,
    /// Results of orders.
    pub outcomes: Vec<Outcome>,
    /// Volumes may have been added.
    pub has_news: bool,
}

/// Result of an order.
pub(super) struct Outcome {
    pub result: Result<String, String>,
    /// The console waits for it.
    pub for_console: bool,
}

impl Storage {
    /// Examines the unused disks, except those exported as a whole: a table there belongs to the clients. `wait`
    /// returns false on timeout.
    pub fn find_pools(
        &mut self,
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        mut wait: impl FnMut() -> bool,
    ) {
        for (number, slot) in disks.iter_mut().enumerate() {
            if slot.role != Role::Free || gives_away(config, number, slot) {
                continue;
            }
            let Some(mut pool) = DiskPool::new(number, slot, arena) else {
                log::error!("{}: no memory to look for volumes", slot.name);
                continue;
            };
            let event = loop {
                match pool.step() {
                    (_, Some(event)) => break Some(event),
                    _ if !wait() => break None,
                    _ => drivers::hal::relax(),
                }
            };
            if event.is_none() {
                // The device may still write to the buffer, so it is not freed.
                log::error!("{}: does not answer", slot.name);
                continue;
            }
            log_state(&pool, event);
            if pool.is_ours() {
                slot.role = Role::Volumes;
            }
            self.pools.push(pool);
        }
        for index in 0..self.pools.len() {
            self.open_volumes(index, config);
        }
    }

    /// Drops the disks without volumes. Called when the disks that are volumes as a whole are known.
    pub fn drop_pools(&mut self, disks: &mut [DiskSlot], arena: &mut Arena) {
        let (kept, dropped): (Vec<_>, Vec<_>) = self
            .pools
            .drain(..)
            .partition(|pool| !pool.is_idle() || disks[pool.number].role == Role::Volumes);
        for pool in &kept {
            disks[pool.number].role = Role::Volumes;
        }
        for pool in dropped {
            arena.free(pool.store.into_buffer());
        }
        self.pools = kept;
    }

    /// Creates a configured volume, or grows it to its size.
    pub fn declare(
        &mut self,
        name: &str,
        slot: &DiskSlot,
        number: usize,
        bytes: u64,
    ) -> Result<(), String> {
        let pool = self.pools.iter_mut().find(|pool| pool.number == number);
        let Some(pool) = pool else {
            slot.check_free()?;
            return Err(format!("{} is in use", slot.name));
        };
        let name = name.to_string();
        let order = match pool.volume(&name) {
            Some((_, has)) if has >= bytes => return Ok(()),
            Some(_) => Order::Grow { name, bytes },
            None => Order::Create { name, bytes, force: false },
        };
        pool.orders.push_back((order, false));
        if pool.orders.len() == 1 && !pool.store.is_busy() {
            pool.start().inspect_err(|_| {
                pool.orders.pop_front();
            })?;
        }
        Ok(())
    }

    /// Queues an order of the console for a disk.
    pub fn order(
        &mut self,
        number: usize,
        order: Order,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
    ) -> Result<(), String> {
        let place = match self.pools.iter().position(|pool| pool.number == number) {
            Some(place) => place,
            None => {
                let slot = disks.get_mut(number);
                let slot = slot.ok_or_else(|| format!("there is no disk {number}"))?;
                slot.check_free()?;
                let pool = DiskPool::new(number, slot, arena);
                let pool = pool.ok_or("no memory to examine the disk")?;
                slot.role = Role::Volumes;
                self.pools.push(pool);
                self.pools.len() - 1
            }
        };
        let pool = &mut self.pools[place];
        pool.orders.push_back((order, true));
        if pool.orders.len() == 1 && !pool.store.is_busy() {
            pool.start().inspect_err(|_| {
                pool.orders.pop_front();
            })?;
        }
        Ok(())
    }

    /// Returns the volumes among those named that are on a disk but not in the configuration, as sections of it.
    pub fn undeclared(&self, config: &Config, named: &[Name]) -> Vec<Volume> {
        let mut found: Vec<Volume> = Vec::new();
        for pool in &self.pools {
            for name in named {
                let Some((_, bytes)) = pool.volume(name.as_str()) else { continue };
                if config.volume.iter().chain(&found).all(|volume| volume.name != *name) {
                    let disk = pool.device.parse().ok();
                    let (name, size) = (name.clone(), Some(Size(bytes)));
                    found.push(Volume { name, size, disk, read_only: false });
                }
            }
        }
        found
    }

    /// Takes a disk's volume out of use, before its space is freed.
    pub fn close_volume(&mut self, name: &str) {
        for pool in &mut self.pools {
            pool.open.retain(|(open, _)| open != name);
        }
    }

    /// Deletes a retired volume. Returns true if its extents are still to be freed. `whole_disk` is the number of the
    /// disk if the volume was a whole disk.
    pub fn delete_volume(
        &mut self,
        name: &str,
        whole_disk: Option<usize>,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
        provider: Option<&ProviderSet>,
        now: Instant,
    ) -> Result<bool, String> {
        let id = self.volumes.find(name);
        let volume = id.and_then(|id| self.volumes.remove(id));
        if let Some(memory) = volume.and_then(|volume| volume.into_parts().shared) {
            self.retire(memory, arena, provider, now);
        }
        // A disk that could not become a volume keeps its role.
        if let Some(number) = whole_disk
            && disks[number].role == Role::Volume
        {
            disks[number].role = Role::Free;
        }
        let pool = self.pools.iter().find(|pool| pool.volume(name).is_some());
        let number = pool.map(|pool| pool.number);
        self.close_volume(name);
        let Some(number) = number else { return Ok(false) };
        self.order(number, Order::Delete { name: name.into() }, disks, arena).map(|()| true)
    }

    /// Returns whether a volume is being created.
    pub fn is_coming(&self, name: &str) -> bool {
        let is_of = |order: &Order| order.is_of_volumes() && order.name() == name;
        self.pools.iter().any(|pool| pool.orders.iter().any(|(order, _)| is_of(order)))
    }

    /// Opens the volumes in the table of a disk, and updates the extents of the open ones.
    fn open_volumes(&mut self, index: usize, config: &Config) {
        let pool = &mut self.pools[index];
        let is_deleted = |name: &str| {
            let deletes = |(order, _): &(Order, bool)| match order {
                Order::Delete { name: deleted } => deleted == name,
                _ => false,
            };
            pool.orders.iter().any(deletes)
        };
        for entry in pool.store.table().volumes().iter().filter(|entry| !is_deleted(&entry.name)) {
            if let Some((_, extents)) = pool.open.iter().find(|(name, _)| *name == entry.name) {
                *extents.borrow_mut() = entry.extents.clone().into();
                continue;
            }
            let end = entry.extents.iter().map(|extent| extent.start + extent.sectors).max();
            if end > Some(pool.user.geometry().sectors) {
                log::error!("volume {}: the disk is smaller than it was", entry.name);
                continue;
            }
            let declared = config.volume.iter().find(|volume| volume.name.as_str() == entry.name);
            let read_only = declared.is_some_and(|volume| volume.read_only);
            let extents: Extents = Rc::new(RefCell::new(entry.extents.clone().into()));
            let volume = DiskVolume::of_extents(pool.user.another(), extents.clone(), read_only)
                .of_number(pool.number);
            let added = super::storage::name(&entry.name).and_then(|name| {
                let taken = || "another volume has the name".to_string();
                self.volumes.add(name, Box::new(volume)).ok_or_else(taken)
            });
            match added {
                Ok(id) => {
                    // The table was checked when it was read.
                    self.volumes.restore_reservations(id, &entry.reservations);
                    pool.open.push((entry.name.clone(), extents));
                }
                Err(why) => log::error!("volume {} of disk {}: {why}", entry.name, pool.number),
            }
        }
    }

    /// Starts to write changed reservations of volumes.
    fn write_reservations(&mut self) -> usize {
        let mut started = 0;
        while let Some((id, record)) = self.volumes.next_unpersisted() {
            started += 1;
            let name = self.volumes.name(id).unwrap_or_default().to_string();
            let is_on = |pool: &&mut DiskPool| pool.open.iter().any(|(open, _)| *open == name);
            let Some(pool) = self.pools.iter_mut().find(is_on) else {
                self.volumes.reservations_persisted(id, false);
                continue;
            };
            pool.orders.push_back((Order::Reserve { name, id, record }, false));
            if pool.orders.len() == 1
                && !pool.store.is_busy()
                && let Err(why) = pool.start()
            {
                pool.orders.pop_front();
                log::error!(
                    "reservations of volume {}: {why}",
                    self.volumes.name(id).unwrap_or("")
                );
                self.volumes.reservations_persisted(id, false);
            }
        }
        started
    }

    /// Polls the work on the disks.
    pub fn poll_pools(
        &mut self,
        config: &Config,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
    ) -> PoolsPolled {
        let mut polled = PoolsPolled { steps: self.write_reservations(), ..Default::default() };
        let mut index = 0;
        while index < self.pools.len() {
            let (moved, event) = self.pools[index].step();
            polled.steps += usize::from(moved);
            if let Some(event) = event {
                log_state(&self.pools[index], Some(event));
                let of_volumes = |pool: &DiskPool| {
                    pool.orders.front().is_none_or(|(order, _)| order.is_of_volumes())
                };
                polled.has_news |= of_volumes(&self.pools[index]);
                polled.outcomes.extend(self.advance(index, event, config));
                let pool = &self.pools[index];
                let ours = pool.is_ours();
                if !ours && pool.is_idle() {
                    disks[pool.number].role = Role::Free;
                    arena.free(self.pools.remove(index).store.into_buffer());
                    continue;
                }
            }
            index += 1;
        }
        polled
    }

    /// After a load, a claim or a change: ends the order if it is done, and starts the next one.
    fn advance(&mut self, index: usize, event: StoreEvent, config: &Config) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        let pool = &mut self.pools[index];
        let done = match (event, pool.orders.front().map(|(order, _)| order)) {
            (StoreEvent::Done | StoreEvent::Failed(_), Some(Order::Reserve { id, .. })) => {
                self.volumes.reservations_persisted(*id, event == StoreEvent::Done);
                pool.orders.pop_front();
                None
            }
            (StoreEvent::Failed(error), Some(_)) => {
                Some(Err(format!("disk {} failed: {error}", pool.number)))
            }
            (StoreEvent::Done, Some(Order::Create { name, .. } | Order::Grow { name, .. })) => {
                pool.volume(name).and_then(|(_, bytes)| {
                    let wanted = match pool.orders.front() {
                        Some((Order::Grow { bytes, .. } | Order::Create { bytes, .. }, _)) => {
                            *bytes
                        }
                        _ => 0,
                    };
                    // After a claim it is not created yet.
                    (bytes >= wanted).then(|| {
                        let (disk, size) = (pool.number, Size(bytes));
                        let whom = match pool.orders.front() {
                            Some((Order::Create { .. }, true)) if config.export.is_empty() => {
                                ", and is exported to everybody"
                            }
                            Some((Order::Create { .. }, true)) => ", and is not exported",
                            _ => "",
                        };
                        Ok(format!("volume {name} has {size} on disk {disk}{whom}"))
                    })
                })
            }
            (StoreEvent::Kept { sector }, _) => Some(Err(format!(
                "disk {}: wipe unfinished: sector {sector} does not read back as zeroes: replace the disk, or destroy it",
                pool.number
            ))),
            (StoreEvent::Done, Some(Order::Wipe)) => Some(Ok(format!(
                "disk {}: the table of volumes is gone: {WIPED} sectors erased and read back as zeroes; what volumes held \
                 is still behind them",
                pool.number
            ))),
            (StoreEvent::Done, Some(Order::Delete { name })) => {
                Some(Ok(format!("volume {name} is gone")))
            }
            _ => None,
        };
        if let Some(result) = done
            && let Some((_, for_console)) = pool.orders.pop_front()
        {
            outcomes.push(Outcome { result, for_console });
        }
        while !self.pools[index].store.is_busy() && !self.pools[index].orders.is_empty() {
            let pool = &mut self.pools[index];
            let Err(why) = pool.start() else { break };
            if let Some((order, for_console)) = pool.orders.pop_front() {
                if let Order::Reserve { id, .. } = order {
                    self.volumes.reservations_persisted(id, false);
                }
                let result = Err(match order {
                    Order::Wipe => why,
                    order => format!("volume {}: {why}", order.name()),
                });
                outcomes.push(Outcome { result, for_console });
            }
        }
        self.open_volumes(index, config);
        outcomes
    }
}

/// Logs what is wrong with a disk.
fn log_state(pool: &DiskPool, event: Option<StoreEvent>) {
    let number = pool.number;
    match (event, pool.state()) {
        (Some(StoreEvent::Failed(_)), state @ StoreState::Unreadable(_)) => {
            log::error!("disk {number} {state}");
        }
        (Some(StoreEvent::Failed(error)), _) => log::error!("disk {number}: {error}"),
        (_, StoreState::HalfWiped) => {
            log::error!("disk {number} {}", StoreState::HalfWiped);
        }
        (_, StoreState::Damaged) => log::error!("disk {number} {}", StoreState::Damaged),
        (Some(StoreEvent::Loaded { one_copy: true }), _) => log::warn!(
            "disk {number}: one copy of the table of volumes is damaged, perhaps by a power cut: \
             the other is used"
        ),
        _ => {}
    }
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
