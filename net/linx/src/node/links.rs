//! Links: adding and removing, their connections, and their status.

use super::link::{Carrier, Link, LinkConfig, LinkCounters, Phase, Transport};
use super::{LinkId, Node, Refused, is_name};
use crate::riocm::{self, Down, SendError};
use crate::tcpcm::TcpCm;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use drivers::hal::Instant;

/// Status of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// Phase.
    pub phase: Phase,
    /// RLNH version in use, while it is up.
    pub version: u32,
    /// Cause of its last end.
    pub why: Option<Down>,
    /// Messages not sent at its last end.
    pub unsent: usize,
    /// Local link addresses in use, and known names of the peer.
    pub addresses: (usize, usize),
    /// Names that the peer hunts for.
    pub hunts: usize,
    /// Features that the peer announced (`name:argument`, separated by commas): at most
    /// [`super::MOST_FEATURES`] bytes, with other bytes than visible ASCII escaped.
    pub features: String,
    /// Counters.
    pub counters: LinkCounters,
    /// Status of the RIOCM connection, if there is one.
    pub riocm: Option<riocm::Status>,
}

/// Longest message in bytes of a connection whose longest signal has `signal` bytes. RLNH's messages carry names, which
/// may be longer than signals, within the connection's memory.
fn longest_message(signal: u32, (receive, send): (usize, usize)) -> u32 {
    let names = (receive / 2).min(send).min(NAMES);
    signal.max(names as u32)
}

/// Longest message with a name in bytes, over any link.
const NAMES: usize = 64 << 10;

impl Node {
    /// Adds a link and starts to connect it.
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
                let mut connection = connection.clone();
                let memory = (connection.receive_bytes, connection.send_bytes);
                connection.max_message = longest_message(connection.max_message, memory);
                let id = self.riocm.create(&mut self.pool, &connection, now)?;
                self.by_cid[usize::from(id.cid())] = place as u16;
                Carrier::Riocm(id)
            }
            Transport::Tcp(connection) => {
                let mut connection = *connection;
                let memory = (connection.receive_bytes, connection.send_bytes);
                connection.max_message = longest_message(connection.max_message, memory);
                Carrier::Tcp(Box::new(TcpCm::new(&mut self.pool, connection)?))
            }
        };
        let id = LinkId { place: place as u16, number: self.next_number() };
        self.links[place] = Some(Link::new(id, config, carrier));
        self.connect(id.place, now);
        self.settle(id.place);
        Ok(id)
    }

    /// Removes a link. An established connection is closed.
    pub fn remove_link(&mut self, id: LinkId, now: Instant) {
        self.now = self.now.max(now);
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
        self.timers.set(self.links.len() + usize::from(id.place), None);
        self.forget_link_hunts(id.place);
        self.links[usize::from(id.place)] = None;
    }

    /// Ends a link's connection, and reconnects at once.
    pub fn restart_link(&mut self, id: LinkId, now: Instant) {
        self.now = self.now.max(now);
        if self.link_by_id(id).is_some() {
            self.end_link(id.place, Down::Asked);
            self.pump_tcp(id.place, now);
            self.pump(now);
            self.end_pause(id.place, now);
        }
    }

    /// Status of a link.
    pub fn link(&self, id: LinkId) -> Option<LinkStatus> {
        let link = self.links.get(usize::from(id.place))?.as_ref().filter(|it| it.id == id)?;
        Some(LinkStatus {
            name: (*link.name).into(),
            phase: link.phase,
            version: link.version,
            why: link.why,
            unsent: link.unsent,
            addresses: (link.local.taken(), link.remotes.count()),
            hunts: link.wanted.len(),
            features: link.features.escape_ascii().to_string(),
            counters: link.counters,
            riocm: match &link.carrier {
                Carrier::Riocm(id) => self.riocm.status(*id),
                Carrier::Tcp(_) => None,
            },
        })
    }

    /// Identifiers of all links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.iter().flatten().map(|link| link.id)
    }

    /// Starts to connect a link.
    pub(super) fn connect(&mut self, place: u16, now: Instant) {
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
    pub(super) fn end_link(&mut self, place: u16, why: Down) {
        let Node { links, riocm, pool, .. } = self;
        match links.get_mut(usize::from(place)) {
            Some(Some(Link { carrier: Carrier::Riocm(id), .. })) => riocm.end_by(pool, *id, why),
            Some(Some(Link { carrier: Carrier::Tcp(tcp), .. })) => tcp.end(pool, why),
            _ => (),
        }
    }

    /// Sends a message over a link's connection.
    pub(super) fn send_over(
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
    pub(super) fn link_by_id(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(usize::from(id.place))?.as_mut().filter(|it| it.id == id)
    }
}
