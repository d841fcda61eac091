//! Data: what is sent over channels, and what has arrived and waits for who reads it.
//!
//! A channel whose user says back whatever is said need not have any wait: where nothing stands in the way, the engine
//! says what to put ahead of it, and the data goes back from where it lies ([`Engine::send_back`]).

use super::channel::{Channel, State};
use super::wire::{HEADER, Header, MOST, Operation};
use super::{Arrival, Back, Engine, Error, Peer, memory};
use drivers::rapidio::Destination;

/// Messages that a channel holds, as with Linux.
const MOST_RECEIVED: usize = 128;
/// Messages of a channel that holds its senders up, from which on it does.
pub(super) const CROWDED: usize = 96;

impl Engine {
    /// Whether data may be sent as far as the other end is concerned; if not, news tell when.
    pub fn has_credit(&mut self, number: u16) -> bool {
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        flow.is_none_or(|flow| {
            flow.wants_credit = !flow.has_credit();
            !flow.wants_credit
        })
    }

    /// The header to put ahead of `len` bytes of data, and who to send them to. It is sent then: what is counted of a
    /// channel between our own is counted here.
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

    /// Has who sends to a channel wait when much of it is unread: [`Engine::is_congested`] then says that nothing
    /// more is to be taken from the mailbox. That holds up all channels of the mailbox.
    pub fn hold_up(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number)
            && !core::mem::replace(&mut channel.holds_up, true)
        {
            self.patient += 1;
            self.crowded += usize::from(channel.received.len() >= CROWDED);
        }
    }

    /// Whether messages are better left in the mailbox, which RapidIO tells their senders.
    pub fn is_congested(&self) -> bool {
        self.crowded > 0 || self.patient > 0 && self.memory.is_full()
    }

    /// Messages that are kept, those that are kept or were promised to be, and how many of both there may be: for tests,
    /// as all channels are looked at.
    pub fn memory(&self) -> (usize, usize, usize) {
        let (mut kept, mut promised) = (0, 0);
        for channel in self.channels.values() {
            let here = channel.received.len();
            kept += here;
            promised += match &channel.flow {
                Some(flow) => usize::from(flow.held()).max(here),
                None => here,
            };
        }
        debug_assert!(self.memory.used() <= promised);
        (kept, promised, memory::MOST)
    }

    /// The next data of a channel, which stays there; None if there is none now.
    pub fn first(&self, number: u16) -> Result<Option<&[u8]>, Error> {
        let channel = self.channels.get(&number).ok_or(Error::State)?;
        match channel.received.front() {
            Some(data) => Ok(Some(data.bytes())),
            None => self.end(number).map(|()| None),
        }
    }

    /// Messages of a channel that were not read yet.
    pub fn unread(&self, number: u16) -> usize {
        self.channels.get(&number).map_or(0, |channel| channel.received.len())
    }

    /// Hands the next data of a channel to `take`; false if there is none now.
    pub fn receive<T>(
        &mut self,
        number: u16,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        let channel = self.channels.get_mut(&number).ok_or(Error::State)?;
        let Some(data) = channel.received.pop_front() else {
            return self.end(number).map(|()| None);
        };
        let is_to_be_told = match &mut channel.flow {
            Some(flow) => {
                flow.take(&mut self.memory);
                // Nothing more comes of one that has ended.
                let is_open = matches!(channel.state, State::Connected(_));
                is_open && flow.promise(&mut self.memory)
            }
            None => {
                self.memory.forget(1);
                false
            }
        };
        let left = channel.received.len();
        self.crowded -= usize::from(channel.holds_up && left + 1 == CROWDED);
        let taken = take(data.bytes());
        self.spare.push(data);
        if is_to_be_told {
            self.tell_promised(number);
        }
        Ok(Some(taken))
    }

    /// What arrives in a channel is to go back at once, where there is room and nothing waits ahead of it
    /// ([`Engine::arrive`]). What does not, is there to be read as in any other.
    pub fn send_back(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.goes_back = true;
        }
    }

    /// Data has arrived.
    pub(super) fn data(
        &mut self,
        arrival: &Arrival<'_>,
        header: &Header,
        copy: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<Back> {
        let (number, len) = (header.to_channel, usize::from(header.len) - HEADER);
        let peer = Peer { device: arrival.from, channel: header.from_channel };
        let is_next = arrival.has_room && self.outgoing.is_empty();
        let channel = self.channels.get_mut(&number);
        let is_its = |it: &&mut Channel| matches!(it.state, State::Connected(of) if of == peer);
        let Some(channel) = channel.filter(is_its) else {
            self.counters.stray += 1;
            return None;
        };
        let mut has_news = false;
        if let Some(flow) = &mut channel.flow {
            match (flow.hear(header.word), flow.receive()) {
                (Ok(news), true) => has_news = news,
                _ => {
                    self.fail(number, Error::Incomplete);
                    return None;
                }
            }
        }
        if is_next && channel.goes_back && channel.received.is_empty() && channel.can_send() {
            let memory = &mut self.memory;
            let word = channel.flow.as_mut().map_or(0, |flow| flow.send_back(memory));
            self.counters.received += 1;
            if has_news {
                self.tell(number);
            }
            let to = peer.device;
            return Some(Back { to, header: self.data_header(number, peer, len, word), len });
        }
        // What there was credit for has its memory already.
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
                true => self.memory.forget(1),
                false => self.fail(number, Error::Incomplete),
            }
            return None;
        }
        channel.received.push_back(data);
        let is_crowded = channel.holds_up && channel.received.len() == CROWDED;
        self.crowded += usize::from(is_crowded);
        self.counters.received += 1;
        self.tell(number);
        None
    }
}
