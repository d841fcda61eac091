//! The connectivity checker. Each host of peers has an agent at a UDP port. PINGs to it test whether small and large
//! datagrams get through. The small PING is first, and the large one follows its ACK, because the stock agent's socket
//! buffer holds hardly more than one large datagram. Each is repeated every 250 ms, and given up after 41.
//!
//! Only PINGs of peers' agents are answered.

use super::{EndpointId, Engine, Failure, InterfaceConfig, address_name};
use crate::id_map::IdMap;
use crate::wire::header::MAX_HEADER;
use crate::wire::modex::Modex;
use crate::wire::ping::{LENGTH, LONG_PING_MARGIN, Ping, Version};
use crate::wire::{IP_UDP, PREFIX};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddrV4;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// Time from a PING without an ACK to the next PING.
const AGAIN: Duration = Duration::from_millis(250);
/// Delay between the ACK of the small PING and the large PING.
const PAUSE: Duration = Duration::from_millis(20);
/// PINGs of one size without an ACK, until the check fails.
const ROUNDS: u32 = 41;
/// PINGs of one size in a check that the operator started. No endpoint fails by such a check.
const ORDERED_ROUNDS: u32 = 8;
/// Most ACKs that wait to be sent.
const ANSWERS: usize = 32;

/// The agent of one host of peers.
#[derive(Debug)]
struct Agent {
    interface: usize,
    to: SocketAddrV4,
    version: Version,
    max_message: u16,
    /// Endpoints with peers on that host.
    users: u32,
    /// Whether one of them is configured to check connectivity.
    checks: bool,
    /// Whether a check was started.
    started: bool,
    /// PINGs of the current size so far.
    rounds: u32,
    answered_small: bool,
    answered_large: bool,
    /// When to send the next PING.
    at: Option<Instant>,
    /// A PING is to be sent now.
    is_due: bool,
    /// The operator started the check.
    ordered: bool,
    /// When the last PING was sent.
    sent: Instant,
    /// Round trip times of the small and of the large PING.
    times: [Option<Duration>; 2],
}

/// All agents.
#[derive(Debug)]
pub(super) struct Agents {
    agents: Vec<Option<Agent>>,
    free: Vec<u32>,
    by_address: IdMap,
    answers: VecDeque<(usize, SocketAddrV4, [u8; LENGTH])>,
    /// [`ANSWERS`](super::ANSWERS) is in the ready queue.
    is_answering: bool,
}

impl Agents {
    pub fn new(most: usize, secret: u64) -> Self {
        Agents {
            agents: (0..most).map(|_| None).collect(),
            free: (0..most as u32).rev().collect(),
            by_address: IdMap::new(most, secret),
            answers: VecDeque::with_capacity(ANSWERS),
            is_answering: false,
        }
    }

    /// Adds an endpoint to the agent of its peer's host; returns the agent's index.
    pub fn join(
        &mut self,
        interface: usize,
        to: SocketAddrV4,
        version: Version,
        max_message: u16,
        checks: bool,
    ) -> Option<u32> {
        let name = address_name(interface, to);
        let place = match self.by_address.get(name) {
            Some(place) => place,
            None => {
                let place = self.free.pop()?;
                self.by_address.insert(name, place);
                let agent = Agent {
                    interface,
                    to,
                    version,
                    max_message,
                    users: 0,
                    checks: false,
                    started: false,
                    rounds: 0,
                    answered_small: false,
                    answered_large: false,
                    at: None,
                    is_due: false,
                    ordered: false,
                    sent: Instant::ZERO,
                    times: [None; 2],
                };
                *self.agents.get_mut(place as usize)? = Some(agent);
                place
            }
        };
        let agent = self.agents.get_mut(place as usize)?.as_mut()?;
        agent.users += 1;
        agent.checks |= checks;
        Some(place)
    }

