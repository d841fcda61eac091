//! State of usNIC peers as ends of rules: maps a peer's endpoints to the rule that gets its messages.

use crate::names::MessageName;
use crate::transport::{Event, Over, Reason};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use usnic::{EndpointId, Engine, Received, State};

/// Default tag, until the configuration or a message of the peer sets another.
const TAG: u8 = 0;

/// A peer that rules may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// Name of its interface.
    pub interface: String,
    /// Its name.
    pub peer: String,
    /// ID in the engine; None if the peer is not admitted.
    pub endpoint: Option<EndpointId>,
    /// Endpoints of the same process at other interfaces.
    pub others: Vec<EndpointId>,
    /// Tag of sent messages. None: the tag of the last received one.
    pub tag: Option<u8>,
}

/// The end of a rule at a peer.
#[derive(Debug)]
pub(super) struct End {
    pub(super) known: PeerEnd,
    /// Owner of the listening end.
    pub(super) listener: Option<u32>,
    /// Owner of the end with a connection to the peer, and why the connection has ended.
    pub(super) connection: Option<(u32, Option<Reason>)>,
    /// Endpoint over which messages are sent.
    pub(super) over: Option<EndpointId>,
    /// The first unread message.
    pub(super) current: Option<Received>,
    /// Bytes of it that were read.
    pub(super) cursor: usize,
    /// Tag of the last received message.
    pub(super) tag: u8,
}

/// Connections and events of rules over usNIC. The engine's owner keeps it beside the engine.
#[derive(Debug, Default)]
pub struct UsnicEnds {
    pub(super) ends: Vec<End>,
    /// Indices in `ends`.
    by_endpoint: BTreeMap<EndpointId, usize>,
    /// Events that rules have not read, with their owners.
    pub(super) events: VecDeque<(u32, Event<u32>)>,
    /// Bytes of the longest message.
    pub(super) longest: usize,
}

