//! usNIC as a transport of rules.
//!
//! A peer is one connection at a time: on the wire there is nothing that opens or ends one. One that is listened on begins
//! with the peer's first message. A message that is not read yet is one of the engine's, which has a share of memory for each
//! peer and has the peer send again what is beyond.

use crate::messages::{MessageTransport, Obstacle, Wanted};
use crate::names::MessageName;
use crate::transport::{Carries, Closed, Event, Over, Reason, Transport, Unwritten};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use drivers::hal::Instant;
use usnic::{Delivery, EndpointId, Engine, Received, SendError, State};

/// The tag of messages where neither the configuration nor the peer has said another.
const TAG: u8 = 0;

/// A peer that rules may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEnd {
    /// Name of its interface.
    pub interface: String,
    /// Its name.
    pub peer: String,
    /// What the engine calls it; None if it is not admitted.
    pub endpoint: Option<EndpointId>,
    /// The tag that messages are sent with; without it that of the last which came.
    pub tag: Option<u8>,
}

/// The end of a rule at a peer.
#[derive(Debug)]
struct End {
    known: PeerEnd,
    /// The owner of the end that listens for it.
    listener: Option<u32>,
    /// The owner of the end that has a connection with it, and why that has ended.
    connection: Option<(u32, Option<Reason>)>,
    /// The first message that has arrived, and how much of it was read.
    current: Option<Received>,
    cursor: usize,
    tag: u8,
}

/// What rules have of usNIC: goes with the engine, and is lent to rules with it.
#[derive(Debug, Default)]
pub struct UsnicEnds {
    ends: Vec<End>,
    /// Places in `ends`, in the order of the endpoints.
    by_endpoint: Vec<(EndpointId, usize)>,
    news: VecDeque<(u32, Event<u32>)>,
    /// Bytes of the longest message.
    longest: usize,
}

impl UsnicEnds {
    /// For messages of so many bytes.
    pub fn new(longest: usize) -> Self {
        UsnicEnds { longest, ..UsnicEnds::default() }
    }

    /// Says which peers there are. The connection with one that is gone, or was made anew, has ended.
    #[cold]
    pub fn set_peers(&mut self, peers: &[PeerEnd]) {
        for peer in peers {
            let same =
                |end: &End| end.known.interface == peer.interface && end.known.peer == peer.peer;
            // Peers come and go by rendezvous, each under another name.
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
        by_endpoint.clear();
        by_endpoint.extend(all.filter_map(|(key, end)| Some((end.known.endpoint?, key))));
        by_endpoint.sort_unstable();
    }

    fn key_of(&self, endpoint: EndpointId) -> Option<usize> {
        let found = self.by_endpoint.binary_search_by_key(&endpoint, |(endpoint, _)| *endpoint);
        self.by_endpoint.get(found.ok()?).map(|(_, key)| *key)
    }

    /// Whether a rule has an endpoint.
    pub fn has(&self, endpoint: EndpointId) -> bool {
        let end = self.key_of(endpoint).and_then(|key| self.ends.get(key));
        end.is_some_and(|end| end.listener.is_some() || end.connection.is_some())
    }

    /// An endpoint is about to be removed: what it has is given back, and its connection ends.
    #[cold]
    pub fn forget(&mut self, engine: &mut Engine, endpoint: EndpointId) {
        let Some(key) = self.key_of(endpoint) else { return };
        let Some(end) = self.ends.get_mut(key) else { return };
        end.known.endpoint = None;
        if let Some(message) = end.current.take() {
            engine.release(message);
        }
        if let Some((owner, reason)) = &mut end.connection {
            *reason = Some(Reason::LinkDown);
            self.news.push_back((*owner, Event::Ready(key as u32)));
        }
        self.index();
    }

    /// Takes news of an endpoint; false if it is no rule's.
    pub fn handle(&mut self, engine: &mut Engine, endpoint: EndpointId) -> bool {
        let Some(key) = self.key_of(endpoint) else { return false };
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
            self.news.push_back((*owner, Event::Ready(key as u32)));
        }
        // That it has failed is told by others.
        !failed
    }

    /// Whether rules have news that they have not heard.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Begins a connection if the peer has sent something, and somebody listens.
    #[cold]
    fn accept(&mut self, engine: &mut Engine, key: usize) {
        let Some(end) = self.ends.get_mut(key) else { return };
        let (Some(owner), None) = (end.listener, end.connection) else { return };
        if end.take(engine) {
            end.connection = Some((owner, None));
            self.news.push_back((owner, Event::Opened(key as u32, Over::Usnic)));
        }
    }

    fn find(&self, name: &MessageName) -> Option<(usize, &End)> {
        let MessageName::Usnic { interface, peer } = name else { return None };
        let mut all = self.ends.iter().enumerate();
        all.find(|(_, end)| end.known.interface == *interface && end.known.peer == *peer)
    }
}

impl End {
    /// Takes the first message of the engine, if there is one.
    fn take(&mut self, engine: &mut Engine) -> bool {
        let Some(endpoint) = self.known.endpoint else { return false };
        if self.current.is_none() {
            self.current = engine.take_message(endpoint);
            self.cursor = 0;
            if let Some(message) = &self.current {
                self.tag = message.tag;
            }
        }
        self.current.is_some()
    }
}

/// The engine, lent to rules.
pub struct UsnicTransport<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// What rules have of it.
    pub ends: &'a mut UsnicEnds,
    /// Says that the engine was given something.
    pub touched: &'a mut bool,
    /// The present.
    pub now: Instant,
}

