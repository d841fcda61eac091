//! Peers whose modexes are exchanged over TCP (`rendezvous`): those that come by themselves, and those that we ask.
//!
//! An endpoint made so lives as long as its connection. Unless `isn` is configured, each has a first sequence number of
//! its own, so that nothing on the way from an earlier life of either side is taken for news.

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
use rand_core::{RngCore, SeedableRng};
use usnic::wire::modex::Modex;
use usnic::wire::rendezvous::{ANY_NAME, Kind, LENGTH, MOST_TEXT, Record, Refused};
use usnic::{BadConfig, EndpointConfig};

/// When a peer that did not answer is asked again: ever later.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// Peers that one host may tell of: others find a place whatever it does.
const MOST_OF_A_HOST: usize = ENDPOINTS - ENDPOINTS / 4;

/// Where a peer's modex comes from.
pub(super) enum Origin {
    /// The configuration.
    Configured,
    /// It came over a connection of this name, from a host.
    Came(u64, Ipv4Addr),
    /// It is asked for.
    Asked(Asked),
}

/// A peer that is asked for its modex.
pub(super) struct Asked {
    connection: Option<u64>,
    /// Our first sequence number, as it was told to the peer.
    isn: u16,
    /// When it is asked next, if there is no connection, and how long after that.
    at: Instant,
    pause: Duration,
}

impl Origin {
    pub fn asked() -> Origin {
        Origin::Asked(Asked { connection: None, isn: 0, at: Instant::ZERO, pause: AGAIN })
    }

    /// Whether it has come by itself, and is in no configuration.
    pub fn has_come(&self) -> bool {
        matches!(self, Origin::Came(..))
    }

    /// The host that has told of it, if it has come by itself.
    pub fn told_by(&self) -> Option<Ipv4Addr> {
        match self {
            Origin::Came(_, by) => Some(*by),
            Origin::Configured | Origin::Asked(_) => None,
        }
    }

    /// The connection that its endpoint lives as long as.
    pub fn connection(&self) -> Option<u64> {
        match self {
            Origin::Configured => None,
            Origin::Came(connection, _) => Some(*connection),
            Origin::Asked(asked) => asked.connection,
        }
    }
}

/// What is kept for exchanges.
pub(super) struct Exchanges {
    /// Connections that are to be ended.
    over: Vec<u64>,
    /// That there are some, or that a peer is to be asked, has not been heard yet.
    pub has_news: bool,
    rng: ChaCha12Rng,
}

impl Exchanges {
    pub fn new(seed: [u8; 32]) -> Self {
        Exchanges { over: Vec::new(), has_news: true, rng: ChaCha12Rng::from_seed(seed) }
    }

    /// The first sequence number for a peer: the configured one, which others may have been told before.
    fn isn(&mut self, interface: &Interface) -> u16 {
        interface.config.isn.unwrap_or(self.rng.next_u32() as u16)
    }

    /// Ends the connection of a peer, if it has one: both begin anew then.
    pub fn end(&mut self, origin: &Origin) {
        self.over.extend(origin.connection());
        self.has_news = true;
    }
}

impl Usnic {
    fn peer_of(&mut self, connection: u64) -> Option<usize> {
        self.peers.iter().position(|peer| peer.origin.connection() == Some(connection))
    }

