//! Channels over RapidIO messages, compatible with Linux's `rio_cm` (`drivers/rapidio/rio_cm.c`, 6.12). A stock peer
//! uses them through `/dev/rio_cm`.
//!
//! The protocol has no sequence numbers, acknowledgements, heartbeats, or refusals of requests. A receiver with 128
//! messages in a channel drops further ones silently, and a close discards unread messages. Applications that need more
//! must implement it.
//!
//! Differences from Linux, which a stock peer does not notice or which protect it:
//! * Every message must come from the device that the channel is connected to. Linux does not check this.
//! * A request is accepted within 2.5 s or not at all: after an acknowledgement later than the requester's 3 s, a stock
//!   requester that reads dereferences a null pointer.
//! * An acknowledgement after the timeout is answered by a close, so that no half-open channel remains.
//! * Data that was unread when the peer closed can still be read.
//! * Every message carries the receiver's id.
//!
//! Between two appliances, `flow` adds flow control, an orderly end, and keepalives.

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

pub use arrival::{Arrival, Reply};
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
/// The first dynamically assigned channel number.
const FIRST_DYNAMIC: u16 = 256;
/// Maximum number of channels.
const MOST_CHANNELS: usize = 1024;

/// Counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data messages received.
    pub received: u64,
    /// Data messages of stock peers that were dropped because there was no room.
    pub overflowed: u64,
    /// Malformed messages.
    pub malformed: u64,
    /// Messages for a channel that does not exist or is connected to another peer.
    pub stray: u64,
    /// Requests without a listening channel, or beyond its limits.
    pub refused: u64,
    /// Requests that were too old to be accepted.
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
    /// Connecting channels and their timeouts. Sorted, because all timeouts are equally long.
    waiting: VecDeque<(Instant, u16)>,
    /// Flow-controlled channels and their next ticks. Sorted likewise.
    ticks: VecDeque<(Instant, u16)>,
    /// Buffers to be reused.
    spare: Vec<Data>,
    memory: Memory,
    /// Number of channels with [`Engine::hold_up`].
    holding_up: usize,
    /// Number of these that have [`data::CROWDED`] unread messages or more.
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
            holding_up: 0,
            crowded: 0,
            counters: Counters::default(),
        }
    }

    /// Sets the own id. If it changes, all channels end, because peers address them by the old id.
    pub fn set_own_id(&mut self, own_id: Destination) {
        if core::mem::replace(&mut self.own_id, own_id) != own_id {
            self.devices_gone(|_| true);
        }
    }

    /// Counters of the engine.
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

    /// Adds a channel to the list of events.
    fn notify(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number)
            && !core::mem::replace(&mut channel.has_news, true)
        {
            self.news.push_back(number);
        }
    }

    /// The next channel with an event for its user.
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

    /// Whether channel `number` exists.
    pub fn has(&self, number: u16) -> bool {
        self.channels.contains_key(&number)
    }

    /// The peer of a connected channel; None while it is connecting.
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

    /// Error if a channel whose data was read completely gets no more data, with the reason.
    fn end(&self, number: u16) -> Result<(), Error> {
        let flow = self.channels.get(&number).and_then(|channel| channel.flow.as_ref());
        match flow.is_some_and(|flow| flow.has_ended()) {
            true => Err(Error::Finished),
            false => self.peer(number).map(|_| ()),
        }
    }

    /// Whether a channel is connected to another appliance, with flow control.
    pub fn is_own(&self, number: u16) -> bool {
        let channel = self.channels.get(&number);
        channel.is_some_and(|it| it.flow.is_some() && !matches!(it.state, State::Connecting(..)))
    }

    /// When [`Engine::poll`] must be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let first = |list: &VecDeque<(Instant, u16)>| list.front().map(|(until, _)| *until);
        Instant::first([first(&self.waiting), first(&self.ticks)])
    }

    /// Runs timeouts and ticks.
    pub fn poll(&mut self, now: Instant) {
        while let Some((until, number)) = self.waiting.pop_front_if(|(until, _)| *until <= now) {
            // The channel may be connected by now, or its number reused.
            if let Some(channel) = self.channels.get_mut(&number)
                && matches!(channel.state, State::Connecting(_, of_it) if of_it == until)
            {
                channel.state = State::TimedOut;
                self.notify(number);
            }
        }
        while let Some((at, number)) = self.ticks.pop_front_if(|(at, _)| *at <= now) {
            self.tick(number, at, now);
        }
    }
}
