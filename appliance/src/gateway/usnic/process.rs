//! A process at the other end. In Open MPI that is a job and a rank, with a BTL module for each of its interfaces. So
//! peers at several of our interfaces are one process if they have the same name, and the same name for us. Its
//! messages are echoed over the interface that can finish first, as Open MPI does with its own.

use super::services::Inbox;
use super::{MESSAGES, SINK, SINK_ADDRESS, Usnic};
use crate::config;
use crate::config::usnic::Service;
use core::net::Ipv4Addr;
use drivers::hal::{Arena, Window};
use usnic::ob1::{Budget, Rank};
use usnic::{EndpointId, Engine, State, Stripe};

/// What the peers of one process have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Our name towards it.
    pub ours: u64,
    /// Its name.
    pub theirs: u64,
    /// The host that registered it by rendezvous. Names are not authenticated: without this, a host could get another
    /// process's messages by registering its name.
    pub registered_by: Option<Ipv4Addr>,
    /// The services for its messages.
    pub services: Vec<Service>,
    pub tag: Option<u8>,
}

/// A process.
pub(super) struct Process {
    identity: Identity,
    /// Its endpoints, for striping.
    pub paths: Stripe,
    /// Its endpoints, each with the index of our interface.
    interfaces: Vec<(EndpointId, usize)>,
    pub inbox: Inbox,
    /// Our MPI rank towards it.
    pub mirror: Option<Box<Rank>>,
    /// The memory for its PUTs.
    pub sink: Option<Window>,
}

impl Process {
    pub fn echoes(&self) -> bool {
        self.identity.services.contains(&Service::Echo)
    }

    pub fn discards(&self) -> bool {
        self.identity.services.contains(&Service::Discard)
    }

    pub fn tag(&self) -> Option<u8> {
        self.identity.tag
    }

    /// Returns whether it has more than one interface.
    pub fn has_several(&self) -> bool {
        self.interfaces.len() > 1
    }

    /// Returns the messages sent over an endpoint to the engine. Called before the endpoint is removed, and when it has
    /// failed.
    pub fn give_up(&mut self, engine: &mut Engine, endpoint: EndpointId, budget: &mut Budget) {
        let is_open =
            |other: EndpointId| other != endpoint && engine.state(other) == Some(State::Open);
        let is_last = !self.paths.endpoints().any(is_open);
        self.inbox.give_up(engine, endpoint, is_last);
        if let Some(mirror) = &mut self.mirror {
            mirror.give_up(engine, endpoint, budget);
        }
    }
}

impl Usnic {
    /// Adds an endpoint to its process, or to a new one. Returns the index of the process.
    pub(super) fn join(
        &mut self,
        identity: Identity,
        interface: usize,
        (endpoint, speed): (EndpointId, u32),
        peer: &config::usnic::Peer,
    ) -> usize {
        let is_it = |process: &Option<Process>| {
            process.as_ref().is_some_and(|process| {
                process.identity == identity
                    && process.interfaces.iter().all(|(_, other)| *other != interface)
            })
        };
        let Usnic { engine, arena, budget, processes, .. } = self;
        let found = processes.iter().position(is_it);
        let place = found.unwrap_or_else(|| {
            let free = processes.iter().position(Option::is_none).unwrap_or(processes.len());
            if free == processes.len() {
                processes.push(None);
            }
            free
        });
        let Some(slot) = processes.get_mut(place) else { return place };
        let process = slot.get_or_insert_with(|| {
            let mirrors = identity.services.contains(&Service::MpiMirror);
            let sinks = identity.services.contains(&Service::PutSink);
            Process {
                mirror: mirrors.then(|| Box::new(Rank::new(identity.ours, budget))),
                sink: sinks.then(|| new_sink(arena, peer)).flatten(),
                paths: Stripe::default(),
                interfaces: Vec::new(),
                inbox: Inbox::default(),
                identity,
            }
        });
        process.paths.add(endpoint, speed);
        process.interfaces.push((endpoint, interface));
        if process.mirror.is_none() {
            process.inbox.reserve(MESSAGES);
        }
        if process.has_several()
            && let Some(mirror) = &mut process.mirror
        {
            mirror.set_several();
        }
        if let Some(sink) = process.sink
            && let Err(why) = engine.grant(endpoint, SINK_ADDRESS, sink)
        {
            log::error!("usnic peer {}: {why}", peer.name.as_str());
        }
        place
    }

    /// Removes an endpoint from its process and from the engine. A process without endpoints is removed.
    pub(super) fn leave(&mut self, place: usize, endpoint: EndpointId) {
        let Usnic { engine, arena, budget, processes, ends, .. } = self;
        let Some(slot) = processes.get_mut(place) else { return };
        if let Some(process) = slot {
            process.give_up(engine, endpoint, budget);
            process.paths.remove(endpoint);
            process.interfaces.retain(|(other, _)| *other != endpoint);
        }
        ends.forget(engine, endpoint);
        engine.remove(endpoint);
        if let Some(gone) = slot.take_if(|process| process.interfaces.is_empty())
            && let Some(sink) = gone.sink
        {
            arena.free(sink);
        }
    }
}

/// Allocates memory for the PUTs of a process.
fn new_sink(arena: &mut Arena, peer: &config::usnic::Peer) -> Option<Window> {
    let Some(memory) = arena.alloc(SINK, 4096) else {
        log::error!("usnic peer {}: not enough memory for its PUTs", peer.name.as_str());
        return None;
    };
    memory.fill(0);
    Some(memory)
}
