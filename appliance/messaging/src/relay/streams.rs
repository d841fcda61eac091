//! TCP and SMC-R as transports: a rule's listeners and connectors over all interfaces.

use super::World;
use crate::transport::{Carries, Closed, Event, Over, Reason, Transport, Unwritten};
use core::net::SocketAddr;
use smcr::SmcDevice;
use smcr::acceptor::{self, Acceptor, Carrier, ConnectionId};
use smcr::connector::Connector;

/// A connection over TCP or SMC-R: interface, and ID there.
pub(super) type Stream = (usize, ConnectionId);

/// The listeners of a rule.
pub(super) struct Fronts<'a, 'w, 'i, 'c, P: SmcDevice + ?Sized> {
    pub acceptors: &'a mut [Acceptor],
    /// The interface whose events are read.
    pub at: usize,
    pub world: &'w mut World<'i, 'c, P>,
}

/// The connectors of a rule.
pub(super) struct Backs<'a, 'w, 'i, 'c, P: SmcDevice + ?Sized> {
    pub connectors: &'a mut [Connector],
    /// The interface whose events are read.
    pub at: usize,
    /// SMC-R is offered.
    pub smc: bool,
    pub world: &'w mut World<'i, 'c, P>,
}

#[inline]
fn event(at: usize, event: acceptor::Event) -> Event<Stream> {
    match event {
        acceptor::Event::Opened(id, Carrier::Smc) => Event::Opened((at, id), Over::Smc),
        acceptor::Event::Opened(id, Carrier::Tcp) => Event::Opened((at, id), Over::Tcp),
        acceptor::Event::Ready(id) => Event::Ready((at, id)),
        acceptor::Event::Failed(id) => Event::Failed((at, id)),
        acceptor::Event::Broken(id) => Event::Broken((at, id)),
    }
}

macro_rules! stream_transport {
    ($type:ident, $field:ident) => {
        impl<P: SmcDevice + ?Sized> Transport for $type<'_, '_, '_, '_, P> {
            type Connection = Stream;
            type Target = SocketAddr;

            #[inline]
            fn next_event(&mut self) -> Option<Event<Stream>> {
                self.$field[self.at].poll_event().map(|new| event(self.at, new))
            }

            fn connect(&mut self, to: &SocketAddr) -> Option<Stream> {
                self.begin(*to)
            }

            fn carries(&self, _: Stream) -> Carries {
                Carries::Bytes
            }

            fn message(&mut self, _: Stream) -> Result<Option<usize>, Closed> {
                Ok(None)
            }

            #[inline]
            fn read(&mut self, (at, id): Stream, into: &mut [u8]) -> Result<usize, Closed> {
                let World { interfaces, engine, .. } = &mut *self.world;
                self.$field[at].read(id, into, interfaces.get(at), engine)
            }

            #[inline]
            fn room(&mut self, (at, id): Stream) -> usize {
                let World { interfaces, engine, .. } = &mut *self.world;
                self.$field[at].room(id, interfaces.get(at), engine)
            }

            #[inline]
            fn write(&mut self, (at, id): Stream, bytes: &[u8]) -> Result<usize, Unwritten> {
                let World { interfaces, engine, ctx, .. } = &mut *self.world;
                let written = self.$field[at].write(id, bytes, interfaces.get(at), engine, ctx);
                written.map_err(Unwritten::Ended)
            }

            #[inline]
            fn finish(&mut self, (at, id): Stream) {
                let World { interfaces, engine, ctx, .. } = &mut *self.world;
                self.$field[at].finish(id, interfaces.get(at), engine, ctx);
            }

            #[inline]
            fn close(&mut self, (at, id): Stream, abort: bool) -> usize {
                let World { interfaces, engine, ctx, .. } = &mut *self.world;
                self.$field[at].close(id, abort, interfaces.get(at), engine, ctx);
                0
            }

            fn reason(&self, _: Stream) -> Reason {
                Reason::Lost
            }
        }
    };
}

stream_transport!(Fronts, acceptors);
stream_transport!(Backs, connectors);

impl<P: SmcDevice + ?Sized> Fronts<'_, '_, '_, '_, P> {
    /// Fails: a listener does not connect.
    fn begin(&mut self, _: SocketAddr) -> Option<Stream> {
        None
    }
}

impl<P: SmcDevice + ?Sized> Backs<'_, '_, '_, '_, P> {
    /// Starts to connect, over the interface with a route to the server.
    fn begin(&mut self, to: SocketAddr) -> Option<Stream> {
        let mut all = 0..self.connectors.len();
        let at = all.find(|&at| self.world.interfaces.get(at).next_hop(to.ip()).is_some())?;
        let World { interfaces, engine, ctx, .. } = &mut *self.world;
        let id = self.connectors[at].connect(interfaces.get(at), engine, to, self.smc, ctx.now)?;
        Some((at, id))
    }
}
