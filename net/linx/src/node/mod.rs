//! A LINX node: endpoints with names, and links to other nodes over which they find and talk to each other. RLNH,
//! above RIOCM and the TCP connection manager.

mod addresses;
mod control;
mod hunts;
mod link;
mod signals;
mod streams;
#[cfg(test)]
mod tests;

pub use link::{LinkConfig, LinkCounters, Phase, Transport};
pub use signals::{Origin, Sender, Signal};

use crate::pool::Pool;
use crate::riocm::{self, BadConfig, Down, Event as Riocmed, Riocm, SendError};
use crate::rng::Rng;
use crate::tcpcm::{StreamOrder, TcpCm, Up};
use crate::timers::Timers;
use crate::wire::riocm::Data;
use crate::wire::rlnh::MAX_NAME;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::{Instant, Window};
use hunts::Hunt;
use link::{Carrier, Link};
use signals::{NUMBER, Queued};
use slab::Slab;

/// A name: bytes without a zero.
type Name = Box<[u8]>;
/// No signal.
const NONE: u32 = u32::MAX;

/// Names a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    place: u16,
    number: u32,
}

/// Names an endpoint of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    place: u32,
    generation: u32,
}

impl EndpointId {
    /// Comes before all others in their order, and names none.
    pub const FIRST: EndpointId = EndpointId { place: 0, generation: 0 };
}

/// Names an endpoint of a peer's, in one life of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    link: LinkId,
    address: u32,
    generation: u32,
}

impl PeerId {
    /// The link over which it is reached.
    pub fn link(self) -> LinkId {
        self.link
    }
}

/// Names a hunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HuntId {
    place: u32,
    number: u32,
}

/// What is configured of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most links.
    pub links: usize,
    /// Most endpoints.
    pub endpoints: usize,
    /// Most hunts of ours at a time.
    pub hunts: usize,
    /// Bytes of memory that the inbox of an endpoint may hold: what is beyond is dropped, counted and told.
    pub inbox_bytes: usize,
    /// RIOCM.
    pub riocm: riocm::Config,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            links: 32,
            endpoints: 2048,
            hunts: 1024,
            inbox_bytes: 256 << 10,
            riocm: riocm::Config::default(),
        }
    }
}

/// Why an endpoint, a link or a hunt was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The name is empty, too long, or has a zero byte or, of a link, a slash.
    Name,
    /// There is one of that name.
    Exists,
    /// There is no room for another.
    Full,
    /// There is no such endpoint or link.
    Unknown,
    /// An RLNH version that is not spoken here.
    Version(u32),
    /// The connection beneath.
    Config(BadConfig),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Name => write!(
                f,
                "a LINX name has 1 to {MAX_NAME} bytes, none of them zero; a link's has no slash either"
            ),
            Refused::Exists => f.write_str("there is one of that name"),
            Refused::Full => f.write_str("there is no room for another; see the limits"),
            Refused::Unknown => f.write_str("there is no such endpoint or link"),
            Refused::Version(version) => {
                write!(f, "RLNH has versions 1 and 2, and no version {version}")
            }
            Refused::Config(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for Refused {}

impl From<BadConfig> for Refused {
    fn from(why: BadConfig) -> Self {
        Refused::Config(why)
    }
}

/// News. Each is told once, and again when there is more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link came up or went down: see [`Node::link`].
    Link(LinkId),
    /// A hunt has found what it is for, and is over.
    Found {
        /// The hunt.
        hunt: HuntId,
        /// What it has found.
        peer: PeerId,
    },
    /// An endpoint of a peer's that was found, or that a signal came from, is no more. Signals of it may still wait to
    /// be taken.
    Gone(PeerId),
    /// Signals wait to be taken: take them until there are none.
    Signals(EndpointId),
    /// Signals were dropped, because as many as may be wait to be taken.
    Dropped(EndpointId),
    /// There is room to send over a link again, after there was none.
    Room(LinkId),
    /// Memory of a user's own is out of use.
    Sent {
        /// By which its user knows it.
        cookie: u64,
        /// It was handed to the link; else that went down first.
        done: bool,
    },
}

