//! The volumes of a loop, by name: those that it owns, and on other cores than the first those that it has a share of,
//! or reaches over a [`Channel`].

use super::catalog::{Catalog, Listed, Listing};
use super::channel::DEPTH_OF_VOLUME;
use super::{Channel, Completion, OnDisk, OpenCounts, RamMemory, RamVolume, Request};
use super::{Submitted, User, Volume, VolumeError};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::{Geometry, Instant};
use rtrs::Name;

/// Name of a volume in a set; never used again for another. On all cores a volume has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Place in tables that are kept by volume.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a volume is worked on.
enum Backing {
    /// By this loop.
    Here(Box<dyn Volume>),
    /// By the loop that owns it, which so many requests were sent to.
    Elsewhere { geometry: Geometry, in_flight: u32 },
}

struct Entry {
    name: Name,
    backing: Backing,
    counts: Arc<OpenCounts>,
    /// Memory of this loop's: all is done at once, and it has nothing that it is to be polled for.
    is_memory: bool,
}

impl Entry {
    fn new(name: Name, backing: Backing, counts: Arc<OpenCounts>) -> Entry {
        let is_memory = match &backing {
            Backing::Here(volume) => volume.shared_memory().is_some(),
            Backing::Elsewhere { .. } => false,
        };
        Entry { name, backing, counts, is_memory }
    }

    fn geometry(&self) -> Geometry {
        match &self.backing {
            Backing::Here(volume) => volume.geometry(),
            Backing::Elsewhere { geometry, .. } => *geometry,
        }
    }
}

/// Volumes, added at set-up or from the console.
#[derive(Default)]
pub struct Volumes {
    /// None where one was removed.
    all: Vec<Option<Entry>>,
    /// A bit for each volume that somebody has asked for something, or that goes on by itself: the others
    /// need not be polled.
    active: Vec<u64>,
    /// Ends of requests that were found while another user polled, by user.
    kept: Vec<VecDeque<(VolumeId, Completion)>>,
    /// Volumes that have done something for another user than the server, which may wait for room.
    freed: Vec<VolumeId>,
    /// Grows with each volume that is added or removed.
    revision: u64,
    /// The way to volumes that another loop owns.
    channel: Option<Channel>,
    /// The catalog's revision that was taken over last.
    adopted: u64,
}

impl Volumes {
    /// No volumes.
    pub fn new() -> Self {
        Self::default()
    }

    /// None of its own, but a way to those of another loop, once they are [adopted](Volumes::adopt).
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
        self.put(id, Entry::new(name, Backing::Here(volume), counts));
        // It may have something in flight from before.
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

    /// Takes a volume out, which nothing uses any more.
    pub fn remove(&mut self, id: VolumeId) -> Option<Box<dyn Volume>> {
        let entry = self.all.get_mut(id.index())?.take()?;
        // A loop of another core may not have heard of it yet.
        let _ = entry.counts.retire();
        self.revision += 1;
        match entry.backing {
            Backing::Here(volume) => Some(volume),
            Backing::Elsewhere { .. } => None,
        }
    }

