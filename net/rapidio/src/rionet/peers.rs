//! The peers of a network: all possible ones, and those that have joined.

use alloc::vec::Vec;
use drivers::rapidio::Source;

/// Peers, in the order of their ids, and whether they have joined.
#[derive(Debug, Default)]
pub struct Peers {
    all: Vec<(Source, bool)>,
    /// Ids of joined peers, to which broadcasts are sent.
    active: Vec<Source>,
}

impl Peers {
    fn place(&self, id: Source) -> Result<usize, usize> {
        self.all.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// Replaces the list of possible peers. Returns the new ones.
    pub fn update(&mut self, ids: impl Iterator<Item = Source>) -> Vec<Source> {
        let mut ids: Vec<Source> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let fresh = ids.iter().copied().filter(|id| self.place(*id).is_err()).collect();
        let all = ids.iter().map(|id| (*id, self.is_active(*id))).collect();
        self.all = all;
        self.rebuild_active();
        fresh
    }

    fn rebuild_active(&mut self) {
        self.active.clear();
        self.active.extend(self.all.iter().filter(|(_, active)| *active).map(|(id, _)| *id));
    }

    fn set(&mut self, id: Source, active: bool) -> bool {
        let Ok(at) = self.place(id) else { return false };
        let changed = self.all[at].1 != active;
        self.all[at].1 = active;
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
        self.place(id).is_ok()
    }

    /// Whether the id is of a joined peer.
    pub fn is_active(&self, id: Source) -> bool {
        self.place(id).is_ok_and(|at| self.all[at].1)
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
        self.all.iter().map(|(id, _)| *id).collect()
    }

    /// Whether there are peers that have not joined.
    pub fn has_absent(&self) -> bool {
        self.active.len() < self.all.len()
    }

    /// Peers that have not joined.
    pub fn absent(&self) -> Vec<Source> {
        self.all.iter().filter(|(_, active)| !active).map(|(id, _)| *id).collect()
    }
}
