//! A removed rule while SMC-R handshakes of its connections are in progress. A peer that has our side of a handshake
//! may use SMC-R before its answer arrives here. So the handshake is finished, then the connection is aborted. The
//! handshake's timeout limits the time. Another rule may listen on the port meanwhile.

use super::{Relay, World, numbers};
use alloc::vec::Vec;
use smcr::SmcDevice;
use smcr::acceptor::Acceptor;
use smcr::connector::Connector;
use smcr::engine::{Ready, SocketId};

/// Listeners and connectors of a removed rule with handshakes in progress.
#[derive(Debug)]
pub struct Ending {
    first_owner: u32,
    fronts: Vec<Option<Acceptor>>,
    backs: Vec<Option<Connector>>,
}

impl Relay {
    /// Ends the rule: frees its port, and aborts its connections, including those that are not relayed yet. Returns the
    /// number of messages lost, and the rest of the rule if handshakes are in progress.
    pub fn stop<P: SmcDevice + ?Sized>(
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
        (self.counters.lost - before, ending.remove_finished(world))
    }
}

impl Ending {
    /// Handles events of the front or back with this owner number. None once nothing is left.
    pub fn poll<P: SmcDevice + ?Sized>(
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
        self.remove_finished(world)
    }

    /// Handles an event of the engine's socket `socket`, for the front or back with this owner number. None once
    /// nothing is left.
    pub fn handle_event<P: SmcDevice + ?Sized>(
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
        self.remove_finished(world)
    }

    fn place_of(&self, owner: u32) -> (usize, bool) {
        let at = (owner - self.first_owner) as usize / 2;
        (at, numbers(at)[0] == owner - self.first_owner)
    }

    /// Removes listeners and connectors without handshakes. None once nothing is left.
    fn remove_finished<P: SmcDevice + ?Sized>(
        mut self,
        world: &mut World<'_, '_, P>,
    ) -> Option<Ending> {
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
