//! Link addresses of the peer, and their endpoints. The table grows with the highest address used by the peer.

use super::Name;
use crate::wire::rlnh::MAX_NAME;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The highest link address that LINX for Linux can be configured for (`linx_max_sockets_per_link`).
pub const MOST_ADDRESSES: u32 = 65_536;
/// Bytes of names of the peer that a link stores. An address beyond has no name: its signals arrive, but hunts do not
/// find it.
const NAME_BYTES: usize = 2 << 20;

/// The endpoint of a peer's link address.
#[derive(Debug)]
pub(super) enum Owner {
    /// An endpoint of the peer, by name; empty if the name was not stored.
    Name(Name),
    /// A local endpoint whose signals the peer forwards (PUBLISH_PEER), by index and generation.
    Own(u32, u32),
}

/// A link address of the peer.
#[derive(Debug)]
pub(super) struct Remote {
    pub generation: u32,
    pub owner: Owner,
    /// The user knows it, and gets an event when it ends.
    pub is_reported: bool,
    /// It has ended. The UNPUBLISH_ACK is sent when the user has received that event.
    pub is_gone: bool,
    /// An UNPUBLISH_ACK for the address is queued; never more than one.
    pub owes_ack: bool,
    /// Number of its hunts.
    pub hunts: u32,
    /// Local link address under which we forward its signals; 0 if there is none.
    pub local: u32,
}

/// The addresses.
#[derive(Debug)]
pub(super) struct Remotes {
    most: u32,
    slots: Vec<Option<Remote>>,
    count: usize,
    names: BTreeSet<(Name, u32)>,
    name_bytes: usize,
}

impl Remotes {
    /// Addresses up to `most`, none in use.
    pub fn new(most: u32) -> Remotes {
        let (slots, names) = (Vec::new(), BTreeSet::new());
        Remotes { most, slots, count: 0, names, name_bytes: 0 }
    }

    /// Highest valid address.
    #[inline]
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.count
    }

    /// An address that is in use, or has ended and waits for its UNPUBLISH_ACK.
    #[inline]
    pub fn get(&self, address: u32) -> Option<&Remote> {
        self.slots.get(address as usize)?.as_ref()
    }

    /// As `get`, mutable.
    #[inline]
    pub fn get_mut(&mut self, address: u32) -> Option<&mut Remote> {
        self.slots.get_mut(address as usize)?.as_mut()
    }

    /// The first address of this name.
    pub fn with_name(&self, name: &[u8]) -> Option<u32> {
        super::control::entries_named(&self.names, name).next()
    }

    /// Assigns an address, 1 to `most`, to an endpoint, in place of a previous one. False if its name was not stored.
    pub fn learn(&mut self, address: u32, generation: u32, owner: Owner) -> bool {
        let mut owner = owner;
        let place = address as usize;
        if place >= self.slots.len() {
            let length = (place + 1).next_power_of_two().max(64).min(self.most as usize + 1);
            self.slots.resize_with(length, || None);
        }
        let owes_ack = self.forget(address).is_some_and(|old| old.owes_ack);
        let mut is_kept = true;
        if let Owner::Name(name) = &mut owner {
            is_kept = name.len() <= MAX_NAME && self.name_bytes + name.len() <= NAME_BYTES;
            if !is_kept {
                *name = Name::default();
            } else if !name.is_empty() {
                self.name_bytes += name.len();
                self.names.insert((name.clone(), address));
            }
        }
        let (is_reported, is_gone) = (false, false);
        let remote =
            Remote { generation, owner, is_reported, is_gone, owes_ack, hunts: 0, local: 0 };
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Some(remote);
            self.count += 1;
        }
        is_kept
    }

    /// Removes the name of an address.
    pub fn forget_name(&mut self, address: u32) {
        let Some(Some(Remote { owner: Owner::Name(name), .. })) =
            self.slots.get_mut(address as usize)
        else {
            return;
        };
        let name = core::mem::take(name);
        self.name_bytes -= name.len();
        self.names.remove(&(name, address));
    }

    /// Frees an address.
    pub fn forget(&mut self, address: u32) -> Option<Remote> {
        self.forget_name(address);
        let remote = self.slots.get_mut(address as usize)?.take()?;
        self.count -= 1;
        Some(remote)
    }

    /// Frees all addresses. Returns the entries.
    pub fn clear(&mut self) -> impl Iterator<Item = (u32, Remote)> {
        self.names.clear();
        (self.count, self.name_bytes) = (0, 0);
        let slots = core::mem::take(&mut self.slots).into_iter().enumerate();
        slots.filter_map(|(address, slot)| Some((address as u32, slot?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &[u8]) -> Owner {
        Owner::Name(text.into())
    }

    #[test]
    fn learn_grows_with_the_highest_address_and_clear_gives_memory_back() {
        let mut remotes = Remotes::new(MOST_ADDRESSES);
        assert_eq!(remotes.slots.len(), 0);
        for address in [1, 64, MOST_ADDRESSES] {
            assert!(remotes.learn(address, address, name(b"x")));
        }
        assert_eq!((remotes.count(), remotes.slots.len()), (3, MOST_ADDRESSES as usize + 1));
        assert_eq!(remotes.with_name(b"x"), Some(1));
        assert_eq!(remotes.clear().map(|it| it.0).collect::<Vec<_>>(), [1, 64, MOST_ADDRESSES]);
        assert_eq!((remotes.count(), remotes.slots.capacity(), remotes.name_bytes), (0, 0, 0));
        assert_eq!(remotes.with_name(b"x"), None);
    }

    #[test]
    fn learn_beyond_the_memory_for_names_keeps_the_address_without_its_name() {
        let mut remotes = Remotes::new(MOST_ADDRESSES);
        let long = alloc::vec![b'n'; MAX_NAME];
        for address in 1..=(NAME_BYTES / MAX_NAME) as u32 {
            assert!(remotes.learn(address, 1, name(&long)));
        }
        assert!(!remotes.learn(60_000, 1, name(b"late")));
        assert!(
            remotes
                .get(60_000)
                .is_some_and(|it| matches!(&it.owner, Owner::Name(n) if n.is_empty()))
        );
        assert_eq!(remotes.with_name(b"late"), None);
        // The end of an endpoint makes room.
        remotes.forget_name(1);
        assert!(remotes.learn(60_001, 1, name(b"late")));
        // A name longer than any of ours is never hunted for.
        let longer = alloc::vec![b'n'; MAX_NAME + 1];
        assert!(!remotes.learn(60_002, 1, name(&longer)));
        assert_eq!(remotes.name_bytes, NAME_BYTES - MAX_NAME + 4);
    }

    #[test]
    fn learn_of_an_address_in_use_replaces_its_name() {
        let mut remotes = Remotes::new(10);
        remotes.learn(1, 1, name(b"old"));
        remotes.learn(1, 2, name(b"new"));
        assert_eq!((remotes.with_name(b"old"), remotes.with_name(b"new")), (None, Some(1)));
        assert_eq!((remotes.count(), remotes.name_bytes), (1, 3));
        assert!(remotes.forget(1).is_some() && remotes.forget(1).is_none());
        assert_eq!((remotes.count(), remotes.name_bytes), (0, 0));
    }
}
