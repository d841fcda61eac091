//! The two sides of a relayed connection, as its pipes access them.

use super::frames::MessageSides;
use super::pipe::{Side, Sides};
use super::streams::{Backs, Fronts};
use super::{Place, World};
use crate::transport::{Carries, Closed, Reason, Transport, Unwritten};
use smcr::SmcDevice;
use smcr::acceptor::Acceptor;
use smcr::connector::Connector;

/// Both sides of a connection, for its pipes.
pub(super) struct Endpoints<'a, 'w, 'i, 'c, P: SmcDevice + ?Sized> {
    pub fronts: &'a mut [Acceptor],
    pub backs: &'a mut [Connector],
    pub front: Place,
    pub back: Option<Place>,
    pub world: &'w mut World<'i, 'c, P>,
}

/// Evaluates `$do` with the transport and connection of a side; `$none` if there is no connection yet.
macro_rules! on {
    ($this:ident, $side:ident, $transport:ident, $connection:ident, $do:expr, $none:expr) => {{
        let Endpoints { fronts, backs, front, back, world } = $this;
        match ($side, *front, *back) {
            (Side::Frontend, Place::Stream($connection), _) => {
                let $transport = &mut Fronts { acceptors: fronts, at: 0, world };
                $do
            }
            (Side::Backend, _, Some(Place::Stream($connection))) => {
                let $transport = &mut Backs { connectors: backs, at: 0, smc: false, world };
                $do
            }
            (Side::Frontend, Place::Message($connection), _)
            | (Side::Backend, _, Some(Place::Message($connection))) => {
                let $transport = &mut *world.messages;
                $do
            }
            (Side::Backend, _, None) => $none,
        }
    }};
}

impl<P: SmcDevice + ?Sized> Sides for Endpoints<'_, '_, '_, '_, P> {
    #[inline]
    fn read(&mut self, side: Side, into: &mut [u8]) -> Result<usize, Closed> {
        on!(self, side, transport, it, transport.read(it, into), Err(Closed::Gone))
    }

    #[inline]
    fn room(&mut self, side: Side) -> usize {
        on!(self, side, transport, it, transport.room(it), 0)
    }

    #[inline]
    fn write(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Closed> {
        self.put(side, bytes).or_else(|why| match why {
            Unwritten::Full | Unwritten::Length => Ok(0),
            Unwritten::Ended(closed) => Err(closed),
        })
    }

    #[inline]
    fn finish(&mut self, side: Side) {
        on!(self, side, transport, it, transport.finish(it), ())
    }
}

impl<P: SmcDevice + ?Sized> MessageSides for Endpoints<'_, '_, '_, '_, P> {
    fn carries(&mut self, side: Side) -> Carries {
        on!(self, side, transport, it, transport.carries(it), Carries::Bytes)
    }

    fn message(&mut self, side: Side) -> Result<Option<usize>, Closed> {
        on!(self, side, transport, it, transport.message(it), Err(Closed::Gone))
    }

    #[inline]
    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Unwritten> {
        let none = Err(Unwritten::Ended(Closed::Gone));
        on!(self, side, transport, it, transport.write(it, bytes), none)
    }

    fn reason(&mut self, side: Side) -> Reason {
        on!(self, side, transport, it, transport.reason(it), Reason::Lost)
    }
}
