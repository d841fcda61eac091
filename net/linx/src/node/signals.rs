//! Sending and receiving of signals between endpoints.

use super::addresses::Local;
use super::link::{Carrier, Control, Link, Phase};
use super::remotes::Owner;
use super::{Endpoint, EndpointId, Event, NONE, Node, PeerId};
use crate::pool::{Chain, Pool};
use crate::riocm::{Down, Fault, Message, Riocm, SendError};
use drivers::hal::{Instant, Window};
use slab::Slab;

/// Sender of a received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A peer's endpoint.
    Peer(PeerId),
    /// A local endpoint whose signal a peer has forwarded.
    Own(EndpointId),
}

/// Sender of a signal to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A local endpoint.
    Endpoint(EndpointId),
    /// An endpoint of the same peer, whose signal is forwarded to another endpoint there.
    Peer(PeerId),
}

/// A received signal. It holds memory of the link until [`Node::release`].
#[derive(Debug)]
pub struct Signal {
    /// Sender.
    pub from: Origin,
    /// Signal number.
    pub number: u32,
    chain: Chain,
}

impl Signal {
    /// Bytes after the number.
    pub fn len(&self) -> usize {
        self.chain.len() - NUMBER
    }

    /// Whether there are no bytes after the number.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes of a signal's number, which precedes its body.
pub(super) const NUMBER: usize = 4;

/// An entry of an inbox.
#[derive(Debug)]
pub(super) struct Queued {
    next: u32,
    signal: Option<Signal>,
}

impl Default for Queued {
    fn default() -> Self {
        Queued { next: NONE, signal: None }
    }
}

impl Link {
    /// Link addresses of sender and receiver, if both are published and no RLNH message must be sent first.
    #[inline]
    fn addresses(
        &self,
        endpoints: &Slab<Endpoint>,
        from: Sender,
        to: PeerId,
    ) -> Option<(u32, u32)> {
        let Sender::Endpoint(id) = from else { return None };
        let remote = self.remotes.get(to.address)?;
        let is_up = self.id == to.link && self.phase == Phase::Up && self.control.is_empty();
        if !is_up || remote.is_gone || remote.generation != to.generation {
            return None;
        }
        let endpoint = endpoints.get(id.place as usize)?;
        if endpoint.id.generation != id.generation {
            return None;
        }
        let source = *endpoint.addresses.get(usize::from(to.link.place))?;
        (source != 0).then_some((source, to.address))
    }

    /// Handles a signal that cannot be delivered: unknown sender or receiver, or too short. A signal whose sender may
    /// still be published is stored.
    #[inline(never)]
    fn set_aside(&mut self, pool: &mut Pool, message: Message, is_for_endpoint: bool) {
        let Message { source, destination, chain } = message;
        let are_addresses = self.is_address(source) && self.local.is_address(destination);
        if self.phase != Phase::Up || !are_addresses || chain.len() < NUMBER {
            self.counters.bad_signals += 1;
        } else if !is_for_endpoint {
            self.counters.unknown_destination += 1;
        } else if self.unclaimed.len() < self.max_unclaimed {
            return self.unclaimed.push_back((source, destination, chain));
        } else {
            self.counters.unknown_source += 1;
        }
        pool.free(chain);
    }

    /// Sends a signal over the connection.
    #[inline]
    fn send(
        &mut self,
        riocm: &mut Riocm,
        pool: &mut Pool,
        addresses: (u32, u32),
        number: u32,
        body: &[u8],
    ) -> Result<(), SendError> {
        if body.len() > self.max_signal.saturating_sub(NUMBER) {
            return Err(SendError::TooLong);
        }
        let number = number.to_be_bytes();
        let sent = match &mut self.carrier {
            Carrier::Riocm(id) => riocm.send(pool, *id, addresses, &number, body),
            Carrier::Tcp(tcp) => tcp.send(pool, addresses, [&number, body]),
        };
        self.count(sent)
    }
}

impl Node {
    /// Sends a signal. Its bytes are copied.
    #[inline]
    pub fn send(
        &mut self,
        from: Sender,
        to: PeerId,
        number: u32,
        body: &[u8],
        now: Instant,
    ) -> Result<(), SendError> {
        let Node { links, endpoints, riocm, pool, .. } = self;
        match links.get_mut(usize::from(to.link.place)) {
            Some(Some(link)) => match link.addresses(endpoints, from, to) {
                Some(addresses) => link.send(riocm, pool, addresses, number, body)?,
                None => self.send_first(from, to, number, body)?,
            },
            _ => return Err(SendError::NotConnected),
        }
        self.pump(now);
        Ok(())
    }

    /// Sends a signal after pending RLNH messages.
    #[inline(never)]
    fn send_first(
        &mut self,
        from: Sender,
        to: PeerId,
        number: u32,
        body: &[u8],
    ) -> Result<(), SendError> {
        let addresses = self.new_addresses(from, to)?;
        let Node { links, riocm, pool, .. } = self;
        match links.get_mut(usize::from(to.link.place)) {
            Some(Some(link)) => link.send(riocm, pool, addresses, number, body),
            _ => Err(SendError::NotConnected),
        }
    }

    /// Sends a signal from the user's memory, which is in use until [`Event::Sent`]. The first four bytes are the
    /// number, big-endian.
    pub fn send_windows(
        &mut self,
        from: Sender,
        to: PeerId,
        windows: [Window; 2],
        cookie: u64,
        now: Instant,
    ) -> Result<(), SendError> {
        let addresses = self.new_addresses(from, to)?;
        let Node { links, riocm, pool, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(to.link.place)) else {
            return Err(SendError::NotConnected);
        };
        let size = windows[0].len().checked_add(windows[1].len());
        if size.is_none_or(|size| size > link.max_signal) {
            return Err(SendError::TooLong);
        }
        let sent = match &mut link.carrier {
            Carrier::Riocm(id) => riocm.send_windows(pool, *id, addresses, windows, cookie),
            Carrier::Tcp(tcp) => tcp.send_windows(addresses, windows, cookie),
        };
        link.count(sent)?;
        self.pump(now);
        Ok(())
    }