/// An endpoint of ours.
#[derive(Debug)]
struct Endpoint {
    id: EndpointId,
    name: Name,
    /// By link: its link address there, 0 if it has none.
    addresses: Box<[u32]>,
    inbox: (u32, u32),
    held: usize,
    has_news: bool,
    told_dropped: bool,
}

/// What is told of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// The RLNH version that both speak, while it is up.
    pub version: u32,
    /// Why it went down last.
    pub why: Option<Down>,
    /// Messages that were not sent when it did.
    pub unsent: usize,
    /// Link addresses of ours in use, and names of the peer's that are known.
    pub addresses: (usize, usize),
    /// Names that the peer hunts for.
    pub hunts: usize,
    /// What is counted.
    pub counters: LinkCounters,
    /// What is told of the connection beneath, if that is RIOCM's.
    pub riocm: Option<riocm::Status>,
}

/// The node.
#[derive(Debug)]
pub struct Node {
    config: Config,
    pool: Pool,
    riocm: Riocm,
    links: Vec<Option<Link>>,
    /// By connection id.
    by_cid: Box<[u16; 256]>,
    endpoints: Slab<Endpoint>,
    by_name: BTreeMap<Name, u32>,
    /// Signals that wait to be taken, by the first piece of their memory.
    queued: Box<[Queued]>,
    hunts: Slab<Hunt>,
    /// By link, name and place of the hunt.
    hunts_by_name: BTreeSet<(u16, Name, u32)>,
    timers: Timers,
    orders: VecDeque<(LinkId, StreamOrder)>,
    events: VecDeque<Event>,
    /// Counts links, endpoints, hunts and names of peers.
    number: u32,
    rng: Rng,
}

impl Node {
    /// A node. `memory` is where messages arrive, and where what is sent is kept; `secret` is random.
    pub fn new(config: Config, memory: Window, secret: u64) -> Node {
        let pool = Pool::new(memory, 2 * config.links);
        let pieces = pool.pieces();
        let mut rng = Rng::new(secret);
        Node {
            riocm: Riocm::new(config.riocm, &pool, rng.next()),
            links: (0..config.links.min(u16::MAX.into())).map(|_| None).collect(),
            by_cid: Box::new([u16::MAX; 256]),
            endpoints: Slab::with_capacity(config.endpoints),
            by_name: BTreeMap::new(),
            queued: (0..pieces).map(|_| Queued::default()).collect(),
            hunts: Slab::new(),
            hunts_by_name: BTreeSet::new(),
            timers: Timers::new(config.links),
            orders: VecDeque::new(),
            events: VecDeque::with_capacity(2 * config.endpoints + config.riocm.sends + 64),
            number: 0,
            rng,
            pool,
            config,
        }
    }

    /// RIOCM's ports and counters.
    pub fn riocm(&self) -> &Riocm {
        &self.riocm
    }

    /// As [`Riocm::add_port`].
    pub fn add_port(&mut self, name: &str, id: u16, mtu: u16) -> Result<usize, BadConfig> {
        self.riocm.add_port(name, id, mtu)
    }

    /// As [`Riocm::remove_port`].
    pub fn remove_port(&mut self, port: usize, now: Instant) {
        self.riocm.remove_port(&mut self.pool, port);
        self.pump(now);
    }

    /// Adds a link, which is wanted from now on.
    pub fn add_link(&mut self, config: &LinkConfig<'_>, now: Instant) -> Result<LinkId, Refused> {
        if !is_name(config.name.as_bytes()) || config.name.contains('/') {
            return Err(Refused::Name);
        }
        if !(1..=crate::wire::rlnh::VERSION).contains(&config.version) {
            return Err(Refused::Version(config.version));
        }
        if self.links.iter().flatten().any(|link| &*link.name == config.name) {
            return Err(Refused::Exists);
        }
        let place = self.links.iter().position(Option::is_none).ok_or(Refused::Full)?;
        let carrier = match &config.transport {
            Transport::Riocm(connection) => {
                let id = self.riocm.create(&mut self.pool, connection, now)?;
                self.by_cid[usize::from(id.cid())] = place as u16;
                Carrier::Riocm(id)
            }
            Transport::Tcp(connection) => {
                Carrier::Tcp(Box::new(TcpCm::new(&mut self.pool, *connection)?))
            }
        };
        let id = LinkId { place: place as u16, number: self.next_number() };
        self.links[place] = Some(Link::new(id, config, carrier));
        self.connect(id.place, now);
        self.settle(id.place);
        Ok(id)
    }

