//! The calls for cards in a build without them: they do nothing.

use super::ProviderSet;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusals;

impl ProviderSet {
    /// Handles completions and events of cards.
    #[inline]
    pub fn poll_cards(&mut self, _now: Instant) {}

    /// Handles the cards' events other than completions.
    #[inline]
    pub fn mind_cards(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether the users of cards have left no work for the rest of the loop.
    #[inline]
    pub fn cards_are_calm(&self) -> bool {
        true
    }

    /// Rings the doorbells for all posted requests.
    #[inline]
    pub fn flush_cards(&mut self) {}

    /// Arms the cards to raise an interrupt at the next completion.
    #[inline]
    pub fn arm_cards(&mut self) {}

    /// Arms the cards again.
    #[inline]
    pub fn rearm_cards(&mut self) {}

    /// Whether there are completions.
    #[inline]
    pub fn cards_have_completed(&self) -> bool {
        false
    }

    /// When a card next needs a call.
    #[inline]
    pub fn cards_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whether there are completions or events that were not handled yet.
    #[inline]
    pub fn cards_pending(&self) -> bool {
        false
    }

    /// The next host that a card wants to be resolved.
    #[inline]
    pub(super) fn next_stranger_of_cards(&mut self) -> Option<(usize, IpAddr)> {
        None
    }

    /// Connection requests that cards have refused.
    #[inline]
    pub fn card_refusals(&mut self) -> impl Iterator<Item = &mut Refusals> {
        core::iter::empty()
    }
}
