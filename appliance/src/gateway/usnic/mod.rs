//! usNIC over the ports of a plane: the engine, its peers, and the services for their messages.

mod exchange;
mod mpi_mirror;
mod orders;
mod peers;
mod process;
mod services;
#[cfg(test)]
mod tests;

use super::ports::PlanePort;
use super::rendezvous::exchange::Exchange;
use super::udp_engine::{MOST_HEAD, Outgoing, UdpEngine};
use crate::config::usnic::Service;
use crate::config::{self, Config};
use crate::console::{Managed, Progress, UsnicVerb};
use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use drivers::hal::{Arena, Instant, UdpFlow};
use exchange::Exchanges;
use management::status::{MpiStatus, UsnicPeer, UsnicStatus};
use messaging::usnic::{UsnicEnds, UsnicTransport};
use net::datagram::Datagram;
use net::refusal::{Refusal, Refusals};
use orders::Order;
use peers::Peer;
use process::Process;
use rand_core::Rng;
use std::collections::BTreeMap;
use usnic::ob1::{self, Budget};
use usnic::wire::header::MAX_HEADER;
use usnic::wire::modex::Modex;
use usnic::{Channel, Delivery, EndpointConfig, EndpointId, Engine, InterfaceConfig, Timing};

/// Memory for messages, if four times as much is free. The longest message is a quarter of it.
const MEMORY: usize = 64 << 20;
/// With less memory there is no usNIC.
const LEAST_MEMORY: usize = 1 << 20;
/// Memory for the PUTs of a peer.
const SINK: usize = 1 << 20;
/// Address that peers use for it.
const SINK_ADDRESS: u64 = 1 << 40;
/// Most queued messages of a peer in each direction.
const MESSAGES: usize = 256;
/// Most endpoints of an interface, with peers added later.
const ENDPOINTS: usize = 64;

const _: () = assert!(MAX_HEADER <= MOST_HEAD);

/// An interface: a `[[usnic]]`.
struct Interface {
    /// Its section when the appliance started, with the current peers.
    config: config::usnic::Usnic,
    /// Index of the port.
    port: usize,
    /// Its parameters in the engine.
    ours: InterfaceConfig,
    /// Longest packet that the network of the port passes, in bytes.
    passes: u16,
}

/// usNIC on a plane.
pub(super) struct Usnic {
    engine: Engine,
    interfaces: Vec<Interface>,
    peers: Vec<Peer>,
    /// The processes of the peers, by index.
    processes: Vec<Option<Process>>,
    /// Indices in `peers`.
    by_endpoint: BTreeMap<EndpointId, usize>,
    arena: Arena,
    refusals: Refusals,
    order: Option<Order>,
    exchanges: Exchanges,
    /// Bytes of the engine's memory.
    memory: usize,
    /// Its share for MPI messages that arrive in fragments.
    budget: Budget,
    /// Index of the process that is first in line for that share.
    turn: usize,
    /// When to reclaim unused reservations of it.
    reclaims: Option<Instant>,
    /// Its ends of the rules.
    ends: UsnicEnds,
}

