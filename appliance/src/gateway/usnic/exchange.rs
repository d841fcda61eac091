//! Peers that exchange their modexes over TCP (`rendezvous`): those that register here, and those that we query.
//!
//! Such an endpoint lives as long as its connection. Unless `isn` is configured, each endpoint has its own first
//! sequence number, so that datagrams still in flight from an earlier run of either side are not accepted as new.

use super::peers::{NotAdmitted, Peer};
use super::{ENDPOINTS, Interface, Usnic};
use crate::config;
use crate::gateway::rendezvous::exchange::{Answer, Exchange};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::Hosts;
use net::refusal::Refusal;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use usnic::wire::modex::Modex;
use usnic::wire::rendezvous::{ANY_NAME, Kind, LENGTH, MOST_TEXT, Record, Refused};
use usnic::{BadConfig, EndpointConfig};

/// Delays before another query of a peer that did not reply: the first, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(30);
/// Most peers that one host may register. It leaves places for others.
const MOST_OF_A_HOST: usize = ENDPOINTS - ENDPOINTS / 4;

/// Source of a peer's modex.
pub(super) enum Origin {
    /// The configuration.
    Configured,
    /// A host registered it over the connection with this name.
    Registered(u64, Ipv4Addr),
    /// We query the peer for it.
    Requested(Requested),
}

/// State of the query for a peer's modex.
pub(super) struct Requested {
    connection: Option<u64>,
    /// Our first sequence number, as sent to the peer.
    isn: u16,
    /// When to query next if there is no connection.
    at: Instant,
    /// Delay before the query after that.
    pause: Duration,
}

impl Origin {
    pub fn requested() -> Origin {
        Origin::Requested(Requested { connection: None, isn: 0, at: Instant::ZERO, pause: RETRY })
    }

    /// Whether a host registered it. Such a peer is not in the configuration.
    pub fn is_registered(&self) -> bool {
        matches!(self, Origin::Registered(..))
    }

    /// The host that registered it.
    pub fn registered_by(&self) -> Option<Ipv4Addr> {
        match self {
            Origin::Registered(_, by) => Some(*by),
            Origin::Configured | Origin::Requested(_) => None,
        }
    }

    /// The connection that keeps its endpoint alive.
    pub fn connection(&self) -> Option<u64> {
        match self {
            Origin::Configured => None,
            Origin::Registered(connection, _) => Some(*connection),
            Origin::Requested(query) => query.connection,
        }
    }
}

/// State of all exchanges.
pub(super) struct Exchanges {
    /// Connections to close.
    closing: Vec<u64>,
    /// There are new connections to open or to close.
    pub has_changed: bool,
    rng: ChaCha12Rng,
}

impl Exchanges {
    pub fn new(seed: [u8; 32]) -> Self {
        Exchanges { closing: Vec::new(), has_changed: true, rng: ChaCha12Rng::from_seed(seed) }
    }

    /// Returns the first sequence number for a peer. A configured one may be known to several peers.
    fn isn(&mut self, interface: &Interface) -> u16 {
        interface.config.isn.unwrap_or(self.rng.next_u32() as u16)
    }

    /// Closes the connection of a peer, if it has one. Both sides start over then.
    pub fn end(&mut self, origin: &Origin) {
        self.closing.extend(origin.connection());
        self.has_changed = true;
    }
}

impl Usnic {
    fn peer_of(&mut self, connection: u64) -> Option<usize> {
        self.peers.iter().position(|peer| peer.origin.connection() == Some(connection))
    }

