//! The two sides of a relayed connection, as its pipes see them.

use super::pipe::{Side, Sides};
use super::{Place, World};
use net::tcp::Closed;
use smcr::acceptor::Acceptor;
use smcr::connector::Connector;
use verbs::Provider;

/// Both sides of a connection, for its pipes.
pub(super) struct Endpoints<'a, 'w, 'i, 'c, P: Provider + ?Sized> {
    pub fronts: &'a mut [Acceptor],
    pub backs: &'a mut [Connector],
    pub front: Place,
    pub back: Option<Place>,
    pub world: &'w mut World<'i, 'c, P>,
}

impl<P: Provider + ?Sized> Sides for Endpoints<'_, '_, '_, '_, P> {
    fn read(&mut self, side: Side, into: &mut [u8]) -> Result<usize, Closed> {
        let World { interfaces, engine, .. } = &mut *self.world;
        match (side, self.back) {
            (Side::Frontend, _) => {
                let (at, id) = self.front;
                self.fronts[at].read(id, into, interfaces.get(at), engine)
            }
            (Side::Backend, Some((at, id))) => {
                self.backs[at].read(id, into, interfaces.get(at), engine)
            }
            (Side::Backend, None) => Err(Closed::Gone),
        }
    }

    fn room(&mut self, side: Side) -> usize {
        let World { interfaces, engine, .. } = &mut *self.world;
        match (side, self.back) {
            (Side::Frontend, _) => {
                let (at, id) = self.front;
                self.fronts[at].room(id, interfaces.get(at), engine)
            }
            (Side::Backend, Some((at, id))) => self.backs[at].room(id, interfaces.get(at), engine),
            (Side::Backend, None) => 0,
        }
    }

    fn write(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Closed> {
        let World { interfaces, engine, ctx, .. } = &mut *self.world;
        match (side, self.back) {
            (Side::Frontend, _) => {
                let (at, id) = self.front;
                self.fronts[at].write(id, bytes, interfaces.get(at), engine, ctx)
            }
            (Side::Backend, Some((at, id))) => {
                self.backs[at].write(id, bytes, interfaces.get(at), engine, ctx)
            }
            (Side::Backend, None) => Err(Closed::Gone),
        }
    }

    fn finish(&mut self, side: Side) {
        let World { interfaces, engine, ctx, .. } = &mut *self.world;
        match (side, self.back) {
            (Side::Frontend, _) => {
                let (at, id) = self.front;
                self.fronts[at].finish(id, interfaces.get(at), engine, ctx);
            }
            (Side::Backend, Some((at, id))) => {
                self.backs[at].finish(id, interfaces.get(at), engine, ctx);
            }
            (Side::Backend, None) => {}
        }
    }
}
