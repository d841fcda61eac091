//! The volumes of a gateway, by name.

use super::{Completion, Volume};
use crate::rtrs::Name;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Name of a volume in a set; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// Place in tables that are kept by volume.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Volumes, added at set-up or from the console.
#[derive(Default)]
pub struct Volumes {
    all: Vec<(Name, Box<dyn Volume>)>,
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
        self.all.push((name, volume));
        Some(VolumeId(self.all.len() as u32 - 1))
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<VolumeId> {
        let index = self.all.iter().position(|(n, _)| n.as_str() == name)?;
        Some(VolumeId(index as u32))
    }

    /// The name of a volume.
    pub fn name(&self, id: VolumeId) -> Option<&str> {
        self.all.get(id.index()).map(|(name, _)| name.as_str())
    }

    /// A volume.
    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut dyn Volume> {
        match self.all.get_mut(id.index()) {
            Some((_, volume)) => Some(volume.as_mut()),
            None => None,
        }
    }

    /// A volume, to look at.
    pub fn get(&self, id: VolumeId) -> Option<&dyn Volume> {
        self.all.get(id.index()).map(|(_, volume)| volume.as_ref())
    }

    /// All names.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.all.len() as u32).map(VolumeId)
    }

    /// Tells the devices of what was submitted.
    pub fn flush_queues(&mut self) {
        for (_, volume) in &mut self.all {
            volume.flush_queue();
        }
    }

    /// The next completion of any volume, looking from volume `from` on.
    pub fn poll(&mut self, from: VolumeId) -> Option<(VolumeId, Completion)> {
        self.all
            .iter_mut()
            .enumerate()
            .skip(from.index())
            .find_map(|(index, (_, volume))| Some((VolumeId(index as u32), volume.poll()?)))
    }
}
