//! Peers: those in the configuration, and those registered by rendezvous. Each admitted peer has an endpoint.

use super::Usnic;
use super::exchange::Origin;
use super::process::Identity;
use super::services::Counts;
use crate::config::usnic::Service;
use crate::config::{self, Config};
use core::net::{IpAddr, Ipv4Addr};
use drivers::hal::Instant;
use messaging::usnic::PeerEnd;
use net::hosts::Hosts;
use usnic::ob1;
use usnic::wire::modex::Modex;
use usnic::{BadConfig, Delivery, EndpointConfig, EndpointId};

/// A peer.
pub(super) struct Peer {
    /// Index of its interface, here and in the engine.
    pub interface: usize,
    pub config: config::usnic::Peer,
    /// Source of its modex.
    pub origin: Origin,
    /// Its modex, if known.
    pub modex: Option<Modex>,
    /// None if it is not admitted.
    pub endpoint: Option<EndpointId>,
    /// Why not.
    pub not_admitted: Option<String>,
    pub counts: Counts,
    /// Index of its process, if it has an endpoint.
    pub process: Option<usize>,
}

impl Usnic {
    /// Applies the peers of the configuration. A peer whose settings stay keeps its endpoint.
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
            peer.origin.is_registered() || wanted.iter().any(same)
        };
        let (kept, gone): (Vec<Peer>, Vec<Peer>) =
            core::mem::take(&mut self.peers).into_iter().partition(stays);
        gone.into_iter().for_each(|peer| self.remove(peer));
        self.peers = kept;
        for (number, config) in wanted {
            let known = |peer: &Peer| peer.interface == number && peer.config == config;
            if !self.peers.iter().any(known) {
                let mut peer = self.new_peer(number, config);
                self.admit_known(&mut peer, now);
                self.peers.push(peer);
            }
        }
        self.exchanges.has_changed = true;
        self.index();
    }

    /// Returns a configured peer, without an endpoint.
    fn new_peer(&self, interface: usize, config: config::usnic::Peer) -> Peer {
        let ours = self.interfaces.get(interface).map(|interface| interface.ours.modex());
        let theirs = config.modex.as_ref().zip(ours.as_ref());
        let modex = theirs.and_then(|(theirs, ours)| theirs.at(ours));
        Peer::new(interface, config, modex)
    }

    /// Adds the endpoint of a peer with a configured modex, if it is admitted.
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

    /// Adds a peer's endpoint, if it is admitted.
    pub(super) fn admit(
        &mut self,
        peer: &mut Peer,
        config: EndpointConfig,
        now: Instant,
    ) -> Result<(), NotAdmitted> {
        let Usnic { engine, interfaces, memory, .. } = self;
        let Some(interface) = interfaces.get(config.interface) else { return Ok(()) };
        let services = &interface.config.services;
        let mirrors = services.contains(&Service::MpiMirror);
        let config = if mirrors { ob1::endpoint(config, *memory) } else { config };
        let address = config.modex.address;
        if !Hosts::new(interface.config.hosts.clone()).admits(IpAddr::V4(address)) {
            return Err(NotAdmitted::Hosts(address));
        }
        let endpoint = engine.add_endpoint(&config, now).map_err(NotAdmitted::Unfit)?;
        peer.endpoint = Some(endpoint);
        peer.modex = Some(config.modex);
        peer.not_admitted = None;
        let identity = Identity {
            ours: config.sender,
            theirs: config.peer_sender,
            registered_by: peer.origin.registered_by(),
            services: services.clone(),
            tag: interface.config.tag,
        };
        // An unknown speed counts as that of the other end.
        let speeds = [interface.ours.link_speed, config.modex.link_speed];
        let speed = speeds.into_iter().filter(|&speed| speed > 0).min().unwrap_or(10_000);
        let path = (endpoint, speed);
        peer.process = Some(self.join(identity, config.interface, path, &peer.config));
        Ok(())
    }

    pub(super) fn remove(&mut self, mut peer: Peer) {
        self.give_up(&mut peer);
        self.exchanges.end(&peer.origin);
    }

    /// Removes a peer's endpoint.
    pub(super) fn give_up(&mut self, peer: &mut Peer) {
        if let (Some(endpoint), Some(process)) = (peer.endpoint.take(), peer.process.take()) {
            self.leave(process, endpoint);
        }
    }

    /// Replaces a peer's endpoint, as if both sides had just started. If its modex was exchanged, its connection closes
    /// and the exchange repeats.
    pub(super) fn renew(&mut self, place: usize, now: Instant) {
        if place >= self.peers.len() {
            return;
        }
        let old = self.peers.remove(place);
        let (interface, config) = (old.interface, old.config.clone());
        let is_registered = old.origin.is_registered();
        self.remove(old);
        if !is_registered {
            let mut new = self.new_peer(interface, config);
            self.admit_known(&mut new, now);
            self.peers.insert(place, new);
        }
        self.index();
    }

    /// Returns the index of an endpoint's peer.
    pub(super) fn place_of_endpoint(&self, endpoint: EndpointId) -> Option<usize> {
        self.by_endpoint.get(&endpoint).copied()
    }

    /// Rebuilds the index of endpoints, and updates the peers of the rules.
    pub(super) fn index(&mut self) {
        let Usnic { engine, interfaces, peers, by_endpoint, ends, .. } = self;
        let all = peers.iter().enumerate();
        *by_endpoint = all.filter_map(|(place, peer)| Some((peer.endpoint?, place))).collect();
        let end = |peer: &Peer| {
            let interface = &interfaces.get(peer.interface)?.config;
            Some(PeerEnd {
                interface: interface.name.to_string(),
                peer: peer.config.name.to_string(),
                endpoint: peer.endpoint,
                others: peers
                    .iter()
                    .filter(|other| {
                        other.process == peer.process && other.endpoint != peer.endpoint
                    })
                    .filter_map(|other| other.endpoint)
                    .collect(),
                tag: interface.tag,
            })
        };
        ends.set_peers(&peers.iter().filter_map(end).collect::<Vec<_>>());
        // A replaced endpoint belongs to a rule as the old one did.
        let of_rules = peers.iter().filter_map(|peer| peer.endpoint);
        for endpoint in of_rules.filter(|endpoint| ends.has(*endpoint)) {
            engine.set_delivery(endpoint, Delivery::InOrder);
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
    /// Creates a peer without an endpoint.
    pub fn new(interface: usize, config: config::usnic::Peer, modex: Option<Modex>) -> Peer {
        let is_queried = config.rendezvous.is_some();
        Peer {
            interface,
            origin: if is_queried { Origin::requested() } else { Origin::Configured },
            modex,
            config,
            endpoint: None,
            not_admitted: None,
            counts: Counts::default(),
            process: None,
        }
    }
}
