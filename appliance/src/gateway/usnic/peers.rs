//! Peers: whom the configuration has, and who has come by rendezvous; each with its endpoint, if it may have one.

use super::exchange::Origin;
use super::services::Inbox;
use super::{SINK, SINK_ADDRESS, Usnic};
use crate::config::usnic::Service;
use crate::config::{self, Config};
use core::net::{IpAddr, Ipv4Addr};
use drivers::hal::{Arena, Instant, Window};
use messaging::usnic::PeerEnd;
use net::hosts::Hosts;
use usnic::ob1::{self, Rank};
use usnic::wire::modex::Modex;
use usnic::{BadConfig, EndpointConfig, EndpointId, Engine};

/// A peer.
pub(super) struct Peer {
    /// Number of its interface, here and in the engine.
    pub interface: usize,
    pub config: config::usnic::Peer,
    /// Where its modex comes from, and what that is, if it is known.
    pub origin: Origin,
    pub modex: Option<Modex>,
    /// None if it was not admitted.
    pub endpoint: Option<EndpointId>,
    /// Why not.
    pub not_admitted: Option<String>,
    pub inbox: Inbox,
    /// The rank of MPI that we are towards it.
    pub mirror: Option<Box<Rank>>,
    /// Where it can PUT.
    pub sink: Option<Window>,
}

impl Usnic {
    /// Brings the peers in line with the configuration. One whose settings stay keeps its endpoint.
    pub(super) fn follow(&mut self, config: &Config, now: Instant) {
        let mut wanted = Vec::new();
        for (number, interface) in self.interfaces.iter_mut().enumerate() {
            let named = config.usnic.iter().find(|usnic| usnic.name == interface.config.name);
            let peers = named.map_or(&[][..], |usnic| &usnic.peer);
            interface.config.peer.clear();
            wanted.extend(peers.iter().map(|peer| (number, peer.clone())));
        }
        let stays = |peer: &Peer| {
            let same =
                |(number, config): &(usize, _)| *number == peer.interface && *config == peer.config;
            peer.origin.has_come() || wanted.iter().any(same)
        };
        let (kept, gone): (Vec<Peer>, Vec<Peer>) =
            core::mem::take(&mut self.peers).into_iter().partition(stays);
        gone.into_iter().for_each(|peer| self.remove(peer));
        self.peers = kept;
        for (number, config) in wanted {
            let known = |peer: &Peer| peer.interface == number && peer.config == config;
            if !self.peers.iter().any(known) {
                let mut peer = Peer::new(number, config);
                self.admit_known(&mut peer, now);
                self.peers.push(peer);
            }
        }
        self.exchanges.has_news = true;
        self.index();
    }

    /// Makes the endpoint of a peer whose modex is configured, if it may be one.
    fn admit_known(&mut self, peer: &mut Peer, now: Instant) {
        let (Some(modex), Some(interface)) = (peer.modex, self.interfaces.get(peer.interface))
        else {
            return;
        };
        let config = interface.endpoint(peer.interface, peer.config.sender.0, modex);
        if let Err(why) = self.admit(peer, config, now) {
            log::error!("usnic peer {}: {why}", peer.config.name.as_str());
            peer.not_admitted = Some(why.to_string());
        }
    }

