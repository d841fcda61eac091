//! Who may take part, and who does.

use alloc::vec::Vec;
use drivers::rapidio::Source;

/// Peers, in the order of their ids, and whether they have joined.
#[derive(Debug, Default)]
pub struct Peers {
    all: Vec<(Source, bool)>,
    /// Those that have joined: what broadcasts go to.
    active: Vec<Source>,
}

impl Peers {
    fn place(&self, id: Source) -> Result<usize, usize> {
        self.all.binary_search_by_key(&id, |(id, _)| *id)
    }

    /// From now on these may take part; those that are new.
    pub fn update(&mut self, ids: impl Iterator<Item = Source>) -> Vec<Source> {
        let mut ids: Vec<Source> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        let fresh = ids.iter().copied().filter(|id| self.place(*id).is_err()).collect();
        let all = ids.iter().map(|id| (*id, self.is_active(*id))).collect();
        self.all = all;
        self.list();
        fresh
    }

    fn list(&mut self) {
        self.active.clear();
        self.active.extend(self.all.iter().filter(|(_, active)| *active).map(|(id, _)| *id));
    }

    fn set(&mut self, id: Source, active: bool) -> bool {
        let Ok(at) = self.place(id) else { return false };
        let changed = self.all[at].1 != active;
        self.all[at].1 = active;
        if changed {
            self.list();
        }
        changed
    }

    /// A peer has joined; true if it had not before.
    pub fn join(&mut self, id: Source) -> bool {
        self.set(id, true)
    }

    /// A peer has left.
    pub fn leave(&mut self, id: Source) {
        self.set(id, false);
    }

    /// Whether it may take part.
    pub fn knows(&self, id: Source) -> bool {
        self.place(id).is_ok()
    }

    /// Whether it does.
    pub fn is_active(&self, id: Source) -> bool {
        self.place(id).is_ok_and(|at| self.all[at].1)
    }

    /// Peers that have joined: how many.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// One of them.
    pub fn active(&self, n: usize) -> Option<Source> {
        self.active.get(n).copied()
    }

    /// The first of them whose id is not below this one.
    pub fn active_from(&self, id: Source) -> Option<Source> {
        self.active(self.active.partition_point(|active| *active < id))
    }

    /// All that may take part.
    pub fn all(&self) -> Vec<Source> {
        self.all.iter().map(|(id, _)| *id).collect()
    }

    /// Whether there are some that have not joined.
    pub fn has_absent(&self) -> bool {
        self.active.len() < self.all.len()
    }

    /// Those that have not joined.
    pub fn absent(&self) -> Vec<Source> {
        self.all.iter().filter(|(_, active)| !active).map(|(id, _)| *id).collect()
    }
}
