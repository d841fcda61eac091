//! A rule that has ended, as long as handshakes of SMC-R are under way of its connections: a peer that has our side of the
//! handshake may be on SMC-R before its answer is here. The handshake is finished, and then the peer is told of the end.
//! That takes no longer than a handshake may take. Meanwhile the port is free for another.

use super::{Relay, World, numbers};
use alloc::vec::Vec;
use smcr::acceptor::Acceptor;
use smcr::connector::Connector;
use smcr::engine::{Ready, SocketId};
use verbs::Provider;

/// What is left of a rule.
#[derive(Debug)]
pub struct Ending {
    first_owner: u32,
    fronts: Vec<Option<Acceptor>>,
    backs: Vec<Option<Connector>>,
}

impl Relay {
    /// Ends the rule: its connections, those that are not relayed yet among them, by an abort. Its port is free. How
    /// many messages were lost with them, and what is left of the rule.
    pub fn stop<P: Provider + ?Sized>(
        mut self,
        world: &mut World<'_, '_, P>,
    ) -> (u64, Option<Ending>) {
        let before = self.counters.lost;
        self.shut_down(world);
        self.unlisten(world);
        let World { interfaces, engine, ctx, .. } = &mut *world;
        for (at, front) in self.fronts.iter_mut().enumerate() {
            front.end(interfaces.get(at), engine, ctx);
        }
        for (at, back) in self.backs.iter_mut().enumerate() {
            back.close_all(interfaces.get(at), engine, ctx);
        }
        let ending = Ending {
            first_owner: self.first_owner,
            fronts: self.fronts.into_iter().map(Some).collect(),
            backs: self.backs.into_iter().map(Some).collect(),
        };
        (self.counters.lost - before, ending.go_on(world))
    }
}

impl Ending {
    /// Sees to what is new of the front or back with this number. None once nothing is left.
    pub fn poll<P: Provider + ?Sized>(
        mut self,
        owner: u32,
        world: &mut World<'_, '_, P>,
    ) -> Option<Ending> {
        let World { interfaces, engine, ctx, .. } = &mut *world;
        let (at, is_front) = self.place_of(owner);
        if is_front && let Some(Some(front)) = self.fronts.get_mut(at) {
            front.poll(interfaces.get(at), engine, ctx);
        } else if !is_front && let Some(Some(back)) = self.backs.get_mut(at) {
            back.poll(interfaces.get(at), engine, ctx);
        }
        self.go_on(world)
    }

    /// Takes an event of a socket of the engine whose owner has this number. None once nothing is left.
    pub fn handle_event<P: Provider + ?Sized>(
        mut self,
        owner: u32,
        socket: SocketId,
        ready: Ready,
        world: &mut World<'_, '_, P>,
    ) -> Option<Ending> {
        let World { interfaces, engine, ctx, .. } = &mut *world;
        let (at, is_front) = self.place_of(owner);
        if is_front && let Some(Some(front)) = self.fronts.get_mut(at) {
            front.handle_event(socket, ready, interfaces.get(at), engine, ctx);
        } else if !is_front && let Some(Some(back)) = self.backs.get_mut(at) {
            back.handle_event(socket, ready, interfaces.get(at), engine, ctx);
        }
        self.go_on(world)
    }

    fn place_of(&self, owner: u32) -> (usize, bool) {
        let at = (owner - self.first_owner) as usize / 2;
        (at, numbers(at)[0] == owner - self.first_owner)
    }

    /// Ends those of which nothing is left.
    fn go_on<P: Provider + ?Sized>(mut self, world: &mut World<'_, '_, P>) -> Option<Ending> {
        let World { interfaces, engine, ctx, .. } = world;
        for (at, front) in self.fronts.iter_mut().enumerate() {
            front.iter_mut().for_each(|front| while front.poll_event().is_some() {});
            if let Some(front) = front.take_if(|front| front.is_over()) {
                front.stop(interfaces.get(at), engine, ctx);
            }
        }
        for (at, back) in self.backs.iter_mut().enumerate() {
            back.iter_mut().for_each(|back| while back.poll_event().is_some() {});
            if let Some(back) = back.take_if(|back| back.is_over()) {
                back.stop(interfaces.get(at), engine, ctx);
            }
        }
        let is_over =
            self.fronts.iter().all(Option::is_none) && self.backs.iter().all(Option::is_none);
        (!is_over).then_some(self)
    }
}
