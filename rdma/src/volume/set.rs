//! The volumes of a gateway, by name.

use super::{Completion, Volume};
use crate::rtrs::Name;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// Name of a volume in a set; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Place in tables that are kept by volume.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// In the tag of a request: it is not of the server that polls the volumes, but of a guest, one
/// further user, who gets its completions from [`Volumes::poll_guest`].
pub const GUEST: u64 = 1 << 63;

/// Volumes, added at set-up or from the console.
#[derive(Default)]
pub struct Volumes {
    /// None where one was removed.
    all: Vec<Option<(Name, Box<dyn Volume>)>>,
    /// Ends of requests of the guest.
    guest: VecDeque<Completion>,
}

impl Volumes {
    /// No volumes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a volume; None if the name is taken.
    pub fn add(&mut self, name: Name, volume: Box<dyn Volume>) -> Option<VolumeId> {
        if self.find(name.as_str()).is_some() {
            return None;
        }
        self.all.push(Some((name, volume)));
        Some(VolumeId(self.all.len() as u32 - 1))
    }

    /// Takes a volume out, which nothing uses any more.
    pub fn remove(&mut self, id: VolumeId) -> Option<Box<dyn Volume>> {
        self.all.get_mut(id.index())?.take().map(|(_, volume)| volume)
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let named = |one: &Option<(Name, _)>| one.as_ref().is_some_and(|(n, _)| n.as_str() == name);
        let index = self.all.iter().position(named)?;
        Some(VolumeId(index as u32))
    }

    /// The name of a volume.
    pub fn name(&self, id: VolumeId) -> Option<&str> {
        self.all.get(id.index())?.as_ref().map(|(name, _)| name.as_str())
    }

    /// A volume.
    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut dyn Volume> {
        match self.all.get_mut(id.index()) {
            Some(Some((_, volume))) => Some(volume.as_mut()),
            _ => None,
        }
    }

    /// A volume, to look at.
    pub fn get(&self, id: VolumeId) -> Option<&dyn Volume> {
        self.all.get(id.index())?.as_ref().map(|(_, volume)| volume.as_ref())
    }

    /// All names.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let there = self.all.iter().enumerate().filter(|(_, volume)| volume.is_some());
        there.map(|(index, _)| VolumeId(index as u32)).collect::<Vec<_>>().into_iter()
    }

    /// Tells the devices of what was submitted.
    pub fn flush_queues(&mut self) {
        for (_, volume) in self.all.iter_mut().flatten() {
            volume.flush_queue();
        }
    }

    /// Whether a volume goes on when it is polled again, though nothing ends meanwhile.
    pub fn want_turn(&self) -> bool {
        self.all.iter().flatten().any(|(_, volume)| volume.wants_turn())
    }

    /// Looks after all volumes; to be called about once a second.
    pub fn tend(&mut self, now: Instant) {
        for (_, volume) in self.all.iter_mut().flatten() {
            volume.tend(now);
        }
    }

    /// Keeps a completion for the guest, if it is of a request of the guest's ([`GUEST`]).
    pub fn keep(&mut self, completion: &Completion) -> bool {
        let theirs = completion.tag & GUEST != 0;
        if theirs {
            self.guest.push_back(*completion);
        }
        theirs
    }

    /// The next completion that was kept for the guest.
    pub fn poll_guest(&mut self) -> Option<Completion> {
        self.guest.pop_front()
    }

    /// The next completion of any volume, looking from volume `from` on.
    pub fn poll(&mut self, from: VolumeId) -> Option<(VolumeId, Completion)> {
        self.all.iter_mut().enumerate().skip(from.index()).find_map(|(index, volume)| {
            let (_, volume) = volume.as_mut()?;
            Some((VolumeId(index as u32), volume.poll()?))
        })
    }
}
