//! The engine: endpoints, windows, fragments, timers, for any number of interfaces. It does no I/O: datagrams and
//! the time are arguments, and [`Engine::poll_transmit`] returns datagrams to send.
//!
//! A user adds interfaces and endpoints, and sends messages ([`Engine::send`]) or PUTs. [`Engine::next_news`] returns
//! an endpoint when a message has arrived, a fragment has ended, there is room again, or its state
//! has changed. Each event is reported once, so the user then takes messages and completions until there are none.
//!
//! The receiving side follows the BTL: a window of 4,096 packets, which may arrive in any order. The sending side
//! improves on the BTL: packets that an ACK shows as missing are retransmitted at once and selectively, timers follow
//! the round trip time and back off, and an endpoint whose peer does not respond fails.

mod acknowledge;
mod agent;
mod arrival;
mod assembly;
mod config;
mod counters;
mod datagram;
mod endpoint;
mod failure;
mod messages;
mod put;
mod reserve;
mod send;
mod shared;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{BadConfig, Config, Delivery, EndpointConfig, InterfaceConfig, Timing, WINDOW};
pub use counters::{Counters, InterfaceCounters};
pub use datagram::Transmit;
pub use endpoint::State;
pub use failure::Failure;
pub use messages::Received;
pub use put::GrantError;
pub use send::{Completion, SendError};

use crate::id_map::IdMap;
use crate::wire::modex::{MTUS, Modex};
use agent::Agents;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use drivers::hal::{Instant, Window};
use endpoint::Endpoint;
use shared::Shared;

/// No fragment.
const NONE: u32 = u32::MAX;
/// Entry of the ready queue for ACKs of PINGs.
const ANSWERS: u32 = u32::MAX - 1;
/// No message.
const NO_MESSAGE: u16 = u16::MAX;
/// Most messages: a slot of a window stores a message's number or one of two other values.
const MOST_MESSAGES: usize = u16::MAX as usize - 2;
/// Marks the cache of the last address as empty.
const NO_ADDRESS: (usize, SocketAddrV4, u32) =
    (usize::MAX, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0), NONE);
/// Longest datagram on the priority channel.
pub const PRIORITY_DATAGRAM: usize = 768;

/// Id of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    place: u32,
    generation: u32,
}

/// One of the three UDP ports of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// ACKs, and from some peers small data.
    Priority,
    /// All other packets.
    Data,
    /// The connectivity checker.
    Ping,
}

/// A local interface.
#[derive(Debug)]
struct Interface {
    config: InterfaceConfig,
    /// Longest IPv4 packet that the network passes, in bytes.
    passes: u16,
    counters: InterfaceCounters,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    interfaces: Vec<Interface>,
    endpoints: Vec<Option<Endpoint>>,
    free_endpoints: Vec<u32>,
    generation: u32,
    /// Endpoints by interface, address and port of each of a peer's channels.
    by_address: IdMap,
    /// The last lookup and its result.
    last_address: (usize, SocketAddrV4, u32),
    agents: Agents,
    shared: Shared,
    /// The last datagram.
    out: Transmit,
    /// Zeros for the padding of a large PING.
    zeros: Window,
}

impl Engine {
    /// An engine. `memory` holds incoming messages, and copies of outgoing ones; 64 KiB of it
    /// are reserved for large PINGs. `secret` is random.
    pub fn new(config: Config, memory: Window, secret: u64, now: Instant) -> Self {
        let zeros = memory.slice(0, usize::from(*MTUS.end()).min(memory.len()));
        let zeros = zeros.unwrap_or(Window::empty());
        zeros.fill(0);
        let rest = memory.len() - zeros.len();
        let rest = memory.slice(zeros.len(), rest).unwrap_or(Window::empty());
        let config = Config { messages: config.messages.min(MOST_MESSAGES), ..config };
        Engine {
            interfaces: Vec::new(),
            endpoints: (0..config.endpoints).map(|_| None).collect(),
            free_endpoints: (0..config.endpoints as u32).rev().collect(),
            generation: 0,
            by_address: IdMap::new(2 * config.endpoints, secret),
            last_address: NO_ADDRESS,
            agents: Agents::new(config.endpoints, secret.rotate_left(17)),
            shared: Shared::new(config, rest, secret, now),
            out: Transmit::new(),
            zeros,
        }
    }

    /// Adds an interface; returns its number.
    pub fn add_interface(&mut self, config: InterfaceConfig) -> Result<usize, BadConfig> {
        let [priority, data, ping] = [config.priority_port, config.data_port, config.ping_port];
        if priority == 0 || data == 0 || priority == data || ping == priority || ping == data {
            return Err(BadConfig::Ports);
        }
        if !MTUS.contains(&config.mtu) {
            return Err(BadConfig::Mtu(config.mtu));
        }
        let counters = InterfaceCounters::default();
        self.interfaces.push(Interface { config, passes: u16::MAX, counters });
        Ok(self.interfaces.len() - 1)
    }