    /// Handles a request. Returns the reply.
    fn take_request(
        &mut self,
        connection: u64,
        number: usize,
        from: Ipv4Addr,
        bytes: &[u8; LENGTH],
        now: Instant,
    ) -> Result<Record, (Refused, String)> {
        let malformed = |why: String| (Refused::Malformed, why);
        let record = Record::parse(bytes).map_err(|why| malformed(why.to_string()))?;
        let (Kind::Request, Some(modex)) = (record.kind, record.modex) else {
            return Err(malformed("a reply arrived in place of a request".into()));
        };
        let Some(interface) = self.interfaces.get(number) else {
            return Err(malformed("there is no such interface".into()));
        };
        // Only an admitted host may register peers.
        if !Hosts::new(interface.config.hosts.clone()).admits(IpAddr::V4(from)) {
            return Err((Refused::NotAdmitted, NotAdmitted::Hosts(from).to_string()));
        }
        let number = self.paired(number, &modex);
        let taken = self.peers.iter().position(|peer| shares_ports(peer, number, &modex));
        match taken.and_then(|place| self.peers.get(place)).map(|peer| (peer, &peer.origin)) {
            // The peer has restarted, and its old connection is still open here.
            Some((_, Origin::Registered(_, by))) if *by == from || modex.address == from => {
                self.drop_peer(taken);
            }
            Some((_, Origin::Registered(_, by))) => {
                let why = format!("{by} has registered a peer with these ports; still connected");
                return Err((Refused::Unfit, why));
            }
            Some((peer, _)) => {
                let name = peer.config.name.as_str();
                let why = format!("the appliance's configuration has this modex, of peer {name:?}");
                return Err((Refused::Unfit, why));
            }
            None => {}
        }
        let of_host = |peer: &&Peer| matches!(peer.origin, Origin::Registered(_, by) if by == from);
        if self.peers.iter().filter(of_host).count() >= MOST_OF_A_HOST {
            let why = format!(
                "{from} has registered {MOST_OF_A_HOST} of {ENDPOINTS} peers; the rest is for other hosts"
            );
            return Err((Refused::Full, why));
        }
        let Usnic { interfaces, exchanges, .. } = self;
        let Some(interface) = interfaces.get(number) else {
            return Err(malformed("there is no such interface".into()));
        };
        let isn = exchanges.isn(interface);
        let sender = match record.receiver {
            ANY_NAME => interface.config.sender.0,
            name => name,
        };
        let config = EndpointConfig {
            sender,
            isn: Some(isn),
            layout: record.layout,
            ..interface.endpoint(number, record.sender, modex)
        };
        let ours = interface.modex_with(isn);
        let Ok(name) = format!("{}-{}", modex.address, modex.data_port).parse() else {
            return Err(malformed("it has no name".into()));
        };
        let registered = config::usnic::Peer {
            name,
            sender: config::usnic::Sender(record.sender),
            modex: Some(config::usnic::PeerModex(vec![modex])),
            rendezvous: None,
        };
        let mut peer = Peer::new(number, registered, Some(modex));
        peer.origin = Origin::Registered(connection, from);
        self.admit(&mut peer, config, now).map_err(|why| {
            let code = match &why {
                NotAdmitted::Hosts(_) => Refused::NotAdmitted,
                NotAdmitted::Unfit(BadConfig::Full) => Refused::Full,
                NotAdmitted::Unfit(_) => Refused::Unfit,
            };
            (code, why.to_string())
        })?;
        log::info!("usnic peer {}: registered by rendezvous", peer.config.name.as_str());
        self.peers.push(peer);
        self.index();
        let (sender, receiver) = (config.sender, record.sender);
        let layout = record.layout;
        Ok(Record { kind: Kind::Taken, layout, sender, receiver, modex: Some(ours) })
    }

    /// Handles the reply of a queried peer.
    fn take_reply(
        &mut self,
        place: usize,
        bytes: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> Result<(), String> {
        let record = Record::parse(bytes).map_err(|why| format!("malformed reply: {why}"))?;
        let modex = match (record.kind, record.modex) {
            (Kind::Refused(code, _), _) => {
                let text = String::from_utf8_lossy(text);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                return Err(format!("it refuses us (code {code}): {text}"));
            }
            (Kind::Taken, Some(modex)) => modex,
            _ => return Err("it replied with a request".into()),
        };
        let peer = self.peers.get(place).ok_or("it is not a peer any more")?;
        let (number, Origin::Requested(query)) = (peer.interface, &peer.origin) else {
            return Err("it was not queried".into());
        };
        let queried = peer.config.rendezvous.map(|at| at.ip());
        if queried != Some(IpAddr::V4(modex.address)) {
            return Err(format!("its modex has another address, {}", modex.address));
        }
        let expected = peer.config.sender.0;
        if record.sender != expected {
            let name = config::usnic::Sender(record.sender);
            return Err(format!("its sender is {name}, but `sender` is {}", peer.config.sender));
        }
        let isn = query.isn;
        let interface = self.interfaces.get(number).ok_or("there is no such interface")?;
        let config = EndpointConfig {
            isn: Some(isn),
            layout: record.layout,
            ..interface.endpoint(number, expected, modex)
        };
        let mut peer = self.peers.remove(place);
        self.give_up(&mut peer);
        let made = self.admit(&mut peer, config, now).map_err(|why| why.to_string());
        if let (Ok(()), Origin::Requested(query)) = (&made, &mut peer.origin) {
            query.pause = RETRY;
            log::info!("usnic peer {}: modex {modex}", peer.config.name.as_str());
        }
        self.peers.insert(place, peer);
        self.index();
        made
    }

    /// Returns which of our interfaces goes with that of a peer: the one that got the request, unless another of the
    /// same process is in the peer's network and has rendezvous, too. So one host can register a process with several
    /// interfaces.
    fn paired(&self, requested: usize, modex: &Modex) -> usize {
        let fits = |one: &Interface| one.ours.modex().is_together_with(modex);
        let Some(known) = self.interfaces.get(requested).filter(|one| !fits(one)) else {
            return requested;
        };
        let sender = known.config.sender;
        let is_it = |one: &Interface| {
            one.config.rendezvous.is_some() && one.config.sender == sender && fits(one)
        };
        self.interfaces.iter().position(is_it).unwrap_or(requested)
    }

    fn drop_peer(&mut self, place: Option<usize>) {
        if let Some(place) = place.filter(|&place| place < self.peers.len()) {
            let peer = self.peers.remove(place);
            self.remove(peer);
            self.index();
        }
    }
}

impl Interface {
    /// Returns our modex with this first sequence number.
    fn modex_with(&self, isn: u16) -> Modex {
        Modex { isn, ..self.ours.modex() }
    }
}

/// Returns whether a peer has one of the ports of a modex.
fn shares_ports(peer: &Peer, interface: usize, modex: &Modex) -> bool {
    let Some(known) = peer.modex.filter(|_| peer.interface == interface) else { return false };
    let ports = [modex.data_port, modex.priority_port];
    known.address == modex.address
        && [known.data_port, known.priority_port].iter().any(|port| ports.contains(port))
}

impl Exchange for Usnic {
    fn listen_ports(&self) -> Vec<(usize, u16)> {
        let all = self.interfaces.iter();
        all.filter_map(|one| Some((one.port, one.config.rendezvous?))).collect()
    }