impl Transport for UsnicTransport<'_> {
    type Connection = u32;
    type Target = Wanted;

    fn next_event(&mut self) -> Option<Event<u32>> {
        self.next_owned().map(|(_, event)| event)
    }

    #[cold]
    fn connect(&mut self, to: &Wanted) -> Option<u32> {
        let (key, end) = self.ends.find(&to.name)?;
        let endpoint = end.known.endpoint?;
        let is_open = self.engine.state(endpoint) == Some(State::Open);
        let end = self.ends.ends.get_mut(key)?;
        if !is_open || end.connection.is_some() {
            return None;
        }
        self.engine.set_delivery(endpoint, Delivery::InOrder);
        end.connection = Some((to.owner, None));
        self.ends.news.push_back((to.owner, Event::Opened(key as u32, Over::Usnic)));
        Some(key as u32)
    }

    fn carries(&self, _: u32) -> Carries {
        Carries::Messages { longest: self.ends.longest }
    }

    fn message(&mut self, key: u32) -> Result<Option<usize>, Closed> {
        let end = self.ends.ends.get_mut(key as usize).ok_or(Closed::Gone)?;
        if end.take(self.engine) {
            return Ok(end.current.map(|message| message.bytes.len() - end.cursor));
        }
        match end.connection {
            Some((_, None)) => Ok(None),
            Some((_, Some(_))) | None => Err(Closed::Gone),
        }
    }

    fn read(&mut self, key: u32, into: &mut [u8]) -> Result<usize, Closed> {
        let Some(left) = self.message(key)? else { return Ok(0) };
        let end = self.ends.ends.get_mut(key as usize).ok_or(Closed::Gone)?;
        let Some(message) = end.current else { return Ok(0) };
        let count = left.min(into.len());
        let into = into.get_mut(..count).unwrap_or_default();
        message.bytes.read(end.cursor, into).map_err(|_| Closed::Gone)?;
        end.cursor += count;
        if count == left {
            end.current = None;
            self.engine.release(message);
            *self.touched = true;
        }
        Ok(count)
    }

    fn room(&mut self, key: u32) -> usize {
        let end = self.ends.ends.get(key as usize);
        end.filter(|end| end.connection.is_some()).map_or(0, |_| self.ends.longest)
    }

    fn write(&mut self, key: u32, bytes: &[u8]) -> Result<usize, Unwritten> {
        let gone = Unwritten::Ended(Closed::Gone);
        let end = self.ends.ends.get(key as usize).ok_or(gone)?;
        let (Some(endpoint), Some((_, None))) = (end.known.endpoint, end.connection) else {
            return Err(gone);
        };
        let tag = end.known.tag.unwrap_or(end.tag);
        // Also when there is no room: the engine then looks whether there is some by now.
        *self.touched = true;
        match self.engine.send(endpoint, tag, bytes, self.now) {
            Ok(()) => Ok(bytes.len()),
            Err(SendError::Full) => Err(Unwritten::Full),
            Err(SendError::TooLong) => Err(Unwritten::Length),
            Err(_) => Err(gone),
        }
    }

    fn finish(&mut self, _: u32) {}

    fn close(&mut self, key: u32, _: bool) -> usize {
        let Some(end) = self.ends.ends.get_mut(key as usize) else { return 0 };
        let ended = end.connection.take();
        let mut unread = 0;
        // What came after the end of another connection begins the next one, if somebody listens for that.
        let is_over = ended.is_some_and(|(_, reason)| reason.is_some());
        if end.listener.is_none() || is_over || end.cursor > 0 {
            while let Some(message) = end.current.take() {
                self.engine.release(message);
                unread += 1;
                if end.listener.is_some() && !is_over {
                    break;
                }
                end.take(self.engine);
            }
        }
        *self.touched = true;
        self.ends.accept(self.engine, key as usize);
        unread
    }

    #[cold]
    fn reason(&self, key: u32) -> Reason {
        let connection = self.ends.ends.get(key as usize).and_then(|end| end.connection);
        connection.and_then(|(_, reason)| reason).unwrap_or(Reason::Lost)
    }
}

impl MessageTransport for UsnicTransport<'_> {
    #[cold]
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        match self.ends.find(name) {
            None => {
                Some(format!("{name}: there is no such peer in force: `save` and `reboot`").into())
            }
            Some((_, end)) if listens && end.listener.is_some() => {
                Some(format!("{name} is the end of another rule").into())
            }
            Some(_) => None,
        }
    }

    #[cold]
    fn listen(&mut self, wanted: &Wanted) -> Result<(), String> {
        let none = || format!("{}: there is no such peer", wanted.name);
        let key = self.ends.find(&wanted.name).ok_or_else(none)?.0;
        let end = self.ends.ends.get_mut(key).ok_or_else(none)?;
        if end.listener.is_some() {
            return Err(format!("{} is the end of another rule", wanted.name));
        }
        end.listener = Some(wanted.owner);
        if let Some(endpoint) = end.known.endpoint {
            self.engine.set_delivery(endpoint, Delivery::InOrder);
        }
        self.ends.accept(self.engine, key);
        Ok(())
    }

    #[cold]
    fn unlisten(&mut self, owner: u32) {
        for key in 0..self.ends.ends.len() {
            let Some(end) = self.ends.ends.get_mut(key) else { continue };
            if end.listener == Some(owner) {
                end.listener = None;
                if end.connection.is_some_and(|(of, _)| of == owner) {
                    self.close(key as u32, true);
                }
            }
        }
        self.ends.news.retain(|(of, _)| *of != owner);
    }

    fn next_owned(&mut self) -> Option<(u32, Event<u32>)> {
        self.ends.news.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_come_and_go_take_no_more_room() {
        let peer = |name: &str| {
            let (interface, peer) = ("mpi".into(), name.into());
            PeerEnd { interface, peer, endpoint: None, tag: None }
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
