//! usNIC as a transport of rules.
//!
//! A peer has one connection at a time, because the wire protocol neither opens nor ends connections. An accepted
//! connection begins with the peer's first message. Unread messages stay in the engine, which has a share of memory for
//! each peer, and makes the peer retransmit the rest.
//!
//! A peer at several interfaces is also one connection, under any of its names. Messages are received from all of its
//! interfaces, except those that another rule names. Messages are sent over one interface, in order: that of the first
//! received message, or the first open one. If an interface fails, the connection fails, because messages in flight
//! there are lost.

mod ends;

pub use ends::{PeerEnd, UsnicEnds};

use crate::names::MessageName;
use crate::transport::{
    Carries, Closed, Event, MessageTransport, Obstacle, Over, Reason, Transport, Unwritten, Wanted,
};
use alloc::format;
use alloc::string::String;
use drivers::hal::Instant;
use usnic::{Delivery, EndpointId, Engine, SendError, State};

/// usNIC as rules use it: the engine and their state, borrowed for a stage.
pub struct UsnicTransport<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// Connections and events of rules.
    pub ends: &'a mut UsnicEnds,
    /// Set when rules have used the engine.
    pub touched: &'a mut bool,
    /// Current time.
    pub now: Instant,
}

impl UsnicTransport<'_> {
    /// Makes the engine deliver an end's messages in order, per interface.
    #[cold]
    fn in_order(&mut self, key: usize) {
        for endpoint in self.ends.paths(key) {
            self.engine.set_delivery(endpoint, Delivery::InOrder);
        }
    }
}

impl Transport for UsnicTransport<'_> {
    type Connection = u32;
    type Target = Wanted;

    fn next_event(&mut self) -> Option<Event<u32>> {
        self.next_owned().map(|(_, event)| event)
    }

    #[cold]
    fn connect(&mut self, to: &Wanted) -> Option<u32> {
        let (key, _) = self.ends.find(&to.name)?;
        let is_open = |endpoint: &EndpointId| self.engine.state(*endpoint) == Some(State::Open);
        let over = self.ends.paths(key).find(is_open)?;
        let end = self.ends.ends.get_mut(key)?;
        if end.connection.is_some() {
            return None;
        }
        end.connection = Some((to.owner, None));
        end.over = Some(over);
        self.in_order(key);
        self.ends.events.push_back((to.owner, Event::Opened(key as u32, Over::Usnic)));
        Some(key as u32)
    }

    fn carries(&self, _: u32) -> Carries {
        Carries::Messages { longest: self.ends.longest }
    }

    fn message(&mut self, key: u32) -> Result<Option<usize>, Closed> {
        let is_there = self.ends.take(self.engine, key as usize);
        let end = self.ends.ends.get(key as usize).ok_or(Closed::Gone)?;
        if is_there {
            return Ok(end.current.map(|message| message.bytes.len() - end.cursor));
        }
        match end.connection {
            Some((_, None)) => Ok(None),
            Some((_, Some(_))) | None => Err(Closed::Gone),
        }
    }

    fn read(&mut self, key: u32, into: &mut [u8]) -> Result<usize, Closed> {
        let Some(left) = self.message(key)? else { return Ok(0) };
        let end = self.ends.ends.get_mut(key as usize).ok_or(Closed::Gone)?;
        let Some(message) = end.current else { return Ok(0) };
        let count = left.min(into.len());
        let into = into.get_mut(..count).unwrap_or_default();
        message.bytes.read(end.cursor, into).map_err(|_| Closed::Gone)?;
        end.cursor += count;
        if count == left {
            end.current = None;
            self.engine.release(message);
            *self.touched = true;
        }
        Ok(count)
    }

    fn room(&mut self, key: u32) -> usize {
        let end = self.ends.ends.get(key as usize);
        end.filter(|end| end.connection.is_some()).map_or(0, |_| self.ends.longest)
    }

    fn write(&mut self, key: u32, bytes: &[u8]) -> Result<usize, Unwritten> {
        let gone = Unwritten::Ended(Closed::Gone);
        let end = self.ends.ends.get(key as usize).ok_or(gone)?;
        let (Some(endpoint), Some((_, None))) = (end.over, end.connection) else {
            return Err(gone);
        };
        let tag = end.known.tag.unwrap_or(end.tag);
        // Also without room, because the engine then checks for room.
        *self.touched = true;
        match self.engine.send(endpoint, tag, bytes, self.now) {
            Ok(()) => Ok(bytes.len()),
            Err(SendError::Full) => Err(Unwritten::Full),
            Err(SendError::TooLong) => Err(Unwritten::Length),
            Err(_) => Err(gone),
        }
    }

    fn finish(&mut self, _: u32) {}

    fn close(&mut self, key: u32, _: bool) -> usize {
        let Some(end) = self.ends.ends.get_mut(key as usize) else { return 0 };
        let ended = end.connection.take();
        let mut unread = 0;
        // Messages that arrived after a connection ended start the next one, if a rule listens.
        let is_over = ended.is_some_and(|(_, reason)| reason.is_some());
        let (listens, is_begun) = (end.listener.is_some(), end.cursor > 0);
        if !listens || is_over || is_begun {
            while let Some(end) = self.ends.ends.get_mut(key as usize)
                && let Some(message) = end.current.take()
            {
                self.engine.release(message);
                unread += 1;
                if listens && !is_over {
                    break;
                }
                self.ends.take(self.engine, key as usize);
            }
        }
        if let Some(end) = self.ends.ends.get_mut(key as usize).filter(|end| end.current.is_none())
        {
            end.over = None;
        }
        *self.touched = true;
        self.ends.accept(self.engine, key as usize);
        unread
    }

    #[cold]
    fn reason(&self, key: u32) -> Reason {
        let connection = self.ends.ends.get(key as usize).and_then(|end| end.connection);
        connection.and_then(|(_, reason)| reason).unwrap_or(Reason::Lost)
    }
}

impl MessageTransport for UsnicTransport<'_> {
    #[cold]
    fn obstacle(&self, name: &MessageName, listens: bool) -> Option<Obstacle> {
        match self.ends.find(name) {
            None => Some(
                format!(
                    "{name}: this peer is not in force: `save` and `reboot` if it is configured"
                )
                .into(),
            ),
            Some((_, end)) if listens && end.listener.is_some() => {
                Some(format!("{name} is the end of another rule").into())
            }
            Some(_) => None,
        }
    }

    #[cold]
    fn listen(&mut self, wanted: &Wanted) -> Result<(), String> {
        let none = || format!("{}: this peer is not in force", wanted.name);
        let key = self.ends.find(&wanted.name).ok_or_else(none)?.0;
        let end = self.ends.ends.get_mut(key).ok_or_else(none)?;
        if end.listener.is_some() {
            return Err(format!("{} is the end of another rule", wanted.name));
        }
        end.listener = Some(wanted.owner);
        self.in_order(key);
        self.ends.accept(self.engine, key);
        Ok(())
    }

    #[cold]
    fn unlisten(&mut self, owner: u32) {
        for key in 0..self.ends.ends.len() {
            let Some(end) = self.ends.ends.get_mut(key) else { continue };
            if end.listener == Some(owner) {
                end.listener = None;
                if end.connection.is_some_and(|(of, _)| of == owner) {
                    self.close(key as u32, true);
                }
            }
        }
        self.ends.events.retain(|(of, _)| *of != owner);
    }

    fn next_owned(&mut self) -> Option<(u32, Event<u32>)> {
        self.ends.events.pop_front()
    }
}