impl Usnic {
    /// Creates the engine of the configuration. Returns None if none is configured, or it is not available (logged).
    pub fn of(
        config: &Config,
        ports: &[PlanePort],
        place_of: &dyn Fn(usize) -> Option<usize>,
        arena: &mut Arena,
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Option<Usnic> {
        if config.usnic.is_empty() {
            return None;
        }
        let mirrors = |usnic: &config::usnic::Usnic| usnic.services.contains(&Service::MpiMirror);
        let mirrors = config.usnic.iter().any(mirrors);
        let most = (arena.available() / 4).min(MEMORY);
        let size = match mirrors {
            true => mpi_mirror::memory(arena),
            false => most.checked_ilog2().map_or(0, |bits| 1 << bits),
        };
        let memory = Some(size).filter(|&size| size >= LEAST_MEMORY);
        let Some(memory) = memory.and_then(|size| arena.alloc(size, 4096)) else {
            log::error!("usnic: not available: it needs 4MiB of free memory");
            return None;
        };
        let endpoints = ENDPOINTS * config.usnic.len();
        let limits = usnic::Config {
            endpoints,
            sends: MESSAGES * endpoints,
            messages: MESSAGES * endpoints,
            max_message: size / 4,
            grants: endpoints,
            ..usnic::Config::default()
        };
        let mut seed = [0; 32];
        rng.fill_bytes(&mut seed);
        let mut this = Usnic {
            engine: Engine::new(limits, memory, rng.next_u64(), now),
            interfaces: Vec::new(),
            peers: Vec::new(),
            processes: Vec::new(),
            by_endpoint: BTreeMap::new(),
            arena: arena.share(),
            refusals: Refusals::default(),
            order: None,
            exchanges: Exchanges::new(seed),
            memory: size,
            budget: ob1::budget(size),
            turn: 0,
            reclaims: None,
            ends: UsnicEnds::new(size / 4),
        };
        for wanted in &config.usnic {
            let isn = wanted.isn.unwrap_or(rng.next_u32() as u16);
            if let Err(why) = this.add_interface(config, wanted, ports, place_of, isn) {
                log::error!("usnic {}: not available: {why}", wanted.name.as_str());
            }
        }
        this.follow(config, now);
        Some(this)
    }

    fn add_interface(
        &mut self,
        config: &Config,
        wanted: &config::usnic::Usnic,
        ports: &[PlanePort],
        place_of: &dyn Fn(usize) -> Option<usize>,
        isn: u16,
    ) -> Result<(), String> {
        let number = usize::from(wanted.net);
        let net = config.net.get(number).ok_or_else(|| format!("there is no net.{number}"))?;
        let port = place_of(number).ok_or_else(|| {
            format!("the interface of net.{number} does not exist, or belongs to another core")
        })?;
        let ours =
            wanted.interface(net, isn).ok_or("its address does not belong to the interface")?;
        let most = ports.get(port).map_or(0, |slot| slot.port.mtu());
        if usize::from(ours.mtu) > most {
            return Err(format!("its MTU is {}, the interface's {most}", ours.mtu));
        }
        self.engine.add_interface(ours).map_err(|why| why.to_string())?;
        log::info!("usnic {}: modex {}", wanted.name.as_str(), ours.modex());
        self.interfaces.push(Interface { config: wanted.clone(), port, ours, passes: u16::MAX });
        Ok(())
    }
}

impl Interface {
    /// Returns a peer's parameters for the engine.
    fn endpoint(&self, number: usize, peer_sender: u64, modex: Modex) -> EndpointConfig {
        let config = &self.config;
        let retransmit = Duration::from_millis(config.retransmit_ms.into());
        let timing = Timing::default();
        EndpointConfig {
            timing: Timing {
                retransmit,
                retransmit_most: timing.retransmit_most.max(retransmit),
                ..timing
            },
            layout: config.layout.0,
            tag: config.tag,
            delivery: Delivery::AsTheyCome,
            messages: MESSAGES,
            sends: MESSAGES,
            ..EndpointConfig::new(number, config.sender.0, peer_sender, modex)
        }
    }
}

impl UdpEngine for Usnic {
    fn name(&self) -> &'static str {
        "usnic"
    }

    fn ports(&self) -> Vec<(usize, u16)> {
        let all = self.interfaces.iter();
        all.flat_map(|one| one.config.ports().map(|port| (one.port, port))).collect()
    }

    fn flows(&self) -> Vec<(usize, UdpFlow)> {
        let of = |one: &Interface| {
            let (port, address) = (one.port, one.ours.address.octets());
            [one.ours.data_port, one.ours.priority_port]
                .map(|number| (port, UdpFlow { address, port: number }))
        };
        self.interfaces.iter().flat_map(of).collect()
    }

    fn peers(&self) -> Vec<(usize, Ipv4Addr)> {
        let admitted = self.peers.iter().filter(|peer| peer.endpoint.is_some());
        let way = |peer: &Peer| {
            let interface = self.interfaces.get(peer.interface)?;
            Some((interface.port, peer.modex?.address))
        };
        admitted.filter_map(way).collect()
    }

    fn receive(&mut self, port: usize, datagram: &Datagram<'_>, now: Instant) {
        let Datagram { from, to, payload, .. } = *datagram;
        let is_it = |one: &Interface| {
            one.port == port
                && one.ours.address == *to.ip()
                && one.config.ports().any(|p| p == to.port())
        };
        let Some(number) = self.interfaces.iter().position(is_it) else { return };
        let unknown_senders = |engine: &Engine| {
            let counters = engine.interface_counters(number);
            counters.map_or(0, |c| c.num_unk_recvs + c.pings_ignored)
        };
        let before = unknown_senders(&self.engine);
        self.engine.receive(number, from, to.port(), payload, now);
        if unknown_senders(&self.engine) != before {
            self.refuse(from, to);
        }
    }

