//! The engine that keeps a network enumerated, as a host or as an agent.

use super::change::{self, Place};
use super::device::Network;
use super::reach::Reach;
use super::walk::{Failed, Walk};
use super::{agent, host};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::IdSize;

/// Role of this end point in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Enumerates the network, with this id.
    Host(u16),
    /// Waits to be enumerated.
    Agent,
}

/// State of the enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The link is down.
    NoLink,
    /// Waiting to be discovered by a host.
    Waiting,
    /// The first walk is in progress.
    Enumerating,
    /// The network is known.
    Ready,
    /// The last walk failed, and will be repeated.
    Failed(Failed),
}

/// An event for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The network is known, or has changed: read it again.
    Changed,
    /// The link is down, and no device is reachable.
    Lost,
    /// Another host has priority: this end point is an agent from now on.
    Retreated,
    /// A walk failed.
    Failed(Failed),
}

/// Shortest interval at which an agent polls whether it was discovered, as in Linux. No event reports it.
const POLL_MIN: Duration = Duration::from_millis(10);
/// Longest interval.
const POLL_MAX: Duration = Duration::from_millis(250);
/// The interval grows as this fraction of the time waited so far.
const POLL_DIVISOR: u32 = 64;
/// Interval at which a host checks ports, in case a port-write was lost.
const ROUND: Duration = Duration::from_secs(2);
/// Number of ports checked per round, in turns.
const PORTS: usize = 16;
/// Interval at which an agent repeats its walk, because no port-writes are sent to it.
const AGENT_ROUND: Duration = Duration::from_secs(10);
/// Delay before a failed walk is repeated.
const RETRY: Duration = Duration::from_secs(1);
const MOST_EVENTS: usize = 16;
/// Maximum number of queued port-writes.
const MOST_CHANGES: usize = 64;

/// Outcome of a walk.
struct Outcome {
    network: Rc<Network>,
    /// Whether the network has changed.
    result: Result<bool, Failed>,
    /// The port to check next.
    next: Place,
}

/// The engine.
pub struct Master {
    role: Role,
    size: IdSize,
    state: State,
    /// Shared with walks, and copied only on a change.
    network: Rc<Network>,
    walk: Option<Walk<Outcome>>,
    /// The port may still have a request of a dropped walk.
    has_stale_request: bool,
    next: Instant,
    /// The port that a host checks next.
    next_port: Place,
    /// Begin of the wait to be discovered.
    waiting_since: Instant,
    /// Port-writes: component tag of the switch, and port.
    changes: VecDeque<(u32, u8)>,
    events: VecDeque<Event>,
}

impl Master {
    /// An engine before its first walk.
    pub fn new(role: Role, size: IdSize) -> Self {
        Master {
            role,
            size,
            state: State::NoLink,
            network: Rc::default(),
            walk: None,
            has_stale_request: false,
            next: Instant::ZERO,
            next_port: (0, 0),
            waiting_since: Instant::ZERO,
            changes: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Current role; a host that has retreated is an agent.
    pub fn role(&self) -> Role {
        self.role
    }

    /// State of the enumeration.
    pub fn state(&self) -> State {
        self.state
    }

    /// The network, as of the end of the last walk.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn push_event(&mut self, event: Event) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// When [`Master::poll`] must be called again at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.walk {
            Some(walk) => walk.deadline(),
            None if self.state == State::NoLink => None,
            None => Some(self.next),
        }
    }

    /// Runs the current walk, and starts the next one when it is due.
    pub fn poll(&mut self, port: &mut dyn Reach, now: Instant) {
        if !port.link_up() {
            self.lose_link();
            self.drain(port);
            return;
        }
        if self.state == State::NoLink {
            self.wait_for_host(now);
            self.next = now;
        }
        if self.has_stale_request {
            // Discards the result for the dropped walk, if there is one.
            port.maintained();
            self.has_stale_request = false;
        }
        while let Some(report) = port.port_write() {
            if self.changes.len() < MOST_CHANGES {
                self.changes.push_back((report.component_tag, report.port as u8));
            }
        }
        if let Some(walk) = &mut self.walk {
            let Some(outcome) = walk.poll(port, now) else { return };
            self.walk = None;
            self.finish(outcome, now);
        }
        if self.walk.is_none() && (now >= self.next || self.has_changes()) {
            self.start(port, now);
            if let Some(walk) = &mut self.walk
                && let Some(outcome) = walk.poll(port, now)
            {
                self.walk = None;
                self.finish(outcome, now);
            }
        }
    }