    /// Takes a request.
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
            return Err(malformed("an answer came where a request belongs".into()));
        };
        let Some(interface) = self.interfaces.get(number) else {
            return Err(malformed("there is no such interface".into()));
        };
        // Who introduces another has to be one of those who may be peers.
        if !Hosts::new(interface.config.hosts.clone()).admits(IpAddr::V4(from)) {
            return Err((Refused::NotAdmitted, NotAdmitted::Hosts(from).to_string()));
        }
        let number = self.paired(number, &modex);
        let taken = self.peers.iter().position(|peer| shares_ports(peer, number, &modex));
        match taken.and_then(|place| self.peers.get(place)).map(|peer| (peer, &peer.origin)) {
            // It has begun anew, and its old connection has not noticed.
            Some((_, Origin::Came(_, by))) if *by == from || modex.address == from => {
                self.drop_peer(taken);
            }
            Some((_, Origin::Came(_, by))) => {
                let why = format!("{by} has told of a peer with these ports, and is still there");
                return Err((Refused::Unfit, why));
            }
            Some((peer, _)) => {
                let name = peer.config.name.as_str();
                let why = format!("the appliance's configuration has this modex, of peer {name:?}");
                return Err((Refused::Unfit, why));
            }
            None => {}
        }
        let of_host = |peer: &&Peer| matches!(peer.origin, Origin::Came(_, by) if by == from);
        if self.peers.iter().filter(of_host).count() >= MOST_OF_A_HOST {
            let why = format!(
                "{from} has told of {MOST_OF_A_HOST} peers; the other places of {ENDPOINTS} are for others"
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
        let ours = interface.told(isn);
        let Ok(name) = format!("{}-{}", modex.address, modex.data_port).parse() else {
            return Err(malformed("it has no name".into()));
        };
        let told = config::usnic::Peer {
            name,
            sender: config::usnic::Sender(record.sender),
            modex: Some(config::usnic::PeerModex(vec![modex])),
            rendezvous: None,
        };
        let mut peer = Peer::new(number, told, Some(modex));
        peer.origin = Origin::Came(connection, from);
        self.admit(&mut peer, config, now).map_err(|why| {
            let code = match &why {
                NotAdmitted::Hosts(_) => Refused::NotAdmitted,
                NotAdmitted::Unfit(BadConfig::Full) => Refused::Full,
                NotAdmitted::Unfit(_) => Refused::Unfit,
            };
            (code, why.to_string())
        })?;
        log::info!("usnic peer {}: has come by rendezvous", peer.config.name.as_str());
        self.peers.push(peer);
        self.index();
        let (sender, receiver) = (config.sender, record.sender);
        let layout = record.layout;
        Ok(Record { kind: Kind::Taken, layout, sender, receiver, modex: Some(ours) })
    }

    /// Takes the answer of a peer that was asked.
    fn take_answer(
        &mut self,
        place: usize,
        bytes: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> Result<(), String> {
        let record = Record::parse(bytes).map_err(|why| format!("it answers nonsense: {why}"))?;
        let modex = match (record.kind, record.modex) {
            (Kind::Refused(code, _), _) => {
                let text = String::from_utf8_lossy(text);
                let text: String = text.chars().filter(|c| !c.is_control()).collect();
                return Err(format!("it refuses us (code {code}): {text}"));
            }
            (Kind::Taken, Some(modex)) => modex,
            _ => return Err("it answers with a request".into()),
        };
        let peer = self.peers.get(place).ok_or("it is no peer any more")?;
        let (number, Origin::Asked(asked)) = (peer.interface, &peer.origin) else {
            return Err("it was not asked".into());
        };
        let asks = peer.config.rendezvous.map(|at| at.ip());
        if asks != Some(IpAddr::V4(modex.address)) {
            return Err(format!("its modex has another address, {}", modex.address));
        }
        let told = peer.config.sender.0;
        if record.sender != told {
            let name = config::usnic::Sender(record.sender);
            return Err(format!("it calls itself {name}, and `sender` is {}", peer.config.sender));
        }
        let isn = asked.isn;
        let interface = self.interfaces.get(number).ok_or("there is no such interface")?;
        let config = EndpointConfig {
            isn: Some(isn),
            layout: record.layout,
            ..interface.endpoint(number, told, modex)
        };
        let mut peer = self.peers.remove(place);
        self.give_up(&mut peer);
        let made = self.admit(&mut peer, config, now).map_err(|why| why.to_string());
        if let (Ok(()), Origin::Asked(asked)) = (&made, &mut peer.origin) {
            asked.pause = AGAIN;
            log::info!("usnic peer {}: modex {modex}", peer.config.name.as_str());
        }
        self.peers.insert(place, peer);
        self.index();
        made
    }

    /// Which interface of ours goes with a peer's: the one that was asked, unless another in the peer's network can be
    /// asked as well, and is the same process's. So one host can tell of a process that has several.
    fn paired(&self, asked: usize, modex: &Modex) -> usize {
        let fits = |one: &Interface| one.ours.modex().is_together_with(modex);
        let Some(known) = self.interfaces.get(asked).filter(|one| !fits(one)) else { return asked };
        let sender = known.config.sender;
        let is_it = |one: &Interface| {
            one.config.rendezvous.is_some() && one.config.sender == sender && fits(one)
        };
        self.interfaces.iter().position(is_it).unwrap_or(asked)
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
    /// Our modex with a first sequence number of its own.
    fn told(&self, isn: u16) -> Modex {
        Modex { isn, ..self.ours.modex() }
    }
}

/// Whether a peer has one of the ports of a modex.
fn shares_ports(peer: &Peer, interface: usize, modex: &Modex) -> bool {
    let Some(known) = peer.modex.filter(|_| peer.interface == interface) else { return false };
    let ports = [modex.data_port, modex.priority_port];
    known.address == modex.address
        && [known.data_port, known.priority_port].iter().any(|port| ports.contains(port))
}

impl Exchange for Usnic {
    fn listens(&self) -> Vec<(usize, u16)> {
        let all = self.interfaces.iter();
        all.filter_map(|one| Some((one.port, one.config.rendezvous?))).collect()
    }

    fn wants(&mut self, connection: u64, now: Instant) -> Option<(usize, SocketAddr)> {
        let Usnic { interfaces, peers, exchanges, .. } = self;
        for peer in peers {
            let Origin::Asked(asked) = &mut peer.origin else { continue };
            if asked.connection.is_none() && asked.at <= now {
                let interface = interfaces.get(peer.interface)?;
                asked.connection = Some(connection);
                asked.isn = exchanges.isn(interface);
                return Some((interface.port, peer.config.rendezvous?));
            }
        }
        None
    }

    fn deadline(&self) -> Option<Instant> {
        let due = |peer: &Peer| match &peer.origin {
            Origin::Asked(Asked { connection: None, at, .. }) => Some(*at),
            _ => None,
        };
        self.peers.iter().filter_map(due).min()
    }

    fn request(&mut self, connection: u64) -> Option<[u8; LENGTH]> {
        let place = self.peer_of(connection)?;
        let peer = self.peers.get(place)?;
        let Origin::Asked(asked) = &peer.origin else { return None };
        let interface = self.interfaces.get(peer.interface)?;
        let record = Record {
            kind: Kind::Request,
            layout: interface.config.layout.0,
            sender: interface.config.sender.0,
            receiver: peer.config.sender.0,
            modex: Some(interface.told(asked.isn)),
        };
        Some(record.emit())
    }

    fn asked(
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

    fn answered(
        &mut self,
        connection: u64,
        record: &[u8; LENGTH],
        text: &[u8],
        now: Instant,
    ) -> bool {
        let Some(place) = self.peer_of(connection) else { return false };
        let Err(why) = self.take_answer(place, record, text, now) else { return true };
        if let Some(peer) = self.peers.get_mut(place)
            && peer.not_admitted.as_ref() != Some(&why)
        {
            log::warn!("usnic peer {}: {why}", peer.config.name.as_str());
            peer.not_admitted = Some(why);
        }
        false
    }

    fn ended(&mut self, connection: u64, now: Instant) {
        let Some(place) = self.peer_of(connection) else { return };
        let mut peer = self.peers.remove(place);
        let name = peer.config.name.to_string();
        if peer.endpoint.is_some() {
            log::info!("usnic peer {name}: its rendezvous has ended, and so does its endpoint");
        }
        self.give_up(&mut peer);
        if let Origin::Asked(asked) = &mut peer.origin {
            asked.connection = None;
            asked.at = now + asked.pause;
            asked.pause = (2 * asked.pause).min(AGAIN_MOST);
            peer.modex = None;
            let why = || format!("{:?} does not answer", peer.config.rendezvous);
            peer.not_admitted.get_or_insert_with(why);
            self.peers.insert(place, peer);
        }
        self.index();
    }

    fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.exchanges.has_news)
    }

    fn take_over(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.exchanges.over)
    }
}