    fn poll(&mut self, now: Instant) -> usize {
        self.serve(now)
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing<'_>> {
        let transmit = self.engine.poll_transmit(now)?;
        let Interface { port, ours, .. } = self.interfaces.get(transmit.interface)?;
        let from = match transmit.channel {
            Channel::Priority => ours.priority_port,
            Channel::Data => ours.data_port,
            Channel::Ping => ours.ping_port,
        };
        Some(Outgoing {
            port: *port,
            from: SocketAddrV4::new(ours.address, from),
            to: transmit.to,
            head: transmit.header(),
            tail: transmit.payload(),
        })
    }

    fn deadline(&mut self) -> Option<Instant> {
        Instant::first([self.engine.deadline(), self.reclaims])
    }

    fn rules<'a>(&'a mut self, touched: &'a mut bool, now: Instant) -> Option<UsnicTransport<'a>> {
        Some(UsnicTransport { engine: &mut self.engine, ends: &mut self.ends, touched, now })
    }

    fn limit_packets(&mut self, port: usize, mtu: usize) {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        for (number, one) in self.interfaces.iter_mut().enumerate() {
            if one.port != port || core::mem::replace(&mut one.passes, mtu) == mtu {
                continue;
            }
            self.engine.limit_packets(number, mtu);
            let (name, most) = (one.config.name.as_str(), one.ours.mtu);
            if mtu < most {
                log::warn!(
                    "usnic {name}: its MTU is {most}, but the network of its interface passes only {mtu}: it sends packets \
                     of at most {mtu} bytes; packets of peers may be lost: lower the MTU of all processes"
                );
            }
        }
    }

    fn configure(&mut self, config: &Config, now: Instant) {
        self.follow(config, now);
    }

    fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    fn status(&self) -> UsnicStatus<'_> {
        UsnicStatus {
            engine: &self.engine,
            interfaces: self.interfaces.iter().map(|one| (&one.config, &one.ours)).collect(),
            peers: self.peers.iter().map(|peer| self.status_of(peer)).collect(),
        }
    }

    fn order(&mut self, verb: UsnicVerb, words: &[&str], now: Instant) -> Result<Managed, String> {
        self.carry_out(verb, words, now)
    }

    fn progress(&mut self, now: Instant) -> Option<Progress> {
        self.order_progress(now)
    }

    fn cancel(&mut self) {
        self.order = None;
    }

    fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        Some(self)
    }
}

impl Usnic {
    fn status_of<'a>(&'a self, peer: &'a Peer) -> UsnicPeer<'a> {
        let process = self.process_of(peer);
        let mirror = process.and_then(|process| process.mirror.as_ref());
        UsnicPeer {
            config: &peer.config,
            interface: peer.interface,
            endpoint: peer.endpoint,
            not_admitted: peer.not_admitted.as_deref(),
            has_come: peer.origin.is_registered(),
            modex: peer.modex,
            counts: peer.counts.counted,
            process: peer.process,
            has_several: process.is_some_and(Process::has_several),
            sink: process.and_then(|process| process.sink).map(|sink| (SINK_ADDRESS, sink.len())),
            mpi: mirror
                .map(|rank| MpiStatus { counters: *rank.counters(), under_way: rank.under_way() }),
        }
    }

    /// Returns the process of a peer.
    fn process_of(&self, peer: &Peer) -> Option<&Process> {
        self.processes.get(peer.process?)?.as_ref()
    }

    #[cold]
    fn refuse(&mut self, from: SocketAddrV4, to: SocketAddrV4) {
        self.refusals.push(Refusal {
            who: Some(IpAddr::V4(*from.ip())),
            what: "usnic",
            asked: format!("UDP port {} from port {}", to.port(), from.port()),
            reason: "unknown_sender",
            advice: "no [[usnic.peer]] has a modex with this address and port, or its Open MPI has another \
                     version than `layout`; `show usnic` shows the peers"
                .into(),
        });
    }
}
