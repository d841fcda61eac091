//! LINX as a transport of rules.
//!
//! A listener publishes an endpoint, which the link's peer finds by name. Each endpoint of the peer that sends signals
//! to it is a connection. An outgoing connection has an endpoint of its own, which hunts for the server's name. The
//! connection is open when the name is found. All signals to that endpoint belong to the connection.
//!
//! A message is a signal: its number, four bytes big-endian, and its bytes. If the rule sets the number, a message is
//! the bytes alone, and signals with other numbers are dropped and counted. Unread signals hold their link's memory, so
//! the link's flow control slows the peer down.

use crate::names::MessageName;
use crate::transport::{
    Carries, Closed, Event, MessageTransport, Obstacle, Over, Reason, Transport, Unwritten, Wanted,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use drivers::hal::Instant;
use linx::{
    EndpointId, Event as NodeEvent, HuntId, LinkId, Node, Origin, PeerId, Phase, SendError, Sender,
    Signal,
};
use slab::Slab;

/// Bytes of a signal's number.
const NUMBER: usize = 4;
/// End of a list of queued signals.
const NONE: usize = usize::MAX;
/// Names to try for the endpoint of an outgoing connection.
const NAMES: usize = 8;

/// A link that rules may use.
#[derive(Clone, Debug)]
pub struct LinkEnd {
    /// Its name.
    pub name: String,
    /// ID in the node.
    pub id: LinkId,
    /// Bytes of the longest signal, with its number.
    pub max_message: usize,
}

/// Counters of all links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Signals with another number than the rule's.
    pub other_numbers: u64,
    /// Signals to a rule's endpoint from a sender that is not the peer of the rule's link.
    pub strangers: u64,
}

/// A name that a rule listens on.
#[derive(Debug)]
struct Listener {
    owner: u32,
    /// Name of its link, which stays when the link is replaced.
    name: String,
    link: LinkId,
    signal: Option<u32>,
    connections: usize,
    most: usize,
}

/// User of an endpoint.
#[derive(Debug)]
enum EndpointUser {
    Listener(Listener),
    Connection(u32),
}

/// A connection.
#[derive(Debug)]
struct Connection {
    owner: u32,
    endpoint: EndpointId,
    /// The endpoint has no other connections.
    is_own: bool,
    link: LinkId,
    /// Bytes of the longest signal, with its number.
    max_message: usize,
    signal: Option<u32>,
    hunt: Option<HuntId>,
    peer: Option<PeerId>,
    /// First and last unread signal in `queued`.
    first: usize,
    last: usize,
    /// Bytes of the first signal that were read, its number included.
    cursor: usize,
    count: usize,
    end: Option<Reason>,
    /// The connection waits for room on its link.
    waits: bool,
}

/// An unread signal.
#[derive(Debug)]
struct Queued {
    next: usize,
    signal: Signal,
}

/// Listeners, connections and events of rules over LINX. The node's owner keeps it beside the node.
#[derive(Debug, Default)]
pub struct LinxEnds {
    links: Vec<LinkEnd>,
    endpoints: BTreeMap<EndpointId, EndpointUser>,
    connections: Slab<Connection>,
    queued: Slab<Queued>,
    /// Connections by peer and own endpoint.
    by_peer: BTreeMap<(PeerId, EndpointId), u32>,
    by_hunt: BTreeMap<HuntId, u32>,
    /// Connections that wait for room.
    waiting: VecDeque<(LinkId, u32)>,
    /// Events that rules have not read, with their owners.
    events: VecDeque<(u32, Event<u32>)>,
    /// Counts endpoints of outgoing connections.
    number: u32,
    /// Rules have used the node since the last [`LinxEnds::take_touched`].
    touched: bool,
    /// Counters.
    pub counters: Counters,
}

impl LinxEnds {
    /// Creates it for these links.
    pub fn new(links: Vec<LinkEnd>) -> Self {
        LinxEnds { links, ..LinxEnds::default() }
    }

