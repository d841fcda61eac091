//! Relayed connections with at least one side over a message transport.

use super::endpoints::Endpoints;
use super::frames::{Frames, Framing, MessageSides};
use super::pipe::{Side, Sides};
use super::{MESSAGE_BACK, MESSAGE_FRONT, Notice, PIECE, Place, Relay, Relayed, Rule, TURN, World};
use crate::messages::MessageConnection;
use crate::names::{Listen, MessageName};
use crate::transport::{Carries, Closed, Event, Reason, Wanted};
use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;
use drivers::hal::Instant;
use smcr::SmcDevice;

/// How long a connection stays open after one direction has ended. Message transports have no half-close, so the other
/// side may never learn that its data is no longer read.
const HALF_CLOSED: Duration = Duration::from_secs(10);
/// Default idle timeout of a connection whose transport does not detect a dead peer.
pub(super) const UNWATCHED: Duration = Duration::from_secs(300);
/// Shortest time between two notices about ended connections.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// State of a connection that carries messages.
#[derive(Debug)]
pub(super) struct Conversation {
    /// To the server, to the client.
    frames: [Frames; 2],
    /// Framing of the rule when the connection opened.
    framing: Framing,
    /// Bytes of memory reserved for it.
    memory: u64,
}

impl Conversation {
    /// Releases its memory. Returns the number of messages that were read from one side and not written to the other.
    pub fn end<P: SmcDevice + ?Sized>(&self, world: &mut World<'_, '_, P>) -> u64 {
        world.engine.admission.give_back(self.memory);
        self.frames.iter().filter(|frames| frames.holds()).count() as u64
    }
}

/// A server of a rule, to connect to.
pub(super) fn server(rule: &Rule, name: &MessageName, first_owner: u32) -> Wanted {
    wanted(rule, name, first_owner + MESSAGE_BACK)
}

fn wanted(rule: &Rule, name: &MessageName, owner: u32) -> Wanted {
    Wanted {
        name: name.clone(),
        owner,
        signal: rule.signal,
        connections: rule.limits.connections,
        label: rule.name.clone(),
    }
}

/// When a half-closed connection ends if no more data arrives.
pub(super) fn half_closed_until(relayed: &Relayed) -> Option<Instant> {
    let ended = relayed.conversation.is_some() && relayed.pipes.iter().any(|pipe| pipe.finished);
    ended.then(|| relayed.since + HALF_CLOSED)
}

impl Relay {
    /// Listens, if the rule listens on a message transport.
    #[cold]
    pub(crate) fn listen<P: SmcDevice + ?Sized>(
        &mut self,
        world: &mut World<'_, '_, P>,
    ) -> Result<(), String> {
        match self.listen_end() {
            Some(wanted) => world.messages.listen(&wanted),
            None => Ok(()),
        }
    }

