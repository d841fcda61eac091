//! Streams of links over TCP: orders for the owner of the sockets, and calls that report their results.

use super::link::{Carrier, Link};
use super::{LinkId, Node};
use crate::pool::Pool;
use crate::rng::Rng;
use crate::tcpcm::{StreamId, StreamOrder, TcpCm};
use drivers::hal::Instant;

impl Node {
    /// The next order: a stream to open or close.
    pub fn next_stream_order(&mut self) -> Option<(LinkId, StreamOrder)> {
        self.orders.pop_front()
    }

    /// Reports that an ordered stream is open.
    pub fn stream_opened(&mut self, link: LinkId, stream: StreamId, now: Instant) {
        self.with_tcp(link, now, |tcp, _, rng| tcp.opened(stream, rng, now));
    }

    /// Reports a stream opened by the peer. Returns its id; None if the link is not over TCP.
    pub fn stream_accepted(&mut self, link: LinkId, now: Instant) -> Option<StreamId> {
        self.with_tcp(link, now, |tcp, _, rng| tcp.accepted(rng, now))
    }

    /// Reports that a stream has ended, or could not be opened.
    pub fn stream_closed(&mut self, link: LinkId, stream: StreamId, now: Instant) {
        self.with_tcp(link, now, |tcp, pool, rng| tcp.closed(pool, stream, rng, now));
    }

    /// Passes received bytes of a stream. Returns the number of bytes accepted. The others wait for memory, or for the
    /// stream to become the active one: pass them again when signals were released or a second has passed. TCP stops
    /// the peer meanwhile.
    pub fn stream_receive(
        &mut self,
        link: LinkId,
        stream: StreamId,
        bytes: &[u8],
        now: Instant,
    ) -> usize {
        let taken =
            self.with_tcp(link, now, |tcp, pool, rng| tcp.receive(pool, stream, bytes, rng, now));
        taken.unwrap_or(bytes.len())
    }

    /// Writes bytes to be sent over a stream to `into`. Returns their number; they count as sent.
    pub fn stream_transmit(
        &mut self,
        link: LinkId,
        stream: StreamId,
        into: &mut [u8],
        now: Instant,
    ) -> usize {
        let written = self.with_tcp(link, now, |tcp, pool, _| tcp.transmit(pool, stream, into));
        written.unwrap_or(0)
    }

    /// Whether a link has bytes to send over its stream.
    pub fn stream_has_work(&self, id: LinkId) -> bool {
        match self.links.get(usize::from(id.place)) {
            Some(Some(link)) if link.id == id => match &link.carrier {
                Carrier::Tcp(tcp) => tcp.has_work(),
                Carrier::Riocm(_) => false,
            },
            _ => false,
        }
    }

    fn with_tcp<T>(
        &mut self,
        id: LinkId,
        now: Instant,
        act: impl FnOnce(&mut TcpCm, &mut Pool, &mut Rng) -> T,
    ) -> Option<T> {
        self.now = self.now.max(now);
        let Node { links, pool, rng, .. } = self;
        let link = links.get_mut(usize::from(id.place))?.as_mut().filter(|it| it.id == id)?;
        let Link { carrier: Carrier::Tcp(tcp), .. } = link else { return None };
        let result = act(tcp, pool, rng);
        self.settle(id.place);
        self.pump_tcp(id.place, now);
        Some(result)
    }

    /// Handles the pending events of a link's TCP connection.
    pub(super) fn pump_tcp(&mut self, place: u16, now: Instant) {
        loop {
            let Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) =
                self.links.get_mut(usize::from(place))
            else {
                return;
            };
            let Some(up) = tcp.events.pop_front() else { break };
            self.handle(place, up, now);
        }
        self.settle(place);
    }
}
