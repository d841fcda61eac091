//! A process at the other end. Open MPI's is a job and a rank, which has a module of the BTL at each of its interfaces;
//! so peers at several interfaces of ours that have the same name, and the same name for us, are one process. What it
//! sends over one of them goes back over whichever is done first, as it does with its own messages.

use super::services::Inbox;
use super::{MESSAGES, SINK, SINK_ADDRESS, Usnic};
use crate::config;
use crate::config::usnic::Service;
use core::net::Ipv4Addr;
use drivers::hal::{Arena, Window};
use usnic::ob1::{Budget, Rank};
use usnic::{EndpointId, Engine, State, Stripe};

/// What peers have in common that are one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Who we are to it, and who it is.
    pub ours: u64,
    pub theirs: u64,
    /// Who has told of it, if it came by rendezvous: anybody can say a name, and gets nothing by it that is sent to
    /// another.
    pub told_by: Option<Ipv4Addr>,
    /// What becomes of its messages.
    pub services: Vec<Service>,
    pub tag: Option<u8>,
}

/// A process.
pub(super) struct Process {
    identity: Identity,
    /// Its endpoints, and which interface of ours each is at.
    pub paths: Stripe,
    interfaces: Vec<(EndpointId, usize)>,
    pub inbox: Inbox,
    /// The rank of MPI that we are towards it.
    pub mirror: Option<Box<Rank>>,
    /// Where it can PUT.
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

    /// Whether it is reached over more than one interface.
    pub fn has_several(&self) -> bool {
        self.interfaces.len() > 1
    }

    /// An endpoint is about to be removed, or has failed: what was sent over it is given back to the engine.
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
    /// Makes an endpoint one of its process: of one that there is, or of a new one. Its place.
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

    /// Takes an endpoint out of its process, and out of the engine. A process without any is gone.
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

/// Memory that a process can PUT into.
fn new_sink(arena: &mut Arena, peer: &config::usnic::Peer) -> Option<Window> {
    let Some(memory) = arena.alloc(SINK, 4096) else {
        log::error!("usnic peer {}: no memory is left that it could PUT into", peer.name.as_str());
        return None;
    };
    memory.fill(0);
    Some(memory)
}
