//! A LINX node: named endpoints, and links to other nodes over which endpoints find each other and exchange signals.
//! Implements RLNH over RIOCM and the TCP connection manager.

mod addresses;
mod control;
mod endpoints;
mod events;
mod hunts;
mod ids;
mod link;
mod links;
mod refused;
mod remotes;
mod signals;
mod streams;
#[cfg(test)]
mod tests;
mod wanted;
mod watch;

pub use events::Event;
pub use ids::{EndpointId, HuntId, LinkId, PeerId};
pub use link::{LinkConfig, LinkCounters, MOST_FEATURES, Phase, Transport};
pub use links::LinkStatus;
pub use refused::Refused;
pub use remotes::MOST_ADDRESSES;
pub use signals::{Origin, Sender, Signal};

use crate::pool::Pool;
use crate::riocm::{self, BadConfig, Event as RiocmEvent, Riocm};
use crate::rng::Rng;
use crate::tcpcm::{ConnectionEvent, StreamOrder};
use crate::wire::riocm::Data;
use crate::wire::rlnh::MAX_NAME;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::{Instant, Timers, Window};
use endpoints::Endpoint;
use hunts::Hunt;
use link::{Carrier, Link};
use signals::{NUMBER, Queued};
use slab::Slab;

/// A name: bytes without a zero byte. Tables share its memory.
type Name = Arc<[u8]>;
/// No signal.
const NONE: u32 = u32::MAX;

/// Configuration of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of links.
    pub links: usize,
    /// Maximum number of endpoints.
    pub endpoints: usize,
    /// Maximum number of local hunts at a time.
    pub hunts: usize,
    /// Bytes of memory of an endpoint's inbox. Signals beyond are dropped, counted and reported.
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

/// The node.
#[derive(Debug)]
pub struct Node {
    config: Config,
    pool: Pool,
    riocm: Riocm,
    links: Vec<Option<Link>>,
    /// Index of the link, by connection id.
    by_cid: Box<[u16; 256]>,
    endpoints: Slab<Endpoint>,
    by_name: BTreeMap<Name, u32>,
    /// Signals in inboxes, by the first piece of their memory.
    queued: Box<[Queued]>,
    hunts: Slab<Hunt>,
    /// Entries: link, name, index of the hunt.
    hunts_by_name: BTreeSet<(u16, Name, u32)>,
    /// Timers of streams, by index of the link; then timers of links.
    timers: Timers,
    /// Latest time passed by a caller.
    now: Instant,
    orders: VecDeque<(LinkId, StreamOrder)>,
    events: VecDeque<Event>,
    /// Counts links, endpoints, hunts and names of peers.
    number: u32,
    rng: Rng,
}

impl Node {
    /// A node. `memory` holds received and copied messages. `secret` is random.
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
            timers: Timers::with_room(2 * config.links.min(u16::MAX.into())),
            now: Instant::ZERO,
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
        self.now = self.now.max(now);
        self.riocm.remove_port(&mut self.pool, port);
        self.pump(now);
    }

    /// Handles a RapidIO message from RIOCM's mailbox, as [`Riocm::receive`].
    #[inline]
    pub fn receive(&mut self, port: usize, source: u16, bytes: &[u8], now: Instant) {
        self.now = self.now.max(now);
        match Data::single(bytes) {
            Some(single) if !self.riocm.has_events() => {
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
                self.pump(now);
            }
            _ => self.receive_other(port, source, bytes, now),
        }
    }

    #[inline(never)]
    fn receive_other(&mut self, port: usize, source: u16, bytes: &[u8], now: Instant) {
        // Pending events are older.
        self.pump(now);
        let Node { riocm, pool, .. } = self;
        if let Some((cid, message)) = riocm.arrive_other(pool, port, source, bytes, now) {
            self.handle_message(self.by_cid[usize::from(cid)], message);
        }
        self.pump(now);
    }

    /// The next RapidIO message to send, as [`Riocm::poll_transmit`]. Polls all links first.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<riocm::Transmit<'_>> {
        self.poll(now);
        self.riocm.next_packet(&mut self.pool)
    }

    /// Whether messages should be left in the mailbox, as [`Riocm::is_congested`].
    pub fn is_congested(&self) -> bool {
        self.riocm.is_congested(&self.pool)
    }

    /// Handles timers that are due.
    #[inline]
    pub fn poll(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.riocm.poll(&mut self.pool, now);
        if self.timers.first().is_some_and(|at| at <= now) {
            self.poll_timers(now);
        }
        self.pump(now);
    }

    /// Handles timers of links and of their streams.
    #[inline(never)]
    fn poll_timers(&mut self, now: Instant) {
        while let Some(place) = self.timers.take_due(now) {
            if let Some(link) = place.checked_sub(self.links.len()) {
                self.watch(link as u16, now);
                self.pump_tcp(link as u16, now);
                continue;
            }
            let Node { links, pool, rng, .. } = self;
            if let Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) = links.get_mut(place) {
                tcp.timer(pool, rng, now);
            }
            self.settle(place as u16);
            self.pump_tcp(place as u16, now);
        }
    }

    /// When [`Node::poll`] is due without other calls.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        Instant::first([self.riocm.deadline(), self.timers.first()])
    }

    /// Handles all pending events of connections.
    #[inline]
    fn pump(&mut self, now: Instant) {
        if self.riocm.has_events() {
            self.take_events(now);
        }
    }

    #[inline(never)]
    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.riocm.next_event() {
            let (connection, up) = match event {
                RiocmEvent::Message { connection, message } => {
                    (connection, ConnectionEvent::Message(message))
                }
                RiocmEvent::Connected(connection) => (connection, ConnectionEvent::Connected),
                RiocmEvent::Disconnected { connection, why, unsent } => {
                    (connection, ConnectionEvent::Disconnected { why, unsent })
                }
                RiocmEvent::Sent { connection, cookie, done } => {
                    (connection, ConnectionEvent::Sent { cookie, done })
                }
                RiocmEvent::Room(connection) => (connection, ConnectionEvent::Room),
            };
            let place = self.by_cid[usize::from(connection.cid())];
            self.handle(place, up, now);
        }
    }

    /// Handles an event of a link's connection.
    fn handle(&mut self, place: u16, event: ConnectionEvent, now: Instant) {
        match event {
            ConnectionEvent::Message(message) => self.handle_message(place, message),
            ConnectionEvent::Connected => self.handle_connected(place, now),
            ConnectionEvent::Disconnected { why, unsent } => {
                self.handle_disconnected(place, why, unsent, now)
            }
            ConnectionEvent::Sent { cookie, done } => {
                self.events.push_back(Event::Sent { cookie, done })
            }
            ConnectionEvent::Room => self.has_room(place),
        }
    }

    /// A link may have room to send again: sends RLNH messages first, then notifies the user.
    fn has_room(&mut self, place: u16) {
        self.send_control(place);
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        if link.control.is_empty() && core::mem::take(&mut link.wants_room) {
            self.events.push_back(Event::Room(link.id));
        }
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }
}

/// Whether bytes are a valid name.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(&0)
}
