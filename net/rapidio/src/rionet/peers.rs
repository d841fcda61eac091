//! The peers of a network: all possible ones, and those that have joined.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use drivers::rapidio::Source;

/// Peers, and whether they have joined.
#[derive(Debug, Default)]
pub struct Peers {
    all: BTreeMap<Source, bool>,
    /// Ids of joined peers in ascending order, by whose number broadcasts go on.
    active: Vec<Source>,
}

impl Peers {
    /// Replaces the list of possible peers. Returns the new ones.
    pub fn update(&mut self, ids: impl Iterator<Item = Source>) -> Vec<Source> {
        let all: BTreeMap<Source, bool> = ids.map(|id| (id, self.is_active(id))).collect();
        let fresh = all.keys().copied().filter(|id| !self.knows(*id)).collect();
        self.all = all;
        self.rebuild_active();
        fresh
    }

    fn rebuild_active(&mut self) {
        self.active.clear();
        self.active.extend(self.all.iter().filter(|(_, active)| **active).map(|(id, _)| *id));
    }

    fn set(&mut self, id: Source, active: bool) -> bool {
        let Some(was) = self.all.get_mut(&id) else { return false };
        let changed = core::mem::replace(was, active) != active;
        if changed {
            self.rebuild_active();
        }
        changed
    }

    /// Marks a peer as joined; true if it was not before.
    pub fn join(&mut self, id: Source) -> bool {
        self.set(id, true)
    }

    /// Marks a peer as not joined.
    pub fn leave(&mut self, id: Source) {
        self.set(id, false);
    }

    /// Whether the id is of a possible peer.
    pub fn knows(&self, id: Source) -> bool {
        self.all.contains_key(&id)
    }

    /// Whether the id is of a joined peer.
    pub fn is_active(&self, id: Source) -> bool {
        self.all.get(&id) == Some(&true)
    }

    /// Number of joined peers.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Joined peer number `n`, in the order of ids.
    pub fn active(&self, n: usize) -> Option<Source> {
        self.active.get(n).copied()
    }

    /// The first joined peer whose id is `id` or higher.
    pub fn active_from(&self, id: Source) -> Option<Source> {
        self.active(self.active.partition_point(|active| *active < id))
    }

    /// All possible peers.
    pub fn all(&self) -> Vec<Source> {
        self.all.keys().copied().collect()
    }

    /// Whether there are peers that have not joined.
    pub fn has_absent(&self) -> bool {
        self.active.len() < self.all.len()
    }

    /// Peers that have not joined.
    pub fn absent(&self) -> Vec<Source> {
        self.all.iter().filter(|(_, active)| !**active).map(|(id, _)| *id).collect()
    }
}