    /// Removes a link. Its peer hears of that, if it is up.
    pub fn remove_link(&mut self, id: LinkId, now: Instant) {
        let Some(link) = self.link_by_id(id) else { return };
        link.is_removed = true;
        let cid = match &link.carrier {
            Carrier::Riocm(connection) => Some(*connection),
            Carrier::Tcp(_) => None,
        };
        let Node { links, riocm, pool, .. } = self;
        match (cid, links.get_mut(usize::from(id.place))) {
            (Some(connection), _) => riocm.destroy(pool, connection),
            (None, Some(Some(Link { carrier: Carrier::Tcp(tcp), .. }))) => tcp.close(pool),
            _ => (),
        }
        self.pump(now);
        self.pump_tcp(id.place, now);
        if let Some(connection) = cid {
            self.by_cid[usize::from(connection.cid())] = u16::MAX;
        }
        self.timers.set(id.place.into(), None);
        self.forget_link_hunts(id.place);
        self.links[usize::from(id.place)] = None;
    }

    /// Ends a link's connection, which begins anew at once.
    pub fn restart_link(&mut self, id: LinkId, now: Instant) {
        if self.link_by_id(id).is_some() {
            self.end_link(id.place, Down::Asked);
            self.pump_tcp(id.place, now);
            self.pump(now);
        }
    }

    /// What is told of a link.
    pub fn link(&self, id: LinkId) -> Option<LinkStatus> {
        let link = self.links.get(usize::from(id.place))?.as_ref().filter(|it| it.id == id)?;
        Some(LinkStatus {
            name: (*link.name).into(),
            phase: link.phase,
            version: link.version,
            why: link.why,
            unsent: link.unsent,
            addresses: (link.local.taken(), link.remote_count),
            hunts: link.wanted.len(),
            counters: link.counters,
            riocm: match &link.carrier {
                Carrier::Riocm(id) => self.riocm.status(*id),
                Carrier::Tcp(_) => None,
            },
        })
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().flatten().map(|link| link.id)
    }

    /// Opens an endpoint, whose name peers can hunt for from now on.
    pub fn open(&mut self, name: &[u8], now: Instant) -> Result<EndpointId, Refused> {
        if !is_name(name) {
            return Err(Refused::Name);
        }
        if self.by_name.contains_key(name) {
            return Err(Refused::Exists);
        }
        if self.endpoints.len() >= self.config.endpoints {
            return Err(Refused::Full);
        }
        let generation = self.next_number();
        let entry = self.endpoints.vacant_entry();
        let id = EndpointId { place: entry.key() as u32, generation };
        entry.insert(Endpoint {
            id,
            name: name.into(),
            addresses: alloc::vec![0; self.links.len()].into(),
            inbox: (NONE, NONE),
            held: 0,
            has_news: false,
            told_dropped: false,
        });
        self.by_name.insert(name.into(), id.place);
        self.answer_hunts(name, id.place);
        self.pump(now);
        Ok(id)
    }

    /// Closes an endpoint: signals that wait are dropped, its hunts are over, and peers that know it hear of it.
    pub fn close(&mut self, id: EndpointId, now: Instant) {
        if self.endpoint(id).is_none() {
            return;
        }
        while let Some(signal) = self.next_signal(id) {
            self.release(signal);
        }
        self.forget_endpoint_hunts(id);
        let endpoint = self.endpoints.remove(id.place as usize);
        self.by_name.remove(&endpoint.name);
        for (place, &address) in endpoint.addresses.iter().enumerate().filter(|it| *it.1 != 0) {
            self.leave(place as u16, address);
        }
        self.pump(now);
    }

