//! Channels of rio_cm as a transport of rules. A channel is a connection.
//!
//! The protocol has no flow control: a stock peer silently drops messages that it has no room for. Here messages stay
//! in the mailbox while a rule's channel has many unread ones, and RapidIO makes their senders retry. A close discards
//! messages that a stock peer has not read yet. Channels to another appliance have credits and half-closes, and detect
//! a dead peer (`rapidio::rio_cm`).

use crate::names::MessageName;
use crate::transport::{
    Carries, Closed, Event, MessageTransport, Obstacle, Over, Reason, Transport, Unwritten, Wanted,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use drivers::hal::Instant;
use rapidio::end_point::{EndPoint, Sent};
use rapidio::enumeration::State;
use rapidio::rio_cm::{Error, HEADER, MOST, Peer};

/// Bytes of the longest message.
const LONGEST: usize = MOST - HEADER;

/// A connection.
#[derive(Debug)]
struct Connection {
    owner: u32,
    /// The channel of the listener that accepted it.
    listener: Option<u16>,
    is_open: bool,
    /// Bytes of the first message that were read.
    cursor: usize,
}

/// A channel that a rule listens on.
#[derive(Debug)]
struct Listener {
    owner: u32,
    connections: usize,
    most: usize,
}

/// Listeners, connections and events of rules at a port. The port's owner keeps it beside the end point.
#[derive(Debug, Default)]
pub struct RioCmEnds {
    listeners: BTreeMap<u16, Listener>,
    connections: BTreeMap<u16, Connection>,
    /// Connections that wait for room.
    waiting: Vec<u16>,
    /// Events that rules have not read, with their owners.
    events: VecDeque<(u32, Event<u16>)>,
}

impl RioCmEnds {
    /// Handles events of the end point. Returns their number.
    #[inline]
    pub fn poll(&mut self, end_point: &mut EndPoint, now: Instant) -> usize {
        let mut done = 0;
        while let Some(number) = end_point.next_news() {
            done += 1;
            self.handle_channel(end_point, number, now);
        }
        if !self.waiting.is_empty() && end_point.has_room() {
            for number in core::mem::take(&mut self.waiting) {
                done += 1;
                if let Some(connection) = self.connections.get(&number) {
                    self.events.push_back((connection.owner, Event::Ready(number)));
                }
            }
        }
        done
    }

    fn handle_channel(&mut self, end_point: &mut EndPoint, number: u16, now: Instant) {
        if self.listeners.contains_key(&number) {
            return self.accept(end_point, number, now);
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let owner = connection.owner;
        if connection.is_open {
            return self.events.push_back((owner, Event::Ready(number)));
        }
        match end_point.channels().peer(number) {
            Ok(None) => {}
            Ok(Some(_)) => {
                connection.is_open = true;
                self.events.push_back((owner, Event::Opened(number, Over::RioCm)));
            }
            Err(_) => self.events.push_back((owner, Event::Failed(number))),
        }
    }

    #[cold]
    fn accept(&mut self, end_point: &mut EndPoint, channel: u16, now: Instant) {
        let Some(listener) = self.listeners.get_mut(&channel) else { return };
        let channels = end_point.channels_mut();
        while let Ok(Some((number, _))) = channels.accept(channel, now) {
            if listener.connections >= listener.most {
                channels.close(number);
                self.events.push_back((listener.owner, Event::Refused(1)));
                continue;
            }
            channels.hold_up(number);
            listener.connections += 1;
            let owner = listener.owner;
            let new = Connection { owner, listener: Some(channel), is_open: true, cursor: 0 };
            self.connections.insert(number, new);
            self.events.push_back((owner, Event::Opened(number, Over::RioCm)));
        }
    }
}

/// A RapidIO port that rules may use.
pub trait RioCmPort {
    /// Its end point, and the rules' state.
    fn ends(&mut self) -> (&mut EndPoint, &mut RioCmEnds);
    /// Its end point.
    fn end_point(&self) -> &EndPoint;
}

/// Ports that rules may use.
pub trait RioCmPorts {
    /// Number of ports.
    fn count(&self) -> usize;
    /// A port, by index.
    fn get(&self, at: usize) -> Option<&dyn RioCmPort>;
    /// A port, by index.
    fn get_mut(&mut self, at: usize) -> Option<&mut dyn RioCmPort>;
}

impl<T: RioCmPort> RioCmPorts for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }
    fn get(&self, at: usize) -> Option<&dyn RioCmPort> {
        self.as_slice().get(at).map(|port| port as _)
    }
    fn get_mut(&mut self, at: usize) -> Option<&mut dyn RioCmPort> {
        self.as_mut_slice().get_mut(at).map(|port| port as _)
    }
}

