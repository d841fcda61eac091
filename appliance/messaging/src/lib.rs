//! Messaging: echo and discard services, and the rules of the messaging gateway, over SMC-R, TCP and transports of
//! messages.
//!
//! ```text
//!    clients: SMC-R, TCP, LINX, usNIC, rio_cm          servers: the same
//!         │ accepted connection                             ▲ connect
//!         ▼                                                 │
//!    transport ──► rule (hosts, limits, health) ──► pipe (bytes) or frames (messages)
//! ```
//!
//! Invariants:
//!
//! * An event of a connection is reported once, and none is lost.
//! * A change of a rule ends no connection that the rule still admits.
//! * A host has a share of a rule, never all of it.
//!
//! Tests: `src/tests.rs`, `src/linx_tests.rs`, the suites `relay`, `messaging`, `linx_tcp`, `usnic_image`, `rapidio`.
//!
//! # Work follows events
//!
//! A completion names its link, a CDC message its socket, and the engine's event the owner of the socket. An interface
//! names its listeners and connectors with events (`Interface::ready`), and these their connections. Timers are in
//! heaps. This crate passes each event to its service or rule, and looks at nothing else.
//!
//! Rules with connections to serve wait in one queue, and their connections in the rule's own. A turn of a connection
//! is 64 KiB each way, a turn of a rule `TURN` connections, a round `ROUND` connections. So neither a rule with many
//! connections nor one busy connection delays the others.
//!
//! Each event is reported once, so none may be lost:
//!
//! * A connection that has used its turn goes to the end of the queue.
//! * A connection that stops for lack of bytes or room returns with the event that there are some. TCP reports every
//!   change; the engine reports room if it was requested while there was none.
//! * An event for a connection without an entry yet is handled when its entry is added.
//! * No loop halts while an interface has unread events.
//!
//! # Rules and transports
//!
//! [`transport::Transport`] is the interface between a rule and the carrier of its connections: events (accepted
//! connections among them), connect, read, write, room, close, the reason of an end. It carries bytes, or messages with
//! a maximum length.
//!
//! `relay/streams.rs` is TCP and SMC-R, by their listeners and connectors, resolved at compile time, so `relay/pipe.rs`
//! moves bytes without indirection. [`linx`], [`usnic`] and [`rio_cm`] carry messages. Each is an engine that lives
//! with its owner (a stage of the gateway), and a part of the rules (`LinxEnds` and so on): listeners, connections,
//! events. The rules borrow both for their stage as one [`messages::Messages`]. An indirect call is per message, not
//! per byte. Events go the other way: the owner shows its engine's events to that part first, and handles the remaining
//! ones.
//!
//! `relay/frames.rs` moves messages. From a stream it reads them into the connection's memory until they are complete.
//! Into a stream it writes them from where the engine has them, piece by piece. A message without room is kept, and
//! reading stops until it has left, so all waiting data waits where the transport slows its peer down. When one
//! direction of a connection has ended, the other has 10 s: messages have no half-close.
//!
//! The rule counts and reports data that a connection had read and not forwarded at its end. A rule whose end is not in
//! force yet (a network without an id) is retried.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod linx;
pub mod messages;
pub mod names;
pub mod relay;
pub mod rio_cm;
pub mod transport;
pub mod usnic;

use crate::relay::{Ending, Interfaces, Notice, Relay, World};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use drivers::hal::{Instant, Timers};
use net::tcp::Owner;
use smcr::SmcDevice;
use smcr::acceptor::Connected;
use smcr::echo::Echo;
use smcr::engine::{Ready, SocketId};

/// Connections of a rule that are served before the next rule's turn.
const TURN: usize = 16;
/// Connections that are served in a round.
const ROUND: usize = 64;

/// A user of connections.
#[expect(
    clippy::large_enum_variant,
    reason = "they are few, and each message would take one more access"
)]
enum User {
    /// A service, and the number of its interface.
    Service(usize, Echo),
    Rule(String, Relay),
    /// A rule that was removed while handshakes were in progress.
    Ending(Ending),
}