    /// Waits to be discovered by a host, and schedules the next poll.
    fn wait_for_host(&mut self, now: Instant) {
        if self.state != State::Waiting {
            (self.state, self.waiting_since) = (State::Waiting, now);
        }
        let waited = now.since(self.waiting_since);
        self.next = now + (waited / POLL_DIVISOR).clamp(POLL_MIN, POLL_MAX);
    }

    fn has_changes(&self) -> bool {
        self.state == State::Ready && !self.changes.is_empty()
    }

    fn lose_link(&mut self) {
        if self.state == State::NoLink {
            return;
        }
        self.has_stale_request = self.walk.take().is_some();
        self.changes.clear();
        self.network = Rc::new(Network::new(self.size, self.network.own_id));
        self.state = State::NoLink;
        self.push_event(Event::Lost);
    }

    /// Discards results and port-writes while the link is down, because they would keep the loop from halting.
    fn drain(&mut self, port: &mut dyn Reach) {
        self.has_stale_request &= port.maintained().is_none();
        while port.port_write().is_some() {}
    }

    fn start(&mut self, port: &mut dyn Reach, now: Instant) {
        self.next = now + ROUND;
        match self.role {
            Role::Host(id) if self.state == State::Ready => {
                let mut network = self.network.clone();
                debug_assert_eq!(network.own_id, id);
                let report = self.changes.pop_front();
                let place =
                    report.and_then(|(tag, port)| network.by_tag(tag).map(|switch| (switch, port)));
                let mut next = self.next_port;
                self.walk = Some(Walk::new(|fabric| async move {
                    let known = &mut network;
                    let result = match (host::is_ours(&fabric, known).await, place) {
                        (Err(why), _) => Err(why),
                        (_, Some(place)) => change::check_port(&fabric, known, place).await,
                        _ => change::check_next_ports(&fabric, known, &mut next, PORTS).await,
                    };
                    if let Err(why) = result {
                        host::retreat(&fabric, &network, why).await;
                    }
                    Outcome { network, result, next }
                }));
            }
            Role::Host(id) => {
                if !matches!(self.state, State::Failed(_)) {
                    self.state = State::Enumerating;
                }
                let mut network = Network::new(self.size, id);
                let time = now.as_nanos();
                network.nonce = (time ^ time >> 15 ^ time >> 30) as u16 & 0x7fff;
                self.walk = Some(Walk::new(|fabric| async move {
                    let result = host::enumerate(&fabric, &mut network).await;
                    if let Err(why) = result {
                        host::retreat(&fabric, &network, why).await;
                    }
                    Outcome {
                        network: Rc::new(network),
                        result: result.map(|()| true),
                        next: (0, 0),
                    }
                }));
            }
            Role::Agent => {
                self.changes.clear();
                let mut network = Network::new(self.size, port.own_id());
                let next = self.next_port;
                let before = (self.state == State::Ready).then(|| self.network.clone());
                if before.is_none() {
                    self.next = now + POLL_MIN;
                }
                self.walk = Some(Walk::new(|fabric| async move {
                    if !agent::is_discovered(&fabric).await {
                        return Outcome { network: Rc::new(network), result: Ok(false), next };
                    }
                    let result = agent::discover(&fabric, &mut network).await;
                    let changed = before.is_none_or(|before| *before != network);
                    Outcome { network: Rc::new(network), result: result.map(|()| changed), next }
                }));
            }
        }
    }

    fn finish(&mut self, outcome: Outcome, now: Instant) {
        self.next_port = outcome.next;
        match outcome.result {
            Ok(changed) => {
                let is_agent = self.role == Role::Agent;
                if is_agent && outcome.network.devices.is_empty() {
                    // Not discovered yet, or not any more.
                    return self.wait_for_host(now);
                }
                self.state = State::Ready;
                self.next = now + if is_agent { AGENT_ROUND } else { ROUND };
                if changed || self.network.devices.is_empty() {
                    self.network = outcome.network;
                    self.push_event(Event::Changed);
                }
            }
            Err(Failed::HigherHost(_) | Failed::OtherHost(_)) if self.role != Role::Agent => {
                self.role = Role::Agent;
                self.network = Rc::new(Network::new(self.size, self.size.any()));
                self.wait_for_host(now);
                self.push_event(Event::Retreated);
            }
            Err(failed) => {
                let was_ready = self.state == State::Ready;
                self.next = now + RETRY;
                if was_ready {
                    // The known network stays valid. The next round checks the port again.
                    return;
                }
                if self.state != State::Failed(failed) {
                    self.push_event(Event::Failed(failed));
                }
                self.state = State::Failed(failed);
            }
        }
    }
}