impl UsnicEnds {
    /// Creates it for messages of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        UsnicEnds { longest, ..UsnicEnds::default() }
    }

    /// Sets the peers. The connection to a peer that was removed or re-created has ended.
    #[cold]
    pub fn set_peers(&mut self, peers: &[PeerEnd]) {
        for peer in peers {
            let same =
                |end: &End| end.known.interface == peer.interface && end.known.peer == peer.peer;
            // Reuse entries: peers from the rendezvous come and go, each under another name.
            let is_free = |end: &End| {
                end.listener.is_none() && end.connection.is_none() && !peers.contains(&end.known)
            };
            let found = self.ends.iter().position(same);
            match found.or_else(|| self.ends.iter().position(is_free)) {
                Some(place) => {
                    if let Some(end) = self.ends.get_mut(place) {
                        end.known = peer.clone();
                    }
                }
                None => self.ends.push(End {
                    known: peer.clone(),
                    listener: None,
                    connection: None,
                    over: None,
                    current: None,
                    cursor: 0,
                    tag: TAG,
                }),
            }
        }
        let is_known = |end: &End| peers.contains(&end.known);
        for end in self.ends.iter_mut().filter(|end| !is_known(end)) {
            end.known.endpoint = None;
        }
        self.index();
    }

    #[cold]
    fn index(&mut self) {
        let UsnicEnds { ends, by_endpoint, .. } = self;
        let all = ends.iter().enumerate();
        *by_endpoint = all.filter_map(|(key, end)| Some((end.known.endpoint?, key))).collect();
    }

    fn key_of(&self, endpoint: EndpointId) -> Option<usize> {
        self.by_endpoint.get(&endpoint).copied()
    }

    fn is_used(&self, endpoint: EndpointId) -> bool {
        let end = self.key_of(endpoint).and_then(|key| self.ends.get(key));
        end.is_some_and(End::is_used)
    }

    /// The end that gets the messages of an endpoint: its own if a rule uses it, else a used one of the same process.
    fn end_of(&self, endpoint: EndpointId) -> Option<usize> {
        let own = self.key_of(endpoint)?;
        let end = self.ends.get(own)?;
        if end.is_used() || end.known.others.is_empty() {
            return Some(own);
        }
        let used = end.known.others.iter().find(|other| self.is_used(**other));
        used.map_or(Some(own), |other| self.key_of(*other))
    }

    /// The endpoints whose messages go to an end.
    pub(super) fn paths(&self, key: usize) -> impl Iterator<Item = EndpointId> + '_ {
        let known = self.ends.get(key).map(|end| &end.known);
        let others = known.map_or(&[][..], |known| &known.others);
        let free = others.iter().copied().filter(|other| !self.is_used(*other));
        known.and_then(|known| known.endpoint).into_iter().chain(free)
    }

    /// Makes the engine's next message the current one. False if there is none.
    pub(super) fn take(&mut self, engine: &mut Engine, key: usize) -> bool {
        if self.ends.get(key).is_none_or(|end| end.current.is_some()) {
            return self.ends.get(key).is_some();
        }
        let mut paths = self.paths(key);
        let found = paths.find_map(|endpoint| Some((endpoint, engine.take_message(endpoint)?)));
        drop(paths);
        let (Some((endpoint, message)), Some(end)) = (found, self.ends.get_mut(key)) else {
            return false;
        };
        end.current = Some(message);
        end.cursor = 0;
        end.tag = message.tag;
        end.over.get_or_insert(endpoint);
        true
    }

    /// Whether a rule uses an endpoint.
    pub fn has(&self, endpoint: EndpointId) -> bool {
        self.end_of(endpoint).and_then(|key| self.ends.get(key)).is_some_and(End::is_used)
    }

    /// Prepares the removal of an endpoint: releases its message, and ends its connection.
    #[cold]
    pub fn forget(&mut self, engine: &mut Engine, endpoint: EndpointId) {
        let Some(own) = self.key_of(endpoint) else { return };
        let key = self.end_of(endpoint).unwrap_or(own);
        for end in &mut self.ends {
            end.known.others.retain(|other| *other != endpoint);
            end.known.endpoint = end.known.endpoint.filter(|known| *known != endpoint);
            end.over = end.over.filter(|over| *over != endpoint);
        }
        let Some(end) = self.ends.get_mut(key) else { return };
        if let Some(message) = end.current.take() {
            engine.release(message);
        }
        if let Some((owner, reason)) = &mut end.connection {
            *reason = Some(Reason::LinkDown);
            self.events.push_back((*owner, Event::Ready(key as u32)));
        }
        self.index();
    }

    /// Handles an event of an endpoint. False if no rule uses it, or it has failed.
    pub fn handle(&mut self, engine: &mut Engine, endpoint: EndpointId) -> bool {
        let Some(key) = self.end_of(endpoint) else { return false };
        let Some(end) = self.ends.get_mut(key) else { return false };
        let failed = matches!(engine.state(endpoint), Some(State::Failed(_)) | None);
        if end.connection.is_none() {
            return end.listener.is_some() && {
                self.accept(engine, key);
                !failed
            };
        }
        if let Some((owner, reason)) = &mut end.connection {
            if failed {
                reason.get_or_insert(Reason::NoAnswer);
            }
            self.events.push_back((*owner, Event::Ready(key as u32)));
        }
        // The caller reports a failure.
        !failed
    }

    /// Whether there are events that rules have not read.
    pub fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// Opens a connection if the peer has sent a message and a rule listens.
    #[cold]
    pub(super) fn accept(&mut self, engine: &mut Engine, key: usize) {
        let Some(end) = self.ends.get(key) else { return };
        let (Some(owner), None) = (end.listener, end.connection) else { return };
        if self.take(engine, key)
            && let Some(end) = self.ends.get_mut(key)
        {
            end.connection = Some((owner, None));
            self.events.push_back((owner, Event::Opened(key as u32, Over::Usnic)));
        }
    }

    pub(super) fn find(&self, name: &MessageName) -> Option<(usize, &End)> {
        let MessageName::Usnic { interface, peer } = name else { return None };
        let mut all = self.ends.iter().enumerate();
        all.find(|(_, end)| end.known.interface == *interface && end.known.peer == *peer)
    }
}

impl End {
    /// Whether a rule listens for it or is connected to it.
    fn is_used(&self) -> bool {
        self.listener.is_some() || self.connection.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn entries_of_former_peers_are_reused() {
        let peer = |name: &str| {
            let (interface, peer) = ("mpi".into(), name.into());
            PeerEnd { interface, peer, endpoint: None, others: Vec::new(), tag: None }
        };
        let mut ends = UsnicEnds::new(1000);
        for port in 0..1000 {
            ends.set_peers(&[peer("stays"), peer(&format!("10.9.0.2-{port}"))]);
        }
        assert_eq!(ends.ends.len(), 2);
        let key_of = |name: &str| {
            let (interface, peer) = ("mpi".into(), name.into());
            ends.find(&MessageName::Usnic { interface, peer }).map(|(key, _)| key)
        };
        assert_eq!(key_of("stays"), Some(0));
        assert_eq!((key_of("10.9.0.2-999"), key_of("10.9.0.2-998")), (Some(1), None));
    }
}