    /// Replaces the links. A listener follows the name of its link. Connections of a removed link end with its peers.
    pub fn set_links(&mut self, links: Vec<LinkEnd>) {
        for user in self.endpoints.values_mut() {
            let EndpointUser::Listener(listener) = user else { continue };
            // The link may have been absent meanwhile.
            if let Some(next) = links.iter().find(|link| link.name == listener.name) {
                listener.link = next.id;
            }
        }
        self.links = links;
    }

    /// Whether rules have used the node since the last call.
    pub fn take_touched(&mut self) -> bool {
        core::mem::take(&mut self.touched)
    }

    /// Whether there are events that rules have not read.
    pub fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// Handles an event of the node. False if it belongs to no rule, or other users need it too.
    pub fn handle(&mut self, node: &mut Node, event: NodeEvent) -> bool {
        match event {
            NodeEvent::Signals(endpoint) => return self.take_signals(node, endpoint),
            NodeEvent::Found { hunt, peer } => {
                let Some(key) = self.by_hunt.remove(&hunt) else { return false };
                let Some(connection) = self.connections.get_mut(key as usize) else { return true };
                connection.hunt = None;
                connection.peer = Some(peer);
                self.by_peer.insert((peer, connection.endpoint), key);
                self.events.push_back((connection.owner, Event::Opened(key, Over::Linx)));
            }
            NodeEvent::Gone(peer) => self.peer_gone(node, peer),
            NodeEvent::Room(link) => {
                for _ in 0..self.waiting.len() {
                    let Some((of, key)) = self.waiting.pop_front() else { break };
                    let connection = self.connections.get_mut(key as usize);
                    match connection.filter(|it| it.waits && it.link == of) {
                        Some(connection) if of == link => {
                            connection.waits = false;
                            self.events.push_back((connection.owner, Event::Ready(key)));
                        }
                        Some(_) => self.waiting.push_back((of, key)),
                        None => {}
                    }
                }
                // Other users of the link may wait for room, too.
                return false;
            }
            NodeEvent::Link(_) | NodeEvent::Dropped(_) | NodeEvent::Sent { .. } => return false,
        }
        true
    }

    #[cold]
    fn peer_gone(&mut self, node: &Node, peer: PeerId) {
        let is_up = node.link(peer.link()).is_some_and(|link| link.phase == Phase::Up);
        let reason = if is_up { Reason::PeerGone } else { Reason::LinkDown };
        while let Some((&(of, endpoint), &key)) =
            self.by_peer.range((peer, EndpointId::FIRST)..).next()
            && of == peer
        {
            self.by_peer.remove(&(of, endpoint));
            if let Some(connection) = self.connections.get_mut(key as usize) {
                connection.end = Some(reason);
                self.events.push_back((connection.owner, Event::Ready(key)));
            }
        }
    }

    fn take_signals(&mut self, node: &mut Node, endpoint: EndpointId) -> bool {
        if !self.endpoints.contains_key(&endpoint) {
            return false;
        }
        while let Some(signal) = node.next_signal(endpoint) {
            let Some(key) = self.connection_of(endpoint, &signal) else {
                node.release(signal);
                continue;
            };
            let Some(connection) = self.connections.get_mut(key as usize) else { continue };
            if connection.signal.is_some_and(|number| number != signal.number) {
                self.counters.other_numbers += 1;
                node.release(signal);
                continue;
            }
            let entry = self.queued.insert(Queued { next: NONE, signal });
            match self.queued.get_mut(connection.last) {
                Some(last) => last.next = entry,
                None => connection.first = entry,
            }
            connection.last = entry;
            connection.count += 1;
            if connection.count == 1 {
                self.events.push_back((connection.owner, Event::Ready(key)));
            }
        }
        true
    }

