//! Hunts of a link's peer, indexed by name and by hunter.

use super::Name;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Hunts of a link's peer.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    by_name: BTreeSet<(Name, u32)>,
    by_hunter: BTreeSet<(u32, Name)>,
}

impl Wanted {
    /// Number of hunts.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether an address hunts for a name.
    pub fn contains(&self, hunter: u32, name: &Name) -> bool {
        self.by_hunter.contains(&(hunter, name.clone()))
    }

    /// Adds a hunt of an address for a name.
    pub fn insert(&mut self, hunter: u32, name: Name) {
        self.by_name.insert((name.clone(), hunter));
        self.by_hunter.insert((hunter, name));
    }

    /// Removes the hunts for a name. Returns their hunters.
    pub fn take_name(&mut self, name: &[u8]) -> Vec<u32> {
        let hunters: Vec<u32> = super::control::entries_named(&self.by_name, name).collect();
        let name = Name::from(name);
        for &hunter in &hunters {
            self.by_name.remove(&(name.clone(), hunter));
            self.by_hunter.remove(&(hunter, name.clone()));
        }
        hunters
    }

    /// Removes the hunts of an address.
    pub fn forget_hunter(&mut self, hunter: u32) {
        loop {
            let mut names = self.by_hunter.range((hunter, Name::default())..);
            let Some((_, name)) = names.next().filter(|it| it.0 == hunter).cloned() else { return };
            self.by_hunter.remove(&(hunter, name.clone()));
            self.by_name.remove(&(name, hunter));
        }
    }

    /// Removes all hunts.
    pub fn clear(&mut self) {
        self.by_name.clear();
        self.by_hunter.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunts_are_removed_by_name_and_by_hunter() {
        let mut wanted = Wanted::default();
        for (hunter, name) in [(1, b"a"), (1, b"b"), (2, b"a"), (3, b"c"), (1, b"a")] {
            wanted.insert(hunter, Name::from(&name[..]));
        }
        assert_eq!(wanted.len(), 4);
        assert_eq!(wanted.take_name(b"a"), [1, 2]);
        assert!(wanted.contains(1, &Name::from(&b"b"[..])));
        wanted.forget_hunter(1);
        wanted.forget_hunter(2);
        assert_eq!((wanted.len(), wanted.by_hunter.len()), (1, 1));
        assert_eq!(wanted.take_name(b"c"), [3]);
        assert_eq!(wanted.len(), 0);
    }
}