/// All services and rules.
#[derive(Default)]
pub struct Users {
    /// Users by index. A free index is reused.
    users: Vec<Option<User>>,
    /// Owner numbers of listeners and connectors, by interface. The engine's sockets have the same numbers.
    owners: BTreeMap<(usize, Owner), u32>,
    /// Listeners and connectors with events on the interface that is being polled.
    ready: Vec<Owner>,
    /// Rules with connections that wait for their turn. Each is queued once.
    queue: VecDeque<usize>,
    queued: Vec<bool>,
    timers: Timers,
    /// Notices, with the index of their rule.
    notices: VecDeque<(usize, Notice)>,
    /// Calls of `reschedule`.
    #[cfg(test)]
    rescheduled: u64,
}

/// First owner number of the user with index `place`.
fn first_owner(place: usize) -> u32 {
    place as u32 * relay::OWNERS
}

impl Users {
    /// Adds echo or discard on the interface with the number `at`. `make` gets its owner number.
    pub fn add_service(&mut self, at: usize, make: impl FnOnce(u32) -> Echo) {
        let owner = first_owner(self.free_place());
        let echo = make(owner);
        self.owners.insert((at, echo.tcp_owner()), owner);
        self.add(User::Service(at, echo));
    }

    /// Adds a rule. `make` gets its first owner number. A rule over a message transport listens only after
    /// [`Users::listen`].
    pub fn add_rule(
        &mut self,
        name: String,
        interfaces: &mut dyn Interfaces,
        make: impl FnOnce(u32, &mut dyn Interfaces) -> Relay,
    ) {
        let mut relay = make(first_owner(self.free_place()), interfaces);
        let owners = relay.owners(interfaces);
        self.owners.extend(owners.into_iter().map(|(at, tcp, owner)| ((at, tcp), owner)));
        self.add(User::Rule(name, relay));
    }

    /// Makes the rule `name` listen, if it listens on a message transport.
    pub fn listen<P: SmcDevice + ?Sized>(
        &mut self,
        name: &str,
        world: &mut World<'_, '_, P>,
    ) -> Result<(), String> {
        let rules = self.users.iter_mut().flatten();
        let mut found = rules.filter_map(|user| match user {
            User::Rule(of, relay) if of == name => Some(relay),
            User::Rule(..) | User::Service(..) | User::Ending(_) => None,
        });
        found.next().map_or(Ok(()), |relay| relay.listen(world))
    }

    fn add(&mut self, user: User) {
        let place = self.free_place();
        if place == self.users.len() {
            self.users.push(None);
            self.queued.push(false);
        }
        self.users[place] = Some(user);
        self.queue.reserve(self.users.len());
        self.timers.make_room(place);
        // Run the user's first timers at once.
        self.timers.put(place, Instant::ZERO);
    }

    /// Index of the next user.
    fn free_place(&self) -> usize {
        self.users.iter().position(Option::is_none).unwrap_or(self.users.len())
    }

    /// Removes a rule: stops listening, and aborts its connections. Other rules are not affected. SMC-R handshakes in
    /// progress are finished first ([`Ending`]). Returns the number of messages lost.
    pub fn remove_rule<P: SmcDevice + ?Sized>(
        &mut self,
        name: &str,
        world: &mut World<'_, '_, P>,
    ) -> u64 {
        let is_it = |user: &Option<User>| matches!(user, Some(User::Rule(n, _)) if n == name);
        let Some(place) = self.users.iter().position(is_it) else { return 0 };
        let Some(User::Rule(_, relay)) = self.users[place].take() else { return 0 };
        self.notices.retain(|(at, _)| *at != place);
        self.timers.forget(place);
        let (lost, left) = relay.stop(world);
        self.put_ending(place, left);
        lost
    }

