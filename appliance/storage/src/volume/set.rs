//! The volumes of a loop. The first loop owns its volumes. A loop of another core has shares of them, or reaches them
//! over a [`Channel`].

use super::catalog::{Catalog, Listed, Listing};
use super::channel::VOLUME_DEPTH;
use super::reservation::Place;
use super::{Channel, Completion, OnDisk, OpenCounts, RamMemory, RamVolume, Request};
use super::{Submitted, User, Volume, VolumeError};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::{Geometry, Instant};
use rtrs::Name;

/// Id of a volume. It is the same on all cores, and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Index in tables by volume.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which loop executes requests of a volume.
enum Backing {
    /// This loop.
    Local(Box<dyn Volume>),
    /// The loop that owns the volume; `in_flight` requests are on the channel.
    Remote { geometry: Geometry, in_flight: u32 },
}

struct Entry {
    name: Name,
    backing: Backing,
    counts: Arc<OpenCounts>,
    /// The volume is local memory: requests complete at once, and it need not be polled.
    is_memory: bool,
    /// Its reservations; None if it never had any.
    reservations: Option<Box<Place>>,
}

impl Entry {
    fn new(name: Name, backing: Backing, counts: Arc<OpenCounts>) -> Entry {
        let is_memory = match &backing {
            Backing::Local(volume) => volume.shared_memory().is_some(),
            Backing::Remote { .. } => false,
        };
        Entry { name, backing, counts, is_memory, reservations: None }
    }

    fn geometry(&self) -> Geometry {
        match &self.backing {
            Backing::Local(volume) => volume.geometry(),
            Backing::Remote { geometry, .. } => *geometry,
        }
    }
}

/// The volumes of a loop, added at set-up or from the console.
#[derive(Default)]
pub struct Volumes {
    /// None where one was removed.
    all: Vec<Option<Entry>>,
    /// A bit for each volume that has requests in flight or work of its own. The others need not be polled.
    active: Vec<u64>,
    /// By user: completions that were found while another user polled.
    kept: Vec<VecDeque<(VolumeId, Completion)>>,
    /// Volumes that completed a request of a user other than the server, so that requests of the server that the volume
    /// refused as busy can be retried.
    freed: Vec<VolumeId>,
    /// Increases with each volume that is added or removed.
    revision: u64,
    /// Channel to the loop that owns the volumes.
    channel: Option<Channel>,
    /// Revision of the catalog that was adopted last.
    adopted: u64,
    /// Volumes with a change of reservations that is to be written, and those whose change was.
    pub(super) unpersisted: VecDeque<VolumeId>,
    pub(super) persisted: VecDeque<(VolumeId, bool)>,
}

impl Volumes {
    /// No volumes.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty set that gets volumes of another loop when it [adopts](Volumes::adopt) the catalog.
    pub fn over(channel: Channel) -> Self {
        Volumes { channel: Some(channel), ..Self::default() }
    }

    /// Adds a volume; None if the name is taken.
    pub fn add(&mut self, name: Name, volume: Box<dyn Volume>) -> Option<VolumeId> {
        if self.find(name.as_str()).is_some() {
            return None;
        }
        let id = VolumeId(self.all.len() as u32);
        let counts = Arc::default();
        self.put(id, Entry::new(name, Backing::Local(volume), counts));
        // The volume may already have requests in flight.
        self.activate(id);
        Some(id)
    }

    fn put(&mut self, id: VolumeId, entry: Entry) {
        if self.all.len() <= id.index() {
            self.all.resize_with(id.index() + 1, || None);
        }
        if let Some(place) = self.all.get_mut(id.index()) {
            *place = Some(entry);
        }
        self.active.resize(self.all.len().div_ceil(64), 0);
        self.revision += 1;
    }

    /// Removes a volume that is not used any more.
    pub fn remove(&mut self, id: VolumeId) -> Option<Box<dyn Volume>> {
        let entry = self.all.get_mut(id.index())?.take()?;
        // A loop of another core may not have read the new catalog yet.
        let _ = entry.counts.retire();
        self.revision += 1;
        match entry.backing {
            Backing::Local(volume) => Some(volume),
            Backing::Remote { .. } => None,
        }
    }