    /// Removes an endpoint from its agent; true if the agent has no endpoints left and was removed.
    pub fn leave(&mut self, place: u32) -> bool {
        let Some(entry) = self.agents.get_mut(place as usize) else { return false };
        let Some(agent) = entry else { return false };
        agent.users -= 1;
        if agent.users > 0 {
            return false;
        }
        self.by_address.remove(address_name(agent.interface, agent.to));
        *entry = None;
        self.free.push(place);
        true
    }

    /// Whether the small and the large PING were answered.
    pub fn answered(&self, place: u32) -> Option<(bool, bool)> {
        let agent = self.agents.get(place as usize)?.as_ref()?;
        Some((agent.answered_small, agent.answered_large))
    }

    /// When to send the next PING to an agent.
    pub fn deadline(&self, place: u32) -> Option<Instant> {
        self.agents.get(place as usize)?.as_ref()?.at
    }

    /// Limits the PINGs of an interface.
    pub fn limit_packets(&mut self, interface: usize, max_message: u16) {
        let agents = self.agents.iter_mut().flatten();
        let its = agents.filter(|agent| agent.interface == interface);
        its.for_each(|agent| agent.max_message = max_message);
    }

    fn get_mut(&mut self, place: u32) -> Option<&mut Agent> {
        self.agents.get_mut(place as usize)?.as_mut()
    }
}

impl Agent {
    /// Bytes of the next PING.
    fn size(&self) -> u16 {
        match self.answered_small {
            false => LENGTH as u16,
            true => self.max_message.saturating_sub(LONG_PING_MARGIN).max(LENGTH as u16),
        }
    }
}