    /// Changes the rule with the same listen address to `rule`. Returns the number of connections ended because `rule`
    /// does not admit their hosts. None if there is no such rule, or it cannot be changed in place.
    pub fn adjust_rule<P: SmcDevice + ?Sized>(
        &mut self,
        rule: relay::Rule,
        world: &mut World<'_, '_, P>,
    ) -> Option<usize> {
        let place = self.users.iter().position(
            |user| matches!(user, Some(User::Rule(_, relay)) if relay.rule().can_become(&rule)),
        )?;
        let Some(Some(User::Rule(name, relay))) = self.users.get_mut(place) else { return None };
        name.clone_from(&rule.name);
        let ended = relay.adjust(rule, world);
        self.reschedule(place);
        Some(ended)
    }

    /// Stores the rest of a removed rule, or frees its index if nothing is left.
    fn put_ending(&mut self, place: usize, left: Option<Ending>) {
        self.users[place] = left.map(User::Ending);
        if self.users[place].is_none() {
            self.owners.retain(|_, owner| (*owner / relay::OWNERS) as usize != place);
        }
    }

    /// Runs `step` on the rest of a removed rule, if there is one at `place`.
    fn continue_ending(&mut self, place: usize, step: impl FnOnce(Ending) -> Option<Ending>) {
        let ending = self.users.get_mut(place);
        let ending = ending.and_then(|user| user.take_if(|user| matches!(user, User::Ending(_))));
        if let Some(User::Ending(ending)) = ending {
            self.put_ending(place, step(ending));
        }
    }

