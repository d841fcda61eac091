//! The engine that keeps a network enumerated, as a host or as an agent.

use super::change::{self, Place};
use super::device::Network;
use super::walk::{Failed, Walk};
use super::{agent, host};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::{Busy, IdSize, Maintained, Maintenance, MasterPort, OpenPort, PortWrite};

/// What enumeration needs of a port.
pub trait Reach {
    /// See [`MasterPort::link_up`].
    fn link_up(&self) -> bool;
    /// See [`MasterPort::set_own_id`].
    fn set_own_id(&mut self, size: IdSize, id: u16);
    /// See [`MasterPort::own_id`].
    fn own_id(&mut self) -> u16;
    /// See [`MasterPort::read_own`].
    fn read_own(&mut self, offset: u32) -> u32;
    /// See [`MasterPort::write_own`].
    fn write_own(&mut self, offset: u32, value: u32);
    /// See [`MasterPort::maintain`].
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy>;
    /// See [`MasterPort::maintained`].
    fn maintained(&mut self) -> Option<Maintained>;
    /// See [`MasterPort::port_write`].
    fn port_write(&mut self) -> Option<PortWrite>;
}

impl Reach for OpenPort {
    fn link_up(&self) -> bool {
        MasterPort::link_up(&**self)
    }
    fn set_own_id(&mut self, size: IdSize, id: u16) {
        MasterPort::set_own_id(&mut **self, size, id);
    }
    fn own_id(&mut self) -> u16 {
        MasterPort::own_id(&mut **self)
    }
    fn read_own(&mut self, offset: u32) -> u32 {
        MasterPort::read_own(&mut **self, offset)
    }
    fn write_own(&mut self, offset: u32, value: u32) {
        MasterPort::write_own(&mut **self, offset, value);
    }
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy> {
        MasterPort::maintain(&mut **self, request)
    }
    fn maintained(&mut self) -> Option<Maintained> {
        MasterPort::maintained(&mut **self)
    }
    fn port_write(&mut self) -> Option<PortWrite> {
        MasterPort::port_write(&mut **self)
    }
}

/// What this end point does in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It enumerates, under this id.
    Host(u16),
    /// It waits to be enumerated.
    Agent,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The link is down.
    NoLink,
    /// A host is to find us.
    Waiting,
    /// A walk is under way for the first time.
    Enumerating,
    /// The network is known.
    Ready,
    /// The last walk came to no good end; it is tried again.
    Failed(Failed),
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The network is known, or has changed: look at it.
    Changed,
    /// The link is down, and nobody is reached.
    Lost,
    /// Another host is stronger, or was earlier: this one is an agent from now on.
    Retreated,
    /// A walk came to no good end.
    Failed(Failed),
}

/// How often an agent looks whether it was found: as Linux does at first, and then less and less, up to this. Nothing tells
/// it.
const LOOK: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(250);
/// Share of the time that it has waited for which it waits until the next look.
const SHARE: u32 = 64;
/// How often a host looks at ports, in case a port-write was lost, and at how many of them, one round after the other.
const ROUND: Duration = Duration::from_secs(2);
const PORTS: usize = 16;
/// How often an agent walks anew: nobody tells it what has changed.
const AGENT_ROUND: Duration = Duration::from_secs(10);
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(1);
const MOST_EVENTS: usize = 16;
/// Port-writes that wait.
const MOST_CHANGES: usize = 64;

/// What a walk has come to.
struct End {
    network: Rc<Network>,
    result: Result<bool, Failed>,
    /// The port that is to be looked at next.
    next: Place,
}

/// The engine.
pub struct Master {
    role: Role,
    size: IdSize,
    state: State,
    /// Walks that change nothing share it.
    network: Rc<Network>,
    walk: Option<Walk<End>>,
    /// A walk was dropped while the port had a request of it.
    stale: bool,
    next: Instant,
    /// The port that a host looks at next.
    next_port: Place,
    /// Since when it waits to be found.
    waits: Instant,
    changes: VecDeque<(u32, u8)>,
    events: VecDeque<Event>,
}