    /// Increases with each volume that is added or removed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Records that the geometry of a volume has changed, for users who look again when the revision changes.
    pub fn note_changed_geometry(&mut self) {
        self.revision += 1;
    }

    fn entry(&self, id: VolumeId) -> Option<&Entry> {
        self.all.get(id.index())?.as_ref()
    }

    pub(super) fn place(&self, id: VolumeId) -> Option<&Place> {
        self.entry(id)?.reservations.as_deref()
    }

    /// The reservations of a volume, and its counts.
    pub(super) fn place_mut(
        &mut self,
        id: VolumeId,
    ) -> Option<(&mut Option<Box<Place>>, &OpenCounts)> {
        let entry = self.all.get_mut(id.index())?.as_mut()?;
        Some((&mut entry.reservations, &entry.counts))
    }

    /// Looks up a volume by its name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let matches =
            |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.name.as_str() == name);
        let index = self.all.iter().position(matches)?;
        Some(VolumeId(index as u32))
    }

    /// The name of a volume.
    pub fn name(&self, id: VolumeId) -> Option<&str> {
        self.entry(id).map(|entry| entry.name.as_str())
    }

    /// Whether a volume copies the data of a write before [`submit`](Volumes::submit) returns.
    pub fn copies_at_once(&self, id: VolumeId) -> bool {
        self.get(id).is_some_and(|volume| volume.shared_memory().is_some())
    }

    /// Counts of a volume's opens on all cores.
    pub fn open_counts(&self, id: VolumeId) -> Option<&Arc<OpenCounts>> {
        self.entry(id).map(|entry| &entry.counts)
    }

    /// The geometry of a volume.
    pub fn geometry(&self, id: VolumeId) -> Option<Geometry> {
        self.entry(id).map(Entry::geometry)
    }

    #[inline]
    fn activate(&mut self, id: VolumeId) {
        if let Some(word) = self.active.get_mut(id.index() / 64) {
            *word |= 1 << (id.index() % 64);
        }
    }

    /// The first active volume from an index on.
    #[inline]
    fn next_active(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for (n, word) in self.active.iter().enumerate().skip(from / 64) {
            let word = word & core::mem::replace(&mut mask, u64::MAX);
            if word != 0 {
                return Some(n * 64 + word.trailing_zeros() as usize);
            }
        }
        None
    }

    /// Submits a request to a volume; None if the volume does not exist (any more).
    #[inline]
    pub fn submit(
        &mut self,
        id: VolumeId,
        request: &Request,
    ) -> Option<Result<Submitted, VolumeError>> {
        match self.all.get_mut(id.index()) {
            Some(Some(Entry { backing: Backing::Local(volume), is_memory: true, .. })) => {
                Some(volume.submit(request))
            }
            _ => self.submit_any(id, request),
        }
    }

    /// [`submit`](Volumes::submit) for a volume of any kind.
    fn submit_any(
        &mut self,
        id: VolumeId,
        request: &Request,
    ) -> Option<Result<Submitted, VolumeError>> {
        match &mut self.all.get_mut(id.index())?.as_mut()?.backing {
            Backing::Local(volume) => {
                let submitted = volume.submit(request);
                let done = matches!(submitted, Ok(Submitted::Done | Submitted::Lent(_)));
                if !(done && volume.is_idle() && !volume.wants_turn()) {
                    self.activate(id);
                }
                Some(submitted)
            }
            Backing::Remote { in_flight: VOLUME_DEPTH, .. } => Some(Err(VolumeError::Busy)),
            Backing::Remote { geometry, in_flight } => {
                let submitted = self.channel.as_mut()?.submit(id, geometry, request);
                *in_flight += u32::from(submitted.is_ok());
                Some(submitted)
            }
        }
    }

    /// A volume that this loop executes, to change it. It is polled from now on.
    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut dyn Volume> {
        self.activate(id);
        match self.all.get_mut(id.index()) {
            Some(Some(Entry { backing: Backing::Local(volume), .. })) => Some(volume.as_mut()),
            _ => None,
        }
    }

    /// A volume that this loop executes.
    pub fn get(&self, id: VolumeId) -> Option<&dyn Volume> {
        match &self.entry(id)?.backing {
            Backing::Local(volume) => Some(volume.as_ref()),
            Backing::Remote { .. } => None,
        }
    }

    /// The ids of all volumes.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let there = self.all.iter().enumerate().filter(|(_, volume)| volume.is_some());
        there.map(|(index, _)| VolumeId(index as u32)).collect::<Vec<_>>().into_iter()
    }

    /// Notifies the devices, and the loop that owns the volumes, of submitted requests.
    pub fn flush_queues(&mut self) {
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if let Some(Some(Entry { backing: Backing::Local(volume), .. })) =
                self.all.get_mut(index)
            {
                volume.flush_queue();
            }
            at = index + 1;
        }
        if let Some(channel) = &mut self.channel {
            channel.flush();
        }
    }

    /// Whether a volume that this loop executes has requests in flight or work of its own.
    pub fn are_working(&self) -> bool {
        self.next_active(0).is_some()
    }

    /// Whether polling makes progress without a completion of a device: a volume has work of its own, or the loop that
    /// owns the volumes has responded.
    pub fn want_turn(&self) -> bool {
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if let Some(Some(Entry { backing: Backing::Local(volume), .. })) = self.all.get(index)
                && volume.wants_turn()
            {
                return true;
            }
            at = index + 1;
        }
        self.has_responses() || !self.unpersisted.is_empty() || !self.persisted.is_empty()
    }

    /// Whether the loop that owns the volumes has responded, or has published a new catalog.
    pub fn has_news(&self, catalog: &Catalog) -> bool {
        self.has_responses() || catalog.has_news(self.adopted)
    }

    /// Whether completions are kept for a user, or requests that were refused as busy can be retried.
    pub fn has_kept(&self) -> bool {
        !self.freed.is_empty() || self.kept.iter().any(|queue| !queue.is_empty())
    }

    /// Whether the loop that owns the volumes has responded.
    fn has_responses(&self) -> bool {
        self.channel.as_ref().is_some_and(Channel::has_responses)
    }

    /// Periodic work of all volumes; the loop calls it about once a second.
    pub fn tend(&mut self, now: Instant) {
        for index in 0..self.all.len() {
            let Some(Some(Entry { backing: Backing::Local(volume), .. })) = self.all.get_mut(index)
            else {
                continue;
            };
            volume.tend(now);
            if !volume.is_idle() || volume.wants_turn() {
                self.activate(VolumeId(index as u32));
            }
        }
    }

    /// A volume with room again, for requests of the server that it refused as busy.
    pub fn poll_freed(&mut self) -> Option<VolumeId> {
        self.freed.pop()
    }

    /// The next completion of this user that was found while another user polled.
    pub fn poll_kept(&mut self, user: User) -> Option<(VolumeId, Completion)> {
        self.kept.get_mut(user.index())?.pop_front()
    }

    /// The next completion of this user, looking from volume `from` on. Completions of other users are kept
    /// for them.
    pub fn poll(&mut self, user: User, from: VolumeId) -> Option<(VolumeId, Completion)> {
        if let Some(kept) = self.poll_kept(user) {
            return Some(kept);
        }
        while let Some((id, completion)) = self.poll_any(from) {
            let owner = completion.tag.user;
            if owner != User::SERVER && !self.freed.contains(&id) {
                self.freed.push(id);
            }
            if owner == user {
                return Some((id, completion));
            }
            if owner.index() >= self.kept.len() {
                self.kept.resize_with(owner.index() + 1, VecDeque::new);
            }
            if let Some(queue) = self.kept.get_mut(owner.index()) {
                queue.push_back((id, completion));
            }
        }
        None
    }

    /// The next completion of any volume, looking from volume `from` on.
    fn poll_any(&mut self, from: VolumeId) -> Option<(VolumeId, Completion)> {
        if let Some((id, completion)) = self.channel.as_mut().and_then(Channel::poll) {
            self.handle_response(id);
            return Some((id, completion));
        }
        let mut at = from.index();
        while let Some(index) = self.next_active(at) {
            let is_done = match self.all.get_mut(index) {
                Some(Some(Entry { backing: Backing::Local(volume), .. })) => match volume.poll() {
                    Some(completion) => return Some((VolumeId(index as u32), completion)),
                    None => volume.is_idle() && !volume.wants_turn(),
                },
                _ => true,
            };
            if is_done && let Some(word) = self.active.get_mut(index / 64) {
                *word &= !(1 << (index % 64));
            }
            at = index + 1;
        }
        None
    }

    /// Counts a response of the owner: the volume has room again. If the channel was full, all volumes have.
    fn handle_response(&mut self, id: VolumeId) {
        if let Some(Some(Entry { backing: Backing::Remote { in_flight, .. }, .. })) =
            self.all.get_mut(id.index())
        {
            *in_flight -= 1;
        }
        if let Some(channel) = &mut self.channel
            && core::mem::take(&mut channel.starved)
        {
            self.freed = self.ids().collect();
        }
    }

    /// The volumes as published for loops of other cores.
    pub fn listed(&self) -> Vec<Option<Listed>> {
        let listed = |entry: &Entry| Listed {
            name: entry.name,
            geometry: entry.geometry(),
            memory: match &entry.backing {
                Backing::Local(volume) => volume.shared_memory().cloned(),
                Backing::Remote { .. } => None,
            },
            on_disk: match &entry.backing {
                Backing::Local(volume) => volume.on_disk(),
                Backing::Remote { .. } => None,
            },
            counts: entry.counts.clone(),
        };
        self.all.iter().map(|entry| entry.as_ref().map(listed)).collect()
    }

    /// Adopts the catalog of the loop that owns the volumes, if it has changed. Returns the listing, because the caller
    /// adopts the exports in it, and the memory of removed volumes, which the caller releases when no request in flight
    /// refers to it. `open` makes the share of a volume on a disk to which this loop has a queue of its own.
    pub fn adopt(
        &mut self,
        catalog: &Catalog,
        open: impl Fn(&OnDisk, &Arc<OpenCounts>) -> Option<Box<dyn Volume>>,
    ) -> Option<(Arc<Listing>, Vec<Arc<RamMemory>>)> {
        let (revision, listing) = catalog.newer_than(self.adopted)?;
        let before = core::mem::replace(&mut self.adopted, revision);
        let mut gone = Vec::new();
        for index in 0..self.all.len().max(listing.volumes.len()) {
            let id = VolumeId(index as u32);
            let Some(listed) = listing.volumes.get(index).and_then(Option::as_ref) else {
                if self.get(id).is_some_and(|volume| !volume.is_idle()) {
                    // The owner removes a volume only when it has no opens and no requests in flight. If this loop
                    // still has requests for it, they have to end first.
                    self.adopted = before;
                    continue;
                }
                let parts = self.remove(id).map(|volume| volume.into_parts());
                gone.extend(parts.and_then(|parts| parts.shared));
                continue;
            };
            match self.all.get_mut(index).and_then(Option::as_mut) {
                Some(Entry { backing: Backing::Remote { geometry, .. }, .. }) => {
                    *geometry = listed.geometry;
                }
                Some(Entry { backing: Backing::Local(volume), .. }) => {
                    if let Some(place) = &listed.on_disk {
                        volume.move_to(place);
                    }
                }
                None => {
                    let Listed { name, geometry, ref memory, ref on_disk, ref counts } = *listed;
                    let share = on_disk.as_ref().and_then(|place| open(place, counts));
                    let backing = match (memory, share) {
                        (Some(memory), _) => {
                            Backing::Local(Box::new(RamVolume::of_shared(memory.clone(), geometry)))
                        }
                        (None, Some(share)) => Backing::Local(share),
                        (None, None) => Backing::Remote { geometry, in_flight: 0 },
                    };
                    self.put(id, Entry::new(name, backing, counts.clone()));
                }
            }
        }
        Some((listing, gone))
    }
}