/// rio_cm as rules use it: the ports, borrowed for a stage.
pub struct RioCmTransport<'a> {
    /// The ports.
    pub ports: &'a mut dyn RioCmPorts,
    /// Current time.
    pub now: Instant,
}

/// Port and channel of a connection.
fn split(key: u32) -> (usize, u16) {
    ((key >> 16) as usize, key as u16)
}

fn key(port: usize, number: u16) -> u32 {
    (port as u32) << 16 | u32::from(number)
}

impl RioCmTransport<'_> {
    fn at(&mut self, port: usize) -> Option<(&mut EndPoint, &mut RioCmEnds)> {
        self.ports.get_mut(port).map(|port| port.ends())
    }

    /// The port with an enumerated network for which `is_it` holds.
    fn port(&self, is_it: impl Fn(&EndPoint) -> bool) -> Option<usize> {
        (0..self.ports.count()).find(|&at| {
            let end_point = self.ports.get(at).map(|port| port.end_point());
            end_point.is_some_and(|it| it.master().state() == State::Ready && is_it(it))
        })
    }

    /// Whether the enumeration of any port is in a state for which `is_so` holds.
    fn port_in(&self, is_so: impl Fn(State) -> bool) -> bool {
        let mut ports = (0..self.ports.count()).filter_map(|at| self.ports.get(at));
        ports.any(|port| is_so(port.end_point().master().state()))
    }

    /// The port with this ID of its own.
    fn own(&self, id: u16) -> Option<usize> {
        self.port(|end_point| end_point.master().network().own_id == id)
    }
}

impl Transport for RioCmTransport<'_> {
    type Connection = u32;
    type Target = Wanted;

    fn next_event(&mut self) -> Option<Event<u32>> {
        self.next_owned().map(|(_, event)| event)
    }

    #[cold]
    fn connect(&mut self, to: &Wanted) -> Option<u32> {
        let MessageName::RioCm { id, channel } = to.name else { return None };
        let has = |it: &EndPoint| it.master().network().end_points().any(|device| device.id == id);
        let (port, now) = (self.port(has)?, self.now);
        let (end_point, ends) = self.at(port)?;
        let channels = end_point.channels_mut();
        let number = channels.connect_offering(Peer { device: id, channel }, now).ok()?;
        channels.hold_up(number);
        let owner = to.owner;
        let new = Connection { owner, listener: None, is_open: false, cursor: 0 };
        ends.connections.insert(number, new);
        Some(key(port, number))
    }

    fn carries(&self, _: u32) -> Carries {
        Carries::Messages { longest: LONGEST }
    }

    fn message(&mut self, key: u32) -> Result<Option<usize>, Closed> {
        let (port, number) = split(key);
        let (end_point, ends) = self.at(port).ok_or(Closed::Gone)?;
        let cursor = ends.connections.get(&number).ok_or(Closed::Gone)?.cursor;
        match end_point.channels().first(number) {
            Ok(first) => Ok(first.map(|data| data.len() - cursor.min(data.len()))),
            Err(Error::ClosedByPeer | Error::Finished) => Err(Closed::Finished),
            Err(_) => Err(Closed::Gone),
        }
    }

    fn read(&mut self, key: u32, into: &mut [u8]) -> Result<usize, Closed> {
        let Some(left) = self.message(key)? else { return Ok(0) };
        let (port, number) = split(key);
        let (end_point, ends) = self.at(port).ok_or(Closed::Gone)?;
        let connection = ends.connections.get_mut(&number).ok_or(Closed::Gone)?;
        let count = left.min(into.len());
        if let Ok(Some(data)) = end_point.channels().first(number) {
            let from = data.get(connection.cursor..).and_then(|rest| rest.get(..count));
            into[..count].copy_from_slice(from.ok_or(Closed::Gone)?);
        }
        connection.cursor += count;
        if count == left {
            connection.cursor = 0;
            let _ = end_point.channels_mut().receive(number, |_| ());
        }
        Ok(count)
    }

    fn room(&mut self, key: u32) -> usize {
        let has_room = self.at(split(key).0).is_some_and(|(end_point, _)| end_point.has_room());
        if has_room { LONGEST } else { 0 }
    }

    fn write(&mut self, key: u32, bytes: &[u8]) -> Result<usize, Unwritten> {
        let gone = Unwritten::Ended(Closed::Gone);
        let (port, number) = split(key);
        let (end_point, ends) = self.at(port).ok_or(gone)?;
        match end_point.send(number, bytes) {
            Ok(Sent::Yes) => Ok(bytes.len()),
            Ok(Sent::NoCredit) => Err(Unwritten::Full),
            Ok(Sent::NoRoom) => {
                if !ends.waiting.contains(&number) {
                    ends.waiting.push(number);
                }
                Err(Unwritten::Full)
            }
            Err(Error::Length) => Err(Unwritten::Length),
            Err(_) => Err(gone),
        }
    }

    fn finish(&mut self, key: u32) {
        let (port, number) = split(key);
        if let Some((end_point, _)) = self.at(port) {
            end_point.channels_mut().finish(number);
        }
    }

    fn is_watched(&self, key: u32) -> bool {
        let (port, number) = split(key);
        let end_point = self.ports.get(port).map(|port| port.end_point());
        end_point.is_none_or(|it| it.channels().is_own(number))
    }

    fn close(&mut self, key: u32, abort: bool) -> usize {
        let (port, number) = split(key);
        let now = self.now;
        let Some((end_point, ends)) = self.at(port) else { return 0 };
        let Some(connection) = ends.connections.remove(&number) else { return 0 };
        let unread = end_point.channels().unread(number);
        if !abort {
            end_point.channels_mut().finish(number);
        }
        end_point.channels_mut().close(number);
        ends.waiting.retain(|waiting| *waiting != number);
        if let Some(channel) = connection.listener {
            if let Some(listener) = ends.listeners.get_mut(&channel) {
                listener.connections = listener.connections.saturating_sub(1);
            }
            ends.accept(end_point, channel, now);
        }
        unread
    }

    #[cold]
    fn reason(&self, key: u32) -> Reason {
        let (port, number) = split(key);
        let end_point = self.ports.get(port).map(|port| port.end_point());
        match end_point.map(|it| it.channels().peer(number)) {
            Some(Err(Error::ClosedByPeer | Error::Aborted | Error::Gone)) => Reason::PeerGone,
            Some(Err(Error::TimedOut | Error::Silent | Error::Undelivered)) => Reason::NoAnswer,
            Some(Err(Error::Incomplete)) => Reason::Incomplete,
            _ => Reason::Lost,
        }
    }
}

