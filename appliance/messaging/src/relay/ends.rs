//! Ends relayed connections.

use super::pipe::Side;
use super::streams::{Backs, Fronts};
use super::{Place, Relay, World};
use crate::transport::{Reason, Transport};
use alloc::vec::Vec;
use smcr::SmcDevice;

impl Relay {
    /// Ends a connection on both sides, in order or with an abort.
    pub(super) fn end<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        abort: bool,
        world: &mut World<'_, '_, P>,
    ) {
        self.end_for(key, abort, Reason::Asked, world);
    }

    /// As [`Relay::end`], with the reason to report if messages are lost.
    pub(super) fn end_for<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        abort: bool,
        why: Reason,
        world: &mut World<'_, '_, P>,
    ) {
        // Report an idle timeout of a message transport. Idle TCP clients are too many to report.
        let report_idle = why == Reason::Idle && self.is_conversation(key);
        let lost = self.hang_up_both(key, abort, world);
        if lost > 0 || report_idle {
            self.note_end(why, lost, world.ctx.now);
        }
    }

    /// As [`Relay::end`], without a report. Returns the number of messages lost.
    pub(super) fn hang_up_both<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        abort: bool,
        world: &mut World<'_, '_, P>,
    ) -> u64 {
        let relayed = self.relayed.remove(key);
        self.timers.forget(key);
        let lost = relayed.conversation.as_ref().map_or(0, |it| it.end(world));
        self.by_front.remove(&relayed.front);
        let mut lost = lost + self.hang_up(Side::Frontend, relayed.front, abort, world);
        if let Some(back) = relayed.back {
            self.by_back.remove(&back);
            lost += self.hang_up(Side::Backend, back, abort, world);
            self.balance.left(relayed.backend);
        }
        self.counters.lost += lost;
        lost
    }

    /// Aborts all connections on both sides. Data in flight is lost.
    pub fn shut_down<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let keys: Vec<usize> = self.relayed.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.end(key, true, world));
    }

    /// Ends one side. Returns the number of messages that had arrived and were not read.
    pub(super) fn hang_up<P: SmcDevice + ?Sized>(
        &mut self,
        side: Side,
        place: Place,
        abort: bool,
        world: &mut World<'_, '_, P>,
    ) -> u64 {
        let unread = match (side, place) {
            (Side::Frontend, Place::Stream(it)) => {
                Fronts { acceptors: &mut self.fronts, at: 0, world }.close(it, abort)
            }
            (Side::Backend, Place::Stream(it)) => {
                Backs { connectors: &mut self.backs, at: 0, smc: false, world }.close(it, abort)
            }
            (_, Place::Message(it)) => world.messages.close(it, abort),
        };
        unread as u64
    }
}
