//! Receive buffers of a group's peer: key and address of each on each link, with an index by link and key.

use super::table::{LINKS, TOKENS};
use crate::wire::llc::{KeyMove, Token};
use alloc::collections::BTreeMap;
use slab::Slab;

/// Key and address of a buffer on each link of the group.
type OnLinks = [Option<Token>; LINKS];

/// Link, key and address of a buffer; ordered by link, then key.
type Name = (usize, u32, u64);

/// The buffers that a peer has announced.
#[derive(Debug, Default)]
pub(in crate::engine) struct PeerBuffers {
    buffers: Slab<OnLinks>,
    /// Index: slots of the buffers.
    by_token: BTreeMap<Name, usize>,
    /// Slot of the buffer that is evicted next.
    next: usize,
}

fn name(link: usize, token: Token) -> Name {
    (link, token.rkey, token.address)
}

impl PeerBuffers {
    /// Number of stored buffers.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Stores a buffer by its key and address on a link, and returns its slot. Evicts one beyond [`TOKENS`].
    pub fn remember(&mut self, link: usize, token: Token) -> usize {
        if let Some(place) = self.by_token.get(&name(link, token)) {
            return *place;
        }
        if self.buffers.len() >= TOKENS {
            self.remove(self.next);
            self.next = (self.next + 1) % TOKENS;
        }
        let place = self.buffers.insert([None; LINKS]);
        self.set(place, link, Some(token));
        place
    }

    /// Sets key and address of a buffer on a link. Ignores unknown slots.
    pub fn set(&mut self, place: usize, link: usize, token: Option<Token>) {
        let Some(on) = self.buffers.get_mut(place).and_then(|on| on.get_mut(link)) else { return };
        let before = core::mem::replace(on, token);
        if let Some(before) = before
            && self.by_token.get(&name(link, before)) == Some(&place)
        {
            self.by_token.remove(&name(link, before));
        }
        if let Some(token) = token {
            // If a peer announces the same key for two buffers, the first one is found.
            self.by_token.entry(name(link, token)).or_insert(place);
        }
    }

    /// Adds keys of buffers on link `new`; the buffers are found by their keys on link `at`.
    pub fn learn_moves(&mut self, at: usize, new: usize, keys: &[KeyMove]) {
        for key in keys {
            if let Some(place) = self.place_of(at, key.known) {
                self.set(place, new, Some(key.token));
            }
        }
    }

    /// Removes a buffer by its key on a link. Returns whether it was known.
    pub fn forget(&mut self, link: usize, rkey: u32) -> bool {
        let place = self.place_of(link, rkey);
        place.is_some_and(|place| self.remove(place))
    }

    /// Removes the keys of all buffers on a link.
    pub fn forget_link(&mut self, link: usize) {
        self.buffers.iter_mut().for_each(|(_, on)| on[link] = None);
        self.by_token.retain(|(of, ..), _| *of != link);
    }

    /// Key and address on link `to` of the buffer that has `token` on link `at`.
    pub fn moved(&self, at: usize, token: Token, to: usize) -> Option<Token> {
        let place = self.by_token.get(&name(at, token))?;
        *self.buffers.get(*place)?.get(to)?
    }

    /// Finds a buffer by its address on a link. Searches all buffers; used only for a Confirm whose link is lost.
    pub fn at_address(&self, link: usize, address: u64) -> Option<Token> {
        let mut there = self.buffers.iter().filter_map(|(_, on)| *on.get(link)?);
        there.find(|token| token.address == address)
    }

    /// Removes all buffers.
    #[cfg(test)]
    pub fn clear(&mut self) {
        *self = PeerBuffers::default();
    }

    fn place_of(&self, link: usize, rkey: u32) -> Option<usize> {
        let (_, place) = self.by_token.range((link, rkey, 0)..=(link, rkey, u64::MAX)).next()?;
        Some(*place)
    }

    /// Returns whether the slot was in use.
    fn remove(&mut self, place: usize) -> bool {
        for link in 0..LINKS {
            self.set(place, link, None);
        }
        self.buffers.try_remove(place).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u32) -> Token {
        Token { rkey: 0x100 + n, address: u64::from(n) << 20 }
    }

    #[test]
    fn a_buffer_is_known_by_its_key_on_any_link_until_it_is_forgotten() {
        let mut buffers = PeerBuffers::default();
        let place = buffers.remember(0, token(1));
        assert_eq!(buffers.remember(0, token(1)), place);
        buffers.set(place, 1, Some(token(7)));
        buffers.remember(0, token(2));
        assert_eq!(buffers.moved(0, token(1), 1), Some(token(7)));
        assert_eq!(buffers.moved(1, token(7), 0), Some(token(1)));
        assert_eq!(buffers.moved(0, token(2), 1), None);
        assert_eq!(buffers.at_address(1, token(7).address), Some(token(7)));
        assert!(buffers.forget(1, token(7).rkey) && !buffers.forget(0, token(1).rkey));
        assert_eq!(buffers.moved(0, token(1), 1), None);
        assert_eq!(buffers.len(), 1);
    }

    #[test]
    fn keys_move_and_links_are_forgotten() {
        let mut buffers = PeerBuffers::default();
        buffers.remember(0, token(1));
        buffers.remember(0, token(2));
        let moves = [(1, 11), (2, 12), (3, 13)];
        let moves = moves.map(|(known, to)| KeyMove { known: token(known).rkey, token: token(to) });
        buffers.learn_moves(0, 2, &moves);
        assert_eq!(buffers.moved(0, token(2), 2), Some(token(12)));
        // The peer replaces the key on link 2.
        buffers.learn_moves(0, 2, &[KeyMove { known: token(2).rkey, token: token(22) }]);
        assert_eq!(buffers.moved(2, token(12), 0), None);
        assert_eq!(buffers.moved(2, token(22), 0), Some(token(2)));
        buffers.forget_link(0);
        assert_eq!(buffers.moved(0, token(1), 2), None);
        assert!(!buffers.forget(0, token(1).rkey) && buffers.forget(2, token(11).rkey));
        assert_eq!(buffers.len(), 1);
    }

    #[test]
    fn buffers_beyond_the_limit_are_evicted() {
        let mut buffers = PeerBuffers::default();
        for n in 0..3 * TOKENS as u32 {
            buffers.remember(0, token(n));
            assert!(buffers.len() <= TOKENS && buffers.by_token.len() == buffers.len());
            assert_eq!(buffers.moved(0, token(n), 0), Some(token(n)));
        }
        // The same key at two addresses: each is forgotten once.
        let twice = Token { address: 5, ..token(3 * TOKENS as u32 - 1) };
        buffers.remember(0, twice);
        assert!(buffers.forget(0, twice.rkey) && buffers.forget(0, twice.rkey));
        assert!(!buffers.forget(0, twice.rkey));
    }
}