    /// Grows with each volume that is added or removed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn entry(&self, id: VolumeId) -> Option<&Entry> {
        self.all.get(id.index())?.as_ref()
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let named = |one: &Option<Entry>| one.as_ref().is_some_and(|e| e.name.as_str() == name);
        let index = self.all.iter().position(named)?;
        Some(VolumeId(index as u32))
    }

    /// The name of a volume.
    pub fn name(&self, id: VolumeId) -> Option<&str> {
        self.entry(id).map(|entry| entry.name.as_str())
    }

    /// Whether a volume copies what is written to it when it is [submitted](Volumes::submit).
    pub fn copies_at_once(&self, id: VolumeId) -> bool {
        self.get(id).is_some_and(|volume| volume.shared_memory().is_some())
    }

    /// Who has a volume open, on all cores.
    pub fn open_counts(&self, id: VolumeId) -> Option<&Arc<OpenCounts>> {
        self.entry(id).map(|entry| &entry.counts)
    }

    /// The shape of a volume.
    pub fn geometry(&self, id: VolumeId) -> Option<Geometry> {
        self.entry(id).map(Entry::geometry)
    }

    #[inline]
    fn activate(&mut self, id: VolumeId) {
        if let Some(word) = self.active.get_mut(id.index() / 64) {
            *word |= 1 << (id.index() % 64);
        }
    }

    /// The first active volume from a place on.
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

    /// Asks a volume for something; None if it is not there (any more).
    #[inline(always)]
    pub fn submit(
        &mut self,
        id: VolumeId,
        request: &Request,
    ) -> Option<Result<Submitted, VolumeError>> {
        match self.all.get_mut(id.index()) {
            Some(Some(Entry { backing: Backing::Here(volume), is_memory: true, .. })) => {
                Some(volume.submit(request))
            }
            _ => self.submit_any(id, request),
        }
    }

    /// The same of one of any kind.
    fn submit_any(
        &mut self,
        id: VolumeId,
        request: &Request,
    ) -> Option<Result<Submitted, VolumeError>> {
        match &mut self.all.get_mut(id.index())?.as_mut()?.backing {
            Backing::Here(volume) => {
                let submitted = volume.submit(request);
                let done = matches!(submitted, Ok(Submitted::Done | Submitted::Lent(_)));
                if !(done && volume.is_idle() && !volume.wants_turn()) {
                    self.activate(id);
                }
                Some(submitted)
            }
            Backing::Elsewhere { in_flight: DEPTH_OF_VOLUME, .. } => Some(Err(VolumeError::Busy)),
            Backing::Elsewhere { geometry, in_flight } => {
                let submitted = self.channel.as_mut()?.submit(id, geometry, request);
                *in_flight += u32::from(submitted.is_ok());
                Some(submitted)
            }
        }
    }

    /// A volume that this loop owns, to ask it for something.
    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut dyn Volume> {
        self.activate(id);
        match self.all.get_mut(id.index()) {
            Some(Some(Entry { backing: Backing::Here(volume), .. })) => Some(volume.as_mut()),
            _ => None,
        }
    }

    /// A volume that this loop owns, to look at.
    pub fn get(&self, id: VolumeId) -> Option<&dyn Volume> {
        match &self.entry(id)?.backing {
            Backing::Here(volume) => Some(volume.as_ref()),
            Backing::Elsewhere { .. } => None,
        }
    }

    /// All names.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let there = self.all.iter().enumerate().filter(|(_, volume)| volume.is_some());
        there.map(|(index, _)| VolumeId(index as u32)).collect::<Vec<_>>().into_iter()
    }

    /// Tells the devices, or the loop that owns them, of what was submitted.
    pub fn flush_queues(&mut self) {
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if let Some(Some(Entry { backing: Backing::Here(volume), .. })) =
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

    /// Whether a volume that this loop works on by itself has something under way.
    pub fn are_working(&self) -> bool {
        self.next_active(0).is_some()
    }

    /// Whether a volume goes on when it is polled again, though nothing ends meanwhile, or the loop that owns
    /// volumes has answered.
    pub fn want_turn(&self) -> bool {
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if let Some(Some(Entry { backing: Backing::Here(volume), .. })) = self.all.get(index)
                && volume.wants_turn()
            {
                return true;
            }
            at = index + 1;
        }
        self.has_answers()
    }

    /// Whether the loop that owns the volumes has answered, or says something new in its catalog.
    pub fn has_news(&self, catalog: &Catalog) -> bool {
        self.has_answers() || catalog.has_news(self.adopted)
    }

    /// Whether somebody has ends of requests to fetch, or may find room again.
    pub fn has_kept(&self) -> bool {
        !self.freed.is_empty() || self.kept.iter().any(|queue| !queue.is_empty())
    }

    /// Whether the loop that owns volumes has answered.
    fn has_answers(&self) -> bool {
        self.channel.as_ref().is_some_and(Channel::has_answers)
    }

    /// Looks after all volumes; to be called about once a second.
    pub fn tend(&mut self, now: Instant) {
        for index in 0..self.all.len() {
            let Some(Some(Entry { backing: Backing::Here(volume), .. })) = self.all.get_mut(index)
            else {
                continue;
            };
            volume.tend(now);
            if !volume.is_idle() || volume.wants_turn() {
                self.activate(VolumeId(index as u32));
            }
        }
    }

    /// A volume that has room again since it was asked last, for requests of the server that found none.
    pub fn poll_freed(&mut self) -> Option<VolumeId> {
        self.freed.pop()
    }

    /// The next end of a request of this user, of those that others have found.
    pub fn poll_kept(&mut self, user: User) -> Option<(VolumeId, Completion)> {
        self.kept.get_mut(user.index())?.pop_front()
    }

    /// The next end of a request of this user, looking from volume `from` on; what is found of others' is kept
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
        if let Some((id, answer)) = self.channel.as_mut().and_then(Channel::poll) {
            self.answered(id);
            return Some((id, answer));
        }
        let mut at = from.index();
        while let Some(index) = self.next_active(at) {
            let rests = match self.all.get_mut(index) {
                Some(Some(Entry { backing: Backing::Here(volume), .. })) => match volume.poll() {
                    Some(completion) => return Some((VolumeId(index as u32), completion)),
                    None => volume.is_idle() && !volume.wants_turn(),
                },
                _ => true,
            };
            if rests && let Some(word) = self.active.get_mut(index / 64) {
                *word &= !(1 << (index % 64));
            }
            at = index + 1;
        }
        None
    }

    /// The owner has answered: its volume has room again, and if the channel had none before, so have all.
    fn answered(&mut self, id: VolumeId) {
        if let Some(Some(Entry { backing: Backing::Elsewhere { in_flight, .. }, .. })) =
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

    /// What loops of other cores are to know of the volumes.
    pub fn listed(&self) -> Vec<Option<Listed>> {
        let listed = |entry: &Entry| Listed {
            name: entry.name,
            geometry: entry.geometry(),
            memory: match &entry.backing {
                Backing::Here(volume) => volume.shared_memory().cloned(),
                Backing::Elsewhere { .. } => None,
            },
            on_disk: match &entry.backing {
                Backing::Here(volume) => volume.on_disk(),
                Backing::Elsewhere { .. } => None,
            },
            counts: entry.counts.clone(),
        };
        self.all.iter().map(|entry| entry.as_ref().map(listed)).collect()
    }

    /// Takes over what the loop that owns the volumes says of them, if that has changed: the listing, for the rest
    /// of what is in it, and the memory of volumes that are no more, which is to be let go when nothing that is
    /// under way points into it. `open` makes the share of a volume on a disk to which this loop has a queue of its own.
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
                    // Nobody has it open, and the owner has seen that nothing is under way; if it has not, what
                    // is comes to its end first.
                    self.adopted = before;
                    continue;
                }
                let parts = self.remove(id).map(|volume| volume.into_parts());
                gone.extend(parts.and_then(|parts| parts.shared));
                continue;
            };
            match self.all.get_mut(index).and_then(Option::as_mut) {
                Some(Entry { backing: Backing::Elsewhere { geometry, .. }, .. }) => {
                    *geometry = listed.geometry;
                }
                Some(Entry { backing: Backing::Here(volume), .. }) => {
                    if let Some(place) = &listed.on_disk {
                        volume.move_to(place);
                    }
                }
                None => {
                    let Listed { name, geometry, ref memory, ref on_disk, ref counts } = *listed;
                    let share = on_disk.as_ref().and_then(|place| open(place, counts));
                    let backing = match (memory, share) {
                        (Some(memory), _) => {
                            Backing::Here(Box::new(RamVolume::of_shared(memory.clone(), geometry)))
                        }
                        (None, Some(share)) => Backing::Here(share),
                        (None, None) => Backing::Elsewhere { geometry, in_flight: 0 },
                    };
                    self.put(id, Entry::new(name, backing, counts.clone()));
                }
            }
        }
        Some((listing, gone))
    }
}