impl Master {
    /// An engine that has found nobody yet.
    pub fn new(role: Role, size: IdSize) -> Self {
        Master {
            role,
            size,
            state: State::NoLink,
            network: Rc::default(),
            walk: None,
            stale: false,
            next: Instant::ZERO,
            next_port: (0, 0),
            waits: Instant::ZERO,
            changes: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// What it does; a host that has retreated is an agent.
    pub fn role(&self) -> Role {
        self.role
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// The network, as it was at the end of the last walk.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The next of what has happened.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// When it wants to be polled though nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.walk {
            Some(walk) => walk.deadline(),
            None if self.state == State::NoLink => None,
            None => Some(self.next),
        }
    }

    /// Goes on.
    pub fn poll(&mut self, port: &mut dyn Reach, now: Instant) {
        if !port.link_up() {
            self.lose();
            self.forget(port);
            return;
        }
        if self.state == State::NoLink {
            self.wait(now);
            self.next = now;
        }
        if self.stale {
            // The answer to a question that nobody asks any more, or none.
            port.maintained();
            self.stale = false;
        }
        while let Some(told) = port.port_write() {
            if self.changes.len() < MOST_CHANGES {
                self.changes.push_back((told.component_tag, told.port as u8));
            }
        }
        if let Some(walk) = &mut self.walk {
            let Some(end) = walk.poll(port, now) else { return };
            self.walk = None;
            self.finish(end, now);
        }
        if self.walk.is_none() && (now >= self.next || self.has_changes()) {
            self.start(port, now);
            if let Some(walk) = &mut self.walk
                && let Some(end) = walk.poll(port, now)
            {
                self.walk = None;
                self.finish(end, now);
            }
        }
    }

    /// Waits to be found.
    fn wait(&mut self, now: Instant) {
        if self.state != State::Waiting {
            (self.state, self.waits) = (State::Waiting, now);
        }
        self.next = now + (now.since(self.waits) / SHARE).clamp(LOOK, SELDOM);
    }

    fn has_changes(&self) -> bool {
        self.state == State::Ready && !self.changes.is_empty()
    }

    fn lose(&mut self) {
        if self.state == State::NoLink {
            return;
        }
        self.stale = self.walk.take().is_some();
        self.changes.clear();
        self.network = Rc::new(Network::new(self.size, self.network.own_id));
        self.state = State::NoLink;
        self.tell(Event::Lost);
    }

    /// Takes what has arrived for nobody, so that nobody is kept from halting over it.
    fn forget(&mut self, port: &mut dyn Reach) {
        self.stale &= port.maintained().is_none();
        while port.port_write().is_some() {}
    }

    fn start(&mut self, port: &mut dyn Reach, now: Instant) {
        self.next = now + ROUND;
        match self.role {
            Role::Host(id) if self.state == State::Ready => {
                let mut network = self.network.clone();
                debug_assert_eq!(network.own_id, id);
                let told = self.changes.pop_front();
                let place =
                    told.and_then(|(tag, port)| network.by_tag(tag).map(|switch| (switch, port)));
                let mut next = self.next_port;
                self.walk = Some(Walk::new(|fabric| async move {
                    let known = &mut network;
                    let result = match (host::is_ours(&fabric, known).await, place) {
                        (Err(why), _) => Err(why),
                        (_, Some(place)) => change::look(&fabric, known, place).await,
                        _ => change::look_on(&fabric, known, &mut next, PORTS).await,
                    };
                    if let Err(why) = result {
                        host::retreat(&fabric, &network, why).await;
                    }
                    End { network, result, next }
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
                    End { network: Rc::new(network), result: result.map(|()| true), next: (0, 0) }
                }));
            }
            Role::Agent => {
                self.changes.clear();
                let mut network = Network::new(self.size, port.own_id());
                let next = self.next_port;
                let before = (self.state == State::Ready).then(|| self.network.clone());
                if before.is_none() {
                    self.next = now + LOOK;
                }
                self.walk = Some(Walk::new(|fabric| async move {
                    if !agent::is_discovered(&fabric).await {
                        return End { network: Rc::new(network), result: Ok(false), next };
                    }
                    let result = agent::discover(&fabric, &mut network).await;
                    let changed = before.is_none_or(|before| *before != network);
                    End { network: Rc::new(network), result: result.map(|()| changed), next }
                }));
            }
        }
    }

    fn finish(&mut self, end: End, now: Instant) {
        self.next_port = end.next;
        match end.result {
            Ok(changed) => {
                let is_agent = self.role == Role::Agent;
                if is_agent && end.network.devices.is_empty() {
                    // Not found yet, or no more.
                    return self.wait(now);
                }
                self.state = State::Ready;
                self.next = now + if is_agent { AGENT_ROUND } else { ROUND };
                if changed || self.network.devices.is_empty() {
                    self.network = end.network;
                    self.tell(Event::Changed);
                }
            }
            Err(Failed::HigherHost(_) | Failed::OtherHost(_)) if self.role != Role::Agent => {
                self.role = Role::Agent;
                self.network = Rc::new(Network::new(self.size, self.size.any()));
                self.wait(now);
                self.tell(Event::Retreated);
            }
            Err(failed) => {
                let was_ready = self.state == State::Ready;
                self.next = now + AGAIN;
                if was_ready {
                    // What was known is known; the port is looked at again.
                    return;
                }
                if self.state != State::Failed(failed) {
                    self.tell(Event::Failed(failed));
                }
                self.state = State::Failed(failed);
            }
        }
    }
}