    /// Limits the packets of an interface to `mtu` bytes (IPv4, at least 576) if the network passes no more. Messages
    /// that are queued from now on are sent in packets of that size; a peer accepts parts of any size. The modex, and
    /// what peers send, stay.
    pub fn limit_packets(&mut self, interface: usize, mtu: u16) {
        let passes = mtu.max(*MTUS.start());
        let Some(found) = self.interfaces.get_mut(interface) else { return };
        if core::mem::replace(&mut found.passes, passes) == passes {
            return;
        }
        let most = Modex::max_message_of(passes.min(found.config.mtu));
        let endpoints = self.endpoints.iter_mut().flatten();
        endpoints.filter(|one| one.interface == interface).for_each(|one| one.limit_packets(most));
        self.agents.limit_packets(interface, most);
    }

    /// The modex of an interface, for peers.
    pub fn modex(&self, interface: usize) -> Option<Modex> {
        self.interfaces.get(interface).map(|interface| interface.config.modex())
    }

    /// Adds an endpoint.
    pub fn add_endpoint(
        &mut self,
        config: &EndpointConfig,
        now: Instant,
    ) -> Result<EndpointId, BadConfig> {
        let interface = self.interfaces.get(config.interface).ok_or(BadConfig::NoInterface)?;
        let ours = interface.config.modex().max_message;
        let peers = config.modex.max_message;
        if ours != peers {
            return Err(BadConfig::MaxMessage { ours, peers });
        }
        let timing = &config.timing;
        let counts = [timing.in_flight, timing.ack_every, timing.retries];
        if counts.contains(&0)
            || u64::from(timing.in_flight) >= WINDOW
            || timing.retransmit.is_zero()
        {
            return Err(BadConfig::Timing);
        }
        let names = [config.modex.data_port, config.modex.priority_port].map(|port| {
            address_name(config.interface, SocketAddrV4::new(config.modex.address, port))
        });
        if names.iter().any(|&name| self.by_address.get(name).is_some()) {
            return Err(BadConfig::Exists);
        }
        let isn = config.isn.unwrap_or(interface.config.isn);
        let speed = interface.config.link_speed;
        let place = self.free_endpoints.pop().ok_or(BadConfig::Full)?;
        self.generation = self.generation.wrapping_add(1);
        let id = EndpointId { place, generation: self.generation };
        let most = Modex::max_message_of(interface.passes.min(interface.config.mtu));
        let mut endpoint = Endpoint::new(id, config, isn, speed, now);
        endpoint.limit_packets(most);
        for name in names {
            self.by_address.insert(name, place);
        }
        self.last_address = NO_ADDRESS;
        if config.modex.ping_port != 0 && interface.config.ping_port != 0 {
            let to = SocketAddrV4::new(config.modex.address, config.modex.ping_port);
            let version = config.version();
            let checks = config.check_connectivity;
            endpoint.agent = self.agents.join(config.interface, to, version, most, checks);
        }
        if let Some(entry) = self.endpoints.get_mut(place as usize) {
            *entry = Some(endpoint);
        }
        Ok(id)
    }

    /// Removes an endpoint, its grants, and its messages except those that the user has taken. The peer is not
    /// notified: to be sure that all messages have arrived, close the endpoint first.
    pub fn remove(&mut self, id: EndpointId) {
        if self.endpoint(id).is_none() {
            return;
        }
        let removed = self.endpoints.get_mut(id.place as usize).and_then(Option::take);
        let Some(mut endpoint) = removed else { return };
        endpoint.release_all(&mut self.shared);
        endpoint.drop_completions(&mut self.shared);
        for address in [endpoint.data, endpoint.priority] {
            self.by_address.remove(address_name(endpoint.interface, address));
        }
        self.last_address = NO_ADDRESS;
        if let Some(agent) = endpoint.agent
            && self.agents.leave(agent)
        {
            self.shared.wheel.cancel(self.agent_timer(agent));
        }
        self.shared.wheel.cancel(id.place);
        // This is rare, so the queues are searched.
        self.shared.acks.remove(id.place);
        self.shared.ready.remove(id.place);
        self.shared.news.remove(id.place);
        self.free_endpoints.push(id.place);
    }

    /// Rejects further sends. The endpoint becomes [`State::Closed`] when all messages are acknowledged.
    pub fn close(&mut self, id: EndpointId) {
        let Some(endpoint) = find(&mut self.endpoints, id) else { return };
        if endpoint.state == State::Open {
            endpoint.state = State::Closing;
            self.shared.close_if_drained(endpoint);
        }
    }

    /// Sets the order in which messages are delivered. Messages that already wait for earlier ones keep waiting.
    pub fn set_delivery(&mut self, id: EndpointId, delivery: Delivery) {
        if let Some(endpoint) = find(&mut self.endpoints, id) {
            endpoint.config.in_order = delivery == Delivery::InOrder;
        }
    }

    /// State of an endpoint; None if it was removed.
    pub fn state(&self, id: EndpointId) -> Option<State> {
        self.endpoint(id).map(|endpoint| endpoint.state)
    }

    /// Counters of an endpoint.
    pub fn counters(&self, id: EndpointId) -> Option<&Counters> {
        self.endpoint(id).map(|endpoint| &endpoint.counters)
    }