    /// Stops listening on a message transport.
    #[cold]
    pub(super) fn unlisten<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        if let Some(wanted) = self.listen_end() {
            world.messages.unlisten(&wanted);
        }
    }

    /// Applies the rule's limit of connections to its listener on a message transport.
    #[cold]
    pub(super) fn relimit<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        if let Some(wanted) = self.listen_end() {
            world.messages.relimit(&wanted);
        }
    }

    fn listen_end(&self) -> Option<Wanted> {
        match &self.rule.listen {
            Listen::Message(name) => {
                Some(wanted(&self.rule, name, self.first_owner + MESSAGE_FRONT))
            }
            Listen::Port(_) => None,
        }
    }

    /// Handles an event of a message transport, for the end with this owner number. Call [`Relay::work`] afterwards.
    pub(crate) fn message_event<P: SmcDevice + ?Sized>(
        &mut self,
        owner: u32,
        event: Event<MessageConnection>,
        world: &mut World<'_, '_, P>,
    ) {
        match owner.wrapping_sub(self.first_owner) {
            MESSAGE_FRONT => self.front_event(event.map(Place::Message), world),
            MESSAGE_BACK => self.back_event(event.map(Place::Message), world),
            _ => {}
        }
    }

    /// Whether one side of a connection carries messages.
    #[inline]
    pub(super) fn is_conversation(&self, key: usize) -> bool {
        self.relayed.get(key).is_some_and(|relayed| {
            relayed.conversation.is_some() || matches!(relayed.front, Place::Message(_))
        })
    }

    pub(super) fn is_half_closed(&self, key: usize) -> bool {
        self.relayed.get(key).is_some_and(|relayed| half_closed_until(relayed).is_some())
    }

    /// Reserves memory for messages after the server is reached, if one side carries messages. If there is no memory,
    /// ends the connection and returns false.
    pub(super) fn begin_conversation<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        world: &mut World<'_, '_, P>,
    ) -> bool {
        let Relay { fronts, backs, relayed, rule, .. } = self;
        let Some(relayed) = relayed.get_mut(key) else { return false };
        let (front, back) = (relayed.front, relayed.back);
        if matches!((front, back), (Place::Stream(_), Some(Place::Stream(_)))) {
            return true;
        }
        let mut both = Endpoints { fronts, backs, front, back, world: &mut *world };
        // Only messages to a message transport are buffered until they are complete.
        let longest = [Side::Backend, Side::Frontend].map(|to| match both.carries(to) {
            Carries::Messages { longest } => longest.min(rule.framing.longest),
            Carries::Bytes => 0,
        });
        // A client over a stream was charged for it when it was accepted.
        let memory = match front {
            Place::Stream(_) => 0,
            Place::Message(_) => longest.iter().map(|&it| Frames::memory(it) as u64).sum(),
        };
        if !world.engine.admission.take(memory) {
            let advice = "no memory for its longest messages: lower max_message or connections, or give the machine more memory";
            self.refuse(key, "memory", advice, world);
            self.end(key, true, world);
            return false;
        }
        let (frames, framing) = (longest.map(Frames::new), rule.framing);
        relayed.conversation = Some(Box::new(Conversation { frames, framing, memory }));
        true
    }

    /// Moves messages of a connection, in one turn.
    #[inline(never)]
    pub(super) fn converse<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        world: &mut World<'_, '_, P>,
    ) {
        let Relay { fronts, backs, relayed, counters, timers, .. } = self;
        let Some(relayed) = relayed.get_mut(key) else { return };
        let (front, back) = (relayed.front, relayed.back);
        let mut piece = core::mem::take(world.piece);
        piece.resize(PIECE, 0);
        let mut both = Endpoints { fronts, backs, front, back, world };
        let mut more = false;
        let mut ended = None;
        match &mut relayed.conversation {
            Some(conversation) if relayed.open => {
                let was_half_closed = relayed.pipes.iter().any(|pipe| pipe.finished);
                let framing = conversation.framing;
                let [there, here] = &mut conversation.frames;
                let [to_server, to_client] = &mut relayed.pipes;
                let ways = [
                    (there, to_server, Side::Frontend, &mut counters.bytes_in),
                    (here, to_client, Side::Backend, &mut counters.bytes_out),
                ];
                for (frames, pipe, from, bytes) in ways {
                    let before = pipe.bytes;
                    let flown = frames.flow(pipe, from, &mut both, framing, &mut piece, TURN);
                    let moved = pipe.bytes - before;
                    *bytes += moved;
                    if moved > 0 {
                        relayed.since = both.world.ctx.now;
                    }
                    match flown {
                        Ok(moved) => more |= moved >= TURN,
                        Err(why) => ended = Some(why),
                    }
                }
                if !was_half_closed && relayed.pipes.iter().any(|pipe| pipe.finished) {
                    relayed.since = both.world.ctx.now;
                    timers.put(key, relayed.since + HALF_CLOSED);
                }
            }
            // The server is not reached yet: only check whether the client is gone.
            _ => {
                let is_gone = match front {
                    Place::Stream(_) => both.read(Side::Frontend, &mut []) == Err(Closed::Gone),
                    Place::Message(_) => both.message(Side::Frontend) == Err(Closed::Gone),
                };
                ended = is_gone.then(|| both.reason(Side::Frontend));
            }
        }
        *world.piece = piece;
        let Some(relayed) = self.relayed.get(key) else { return };
        let finished = relayed.pipes.map(|pipe| pipe.finished);
        if let Some(why) = ended {
            // A side that finished and then closed expects no answer, so close in order. Otherwise abort, because a
            // truncated answer must not look complete.
            let abort = finished == [false, false] || why != Reason::Lost;
            self.counters.aborted += u64::from(abort);
            let lost = self.hang_up_both(key, abort, world);
            // A reset by a client is normal and not reported.
            if lost > 0 || why != Reason::Lost {
                self.note_end(why, lost, world.ctx.now);
            }
        } else if finished == [true, true] {
            self.end(key, false, world);
        } else if more {
            self.queue(key);
        }
    }

    /// Records that a connection ended, and how many messages were lost. Notices are limited by [`NOTICE_INTERVAL`].
    pub(super) fn note_end(&mut self, why: Reason, lost: u64, now: Instant) {
        let before = match self.ended.take() {
            Some(Notice::Ended { connections, lost, .. }) => (connections, lost),
            _ => (0, 0),
        };
        self.ended = Some(Notice::Ended { why, connections: before.0 + 1, lost: before.1 + lost });
        let due = self.last_ended_notice.map_or(now, |last| last + NOTICE_INTERVAL);
        self.ended_due = Some(due);
        self.push_ended(now);
    }

    /// Queues the notice about ended connections, if it is due.
    pub(super) fn push_ended(&mut self, now: Instant) {
        if self.ended_due.is_none_or(|due| due > now) {
            return;
        }
        self.ended_due = None;
        self.last_ended_notice = Some(now);
        if let Some(notice) = self.ended.take() {
            self.push_notice(notice);
        }
    }
}