    /// Whether an endpoint of ours has this name.
    pub fn has_endpoint(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    /// Name of an endpoint of ours.
    pub fn name(&self, id: EndpointId) -> Option<&[u8]> {
        self.endpoint(id).map(|it| &*it.name)
    }

    /// Name of an endpoint of a peer's, as the peer calls it.
    pub fn peer_name(&self, peer: PeerId) -> Option<&[u8]> {
        let link = self.links.get(usize::from(peer.link.place))?.as_ref();
        let link = link.filter(|link| link.id == peer.link)?;
        let remote = link.remote.get(peer.address as usize)?.as_ref()?;
        match &remote.who {
            link::Who::Name(name) if remote.generation == peer.generation => Some(name),
            _ => None,
        }
    }

    /// A RapidIO message that came to RIOCM's mailbox, as [`Riocm::receive`].
    #[inline]
    pub fn receive(&mut self, port: usize, source: u16, bytes: &[u8], now: Instant) {
        // In their order: what is not told yet is older.
        self.pump(now);
        match Data::single(bytes) {
            Some(single) => {
                let number = single.2.first_chunk().map(|it| u32::from_be_bytes(*it));
                let Node { riocm, pool, .. } = self;
                if let Some((cid, message)) = riocm.arrive_single(pool, port, source, single, now) {
                    let place = self.by_cid[usize::from(cid)];
                    let number = number.filter(|_| message.chain.len() >= NUMBER);
                    if message.destination != 0 {
                        self.handle_signal(place, message, number);
                    } else {
                        self.handle_rlnh(place, message);
                    }
                }
            }
            None => self.receive_other(port, source, bytes, now),
        }
        self.pump(now);
    }

    #[inline(never)]
    fn receive_other(&mut self, port: usize, source: u16, bytes: &[u8], now: Instant) {
        let Node { riocm, pool, .. } = self;
        if let Some((cid, message)) = riocm.arrive_other(pool, port, source, bytes, now) {
            self.handle_message(self.by_cid[usize::from(cid)], message);
        }
    }

    /// The next RapidIO message to send, as [`Riocm::poll_transmit`]; what is due is done first, for all links.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<riocm::Transmit<'_>> {
        self.poll(now);
        self.riocm.next_packet(&mut self.pool)
    }

    /// Whether messages are better left in the mailbox, as [`Riocm::is_congested`].
    pub fn is_congested(&self) -> bool {
        self.riocm.is_congested(&self.pool)
    }

    /// Does what is due.
    #[inline(always)]
    pub fn poll(&mut self, now: Instant) {
        self.riocm.poll(&mut self.pool, now);
        if self.timers.first().is_some_and(|at| at <= now) {
            self.poll_streams(now);
        }
        self.pump(now);
    }