    fn next_peer(&mut self, connection: u64, now: Instant) -> Option<(usize, SocketAddr)> {
        let Usnic { interfaces, peers, exchanges, .. } = self;
        for peer in peers {
            let Origin::Requested(query) = &mut peer.origin else { continue };
            if query.connection.is_none() && query.at <= now {
                let interface = interfaces.get(peer.interface)?;
                query.connection = Some(connection);
                query.isn = exchanges.isn(interface);
                return Some((interface.port, peer.config.rendezvous?));
            }
        }
        None
    }

    fn deadline(&self) -> Option<Instant> {
        let due = |peer: &Peer| match &peer.origin {
            Origin::Requested(Requested { connection: None, at, .. }) => Some(*at),
            _ => None,
        };
        self.peers.iter().filter_map(due).min()
    }

    fn request(&mut self, connection: u64) -> Option<[u8; LENGTH]> {
        let place = self.peer_of(connection)?;
        let peer = self.peers.get(place)?;
        let Origin::Requested(query) = &peer.origin else { return None };
        let interface = self.interfaces.get(peer.interface)?;
        let record = Record {
            kind: Kind::Request,
            layout: interface.config.layout.0,
            sender: interface.config.sender.0,
            receiver: peer.config.sender.0,
            modex: Some(interface.modex_with(query.isn)),
        };
        Some(record.emit())
    }

    fn handle_request(
        &mut self,
        connection: u64,
        (place, port): (usize, u16),
        from: IpAddr,
        record: &[u8; LENGTH],
        now: Instant,
    ) -> Answer {
        let is_it = |one: &Interface| one.port == place && one.config.rendezvous == Some(port);
        let found = self.interfaces.iter().position(is_it);
        let refused = match (found, from.to_canonical()) {
            (Some(number), IpAddr::V4(from)) => {
                self.take_request(connection, number, from, record, now)
            }
            _ => Err((Refused::NotAdmitted, "usNIC has no IPv6".into())),
        };
        let (code, mut text) = match refused {
            Ok(record) => return Answer { bytes: record.emit().into(), stays: true },
            Err(refused) => refused,
        };
        self.refusals.push(Refusal {
            who: Some(from),
            what: "usnic",
            asked: format!("rendezvous at TCP port {port}"),
            reason: "not_taken",
            advice: text.clone().into(),
        });
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        let kind = Kind::Refused(code as u8, text.len() as u16);
        let layout = usnic::wire::header::Layout::V4;
        let record = Record { kind, layout, sender: 0, receiver: 0, modex: None };
        Answer { bytes: [&record.emit()[..], text.as_bytes()].concat(), stays: false }
    }

    fn handle_reply(
        &mut self,
        connection: u64,
        record: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> bool {
        let Some(place) = self.peer_of(connection) else { return false };
        let Err(why) = self.take_reply(place, record, text, now) else { return true };
        if let Some(peer) = self.peers.get_mut(place)
            && peer.not_admitted.as_ref() != Some(&why)
        {
            log::warn!("usnic peer {}: {why}", peer.config.name.as_str());
            peer.not_admitted = Some(why);
        }
        false
    }

    fn connection_ended(&mut self, connection: u64, now: Instant) {
        let Some(place) = self.peer_of(connection) else { return };
        let mut peer = self.peers.remove(place);
        let name = peer.config.name.to_string();
        if peer.endpoint.is_some() {
            log::info!("usnic peer {name}: rendezvous connection closed: endpoint removed");
        }
        self.give_up(&mut peer);
        if let Origin::Requested(query) = &mut peer.origin {
            query.connection = None;
            query.at = now + query.pause;
            query.pause = (2 * query.pause).min(RETRY_MOST);
            peer.modex = None;
            let why = || format!("{:?} does not answer", peer.config.rendezvous);
            peer.not_admitted.get_or_insert_with(why);
            self.peers.insert(place, peer);
        }
        self.index();
    }

    fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.exchanges.has_changed)
    }

    fn take_closed(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.exchanges.closing)
    }
}