impl MessageTransport for RioCmTransport<'_> {
    #[cold]
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        let MessageName::RioCm { id, .. } = *name else { return None };
        if !listens || self.own(id).is_some() {
            return None;
        }
        // A port whose network is not enumerated has no ID yet, and may get this one.
        let passes = self.port_in(|state| state != State::Ready);
        let why = match passes {
            true => "a RapidIO port has no ID yet: see its state in `show rapidio`".into(),
            false => format!("no RapidIO port has the ID {id}: `show rapidio` lists their IDs"),
        };
        Some(Obstacle { why: format!("{name}: {why}"), passes })
    }

    #[cold]
    fn listen(&mut self, wanted: &Wanted) -> Result<(), String> {
        let MessageName::RioCm { id, channel } = wanted.name else {
            return Err("not a channel of rio_cm".into());
        };
        let port = self.own(id).and_then(|port| self.at(port));
        let (end_point, ends) = port.ok_or_else(|| format!("no RapidIO port has the ID {id}"))?;
        let listening = end_point.channels_mut().listen(channel);
        listening.map_err(|why| format!("{}: {why}", wanted.name))?;
        let (owner, most) = (wanted.owner, wanted.connections);
        ends.listeners.insert(channel, Listener { owner, connections: 0, most });
        Ok(())
    }

    #[cold]
    fn relimit(&mut self, owner: u32, connections: usize) {
        for port in 0..self.ports.count() {
            let Some((_, ends)) = self.at(port) else { continue };
            let its = ends.listeners.values_mut().filter(|listener| listener.owner == owner);
            its.for_each(|listener| listener.most = connections);
        }
    }

    #[cold]
    fn unlisten(&mut self, owner: u32) {
        for port in 0..self.ports.count() {
            let Some((end_point, ends)) = self.at(port) else { continue };
            let channels = end_point.channels_mut();
            ends.listeners.retain(|number, listener| {
                let goes = listener.owner == owner;
                if goes {
                    channels.close(*number);
                }
                !goes
            });
            ends.connections.retain(|number, connection| {
                let goes = connection.owner == owner;
                if goes {
                    channels.close(*number);
                }
                !goes
            });
            ends.events.retain(|(of, _)| *of != owner);
        }
    }

    #[inline]
    fn next_owned(&mut self) -> Option<(u32, Event<u32>)> {
        for port in 0..self.ports.count() {
            let event = self.at(port).and_then(|(_, ends)| ends.events.pop_front());
            let Some((owner, event)) = event else { continue };
            return Some((owner, event.map(|number| key(port, number))));
        }
        None
    }
}