    /// Link addresses of sender and receiver. Publishes the sender first if necessary.
    fn new_addresses(&mut self, from: Sender, to: PeerId) -> Result<(u32, u32), SendError> {
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
            self.send_control(place);
            if !is_quiet(self) {
                if let Some(link) = self.link_by_id(to.link) {
                    link.wants_room = true;
                }
                return Err(SendError::Full);
            }
        }
        Ok((source, to.address))
    }

    /// The local link address under which signals of a peer's endpoint are forwarded. Publishes it if necessary.
    fn publish_peer(&mut self, peer: PeerId, to: PeerId) -> Result<u32, SendError> {
        let link = self.link_by_id(to.link).ok_or(SendError::NotConnected)?;
        let version = link.version;
        let remote = link.remote(peer.address).filter(|it| it.generation == peer.generation);
        let remote = remote.filter(|it| matches!(it.owner, Owner::Name(_)) && peer.link == to.link);
        let remote = remote.ok_or(SendError::NotConnected)?;
        if remote.local != 0 {
            return Ok(remote.local);
        }
        // Version 1 has no PUBLISH_PEER.
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

    /// A signal's number; None if the signal is too short.
    pub(super) fn number(&self, chain: &Chain) -> Option<u32> {
        let mut bytes = [0; NUMBER];
        (self.pool.read(chain, 0, &mut bytes) == NUMBER).then(|| u32::from_be_bytes(bytes))
    }

    /// Handles a received signal. `number` is None if the signal is too short.
    #[inline]
    pub(super) fn handle_signal(&mut self, place: u16, message: Message, number: Option<u32>) {
        let Node { links, pool, endpoints, queued, events, config, .. } = self;
        let Message { source, destination, chain } = message;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else { return pool.free(chain) };
        if chain.len() > link.max_signal {
            return self.end_too_long(place, chain);
        }
        let id = link.id;
        let to = match link.local.get(destination) {
            Some(Local::Endpoint(to)) => endpoints.get_mut(to as usize),
            _ => None,
        };
        let Some(to) = to else {
            return link.set_aside(pool, Message { source, destination, chain }, false);
        };
        let is_up = link.phase == Phase::Up;
        let (Some(remote), true) = (link.remote(source), is_up) else {
            return link.set_aside(pool, Message { source, destination, chain }, true);
        };
        let Some(number) = number else {
            return link.set_aside(pool, Message { source, destination, chain }, true);
        };
        let size = chain.memory();
        if to.held > 0 && to.held + size > config.inbox_bytes {
            link.counters.inbox_full += 1;
            if !core::mem::replace(&mut to.dropped_reported, true) {
                events.push_back(Event::Dropped(to.id));
            }
            return pool.free(chain);
        }
        let generation = remote.generation;
        let from = match remote.owner {
            Owner::Own(place, generation) => Origin::Own(EndpointId { place, generation }),
            Owner::Name(_) => {
                remote.is_reported = true;
                Origin::Peer(PeerId { link: id, address: source, generation })
            }
        };
        link.counters.received += 1;
        let signal = Signal { from, number, chain };
        let entry = signal.chain.first_piece();
        let Some(place) = queued.get_mut(entry as usize) else { return pool.free(signal.chain) };
        *place = Queued { next: NONE, signal: Some(signal) };
        match queued.get_mut(to.inbox.1 as usize) {
            Some(last) => last.next = entry,
            None => to.inbox.0 = entry,
        }
        to.inbox.1 = entry;
        to.held += size;
        if !core::mem::replace(&mut to.has_event, true) {
            events.push_back(Event::Signals(to.id));
        }
    }

    /// Ends the link, because a signal exceeds the maximum length.
    #[cold]
    fn end_too_long(&mut self, place: u16, chain: Chain) {
        let size = chain.len() as u32;
        self.pool.free(chain);
        self.end_link(place, Down::Fault(Fault::TooLong(size)));
    }

    /// Takes the next signal to an endpoint.
    #[inline]
    pub fn next_signal(&mut self, id: EndpointId) -> Option<Signal> {
        let Node { endpoints, queued, .. } = self;
        let endpoint = endpoints.get_mut(id.place as usize)?;
        if endpoint.id.generation != id.generation {
            return None;
        }
        let Queued { next, signal } = queued.get_mut(endpoint.inbox.0 as usize)?;
        let (next, signal) = (*next, signal.take()?);
        endpoint.inbox.0 = next;
        if next == NONE {
            endpoint.inbox.1 = NONE;
        }
        endpoint.held -= signal.chain.memory();
        Some(signal)
    }

    /// Copies bytes of a signal, from `offset` after its number. Returns the number of bytes copied.
    pub fn read(&self, signal: &Signal, offset: usize, into: &mut [u8]) -> usize {
        self.pool.read(&signal.chain, NUMBER + offset, into)
    }

    /// The memory of a signal's bytes, after its number.
    pub fn windows(&self, signal: &Signal) -> impl Iterator<Item = Window> + '_ {
        let mut skip = NUMBER;
        self.pool.windows(&signal.chain).filter_map(move |window| {
            let here = skip.min(window.len());
            skip -= here;
            window.slice(here, window.len() - here).filter(|rest| !rest.is_empty())
        })
    }

    /// Frees a signal's memory.
    #[inline]
    pub fn release(&mut self, signal: Signal) {
        self.pool.free(signal.chain);
    }
}