    /// Counters of an interface.
    pub fn interface_counters(&self, interface: usize) -> Option<&InterfaceCounters> {
        self.interfaces.get(interface).map(|interface| &interface.counters)
    }

    /// Packets of an endpoint that are in flight, and bytes that wait to be sent.
    pub fn backlog(&self, id: EndpointId) -> Option<(u64, u64)> {
        self.endpoint(id).map(|endpoint| (endpoint.in_flight(), endpoint.send.backlog))
    }

    /// Free bytes of the memory, perhaps in many pieces.
    pub fn memory_available(&self) -> usize {
        self.shared.blocks.available()
    }

    /// Whether small and large PINGs to a peer were answered so far.
    pub fn connectivity(&self, id: EndpointId) -> Option<(bool, bool)> {
        self.endpoint(id).and_then(|endpoint| self.agents.answered(endpoint.agent?))
    }

    /// The next endpoint with events for its user.
    #[inline]
    pub fn next_news(&mut self) -> Option<EndpointId> {
        let place = self.shared.news.pop()?;
        let endpoint = self.endpoints.get_mut(place as usize)?.as_mut()?;
        endpoint.has_news = false;
        Some(endpoint.id)
    }

    /// Handles a datagram to port `to_port` of an interface; `from` is the source in its headers.
    pub fn receive(
        &mut self,
        interface: usize,
        from: SocketAddrV4,
        to_port: u16,
        datagram: &[u8],
        now: Instant,
    ) {
        let Some(ours) = self.interfaces.get(interface) else { return };
        let channel = match to_port {
            port if port == ours.config.data_port => Channel::Data,
            port if port == ours.config.priority_port => Channel::Priority,
            port if port == ours.config.ping_port => {
                return self.receive_ping(interface, from, datagram, now);
            }
            _ => return,
        };
        if (interface, from) != (self.last_address.0, self.last_address.1) {
            self.look_up(interface, from);
        }
        let place = self.last_address.2;
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else {
            if let Some(ours) = self.interfaces.get_mut(interface) {
                ours.counters.num_unk_recvs += 1;
            }
            return;
        };
        if channel == Channel::Data && endpoint.receive_next_part(&mut self.shared, datagram, now) {
            return;
        }
        if let Err(why) = endpoint.receive(&mut self.shared, channel, datagram, now) {
            self.fail(place, why);
        }
    }

    /// Looks up the endpoint of an address and port, and caches it.
    #[inline(never)]
    fn look_up(&mut self, interface: usize, from: SocketAddrV4) {
        let found = self.by_address.get(address_name(interface, from));
        self.last_address = (interface, from, found.unwrap_or(NONE));
    }

    /// Deadline of the next call of [`Engine::poll_transmit`]: a time in the past means at once, None means never.
    pub fn deadline(&mut self) -> Option<Instant> {
        if !self.shared.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        let Engine { endpoints, agents, shared, .. } = self;
        // Skip endpoints whose ACK was sent meanwhile.
        while let Some((at, place)) = shared.acks.front()
            && let Some(Some(endpoint)) = endpoints.get_mut(place as usize)
            && endpoint.ack.at.is_none_or(|owed| owed > at)
        {
            shared.acks.pop();
            endpoint.leave_ack_queue(shared, at);
        }
        let ack = shared.acks.front().map(|(at, _)| at);
        let other = shared.wheel.first_due(|place| match endpoints.get(place as usize) {
            Some(endpoint) => endpoint.as_ref().and_then(Endpoint::deadline),
            None => agents.deadline(place - endpoints.len() as u32),
        });
        Instant::first([ack, other])
    }

    #[inline]
    fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        let endpoint = self.endpoints.get(id.place as usize)?.as_ref();
        endpoint.filter(|endpoint| endpoint.id == id)
    }

    #[inline]
    fn endpoint_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        find(&mut self.endpoints, id)
    }

    /// Index of an agent's timer in the wheel.
    fn agent_timer(&self, agent: u32) -> u32 {
        self.endpoints.len() as u32 + agent
    }

    /// Fails an endpoint: releases its resources, and notifies its user.
    #[cold]
    fn fail(&mut self, place: u32, why: Failure) {
        let Some(Some(endpoint)) = self.endpoints.get_mut(place as usize) else { return };
        if endpoint.is_alive() {
            endpoint.state = State::Failed(why);
            endpoint.release_all(&mut self.shared);
            self.shared.notify_user(endpoint);
        }
    }
}

#[inline]
fn find(endpoints: &mut [Option<Endpoint>], id: EndpointId) -> Option<&mut Endpoint> {
    let endpoint = endpoints.get_mut(id.place as usize)?.as_mut();
    endpoint.filter(|endpoint| endpoint.id == id)
}

/// Key of an address and port at an interface in the tables.
#[inline]
fn address_name(interface: usize, address: SocketAddrV4) -> u64 {
    (interface as u64) << 48 | u64::from(address.ip().to_bits()) << 16 | u64::from(address.port())
}