    /// Makes a peer's endpoint, if it may be one.
    pub(super) fn admit(
        &mut self,
        peer: &mut Peer,
        config: EndpointConfig,
        now: Instant,
    ) -> Result<(), NotAdmitted> {
        let Usnic { engine, interfaces, arena, memory, budget, .. } = self;
        let Some(interface) = interfaces.get(config.interface) else { return Ok(()) };
        let mirrors = interface.config.services.contains(&Service::MpiMirror);
        let config = if mirrors { ob1::endpoint(config, *memory) } else { config };
        let address = config.modex.address;
        if !Hosts::new(interface.config.hosts.clone()).admits(IpAddr::V4(address)) {
            return Err(NotAdmitted::Hosts(address));
        }
        let endpoint = engine.add_endpoint(&config, now).map_err(NotAdmitted::Unfit)?;
        peer.endpoint = Some(endpoint);
        peer.modex = Some(config.modex);
        peer.not_admitted = None;
        if interface.config.services.contains(&Service::PutSink) {
            peer.sink = grant_sink(engine, endpoint, arena, &peer.config);
        }
        if mirrors {
            peer.mirror = Some(Box::new(Rank::new(config.sender, budget)));
        } else {
            peer.inbox.reserve();
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, mut peer: Peer) {
        self.give_up(&mut peer);
        self.exchanges.end(&peer.origin);
    }

    /// Ends a peer's endpoint.
    pub(super) fn give_up(&mut self, peer: &mut Peer) {
        peer.clear(&mut self.engine, &mut self.budget);
        if let Some(endpoint) = peer.endpoint.take() {
            self.ends.forget(&mut self.engine, endpoint);
            self.engine.remove(endpoint);
        }
        if let Some(sink) = peer.sink.take() {
            self.arena.free(sink);
        }
    }

    /// Makes a peer's endpoint anew, as if both began. One that was exchanged is once more: its connection ends.
    pub(super) fn renew(&mut self, place: usize, now: Instant) {
        if place >= self.peers.len() {
            return;
        }
        let old = self.peers.remove(place);
        let (interface, config) = (old.interface, old.config.clone());
        let has_come = old.origin.has_come();
        self.remove(old);
        if !has_come {
            let mut new = Peer::new(interface, config);
            self.admit_known(&mut new, now);
            self.peers.insert(place, new);
        }
        self.index();
    }

    /// Where the peer of an endpoint is.
    pub(super) fn place_of_endpoint(&self, endpoint: EndpointId) -> Option<usize> {
        let found = self.by_endpoint.binary_search_by_key(&endpoint, |(endpoint, _)| *endpoint);
        self.by_endpoint.get(found.ok()?).map(|(_, place)| *place)
    }

    /// Makes the index of endpoints anew, and tells rules of the peers.
    pub(super) fn index(&mut self) {
        let Usnic { interfaces, peers, by_endpoint, ends, .. } = self;
        by_endpoint.clear();
        for (place, peer) in peers.iter().enumerate() {
            if let Some(endpoint) = peer.endpoint {
                let at = by_endpoint.partition_point(|(other, _)| *other < endpoint);
                by_endpoint.insert(at, (endpoint, place));
            }
        }
        let end = |peer: &Peer| {
            let interface = &interfaces.get(peer.interface)?.config;
            Some(PeerEnd {
                interface: interface.name.to_string(),
                peer: peer.config.name.to_string(),
                endpoint: peer.endpoint,
                tag: interface.tag,
            })
        };
        ends.set_peers(&peers.iter().filter_map(end).collect::<Vec<_>>());
    }
}

/// Lets a peer PUT into memory of its own.
fn grant_sink(
    engine: &mut Engine,
    endpoint: EndpointId,
    arena: &mut Arena,
    peer: &config::usnic::Peer,
) -> Option<Window> {
    let Some(memory) = arena.alloc(SINK, 4096) else {
        log::error!("usnic peer {}: no memory is left that it could PUT into", peer.name.as_str());
        return None;
    };
    memory.fill(0);
    match engine.grant(endpoint, SINK_ADDRESS, memory) {
        Ok(()) => Some(memory),
        Err(why) => {
            log::error!("usnic peer {}: {why}", peer.name.as_str());
            arena.free(memory);
            None
        }
    }
}

/// Why a peer has no endpoint.
pub(super) enum NotAdmitted {
    Hosts(Ipv4Addr),
    Unfit(BadConfig),
}

impl core::fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NotAdmitted::Hosts(address) => {
                write!(f, "{address} is in none of the networks in `hosts`")
            }
            NotAdmitted::Unfit(why) => why.fmt(f),
        }
    }
}

impl Peer {
    /// As it is configured, without an endpoint.
    pub fn new(interface: usize, config: config::usnic::Peer) -> Peer {
        let asked = config.rendezvous.is_some();
        Peer {
            interface,
            origin: if asked { Origin::asked() } else { Origin::Configured },
            modex: config.modex,
            config,
            endpoint: None,
            not_admitted: None,
            inbox: Inbox::default(),
            mirror: None,
            sink: None,
        }
    }
}
