//! Data messages: sending, and the queues of received data.
//!
//! On a channel of an echo service received data need not be queued: if no other message waits, the engine returns the
//! header for the reply, and the caller sends the data from the receive buffer ([`Engine::send_back`]).

use super::channel::{Channel, State};
use super::wire::{HEADER, Header, MOST, Operation};
use super::{Arrival, Engine, Error, Peer, Reply, memory};
use drivers::rapidio::Destination;

/// Maximum number of unread messages per channel, as in Linux.
const MOST_RECEIVED: usize = 128;
/// Number of unread messages from which a channel with [`Engine::hold_up`] blocks its senders.
pub(super) const CROWDED: usize = 96;

impl Engine {
    /// Whether the channel has credit to send data. If not, an event reports new credit.
    pub fn has_credit(&mut self, number: u16) -> bool {
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        flow.is_none_or(|flow| {
            flow.wants_credit = !flow.has_credit();
            !flow.wants_credit
        })
    }

    /// The header for `len` bytes of data, and the destination. The caller must send the message, because a
    /// flow-controlled channel counts it as sent.
    pub fn header(
        &mut self,
        number: u16,
        len: usize,
    ) -> Result<(Destination, [u8; HEADER]), Error> {
        let peer = self.peer(number)?.ok_or(Error::State)?;
        if len > MOST - HEADER {
            return Err(Error::Length);
        }
        if !self.has_credit(number) {
            return Err(Error::NoCredit);
        }
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        let word = match flow {
            Some(flow) if flow.finished => return Err(Error::State),
            Some(flow) => flow.send(),
            None => 0,
        };
        Ok((peer.device, self.data_header(number, peer, len, word)))
    }

    fn data_header(&self, number: u16, peer: Peer, len: usize, word: u16) -> [u8; HEADER] {
        let Peer { device, channel } = peer;
        let mut header =
            Header::new(self.own_id, device, self.mailbox, Operation::Data, channel, number);
        (header.len, header.word) = ((HEADER + len) as u16, word);
        header.bytes()
    }

    /// Blocks senders to a channel when many of its messages are unread: [`Engine::is_congested`] is then true, and the
    /// caller must not read the mailbox. This blocks all channels of the mailbox.
    pub fn hold_up(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number)
            && !core::mem::replace(&mut channel.holds_up, true)
        {
            self.holding_up += 1;
            self.crowded += usize::from(channel.received.len() >= CROWDED);
        }
    }

    /// Whether messages must be left in the mailbox, which blocks their senders by RapidIO's own flow control.
    pub fn is_congested(&self) -> bool {
        self.crowded > 0 || self.holding_up > 0 && self.memory.is_full()
    }

    /// Number of kept messages, of kept messages and granted credits, and the limit of the latter. For tests, because
    /// it iterates over all channels.
    pub fn memory(&self) -> (usize, usize, usize) {
        let (mut kept, mut granted) = (0, 0);
        for channel in self.channels.values() {
            let here = channel.received.len();
            kept += here;
            granted += match &channel.flow {
                Some(flow) => usize::from(flow.held()).max(here),
                None => here,
            };
        }
        debug_assert!(self.memory.used() <= granted);
        (kept, granted, memory::MOST)
    }

    /// The next data of a channel, without removing it; None if there is none now.
    pub fn first(&self, number: u16) -> Result<Option<&[u8]>, Error> {
        let channel = self.channels.get(&number).ok_or(Error::State)?;
        match channel.received.front() {
            Some(data) => Ok(Some(data.bytes())),
            None => self.end(number).map(|()| None),
        }
    }

    /// Number of unread messages of a channel.
    pub fn unread(&self, number: u16) -> usize {
        self.channels.get(&number).map_or(0, |channel| channel.received.len())
    }

    /// Passes the next data of a channel to `take`; None if there is none now.
    pub fn receive<T>(
        &mut self,
        number: u16,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        let channel = self.channels.get_mut(&number).ok_or(Error::State)?;
        let Some(data) = channel.received.pop_front() else {
            return self.end(number).map(|()| None);
        };
        let credit_due = match &mut channel.flow {
            Some(flow) => {
                flow.take(&mut self.memory);
                // The peer of a channel that has ended sends no more.
                let is_open = matches!(channel.state, State::Connected(_));
                is_open && flow.grant(&mut self.memory)
            }
            None => {
                self.memory.free(1);
                false
            }
        };
        let left = channel.received.len();
        self.crowded -= usize::from(channel.holds_up && left + 1 == CROWDED);
        let taken = take(data.bytes());
        self.spare.push(data);
        if credit_due {
            self.send_credit(number);
        }
        Ok(Some(taken))
    }

    /// Makes [`Engine::arrive`] send received data of the channel back at once, if the port has room and no other
    /// message waits. Other data is queued and read as usual.
    pub fn send_back(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.sends_back = true;
        }
    }

    /// Handles received data.
    pub(super) fn data(
        &mut self,
        arrival: &Arrival<'_>,
        header: &Header,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Reply> {
        let (number, len) = (header.to_channel, usize::from(header.len) - HEADER);
        let peer = Peer { device: arrival.from, channel: header.from_channel };
        let can_reply = arrival.has_room && self.outgoing.is_empty();
        let channel = self.channels.get_mut(&number);
        let is_peer = |it: &&mut Channel| matches!(it.state, State::Connected(of) if of == peer);
        let Some(channel) = channel.filter(is_peer) else {
            self.counters.stray += 1;
            return None;
        };
        let mut has_news = false;
        if let Some(flow) = &mut channel.flow {
            match (flow.update_credit(header.word), flow.receive()) {
                (Ok(news), true) => has_news = news,
                _ => {
                    self.fail(number, Error::Incomplete);
                    return None;
                }
            }
        }
        if can_reply && channel.sends_back && channel.received.is_empty() && channel.can_send() {
            let memory = &mut self.memory;
            let word = channel.flow.as_mut().map_or(0, |flow| flow.send_back(memory));
            self.counters.received += 1;
            if has_news {
                self.notify(number);
            }
            let to = peer.device;
            return Some(Reply { to, header: self.data_header(number, peer, len, word), len });
        }
        // Memory of a message with credit is already reserved.
        let is_stock = channel.flow.is_none();
        if is_stock && (channel.received.len() >= MOST_RECEIVED || !self.memory.keep()) {
            self.counters.overflowed += 1;
            return None;
        }
        let mut data = self.spare.pop().unwrap_or_default();
        if !data.fill(len, copy) {
            self.counters.malformed += 1;
            self.spare.push(data);
            match is_stock {
                true => self.memory.free(1),
                false => self.fail(number, Error::Incomplete),
            }
            return None;
        }
        channel.received.push_back(data);
        let is_crowded = channel.holds_up && channel.received.len() == CROWDED;
        self.crowded += usize::from(is_crowded);
        self.counters.received += 1;
        self.notify(number);
        None
    }
}
