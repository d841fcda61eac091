//! usNIC as a transport of rules.
//!
//! A peer is one connection at a time: on the wire there is nothing that opens or ends one. One that is listened on begins
//! with the peer's first message. A message that is not read yet is one of the engine's, which has a share of memory for each
//! peer and has the peer send again what is beyond.
//!
//! A peer at several interfaces is one connection, too, by whichever of its names a rule has it: messages are taken from
//! all of them but those that another rule names. What is sent keeps to one, in order: that of the first message that came,
//! or the first that is open. When one of them fails, so does the connection, because what was under way there is lost.

mod ends;

pub use ends::{PeerEnd, UsnicEnds};

use crate::messages::{MessageTransport, Obstacle, Wanted};
use crate::names::MessageName;
use crate::transport::{Carries, Closed, Event, Over, Reason, Transport, Unwritten};
use alloc::format;
use alloc::string::String;
use drivers::hal::Instant;
use usnic::{Delivery, EndpointId, Engine, SendError, State};

/// The engine, lent to rules.
pub struct UsnicTransport<'a> {
    /// The engine.
    pub engine: &'a mut Engine,
    /// What rules have of it.
    pub ends: &'a mut UsnicEnds,
    /// Says that the engine was given something.
    pub touched: &'a mut bool,
    /// The present.
    pub now: Instant,
}

impl UsnicTransport<'_> {
    /// Has the messages for an end come in the order in which they were sent, over each interface.
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
        self.ends.news.push_back((to.owner, Event::Opened(key as u32, Over::Usnic)));
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
        // Also when there is no room: the engine then looks whether there is some by now.
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
        // What came after the end of another connection begins the next one, if somebody listens for that.
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
            None => {
                Some(format!("{name}: there is no such peer in force: `save` and `reboot`").into())
            }
            Some((_, end)) if listens && end.listener.is_some() => {
                Some(format!("{name} is the end of another rule").into())
            }
            Some(_) => None,
        }
    }

    #[cold]
    fn listen(&mut self, wanted: &Wanted) -> Result<(), String> {
        let none = || format!("{}: there is no such peer", wanted.name);
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
        self.ends.news.retain(|(of, _)| *of != owner);
    }

    fn next_owned(&mut self) -> Option<(u32, Event<u32>)> {
        self.ends.news.pop_front()
    }
}
