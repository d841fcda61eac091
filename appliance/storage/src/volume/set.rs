//! The volumes of a gateway, by name.

use super::{Completion, Volume};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;
use rtrs::Name;

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
    /// A bit for each volume that somebody has asked for something, or that goes on by itself: the others
    /// need not be polled.
    active: Vec<u64>,
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
        let id = VolumeId(self.all.len() as u32 - 1);
        self.active.resize(self.all.len().div_ceil(64), 0);
        // It may have something in flight from before.
        self.activate(id);
        Some(id)
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

    /// A volume, to ask it for something.
    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut dyn Volume> {
        self.activate(id);
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
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if let Some(Some((_, volume))) = self.all.get_mut(index) {
                volume.flush_queue();
            }
            at = index + 1;
        }
    }

    /// Whether a volume goes on when it is polled again, though nothing ends meanwhile.
    pub fn want_turn(&self) -> bool {
        let mut at = 0;
        while let Some(index) = self.next_active(at) {
            if matches!(self.all.get(index), Some(Some((_, volume))) if volume.wants_turn()) {
                return true;
            }
            at = index + 1;
        }
        false
    }

    /// Looks after all volumes; to be called about once a second.
    pub fn tend(&mut self, now: Instant) {
        for index in 0..self.all.len() {
            let Some(Some((_, volume))) = self.all.get_mut(index) else { continue };
            volume.tend(now);
            if !volume.is_idle() || volume.wants_turn() {
                self.activate(VolumeId(index as u32));
            }
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
        let mut at = from.index();
        while let Some(index) = self.next_active(at) {
            let rests = match self.all.get_mut(index) {
                Some(Some((_, volume))) => match volume.poll() {
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
}
