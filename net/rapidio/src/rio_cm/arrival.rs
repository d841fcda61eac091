//! Received messages: finds the channel and dispatches by operation.

use super::channel::State;
use super::control::MOST_ANSWERS;
use super::wire::{HEADER, Header, Operation};
use super::{Engine, Error, Peer};
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Source};

/// A received message whose header was read.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Source id as claimed by its packets, which nothing confirms.
    pub from: Source,
    /// The header.
    pub header: &'a [u8; HEADER],
    /// Length in bytes with header and padding.
    pub length: usize,
    /// The port has room to send a message.
    pub has_room: bool,
    /// The current time.
    pub now: Instant,
}

/// Received data that the caller must send back at once ([`Engine::send_back`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Destination id.
    pub to: Destination,
    /// Header to send ahead of the data.
    pub header: [u8; HEADER],
    /// Length of the data, which follows the received header.
    pub len: usize,
}

impl Engine {
    /// Handles a received message that was read completely.
    pub fn deliver(&mut self, from: Source, message: &[u8], now: Instant) {
        let Some((header, data)) = message.split_first_chunk::<HEADER>() else {
            self.counters.malformed += 1;
            return;
        };
        let arrival = Arrival { from, header, length: message.len(), has_room: false, now };
        self.arrive(&arrival, |into| {
            into.copy_from_slice(&data[..into.len()]);
            true
        });
    }

    /// Handles a received message. Data that is kept is read by `copy`, which fills its argument with the bytes behind
    /// the header, and returns false if they cannot be read.
    pub fn arrive(
        &mut self,
        arrival: &Arrival<'_>,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Reply> {
        let &Arrival { from, now, .. } = arrival;
        let Ok(header) = Header::parse(arrival.header, arrival.length) else {
            self.counters.malformed += 1;
            return None;
        };
        let number = header.to_channel;
        match header.operation {
            Operation::Data => return self.data(arrival, &header, copy),
            Operation::ConnectRequest => self.request(from, &header, now),
            Operation::ConnectAcknowledge => self.acknowledged(from, &header, now),
            Operation::Close => self.closed(number, from, &header),
            Operation::Credit | Operation::Finish => self.flow_message(number, from, &header),
        }
        None
    }

    fn closed(&mut self, number: u16, from: Source, header: &Header) {
        if !self.is_from_peer(number, from, header.from_channel) {
            self.counters.stray += 1;
            return;
        }
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.state = match channel.flow {
                Some(_) => State::Broken(Error::Aborted),
                None => State::ClosedByPeer,
            };
        }
        self.notify(number);
    }

    fn is_from_peer(&self, number: u16, from: Source, channel: u16) -> bool {
        let peer = Peer { device: from, channel };
        self.peer(number) == Ok(Some(peer))
    }

    /// Handles a credit or a finish, which only appliances send.
    fn flow_message(&mut self, number: u16, from: Source, header: &Header) {
        let from_channel = header.from_channel;
        let is_known = self.is_from_peer(number, from, from_channel);
        let channel = self.channels.get_mut(&number).filter(|_| is_known);
        let Some(flow) = channel.and_then(|channel| channel.flow.as_mut()) else {
            self.counters.stray += 1;
            // The peer must drop this channel. It may be from before a restart of this end point.
            if self.outgoing.len() < MOST_ANSWERS {
                let peer = Peer { device: from, channel: from_channel };
                self.send(peer, Operation::Close, number);
            }
            return;
        };
        let ended = match header.operation {
            Operation::Finish => flow.end(header.len).map(|()| true),
            _ => Ok(false),
        };
        match ended.and_then(|ended| Ok(flow.update_credit(header.word)? || ended)) {
            Ok(true) => self.notify(number),
            Ok(false) => {}
            Err(why) => self.fail(number, why),
        }
    }
}
