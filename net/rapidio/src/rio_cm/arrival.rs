//! What has arrived: whose it is, and what it says.

use super::channel::State;
use super::control::MOST_ANSWERS;
use super::wire::{HEADER, Header, Operation};
use super::{Engine, Error, Peer};
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Source};

/// A message that has arrived in the mailbox, of which the header was read.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// What its packets say, which is all that is known of who sent it.
    pub from: Source,
    /// Its first bytes.
    pub header: &'a [u8; HEADER],
    /// Bytes of it with the header, and with what it was padded by.
    pub length: usize,
    /// A message can be sent now.
    pub has_room: bool,
    /// The present.
    pub now: Instant,
}

/// Data that is to go back at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    /// Who to.
    pub to: Destination,
    /// What to put ahead of it.
    pub header: [u8; HEADER],
    /// Bytes of it: those that stand behind the header that has arrived.
    pub len: usize,
}

impl Engine {
    /// A message has arrived, all of which was read.
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

    /// A message has arrived. If it has data that is to be kept, `copy` is asked for as much of what stands behind the
    /// header as it is given room for, and says whether it could be read.
    pub fn arrive(
        &mut self,
        arrival: &Arrival<'_>,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Back> {
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
            Operation::Credit | Operation::Finish => self.heard(number, from, &header),
        }
        None
    }

    fn closed(&mut self, number: u16, from: Source, header: &Header) {
        if !self.is_peers(number, from, header.from_channel) {
            self.counters.stray += 1;
            return;
        }
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.state = match channel.flow {
                Some(_) => State::Broken(Error::Aborted),
                None => State::ClosedByPeer,
            };
        }
        self.tell(number);
    }

    fn is_peers(&self, number: u16, from: Source, channel: u16) -> bool {
        let peer = Peer { device: from, channel };
        self.peer(number) == Ok(Some(peer))
    }

    /// What only our own say.
    fn heard(&mut self, number: u16, from: Source, header: &Header) {
        let from_channel = header.from_channel;
        let is_known = self.is_peers(number, from, from_channel);
        let channel = self.channels.get_mut(&number).filter(|_| is_known);
        let Some(flow) = channel.and_then(|channel| channel.flow.as_mut()) else {
            self.counters.stray += 1;
            // Whoever has this channel is to forget it: we have been started anew since, say.
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
        match ended.and_then(|ended| Ok(flow.hear(header.word)? || ended)) {
            Ok(true) => self.tell(number),
            Ok(false) => {}
            Err(why) => self.fail(number, why),
        }
    }
}