    /// Handles events of interfaces, message transports and the engine, and expired timers. Returns their number.
    pub fn poll<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) -> usize {
        let mut done = 0;
        for at in 0..world.interfaces.count() {
            let mut ready = core::mem::take(&mut self.ready);
            ready.extend_from_slice(world.interfaces.get(at).ready());
            for owner in ready.drain(..) {
                if let Some(&owner) = self.owners.get(&(at, owner)) {
                    done += 1;
                    self.notify_owner(owner, world);
                }
            }
            self.ready = ready;
        }
        while let Some((owner, event)) = world.messages.next_owned() {
            done += 1;
            let place = (owner / relay::OWNERS) as usize;
            if let Some(Some(User::Rule(_, relay))) = self.users.get_mut(place) {
                relay.message_event(owner, event, world);
            }
            self.reschedule(place);
        }
        for _ in 0..self.timers.len() {
            let Some(place) = self.timers.take_due(world.ctx.now) else { break };
            done += 1;
            self.handle_timeout(place, world);
        }
        done += self.handle_events(world);
        let mut left = ROUND;
        while left > 0
            && let Some(place) = self.queue.pop_front()
        {
            self.queued[place] = false;
            if let Some(Some(User::Rule(_, relay))) = self.users.get_mut(place) {
                let turns = relay.work(left.min(TURN), world);
                left -= turns.min(left);
                done += turns;
            }
            self.reschedule(place);
            // Closing connections may have produced events.
            done += self.handle_events(world);
        }
        done
    }

    /// Handles events of a listener or connector.
    fn notify_owner<P: SmcDevice + ?Sized>(&mut self, owner: u32, world: &mut World<'_, '_, P>) {
        let place = (owner / relay::OWNERS) as usize;
        match self.users.get_mut(place) {
            Some(Some(User::Service(at, echo))) => {
                let World { interfaces, engine, ctx, .. } = world;
                echo.poll(interfaces.get(*at), engine, ctx);
            }
            Some(Some(User::Rule(_, relay))) => relay.poll(owner, world),
            Some(Some(User::Ending(_))) => {
                return self.continue_ending(place, |ending| ending.poll(owner, world));
            }
            None | Some(None) => {}
        }
        self.reschedule(place);
    }

    fn handle_timeout<P: SmcDevice + ?Sized>(
        &mut self,
        place: usize,
        world: &mut World<'_, '_, P>,
    ) {
        match self.users.get_mut(place) {
            Some(Some(User::Service(at, echo))) => {
                let World { interfaces, engine, ctx, .. } = world;
                echo.poll(interfaces.get(*at), engine, ctx);
            }
            Some(Some(User::Rule(_, relay))) => relay.handle_timeout(world),
            None | Some(None | Some(User::Ending(_))) => {}
        }
        self.reschedule(place);
    }

    /// Passes the engine's events to the owners of their sockets. Returns their number.
    fn handle_events<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) -> usize {
        let mut count = 0;
        while let Some((socket, ready, owner)) = world.engine.poll_event() {
            count += 1;
            self.handle_event(owner, socket, ready, world);
        }
        count
    }

    fn handle_event<P: SmcDevice + ?Sized>(
        &mut self,
        owner: u32,
        socket: SocketId,
        ready: Ready,
        world: &mut World<'_, '_, P>,
    ) {
        let place = (owner / relay::OWNERS) as usize;
        match self.users.get_mut(place) {
            Some(Some(User::Service(at, echo))) => {
                let World { interfaces, engine, ctx, .. } = world;
                echo.handle_event(socket, ready, interfaces.get(*at), engine, ctx);
            }
            Some(Some(User::Rule(_, relay))) => relay.handle_event(owner, socket, ready, world),
            Some(Some(User::Ending(_))) => {
                let step = |ending: Ending| ending.handle_event(owner, socket, ready, world);
                return self.continue_ending(place, step);
            }
            None | Some(None) => {}
        }
        self.reschedule(place);
    }

    /// Collects a user's notices, queues it if it has work, and sets its timer.
    fn reschedule(&mut self, place: usize) {
        #[cfg(test)]
        {
            self.rescheduled += 1;
        }
        let due = match self.users.get_mut(place) {
            // The user was removed, or is ending.
            None | Some(None | Some(User::Ending(_))) => return,
            Some(Some(User::Service(_, echo))) => echo.poll_timeout(),
            Some(Some(User::Rule(_, relay))) => {
                while let Some(notice) = relay.poll_notice() {
                    self.notices.push_back((place, notice));
                }
                if relay.has_work() && !core::mem::replace(&mut self.queued[place], true) {
                    self.queue.push_back(place);
                }
                relay.poll_timeout()
            }
        };
        if let Some(due) = due {
            self.timers.put(place, due);
        }
    }

    /// When the next timer expires; at once if rules wait for their turn.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = (!self.queue.is_empty()).then_some(Instant::ZERO);
        Instant::first([waits, self.timers.first()])
    }

    /// The next notice, and the name of its rule.
    pub fn poll_notice(&mut self) -> Option<(&str, Notice)> {
        let (place, notice) = self.notices.pop_front()?;
        match self.users.get(place)?.as_ref()? {
            User::Rule(name, _) => Some((name, notice)),
            User::Service(..) | User::Ending(_) => None,
        }
    }

    /// Ends all connections of rules, by an abort.
    pub fn shut_down<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        for user in &mut self.users {
            if let Some(User::Rule(_, relay)) = user {
                relay.shut_down(world);
            }
        }
    }

    /// The rules, with their names.
    pub fn rules(&self) -> impl Iterator<Item = (&str, &Relay)> {
        self.users.iter().flatten().filter_map(|user| match user {
            User::Rule(name, relay) => Some((name.as_str(), relay)),
            User::Service(..) | User::Ending(_) => None,
        })
    }

    /// Echo and discard, with the numbers of their interfaces.
    pub fn services(&self) -> impl Iterator<Item = (usize, &Echo)> {
        self.users.iter().flatten().filter_map(|user| match user {
            User::Service(at, echo) => Some((*at, echo)),
            User::Rule(..) | User::Ending(_) => None,
        })
    }

    /// All connections, with the numbers of their interfaces.
    pub fn connections(&self) -> impl Iterator<Item = (usize, Connected)> {
        let services = self.services();
        let services = services.flat_map(|(at, echo)| echo.connected().map(move |c| (at, c)));
        services.chain(self.rules().flat_map(|(_, relay)| relay.connected()))
    }
}

#[cfg(test)]
mod linx_tests;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod rule_changes;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod slow_servers;
#[cfg(test)]
mod stalled;
#[cfg(test)]
mod tests;
