//! Signals: what endpoints send each other.

use super::addresses::Local;
use super::link::{Carrier, Control, Phase, Who};
use super::{EndpointId, Event, NONE, Node, PeerId};
use crate::pool::{Chain, PIECE};
use crate::riocm::{Message, SendError};
use drivers::hal::{Instant, Window};

/// Who has sent a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An endpoint of a peer's.
    Peer(PeerId),
    /// One of ours, by way of a peer that passes its signals on.
    Own(EndpointId),
}

/// In whose name a signal is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// An endpoint of ours.
    Endpoint(EndpointId),
    /// An endpoint of the same peer's, whose signal is passed on to another one there.
    Peer(PeerId),
}

/// A signal that was taken. Its memory is the link's: give it back by [`Node::release`].
#[derive(Debug)]
pub struct Signal {
    /// Who has sent it.
    pub from: Origin,
    /// Its number.
    pub number: u32,
    chain: Chain,
}

impl Signal {
    /// Bytes behind the number.
    pub fn len(&self) -> usize {
        self.chain.len() - NUMBER
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of a signal's number, which is the beginning of what is sent.
const NUMBER: usize = 4;

/// A signal that waits to be taken.
#[derive(Debug)]
pub(super) struct Queued {
    next: u32,
    signal: Signal,
}

impl Node {
    /// Sends a signal. Its bytes are copied, and the user's again at once.
    #[inline]
    pub fn send(
        &mut self,
        from: Sender,
        to: PeerId,
        number: u32,
        body: &[u8],
        now: Instant,
    ) -> Result<(), SendError> {
        let addresses = self.addresses(from, to)?;
        match self.send_over(to.link.place, addresses, [&number.to_be_bytes(), body]) {
            Ok(()) => self.was_sent(to, now),
            Err(why) => {
                self.not_sent(to, why);
                return Err(why);
            }
        }
        Ok(())
    }

    /// Sends a signal from the user's own memory, which is in use until [`Event::Sent`] says that it is not. The first
    /// four bytes are the number, big-endian.
    pub fn send_windows(
        &mut self,
        from: Sender,
        to: PeerId,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let addresses = self.addresses(from, to)?;
        let Node { links, riocm, pool, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(to.link.place)) else {
            return Err(SendError::NotConnected);
        };
        let sent = match &mut link.carrier {
            Carrier::Riocm(id) => riocm.send_windows(pool, *id, addresses, windows, cookie),
            Carrier::Tcp(tcp) => tcp.send_windows(addresses, windows, cookie),
        };
        match sent {
            Ok(()) => self.was_sent(to, now),
            Err(why) => {
                self.not_sent(to, why);
                return Err(why);
            }
        }
        Ok(())
    }

    /// Whose signal found no room is told when there is some.
    fn not_sent(&mut self, to: PeerId, why: SendError) {
        if why == SendError::Full
            && let Some(link) = self.link_by_id(to.link)
        {
            link.wants_room = true;
        }
    }

    #[inline]
    fn was_sent(&mut self, to: PeerId, now: Instant) {
        if let Some(link) = self.link_by_id(to.link) {
            link.counters.sent += 1;
        }
        self.pump(now);
    }

    /// Link addresses of sender and receiver. The sender is published first, if it is not yet.
    #[inline]
    fn addresses(&mut self, from: Sender, to: PeerId) -> Result<(u32, u32), SendError> {
        let place = to.link.place;
        let link = self.link_by_id(to.link).ok_or(SendError::NotConnected)?;
        let known = link.remote(to.address).is_some_and(|it| it.generation == to.generation);
        if link.phase != Phase::Up || !known {
            return Err(SendError::NotConnected);
        }
        let source = match from {
            Sender::Endpoint(id) => {
                let endpoint = self.endpoint(id).ok_or(SendError::NotConnected)?;
                match endpoint.addresses[usize::from(place)] {
                    0 => self.publish(place, id.place).ok_or(SendError::Full)?,
                    address => address,
                }
            }
            Sender::Peer(peer) => self.publish_peer(peer, to)?,
        };
        let is_quiet = |node: &Node| {
            let link = node.links.get(usize::from(place)).and_then(Option::as_ref);
            link.is_some_and(|link| link.control.is_empty())
        };
        if !is_quiet(self) {
            self.say(place);
            if !is_quiet(self) {
                if let Some(link) = self.link_by_id(to.link) {
                    link.wants_room = true;
                }
                return Err(SendError::Full);
            }
        }
        Ok((source, to.address))
    }

    /// The link address of ours that stands for an endpoint of the peer's.
    fn publish_peer(&mut self, peer: PeerId, to: PeerId) -> Result<u32, SendError> {
        let link = self.link_by_id(to.link).ok_or(SendError::NotConnected)?;
        let version = link.version;
        let remote = link.remote(peer.address).filter(|it| it.generation == peer.generation);
        let remote = remote.filter(|it| matches!(it.who, Who::Name(_)) && peer.link == to.link);
        let remote = remote.ok_or(SendError::NotConnected)?;
        if remote.local != 0 {
            return Ok(remote.local);
        }
        // Version 1 has no word for it.
        if version < 2 {
            return Err(SendError::NotConnected);
        }
        let Some(address) = link.local.take(Local::Peer(peer.address)) else {
            link.counters.no_address += 1;
            return Err(SendError::Full);
        };
        if let Some(remote) = link.remote(peer.address) {
            remote.local = address;
        }
        link.control.push_back(Control::PublishPeer(address, peer.address));
        Ok(address)
    }

    /// A signal has arrived.
    #[inline]
    pub(super) fn handle_signal(&mut self, place: u16, message: Message) {
        let Node { links, pool, endpoints, queued, events, config, .. } = self;
        let Message { source, destination, chain } = message;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return pool.free(chain) };
        let id = link.id;
        let is_bad =
            !link.is_address(source) || !link.is_address(destination) || chain.len() < NUMBER;
        if link.phase != Phase::Up || is_bad {
            link.counters.bad_signals += 1;
            return pool.free(chain);
        }
        let to = match link.local.get(destination) {
            Some(Local::Endpoint(to)) => endpoints.get_mut(to as usize),
            _ => None,
        };
        let Some(to) = to else {
            link.counters.unknown_destination += 1;
            return pool.free(chain);
        };
        let Some(remote) = link.remote(source) else {
            if link.unclaimed.len() < link.max_unclaimed {
                link.unclaimed.push_back((source, destination, chain));
            } else {
                link.counters.unknown_source += 1;
                pool.free(chain);
            }
            return;
        };
        let size = chain.len().next_multiple_of(PIECE);
        if to.held > 0 && to.held + size > config.inbox_bytes {
            link.counters.inbox_full += 1;
            if !core::mem::replace(&mut to.told_dropped, true) {
                events.push_back(Event::Dropped(to.id));
            }
            return pool.free(chain);
        }
        let generation = remote.generation;
        let from = match remote.who {
            Who::Own(place, generation) => Origin::Own(EndpointId { place, generation }),
            Who::Name(_) => {
                remote.is_told = true;
                Origin::Peer(PeerId { link: id, address: source, generation })
            }
        };
        link.counters.received += 1;
        let mut number = [0; NUMBER];
        pool.read(&chain, 0, &mut number);
        let signal = Signal { from, number: u32::from_be_bytes(number), chain };
        let entry = queued.insert(Queued { next: NONE, signal }) as u32;
        match queued.get_mut(to.inbox.1 as usize) {
            Some(last) => last.next = entry,
            None => to.inbox.0 = entry,
        }
        to.inbox.1 = entry;
        to.held += size;
        if !core::mem::replace(&mut to.has_news, true) {
            events.push_back(Event::Signals(to.id));
        }
    }

    /// Takes the next signal to an endpoint.
    #[inline]
    pub fn next_signal(&mut self, id: EndpointId) -> Option<Signal> {
        let Node { endpoints, queued, .. } = self;
        let endpoint = endpoints.get_mut(id.place as usize).filter(|it| it.id == id)?;
        let Queued { next, signal } = queued.try_remove(endpoint.inbox.0 as usize)?;
        endpoint.inbox.0 = next;
        if next == NONE {
            endpoint.inbox.1 = NONE;
        }
        endpoint.held -= signal.chain.len().next_multiple_of(PIECE);
        Some(signal)
    }

    /// Copies bytes of a signal out, from `offset` behind its number; how many there were.
    pub fn read(&self, signal: &Signal, offset: usize, into: &mut [u8]) -> usize {
        self.pool.read(&signal.chain, NUMBER + offset, into)
    }

    /// The bytes of a signal where they lie, behind its number.
    pub fn windows(&self, signal: &Signal) -> impl Iterator<Item = Window> + '_ {
        let mut skip = NUMBER;
        self.pool.windows(&signal.chain).filter_map(move |window| {
            let here = skip.min(window.len());
            skip -= here;
            window.slice(here, window.len() - here).filter(|rest| !rest.is_empty())
        })
    }

    /// Gives a signal's memory back.
    #[inline]
    pub fn release(&mut self, signal: Signal) {
        self.pool.free(signal.chain);
    }
}
