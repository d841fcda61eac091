//! The connectivity checker. Each host of peers has an agent at a UDP port, which is asked whether small and large
//! datagrams get through: the small one first, the large one after its answer, because the stock agent's socket
//! holds hardly more than one large datagram; both again every 250 ms, until 41 have gone unanswered.
//!
//! PINGs of peers' agents are answered, nobody else's.

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

/// How long an answer is waited for.
const AGAIN: Duration = Duration::from_millis(250);
/// Between the answer to the small PING and the large one.
const PAUSE: Duration = Duration::from_millis(20);
/// PINGs of a size without an answer, until it is given up.
const ROUNDS: u32 = 41;
/// The same, of PINGs that an operator has ordered, and of which nothing fails.
const ORDERED_ROUNDS: u32 = 8;
/// Answers that wait to be sent.
const ANSWERS: usize = 32;

/// The agent of one host of peers.
#[derive(Debug)]
struct Agent {
    interface: usize,
    to: SocketAddrV4,
    version: Version,
    max_message: u16,
    /// Endpoints whose peers are there.
    users: u32,
    /// Whether one of them wants it to be asked.
    asks: bool,
    began: bool,
    /// The size that is asked next was sent so often.
    rounds: u32,
    answered_small: bool,
    answered_large: bool,
    /// When to ask again, and whether it is to be asked now.
    at: Option<Instant>,
    is_due: bool,
    /// It is asked because an operator wants to know.
    ordered: bool,
    /// When it was last asked, and how long the answers took to the small PING and to the large one.
    sent: Instant,
    times: [Option<Duration>; 2],
}

/// All agents.
#[derive(Debug)]
pub(super) struct Agents {
    agents: Vec<Option<Agent>>,
    free: Vec<u32>,
    by_address: IdMap,
    answers: VecDeque<(usize, SocketAddrV4, [u8; LENGTH])>,
    /// They stand among what is to be sent.
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

    /// An endpoint's peer has its agent there.
    pub fn join(
        &mut self,
        interface: usize,
        to: SocketAddrV4,
        version: Version,
        max_message: u16,
        asks: bool,
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
                    asks: false,
                    began: false,
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
        agent.asks |= asks;
        Some(place)
    }

    /// An endpoint is gone; whether its agent is.
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

    /// Whether small and large PINGs were answered.
    pub fn answered(&self, place: u32) -> Option<(bool, bool)> {
        let agent = self.agents.get(place as usize)?.as_ref()?;
        Some((agent.answered_small, agent.answered_large))
    }

    /// When an agent is to be asked again.
    pub fn deadline(&self, place: u32) -> Option<Instant> {
        self.agents.get(place as usize)?.as_ref()?.at
    }

    fn get_mut(&mut self, place: u32) -> Option<&mut Agent> {
        self.agents.get_mut(place as usize)?.as_mut()
    }
}

impl Agent {
    /// Bytes of the PING that is to be answered next.
    fn size(&self) -> u16 {
        match self.answered_small {
            false => LENGTH as u16,
            true => self.max_message.saturating_sub(LONG_PING_MARGIN).max(LENGTH as u16),
        }
    }
}

impl Engine {
    /// Asks the agent of an endpoint's peer anew, whatever it has answered before. Nothing fails of it if it does
    /// not answer. False if there is no endpoint, or no connectivity checker at one of the ends.
    pub fn ping(&mut self, id: EndpointId, now: Instant) -> bool {
        let Some(place) = self.endpoint(id).and_then(|endpoint| endpoint.agent) else {
            return false;
        };
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return false };
        if agent.is_due {
            return true;
        }
        // A check that is under way begins anew, and remains one.
        agent.ordered |= agent.at.is_none();
        agent.began = true;
        agent.rounds = 0;
        (agent.answered_small, agent.answered_large) = (false, false);
        agent.times = [None; 2];
        agent.at = Some(now);
        self.shared.wheel.put(timer, now);
        true
    }

    /// How long the last answers of a peer's agent took: to the small PING, and to the large one.
    pub fn ping_times(&self, id: EndpointId) -> Option<[Option<Duration>; 2]> {
        let agent = self.endpoint(id)?.agent?;
        Some(self.agents.agents.get(agent as usize)?.as_ref()?.times)
    }

    /// Something is to be sent to a peer: its agent is asked, if it never was.
    pub(super) fn begin_pings(&mut self, place: u32, now: Instant) {
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return };
        if agent.asks && !agent.began {
            agent.began = true;
            agent.at = Some(now);
            self.shared.wheel.put(timer, now);
        }
    }

    /// The moment of an agent has come.
    pub(super) fn agent_is_due(&mut self, place: u32, now: Instant) {
        let timer = self.agent_timer(place);
        let Some(agent) = self.agents.get_mut(place) else { return };
        let Some(at) = agent.at else { return };
        if at > now {
            return self.shared.wheel.put(timer, at);
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
        // It is rare: all endpoints are looked at.
        for endpoint in 0..self.endpoints.len() as u32 {
            let found = self.endpoints.get(endpoint as usize).and_then(Option::as_ref);
            if found.is_some_and(|endpoint| endpoint.agent == Some(place)) {
                self.fail(endpoint, failure);
            }
        }
    }

    /// Makes an agent's PING; false if it is not due.
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
        self.shared.wheel.put(timer, at);
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

    /// Makes the next answer to a PING; false if there is none.
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

    /// A datagram at the port of the connectivity checker.
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
            let honest = ping.asker.ip() == from.ip() && ping.version == agent.version;
            if honest && room {
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
        let asked = agent.began && agent.rounds > 0 && ping.size == u32::from(agent.size());
        if ping.asker != asker || !asked || (agent.answered_small && agent.answered_large) {
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
            self.shared.wheel.put(timer, at);
        }
    }
}

/// The largest datagram is never longer than a PING may be.
const _: () = assert!(PREFIX < LONG_PING_MARGIN && Modex::max_message_of(1500) == 1536);