impl Engine {
    /// Starts a new check of the path to an endpoint's peer. No endpoint fails if there is no answer.
    /// False if the endpoint does not exist, or one side has no connectivity checker.
    pub fn ping(&mut self, id: EndpointId, now: Instant) -> bool {
        let Some(place) = self.endpoint(id).and_then(|endpoint| endpoint.agent) else {
            return false;
        };
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return false };
        if agent.is_due {
            return true;
        }
        // A check in progress restarts, and keeps its kind.
        agent.ordered |= agent.at.is_none();
        agent.started = true;
        agent.rounds = 0;
        (agent.answered_small, agent.answered_large) = (false, false);
        agent.times = [None; 2];
        agent.at = Some(now);
        self.shared.wheel.schedule(timer, now);
        true
    }

    /// Round trip times of the last small and large PING to a peer's agent.
    pub fn ping_times(&self, id: EndpointId) -> Option<[Option<Duration>; 2]> {
        let agent = self.endpoint(id)?.agent?;
        Some(self.agents.agents.get(agent as usize)?.as_ref()?.times)
    }

    /// Starts the check of a peer's agent before the first message to the peer.
    pub(super) fn start_check(&mut self, place: u32, now: Instant) {
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return };
        if agent.checks && !agent.started {
            agent.started = true;
            agent.at = Some(now);
            self.shared.wheel.schedule(timer, now);
        }
    }

    /// Runs the timer of an agent.
    pub(super) fn run_agent_timer(&mut self, place: u32, now: Instant) {
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return };
        let Some(at) = agent.at else { return };
        if at > now {
            return self.shared.wheel.schedule(timer, at);
        }
        agent.at = None;
        if agent.ordered && agent.rounds >= ORDERED_ROUNDS {
            agent.ordered = false;
            return;
        }
        if agent.rounds < ROUNDS {
            agent.rounds += 1;
            agent.is_due = true;
            return self.shared.ready.push(timer);
        }
        let to = agent.to;
        let packet = u32::from(agent.size()) + u32::from(IP_UDP);
        let failure = match agent.answered_small {
            true => Failure::LargeLost { to, packet },
            false => Failure::NoAnswer { to },
        };
        // This is rare, so all endpoints are visited.
        for endpoint in 0..self.endpoints.len() as u32 {
            let found = self.endpoints.get(endpoint as usize).and_then(Option::as_ref);
            if found.is_some_and(|endpoint| endpoint.agent == Some(place)) {
                self.fail(endpoint, failure);
            }
        }
    }

    /// Builds the PING to an agent; false if none is due.
    #[inline(never)]
    pub(super) fn poll_ping(&mut self, place: u32, now: Instant) -> bool {
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return false };
        if !core::mem::take(&mut agent.is_due) {
            return false;
        }
        let at = now + AGAIN;
        agent.at = Some(at);
        agent.sent = now;
        self.shared.wheel.schedule(timer, at);
        let Some(ours) = self.interfaces.get_mut(agent.interface) else { return false };
        ours.counters.pings_sent += 1;
        let size = agent.size();
        let InterfaceConfig { address, ping_port, .. } = ours.config;
        let asker = SocketAddrV4::new(address, ping_port);
        let ping = Ping { is_ack: false, asker, version: agent.version, size: size.into() };
        let rest = self.zeros.slice(0, usize::from(size).saturating_sub(LENGTH));
        let (interface, to) = (agent.interface, agent.to);
        self.put_ping(interface, to, &ping.emit(), rest.unwrap_or(Window::empty()));
        true
    }

    /// Builds the next ACK of a PING; false if there is none.
    #[inline(never)]
    pub(super) fn poll_answer(&mut self) -> bool {
        let Some((interface, to, bytes)) = self.agents.answers.pop_front() else {
            self.agents.is_answering = false;
            return false;
        };
        self.put_ping(interface, to, &bytes, Window::empty());
        true
    }

    fn put_ping(&mut self, interface: usize, to: SocketAddrV4, bytes: &[u8; LENGTH], rest: Window) {
        const _: () = assert!(LENGTH <= MAX_HEADER);
        self.out.header_mut()[..LENGTH].copy_from_slice(bytes);
        self.out.length = LENGTH;
        self.out.set_payload(rest);
        self.out.interface = interface;
        self.out.channel = super::Channel::Ping;
        self.out.to = to;
        self.out.dont_fragment = true;
    }

    /// Handles a datagram at the port of the connectivity checker.
    pub(super) fn receive_ping(
        &mut self,
        interface: usize,
        from: SocketAddrV4,
        datagram: &[u8],
        now: Instant,
    ) {
        let Some(ours) = self.interfaces.get_mut(interface) else { return };
        let place = self.agents.by_address.get(address_name(interface, from));
        let (Some(ping), Some(place)) = (Ping::parse(datagram), place) else {
            ours.counters.pings_ignored += 1;
            return;
        };
        let room = self.agents.answers.len() < ANSWERS;
        let Some(agent) = self.agents.get_mut(place) else { return };
        if !ping.is_ack {
            let valid = ping.asker.ip() == from.ip() && ping.version == agent.version;
            if valid && room {
                ours.counters.pings_answered += 1;
                let answer = Ping { is_ack: true, ..ping };
                if !self.agents.is_answering {
                    self.agents.is_answering = true;
                    self.shared.ready.push(super::ANSWERS);
                }
                self.agents.answers.push_back((interface, from, answer.emit()));
            } else {
                ours.counters.pings_ignored += 1;
            }
            return;
        }
        let asker = SocketAddrV4::new(ours.config.address, ours.config.ping_port);
        let expected = agent.started && agent.rounds > 0 && ping.size == u32::from(agent.size());
        if ping.asker != asker || !expected || (agent.answered_small && agent.answered_large) {
            ours.counters.pings_ignored += 1;
            return;
        }
        ours.counters.ping_acks += 1;
        agent.rounds = 0;
        agent.is_due = false;
        let took = Some(now.since(agent.sent));
        if agent.answered_small {
            agent.answered_large = true;
            agent.at = None;
            agent.ordered = false;
            agent.times[1] = took;
        } else {
            agent.answered_small = true;
            agent.times[0] = took;
            let at = now + PAUSE;
            agent.at = Some(at);
            let timer = self.agent_timer(place);
            self.shared.wheel.schedule(timer, at);
        }
    }
}

/// The largest datagram is not longer than the longest PING.
const _: () = assert!(PREFIX < LONG_PING_MARGIN && Modex::max_message_of(1500) == 1536);
