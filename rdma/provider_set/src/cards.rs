//! Cards with RoCE in hardware.

use super::beside::SecondaryDevice;
use super::{ProviderSet, names};
use connectx::ConnectX;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusals;
use verbs::Provider;

/// A card, and the place of its port in the loop.
pub struct Card {
    pub secondary: SecondaryDevice<ConnectX>,
    pub port: usize,
}

impl ProviderSet {
    /// Most cards.
    pub const MOST_CARDS: usize = names::CARDS.len();

    /// Adds the card of the port at a place, before any object is made. False if the number of cards is at its limit.
    pub fn add_card(&mut self, device: ConnectX, port: usize) -> bool {
        let mark = names::CARDS.get(self.cards.len());
        if let Some(&mark) = mark {
            self.cards.push(Card { secondary: SecondaryDevice::new(device, mark), port });
        }
        mark.is_some()
    }

    /// The place of the port whose card has a local address.
    pub(super) fn card_of(&self, local: IpAddr) -> Option<usize> {
        self.cards.iter().find(|card| card.secondary.device.has(local)).map(|card| card.port)
    }

    /// The card of the port at a place, if it has one.
    pub fn card(&self, port: usize) -> Option<&ConnectX> {
        self.cards.iter().find(|card| card.port == port).map(|card| &card.secondary.device)
    }

    /// See [`ProviderSet::card`].
    pub fn card_mut(&mut self, port: usize) -> Option<&mut ConnectX> {
        self.cards.iter_mut().find(|card| card.port == port).map(|card| &mut card.secondary.device)
    }

    /// One round of all cards: handles their completions and events.
    #[inline]
    pub fn poll_cards(&mut self, now: Instant) {
        self.cards.iter_mut().for_each(|card| card.secondary.device.poll(now));
    }

    /// Handles the cards' events other than completions. False if a card needs [`ProviderSet::poll_cards`].
    #[inline]
    pub fn mind_cards(&mut self, now: Instant) -> bool {
        self.cards.iter_mut().all(|card| card.secondary.device.mind(now))
    }

    /// Whether the users of cards, who have taken all completions, have left no work for the rest of the loop.
    #[inline]
    pub fn cards_are_calm(&self) -> bool {
        self.cards.iter().all(|card| card.secondary.device.is_calm())
    }

    /// Rings the doorbells for all posted requests.
    #[inline]
    pub fn flush_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.secondary.device.flush());
    }

    /// Arms the cards to raise an interrupt at the next completion.
    pub fn arm_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.secondary.device.arm());
    }

    /// Arms the cards again after a halt that an interrupt has ended, together with their ports.
    #[inline]
    pub fn rearm_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.secondary.device.rearm());
    }

    /// Whether there are completions that were not handled yet.
    #[inline]
    pub fn cards_have_completed(&self) -> bool {
        self.cards.iter().any(|card| card.secondary.device.has_completed())
    }

    /// When a card next needs a call without an event.
    #[inline]
    pub fn cards_timeout(&self) -> Option<Instant> {
        self.cards.iter().filter_map(|card| card.secondary.device.poll_timeout()).min()
    }

    /// Whether there are completions or events that were not handled yet.
    #[inline]
    pub fn cards_pending(&self) -> bool {
        self.cards.iter().any(|card| card.secondary.device.pending())
    }

    /// The next host that has sent a message to a card and whose MAC address is not known, with the place of the port.
    pub(super) fn next_stranger_of_cards(&mut self) -> Option<(usize, IpAddr)> {
        self.cards
            .iter_mut()
            .find_map(|card| Some((card.port, card.secondary.device.next_stranger()?)))
    }

    /// Connection requests that cards have refused, for the caller to take out.
    pub fn card_refusals(&mut self) -> impl Iterator<Item = &mut Refusals> {
        self.cards.iter_mut().map(|card| card.secondary.device.refusals())
    }

    pub(super) fn cards_disconnect_all(&mut self, now: Instant) {
        self.cards.iter_mut().for_each(|card| card.secondary.device.disconnect_all(now));
    }

    pub(super) fn cards_are_disconnected(&self) -> bool {
        self.cards.iter().all(|card| card.secondary.device.is_disconnected())
    }
}
