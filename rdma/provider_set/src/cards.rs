//! Cards that do RoCE themselves.

use super::beside::Beside;
use super::{ProviderSet, names};
use connectx::ConnectX;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusals;
use verbs::Provider;

/// A card, and the place of its port among those of the loop.
pub struct Card {
    pub beside: Beside<ConnectX>,
    pub port: usize,
}

impl ProviderSet {
    /// Most cards.
    pub const MOST_CARDS: usize = names::CARDS.len();

    /// Adds the card of the port at a place, before anything is made. False if there are as many as there can be.
    pub fn add_card(&mut self, device: ConnectX, port: usize) -> bool {
        let mark = names::CARDS.get(self.cards.len());
        if let Some(&mark) = mark {
            self.cards.push(Card { beside: Beside::new(device, mark), port });
        }
        mark.is_some()
    }

    /// The place of the port whose card has an address of ours.
    pub(super) fn card_of(&self, local: IpAddr) -> Option<usize> {
        self.cards.iter().find(|card| card.beside.device.has(local)).map(|card| card.port)
    }

    /// The card of the port at a place, if it has one.
    pub fn card(&self, port: usize) -> Option<&ConnectX> {
        self.cards.iter().find(|card| card.port == port).map(|card| &card.beside.device)
    }

    /// See [`ProviderSet::card`].
    pub fn card_mut(&mut self, port: usize) -> Option<&mut ConnectX> {
        self.cards.iter_mut().find(|card| card.port == port).map(|card| &mut card.beside.device)
    }

    /// A round of all cards: takes in what they have done.
    #[inline]
    pub fn poll_cards(&mut self, now: Instant) {
        self.cards.iter_mut().for_each(|card| card.beside.device.poll(now));
    }

    /// Takes in what cards tell of beside completions. False if it is more than that there are some, which is for
    /// [`ProviderSet::poll_cards`].
    #[inline]
    pub fn mind_cards(&mut self, now: Instant) -> bool {
        self.cards.iter_mut().all(|card| card.beside.device.mind(now))
    }

    /// Whether users of cards, who have taken all completions out, have left nothing to anybody else.
    #[inline]
    pub fn cards_are_calm(&self) -> bool {
        self.cards.iter().all(|card| card.beside.device.is_calm())
    }

    /// Tells the cards what was posted.
    #[inline]
    pub fn flush_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.beside.device.flush());
    }

    /// Has the cards raise an interrupt when something completes.
    pub fn arm_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.beside.device.arm());
    }

    /// The same again, after a halt that one has ended, with the cards' ports.
    #[inline]
    pub fn rearm_cards(&mut self) {
        self.cards.iter_mut().for_each(|card| card.beside.device.rearm());
    }

    /// Whether there are completions that were not taken in.
    #[inline]
    pub fn cards_have_completed(&self) -> bool {
        self.cards.iter().any(|card| card.beside.device.has_completed())
    }

    /// When cards have something to do though nothing comes.
    #[inline]
    pub fn cards_timeout(&self) -> Option<Instant> {
        self.cards.iter().filter_map(|card| card.beside.device.poll_timeout()).min()
    }

    /// Whether something has completed or happened that was not taken in.
    #[inline]
    pub fn cards_pending(&self) -> bool {
        self.cards.iter().any(|card| card.beside.device.pending())
    }

    /// The next host that has sent something to a card and whose hardware address is not known, with the place of the
    /// port.
    pub(super) fn next_stranger_of_cards(&mut self) -> Option<(usize, IpAddr)> {
        self.cards
            .iter_mut()
            .find_map(|card| Some((card.port, card.beside.device.next_stranger()?)))
    }

    /// Requests of connections that cards have refused, to be taken out.
    pub fn card_refusals(&mut self) -> impl Iterator<Item = &mut Refusals> {
        self.cards.iter_mut().map(|card| card.beside.device.refusals())
    }

    pub(super) fn cards_disconnect_all(&mut self, now: Instant) {
        self.cards.iter_mut().for_each(|card| card.beside.device.disconnect_all(now));
    }

    pub(super) fn cards_are_disconnected(&self) -> bool {
        self.cards.iter().all(|card| card.beside.device.is_disconnected())
    }
}