    /// The connection of a signal. The first signal of a peer opens one.
    fn connection_of(&mut self, endpoint: EndpointId, signal: &Signal) -> Option<u32> {
        let Origin::Peer(peer) = signal.from else {
            self.counters.strangers += 1;
            return None;
        };
        let listener = match self.endpoints.get_mut(&endpoint)? {
            EndpointUser::Connection(key) => {
                let key = *key;
                let is_meant =
                    self.connections.get(key as usize).is_some_and(|it| it.link == peer.link());
                self.counters.strangers += u64::from(!is_meant);
                return is_meant.then_some(key);
            }
            EndpointUser::Listener(listener) => listener,
        };
        if let Some(key) = self.by_peer.get(&(peer, endpoint)) {
            return Some(*key);
        }
        if peer.link() != listener.link {
            self.counters.strangers += 1;
            return None;
        }
        // A signal that is dropped opens no connection.
        if listener.signal.is_some_and(|number| number != signal.number) {
            self.counters.other_numbers += 1;
            return None;
        }
        let owner = listener.owner;
        if listener.connections >= listener.most {
            match self.events.back_mut() {
                Some((of, Event::Refused(count))) if *of == owner => *count += 1,
                _ => self.events.push_back((owner, Event::Refused(1))),
            }
            return None;
        }
        listener.connections += 1;
        let (link, signal) = (listener.link, listener.signal);
        let new = self.connection(owner, endpoint, link, signal);
        let key = self.connections.insert(Connection { peer: Some(peer), ..new }) as u32;
        self.by_peer.insert((peer, endpoint), key);
        self.events.push_back((owner, Event::Opened(key, Over::Linx)));
        Some(key)
    }

    fn connection(
        &self,
        owner: u32,
        endpoint: EndpointId,
        link: LinkId,
        signal: Option<u32>,
    ) -> Connection {
        let of = self.links.iter().find(|of| of.id == link);
        Connection {
            owner,
            endpoint,
            is_own: false,
            link,
            max_message: of.map_or(0, |of| of.max_message),
            signal,
            hunt: None,
            peer: None,
            first: NONE,
            last: NONE,
            cursor: 0,
            count: 0,
            end: None,
            waits: false,
        }
    }

    fn link(&self, name: &str) -> Option<&LinkEnd> {
        self.links.iter().find(|link| link.name == name)
    }
}

/// LINX as rules use it: the node and their state, borrowed for a stage.
pub struct LinxTransport<'a> {
    /// The node.
    pub node: &'a mut Node,
    /// Listeners, connections and events of rules.
    pub ends: &'a mut LinxEnds,
    /// Current time.
    pub now: Instant,
}