    /// Timers of links over TCP.
    #[inline(never)]
    fn poll_streams(&mut self, now: Instant) {
        while let Some(place) = self.timers.take_due(now) {
            let Node { links, pool, rng, .. } = self;
            if let Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) =
                links.get_mut(place as usize)
            {
                tcp.timer(pool, rng, now);
            }
            self.settle(place as u16);
            self.pump_tcp(place as u16, now);
        }
    }

    /// When [`Node::poll`] is to be called, if nothing comes before.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        Instant::first([self.riocm.deadline(), self.timers.first()])
    }

    /// What is new.
    #[inline]
    pub fn next_event(&mut self, now: Instant) -> Option<Event> {
        if let Some(&Event::Signals(id)) = self.events.front() {
            self.events.pop_front();
            if let Some(endpoint) = self.endpoint_mut(id) {
                endpoint.has_news = false;
            }
            return Some(Event::Signals(id));
        }
        let event = self.events.pop_front()?;
        self.was_heard(event, now);
        Some(event)
    }

    /// The user hears of an event.
    #[inline(never)]
    fn was_heard(&mut self, event: Event, now: Instant) {
        match event {
            Event::Link(id) => {
                if let Some(link) = self.link_by_id(id) {
                    link.has_news = false;
                }
            }
            Event::Gone(peer) => self.was_told(peer, now),
            Event::Dropped(id) => {
                if let Some(endpoint) = self.endpoint_mut(id) {
                    endpoint.told_dropped = false;
                }
            }
            Event::Signals(_) | Event::Found { .. } | Event::Room(_) | Event::Sent { .. } => (),
        }
    }

    /// Takes what connections have told, until there is nothing more.
    #[inline(always)]
    fn pump(&mut self, now: Instant) {
        if self.riocm.has_events() {
            self.take_events(now);
        }
    }

    #[inline(never)]
    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.riocm.next_event() {
            let (connection, up) = match event {
                Riocmed::Message { connection, message } => (connection, Up::Message(message)),
                Riocmed::Connected(connection) => (connection, Up::Connected),
                Riocmed::Disconnected { connection, why, unsent } => {
                    (connection, Up::Disconnected { why, unsent })
                }
                Riocmed::Sent { connection, cookie, done } => {
                    (connection, Up::Sent { cookie, done })
                }
                Riocmed::Room(connection) => (connection, Up::Room),
            };
            let place = self.by_cid[usize::from(connection.cid())];
            self.handle(place, up, now);
        }
    }

    /// Something has happened to a link's connection.
    fn handle(&mut self, place: u16, up: Up, now: Instant) {
        match up {
            Up::Message(message) => self.handle_message(place, message),
            Up::Connected => self.handle_connected(place),
            Up::Disconnected { why, unsent } => self.handle_disconnected(place, why, unsent, now),
            Up::Sent { cookie, done } => self.events.push_back(Event::Sent { cookie, done }),
            Up::Room => {
                self.say(place);
                let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
                if link.control.is_empty() && core::mem::take(&mut link.wants_room) {
                    self.events.push_back(Event::Room(link.id));
                }
            }
        }
    }

    /// The link's user is told that it is up or down.
    fn tell_link(&mut self, place: u16) {
        let Node { links, events, .. } = self;
        if let Some(Some(link)) = links.get_mut(usize::from(place))
            && !core::mem::replace(&mut link.has_news, true)
        {
            events.push_back(Event::Link(link.id));
        }
    }

    /// Wants a link's connection.
    fn connect(&mut self, place: u16, now: Instant) {
        let Node { links, riocm, rng, .. } = self;
        match links.get_mut(usize::from(place)) {
            Some(Some(Link { is_removed: true, .. })) => (),
            Some(Some(Link { carrier: Carrier::Riocm(id), .. })) => {
                riocm.connect(*id);
            }
            Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) => tcp.connect(rng, now),
            _ => (),
        }
        self.settle(place);
    }

    /// Ends a link's connection.
    fn end_link(&mut self, place: u16, why: Down) {
        let Node { links, riocm, pool, .. } = self;
        match links.get_mut(usize::from(place)) {
            Some(Some(Link { carrier: Carrier::Riocm(id), .. })) => riocm.end_by(pool, *id, why),
            Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) => tcp.end(pool, why),
            _ => (),
        }
    }

    /// Hands a message to a link's connection.
    fn send_over(
        &mut self,
        place: u16,
        addresses: (u32, u32),
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let Node { links, riocm, pool, .. } = self;
        let Some(Some(link)) = links.get_mut(usize::from(place)) else {
            return Err(SendError::NotConnected);
        };
        match &mut link.carrier {
            Carrier::Riocm(id) => riocm.send(pool, *id, addresses, &[], bytes),
            Carrier::Tcp(tcp) => tcp.send(pool, addresses, [bytes, &[]]),
        }
    }

    #[inline]
    fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id.place as usize).filter(|it| it.id.generation == id.generation)
    }

    #[inline]
    fn endpoint_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(id.place as usize).filter(|it| it.id.generation == id.generation)
    }

    #[inline]
    fn link_by_id(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(usize::from(id.place))?.as_mut().filter(|it| it.id == id)
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

/// Whether bytes are a name.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&0)
}
