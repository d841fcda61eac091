//! What there is of cards in a build without them: nothing.

use super::ProviderSet;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusals;

impl ProviderSet {
    /// Takes in what cards have done.
    #[inline(always)]
    pub fn poll_cards(&mut self, _now: Instant) {}

    /// Takes in what cards tell of.
    #[inline(always)]
    pub fn mind_cards(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether users of cards have left nothing to anybody else.
    #[inline(always)]
    pub fn cards_are_calm(&self) -> bool {
        true
    }

    /// Tells the cards what was posted.
    #[inline(always)]
    pub fn flush_cards(&mut self) {}

    /// Has the cards raise an interrupt when something completes.
    #[inline(always)]
    pub fn arm_cards(&mut self) {}

    /// The same again.
    #[inline(always)]
    pub fn rearm_cards(&mut self) {}

    /// Whether there are completions.
    #[inline(always)]
    pub fn cards_have_completed(&self) -> bool {
        false
    }

    /// When cards have something to do.
    #[inline(always)]
    pub fn cards_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whether something has completed that was not taken in.
    #[inline(always)]
    pub fn cards_pending(&self) -> bool {
        false
    }

    /// The next host whose hardware address a card wants to know.
    #[inline(always)]
    pub(super) fn next_stranger_of_cards(&mut self) -> Option<(usize, IpAddr)> {
        None
    }

    /// Requests of connections that cards have refused.
    #[inline(always)]
    pub fn card_refusals(&mut self) -> impl Iterator<Item = &mut Refusals> {
        core::iter::empty()
    }
}