impl LinxTransport<'_> {
    /// Releases the first unread signal of a connection.
    fn pop(&mut self, key: u32) {
        let LinxEnds { connections, queued, .. } = &mut *self.ends;
        let Some(connection) = connections.get_mut(key as usize) else { return };
        let Some(Queued { next, signal }) = queued.try_remove(connection.first) else { return };
        connection.first = next;
        if next == NONE {
            connection.last = NONE;
        }
        connection.cursor = 0;
        connection.count -= 1;
        self.node.release(signal);
        self.ends.touched = true;
    }

    /// Opens an endpoint for an outgoing connection, under an unused name.
    #[cold]
    fn open(&mut self, label: &str) -> Option<EndpointId> {
        for _ in 0..NAMES {
            self.ends.number = self.ends.number.wrapping_add(1);
            let name = format!("{label}.{}", self.ends.number);
            match self.node.open(name.as_bytes(), self.now) {
                Ok(endpoint) => return Some(endpoint),
                Err(linx::Refused::Exists) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

impl Transport for LinxTransport<'_> {
    type Connection = u32;
    type Target = Wanted;

    fn next_event(&mut self) -> Option<Event<u32>> {
        self.next_owned().map(|(_, event)| event)
    }

    #[cold]
    fn connect(&mut self, to: &Wanted) -> Option<u32> {
        let MessageName::Linx { link, name } = &to.name else { return None };
        let link = self.ends.link(link)?.id;
        let endpoint = self.open(&to.label)?;
        let Ok(hunt) = self.node.hunt(endpoint, link, name.as_bytes(), self.now) else {
            self.node.close(endpoint, self.now);
            return None;
        };
        let ends = &mut *self.ends;
        let new = ends.connection(to.owner, endpoint, link, to.signal);
        let new = Connection { is_own: true, hunt: Some(hunt), ..new };
        let key = ends.connections.insert(new) as u32;
        ends.endpoints.insert(endpoint, EndpointUser::Connection(key));
        ends.by_hunt.insert(hunt, key);
        ends.touched = true;
        Some(key)
    }

    fn carries(&self, key: u32) -> Carries {
        let connection = self.ends.connections.get(key as usize);
        let longest = connection.map_or(0, |it| match it.signal {
            Some(_) => it.max_message.saturating_sub(NUMBER),
            None => it.max_message,
        });
        Carries::Messages { longest }
    }

    fn message(&mut self, key: u32) -> Result<Option<usize>, Closed> {
        let connection = self.ends.connections.get(key as usize).ok_or(Closed::Gone)?;
        match (self.ends.queued.get(connection.first), connection.end) {
            (Some(first), _) => {
                let number = if connection.signal.is_none() { NUMBER } else { 0 };
                Ok(Some(number + first.signal.len() - connection.cursor))
            }
            (None, None) => Ok(None),
            (None, Some(Reason::PeerGone)) => Err(Closed::Finished),
            (None, Some(_)) => Err(Closed::Gone),
        }
    }

    fn read(&mut self, key: u32, into: &mut [u8]) -> Result<usize, Closed> {
        let Some(left) = self.message(key)? else { return Ok(0) };
        let LinxEnds { connections, queued, .. } = &mut *self.ends;
        let connection = connections.get_mut(key as usize).ok_or(Closed::Gone)?;
        let Some(Queued { signal, .. }) = queued.get(connection.first) else { return Ok(0) };
        let prefix = if connection.signal.is_none() { NUMBER } else { 0 };
        let mut done = 0;
        if let Some(rest) = signal.number.to_be_bytes()[..prefix].get(connection.cursor..) {
            done = rest.len().min(into.len());
            into[..done].copy_from_slice(&rest[..done]);
        }
        let at = (connection.cursor + done).saturating_sub(prefix);
        done += self.node.read(signal, at, &mut into[done..]);
        connection.cursor += done;
        if done == left {
            self.pop(key);
        }
        Ok(done)
    }

    fn room(&mut self, key: u32) -> usize {
        let connection = self.ends.connections.get(key as usize);
        connection.filter(|it| !it.waits && it.peer.is_some()).map_or(0, |it| it.max_message)
    }

    fn write(&mut self, key: u32, bytes: &[u8]) -> Result<usize, Unwritten> {
        let gone = Unwritten::Ended(Closed::Gone);
        let connection = self.ends.connections.get_mut(key as usize).ok_or(gone)?;
        if connection.waits {
            return Err(Unwritten::Full);
        }
        let Some(peer) = connection.peer.filter(|_| connection.end.is_none()) else {
            return Err(gone);
        };
        let (number, body) = match connection.signal {
            Some(number) => (number, bytes),
            None => {
                let (number, body) =
                    bytes.split_first_chunk::<NUMBER>().ok_or(Unwritten::Length)?;
                (u32::from_be_bytes(*number), body)
            }
        };
        let from = Sender::Endpoint(connection.endpoint);
        match self.node.send(from, peer, number, body, self.now) {
            Ok(()) => {
                self.ends.touched = true;
                Ok(bytes.len())
            }
            Err(SendError::Full) => {
                connection.waits = true;
                self.ends.waiting.push_back((connection.link, key));
                self.ends.touched = true;
                Err(Unwritten::Full)
            }
            Err(SendError::TooLong) => Err(Unwritten::Length),
            Err(SendError::NotConnected) => Err(gone),
        }
    }

    fn finish(&mut self, _: u32) {}

    fn close(&mut self, key: u32, _: bool) -> usize {
        let mut unread = 0;
        while self.ends.connections.get(key as usize).is_some_and(|it| it.first != NONE) {
            self.pop(key);
            unread += 1;
        }
        let Some(connection) = self.ends.connections.try_remove(key as usize) else { return 0 };
        let Connection { endpoint, peer, hunt, is_own, waits, .. } = connection;
        if waits {
            self.ends.waiting.retain(|(_, of)| *of != key);
        }
        if let Some(peer) = peer {
            self.ends.by_peer.remove(&(peer, endpoint));
        }
        if let Some(hunt) = hunt {
            self.ends.by_hunt.remove(&hunt);
        }
        if is_own {
            self.ends.endpoints.remove(&endpoint);
            self.node.close(endpoint, self.now);
        } else if let Some(EndpointUser::Listener(listener)) =
            self.ends.endpoints.get_mut(&endpoint)
        {
            listener.connections = listener.connections.saturating_sub(1);
        }
        self.ends.touched = true;
        unread
    }

    #[cold]
    fn reason(&self, key: u32) -> Reason {
        let connection = self.ends.connections.get(key as usize);
        connection.and_then(|it| it.end).unwrap_or(Reason::Lost)
    }
}

impl MessageTransport for LinxTransport<'_> {
    #[cold]
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        let MessageName::Linx { link, name } = name else { return None };
        if self.ends.link(link).is_none() {
            let why = format!("link {link} is not in force: add a [[linx]] of that name");
            return Some(why.into());
        }
        (listens && self.node.has_endpoint(name.as_bytes())).then(|| {
            format!("the name {name} is published already, by a service or by another rule").into()
        })
    }

    #[cold]
    fn listen(&mut self, end: &Wanted) -> Result<(), String> {
        let MessageName::Linx { link, name } = &end.name else {
            return Err("not a LINX name".into());
        };
        let link = self.ends.link(link).ok_or_else(|| format!("link {link} is not in force"))?;
        let (link_name, link) = (link.name.clone(), link.id);
        let opened = self.node.open(name.as_bytes(), self.now);
        let endpoint = opened.map_err(|why| format!("{name}: {why}"))?;
        let listener = Listener {
            owner: end.owner,
            name: link_name,
            link,
            signal: end.signal,
            connections: 0,
            most: end.connections,
        };
        self.ends.endpoints.insert(endpoint, EndpointUser::Listener(listener));
        self.ends.touched = true;
        Ok(())
    }

    #[cold]
    fn relimit(&mut self, owner: u32, connections: usize) {
        for user in self.ends.endpoints.values_mut() {
            if let EndpointUser::Listener(listener) = user
                && listener.owner == owner
            {
                listener.most = connections;
            }
        }
    }

    #[cold]
    fn unlisten(&mut self, owner: u32) {
        let keys: Vec<usize> = self
            .ends
            .connections
            .iter()
            .filter(|(_, it)| it.owner == owner)
            .map(|it| it.0)
            .collect();
        for key in keys {
            self.close(key as u32, true);
        }
        let is_it =
            |user: &EndpointUser| matches!(user, EndpointUser::Listener(it) if it.owner == owner);
        let found = self.ends.endpoints.iter().find(|(_, user)| is_it(user));
        if let Some(endpoint) = found.map(|(endpoint, _)| *endpoint) {
            self.ends.endpoints.remove(&endpoint);
            self.node.close(endpoint, self.now);
        }
        self.ends.events.retain(|(of, _)| *of != owner);
        self.ends.touched = true;
    }

    fn next_owned(&mut self) -> Option<(u32, Event<u32>)> {
        self.ends.events.pop_front()
    }
}
