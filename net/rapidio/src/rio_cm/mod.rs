//! Channels over RapidIO messages, as Linux's `rio_cm` speaks them (`drivers/rapidio/rio_cm.c`, 6.12): a stock peer
//! uses them by `/dev/rio_cm`.
//!
//! What the protocol does not have: sequence numbers, acknowledgements, heartbeats, an answer that refuses a request.
//! A receiver with 128 messages in a channel drops what comes then without a word, and a close discards what was not
//! read there. Who needs more puts it above.
//!
//! What is done differently from Linux, where its peer cannot tell or would suffer:
//! * Every message has to come from the device that the channel is connected to. Linux does not look.
//! * A request is accepted within 2.5 s or not at all: an acknowledgement after the requester's 3 s makes a stock
//!   requester that reads then fall over a null pointer.
//! * An acknowledgement that comes after we gave up is answered by a close, so that nobody keeps half a channel.
//! * Data that was unread when the peer closed can still be read.
//! * The receiver's id stands in every message.
//!
//! Where the other end is ours, too, `flow` is what the protocol does not have.

mod arrival;
mod channel;
mod control;
mod data;
mod ending;
mod error;
mod establish;
mod flow;
mod memory;
mod wire;

pub use arrival::{Arrival, Back};
pub use channel::Peer;
pub use error::Error;
pub use wire::{HEADER, Header, MOST, Malformed, Operation};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use channel::{Channel, Data, State};
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Mailbox};
use memory::Memory;

/// The mailbox that stock peers use.
pub const MAILBOX: Mailbox = Mailbox::ALL[1];
/// The first number of channels whose number nobody chose.
const FIRST_DYNAMIC: u16 = 256;
/// Channels at most.
const MOST_CHANNELS: usize = 1024;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data messages received, and how many of stock peers were thrown away because there was no room.
    pub received: u64,
    /// See `received`.
    pub overflowed: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Messages for a channel that does not exist or is connected to somebody else.
    pub stray: u64,
    /// Requests that nobody listens for, or that were too many.
    pub refused: u64,
    /// Requests that were too old when they were to be accepted.
    pub stale: u64,
}

/// All channels of a device.
pub struct Engine {
    own_id: Destination,
    mailbox: Mailbox,
    channels: BTreeMap<u16, Channel>,
    next: u16,
    outgoing: VecDeque<(Destination, Header)>,
    news: VecDeque<u16>,
    /// Channels that were asked for, and when they are given up: in the order of that, as all wait equally long.
    waiting: VecDeque<(Instant, u16)>,
    /// Channels between our own, and their next ticks: in the order of that.
    ticks: VecDeque<(Instant, u16)>,
    /// Buffers that were used before.
    spare: Vec<Data>,
    memory: Memory,
    /// Channels whose users would have senders wait, and those that hold them up.
    patient: usize,
    crowded: usize,
    counters: Counters,
}

impl Engine {
    /// An engine without channels.
    pub fn new(own_id: Destination, mailbox: Mailbox) -> Self {
        Engine {
            own_id,
            mailbox,
            channels: BTreeMap::new(),
            next: FIRST_DYNAMIC,
            outgoing: VecDeque::new(),
            news: VecDeque::new(),
            waiting: VecDeque::new(),
            ticks: VecDeque::new(),
            spare: Vec::new(),
            memory: Memory::default(),
            patient: 0,
            crowded: 0,
            counters: Counters::default(),
        }
    }

    /// The own id has become another; nobody knows channels of the old one.
    pub fn set_own_id(&mut self, own_id: Destination) {
        if core::mem::replace(&mut self.own_id, own_id) != own_id {
            self.devices_gone(|_| true);
        }
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn add(&mut self, number: Option<u16>, state: State) -> Result<u16, Error> {
        if self.channels.len() >= MOST_CHANNELS {
            return Err(Error::TooMany);
        }
        let number = match number {
            Some(number) if self.channels.contains_key(&number) => return Err(Error::Taken),
            Some(number) => number,
            None => {
                while self.channels.contains_key(&self.next) {
                    self.advance();
                }
                let number = self.next;
                self.advance();
                number
            }
        };
        self.channels.insert(number, Channel::new(state));
        Ok(number)
    }

    fn advance(&mut self) {
        self.next = self.next.checked_add(1).unwrap_or(FIRST_DYNAMIC);
    }

    fn tell(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number)
            && !core::mem::replace(&mut channel.has_news, true)
        {
            self.news.push_back(number);
        }
    }

    /// The next channel whose user would see something new.
    pub fn next_news(&mut self) -> Option<u16> {
        loop {
            let number = self.news.pop_front()?;
            if let Some(channel) = self.channels.get_mut(&number)
                && core::mem::take(&mut channel.has_news)
            {
                return Some(number);
            }
        }
    }

    /// Whether a number is a channel's.
    pub fn has(&self, number: u16) -> bool {
        self.channels.contains_key(&number)
    }

    /// Whether a channel is connected, and to whom; None while it is being connected.
    pub fn peer(&self, number: u16) -> Result<Option<Peer>, Error> {
        match self.channels.get(&number).map(|channel| &channel.state) {
            Some(State::Connected(peer)) => Ok(Some(*peer)),
            Some(State::Connecting(..)) => Ok(None),
            Some(State::TimedOut) => Err(Error::TimedOut),
            Some(State::ClosedByPeer) => Err(Error::ClosedByPeer),
            Some(State::Broken(why)) => Err(*why),
            Some(State::Listening(_)) | None => Err(Error::State),
        }
    }

    /// Why nothing more comes of a channel of which all was read; None if more may come.
    fn end(&self, number: u16) -> Result<(), Error> {
        let flow = self.channels.get(&number).and_then(|channel| channel.flow.as_ref());
        match flow.is_some_and(|flow| flow.has_ended()) {
            true => Err(Error::Finished),
            false => self.peer(number).map(|_| ()),
        }
    }

    /// Whether the other end of a connected channel is ours, too.
    pub fn is_own(&self, number: u16) -> bool {
        let channel = self.channels.get(&number);
        channel.is_some_and(|it| it.flow.is_some() && !matches!(it.state, State::Connecting(..)))
    }

    /// When time may change something.
    pub fn deadline(&self) -> Option<Instant> {
        let first = |list: &VecDeque<(Instant, u16)>| list.front().map(|(until, _)| *until);
        Instant::first([first(&self.waiting), first(&self.ticks)])
    }

    /// Time has passed.
    pub fn poll(&mut self, now: Instant) {
        while let Some((until, number)) = self.waiting.pop_front_if(|(until, _)| *until <= now) {
            // It may be connected by now, or another channel.
            if let Some(channel) = self.channels.get_mut(&number)
                && matches!(channel.state, State::Connecting(_, of_it) if of_it == until)
            {
                channel.state = State::TimedOut;
                self.tell(number);
            }
        }
        while let Some((at, number)) = self.ticks.pop_front_if(|(at, _)| *at <= now) {
            self.tick(number, at, now);
        }
    }
}
