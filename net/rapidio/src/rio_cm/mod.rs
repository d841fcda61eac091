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

mod channel;
mod wire;

pub use channel::Peer;
pub use wire::{HEADER, Header, MOST, Malformed, Operation};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use channel::{Channel, Request, State};
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Mailbox, Source};

/// The mailbox that stock peers use.
pub const MAILBOX: Mailbox = Mailbox::ALL[1];
/// The first number of channels whose number nobody chose.
const FIRST_DYNAMIC: u16 = 256;
/// How long an acknowledgement is waited for, as with Linux.
const CONNECT: Duration = Duration::from_secs(3);
/// How old a request may be that is accepted.
const ACCEPTABLE: Duration = Duration::from_millis(2500);
/// Messages that a channel holds, as with Linux.
const MOST_RECEIVED: usize = 128;
/// Messages of a channel that holds its senders up, from which on it does.
const CROWDED: usize = 96;
/// Requests that a listening channel holds, and those of one device.
const MOST_REQUESTS: usize = 64;
const MOST_REQUESTS_OF_ONE: usize = 8;
/// Channels at most.
const MOST_CHANNELS: usize = 1024;
/// Messages in all channels at most: 8 MiB.
const MOST_IN_ALL: usize = 2048;
/// Control messages that wait for room: two for each channel.
const MOST_OUTGOING: usize = 2 * MOST_CHANNELS;

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The number is taken.
    Taken,
    /// There are 1024 channels.
    TooMany,
    /// There is no such channel, or it is not in a state for this.
    State,
    /// The peer closed the channel.
    ClosedByPeer,
    /// The peer did not answer in 3 s: nobody listens there, or the device is gone.
    TimedOut,
    /// More than 4076 bytes of data.
    Length,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Taken => "the number of the channel is taken",
            Error::TooMany => "there are as many channels as there can be",
            Error::State => "there is no such channel, or it is not connected",
            Error::ClosedByPeer => "the other end has closed the channel",
            Error::TimedOut => {
                "the other end does not answer: nobody listens on that channel, or the device is gone"
            }
            Error::Length => "a message of a channel has 4076 bytes at most",
        })
    }
}

impl core::error::Error for Error {}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data messages received, and how many were thrown away because their channel was full.
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
    /// Buffers that were used before.
    spare: Vec<Vec<u8>>,
    held: usize,
    /// Channels that hold their senders up.
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
            spare: Vec::new(),
            held: 0,
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

    fn send(&mut self, peer: Peer, operation: Operation, from_channel: u16) {
        let Peer { device, channel } = peer;
        let header =
            Header::new(self.own_id, device, self.mailbox, operation, channel, from_channel);
        if self.outgoing.len() < MOST_OUTGOING {
            self.outgoing.push_back((device, header));
        }
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

    /// Takes requests on a channel of this number.
    pub fn listen(&mut self, number: u16) -> Result<(), Error> {
        self.add(Some(number), State::Listening(VecDeque::new())).map(|_| ())
    }

    /// Asks for a channel; its number here. Whether there is one is told by news.
    pub fn connect(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        let until = now + CONNECT;
        let number = self.add(None, State::Connecting(to, until))?;
        self.waiting.push_back((until, number));
        self.send(to, Operation::ConnectRequest, number);
        Ok(number)
    }

    /// Accepts the next request of a listening channel that is not too old: the number of the new channel, and who is
    /// at its other end.
    pub fn accept(&mut self, listener: u16, now: Instant) -> Result<Option<(u16, Peer)>, Error> {
        loop {
            let Some(Channel { state: State::Listening(requests), .. }) =
                self.channels.get_mut(&listener)
            else {
                return Err(Error::State);
            };
            let Some(request) = requests.pop_front() else { return Ok(None) };
            if now.since(request.at) > ACCEPTABLE {
                self.counters.stale += 1;
                continue;
            }
            let peer = Peer { device: request.from, channel: request.channel };
            let number = self.add(None, State::Connected(peer))?;
            self.send(peer, Operation::ConnectAcknowledge, number);
            return Ok(Some((number, peer)));
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
            Some(State::Listening(_)) | None => Err(Error::State),
        }
    }

    /// The header to put ahead of `len` bytes of data, and who to send them to.
    pub fn header(&self, number: u16, len: usize) -> Result<(Destination, [u8; HEADER]), Error> {
        let peer = self.peer(number)?.ok_or(Error::State)?;
        if len > MOST - HEADER {
            return Err(Error::Length);
        }
        let Peer { device, channel } = peer;
        let mut header =
            Header::new(self.own_id, device, self.mailbox, Operation::Data, channel, number);
        header.len = (HEADER + len) as u16;
        Ok((device, header.bytes()))
    }

    /// Has who sends to a channel wait when much of it is unread: [`Engine::is_congested`] then says that nothing
    /// more is to be taken from the mailbox. That holds up all channels of the mailbox.
    pub fn hold_up(&mut self, number: u16) {
        if let Some(channel) = self.channels.get_mut(&number)
            && !core::mem::replace(&mut channel.holds_up, true)
        {
            self.crowded += usize::from(channel.received.len() >= CROWDED);
        }
    }

    /// Whether messages are better left in the mailbox, which RapidIO tells their senders.
    pub fn is_congested(&self) -> bool {
        self.crowded > 0
    }

    /// The next data of a channel, which stays there; None if there is none now.
    pub fn first(&self, number: u16) -> Result<Option<&[u8]>, Error> {
        let channel = self.channels.get(&number).ok_or(Error::State)?;
        match channel.received.front() {
            Some(data) => Ok(Some(data)),
            None => self.peer(number).map(|_| None),
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
            return self.peer(number).map(|_| None);
        };
        self.held -= 1;
        let left = channel.received.len();
        self.crowded -= usize::from(channel.holds_up && left + 1 == CROWDED);
        let taken = take(&data);
        self.spare.push(data);
        Ok(Some(taken))
    }

    /// Closes a channel, and forgets it; what it has received and nobody read is lost.
    pub fn close(&mut self, number: u16) {
        let Some(channel) = self.channels.remove(&number) else { return };
        self.held -= channel.received.len();
        let is_crowded = channel.holds_up && channel.received.len() >= CROWDED;
        self.crowded -= usize::from(is_crowded);
        self.spare.extend(channel.received);
        if let State::Connected(peer) = channel.state {
            self.send(peer, Operation::Close, number);
        }
    }

    /// Devices that are gone: channels to them are closed.
    pub fn devices_gone(&mut self, is_gone: impl Fn(Destination) -> bool) {
        let mut told = Vec::new();
        for (number, channel) in &mut self.channels {
            match channel.state {
                State::Connected(peer) if is_gone(peer.device) => {
                    channel.state = State::ClosedByPeer;
                    told.push(*number);
                }
                State::Connecting(peer, _) if is_gone(peer.device) => {
                    channel.state = State::TimedOut;
                    told.push(*number);
                }
                _ => {}
            }
        }
        told.into_iter().for_each(|number| self.tell(number));
    }

    /// The next control message, and who it goes to. It stays until [`Engine::was_sent`].
    pub fn outgoing(&self) -> Option<(Destination, [u8; HEADER])> {
        self.outgoing.front().map(|(to, header)| (*to, header.bytes()))
    }

    /// The control message was taken by the port.
    pub fn was_sent(&mut self) {
        self.outgoing.pop_front();
    }

    /// When time may change something.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(until, _)| *until)
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
    }

    /// A message has arrived in the mailbox. `from` is what its packets say, which is all that is known of who sent
    /// it.
    pub fn deliver(&mut self, from: Source, message: &[u8], now: Instant) {
        let header = match Header::read(message) {
            Ok(header) => header,
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let number = header.to_channel;
        match header.operation {
            Operation::ConnectRequest => self.request(from, &header, now),
            Operation::ConnectAcknowledge => self.acknowledged(from, &header),
            Operation::Close => {
                if self.is_peers(number, from, header.from_channel) {
                    if let Some(channel) = self.channels.get_mut(&number) {
                        channel.state = State::ClosedByPeer;
                    }
                    self.tell(number);
                } else {
                    self.counters.stray += 1;
                }
            }
            Operation::Data => {
                let data = message.get(HEADER..header.len.into()).unwrap_or_default();
                self.data(number, from, header.from_channel, data);
            }
        }
    }

    fn is_peers(&self, number: u16, from: Source, channel: u16) -> bool {
        let peer = Peer { device: from, channel };
        self.peer(number) == Ok(Some(peer))
    }

    fn request(&mut self, from: Source, header: &Header, now: Instant) {
        let number = header.to_channel;
        let Some(Channel { state: State::Listening(requests), .. }) =
            self.channels.get_mut(&number)
        else {
            self.counters.refused += 1;
            return;
        };
        let channel = header.from_channel;
        let of_one = requests.iter().filter(|request| request.from == from).count();
        let is_known = requests.iter().any(|known| known.from == from && known.channel == channel);
        if is_known || requests.len() >= MOST_REQUESTS || of_one >= MOST_REQUESTS_OF_ONE {
            self.counters.refused += 1;
            return;
        }
        requests.push_back(Request { from, channel, at: now });
        self.tell(number);
    }

    fn acknowledged(&mut self, from: Source, header: &Header) {
        let number = header.to_channel;
        let peer = Peer { device: from, channel: header.from_channel };
        match self.channels.get_mut(&number) {
            Some(channel) => match channel.state {
                State::Connecting(asked, _) if asked.device == from => {
                    channel.state = State::Connected(peer);
                    self.tell(number);
                }
                // Too late: whoever made a channel for us is to forget it.
                State::TimedOut => self.send(peer, Operation::Close, number),
                _ => self.counters.stray += 1,
            },
            None => {
                self.counters.stray += 1;
                self.send(peer, Operation::Close, number);
            }
        }
    }

    fn data(&mut self, number: u16, from: Source, from_channel: u16, data: &[u8]) {
        if !self.is_peers(number, from, from_channel) {
            self.counters.stray += 1;
            return;
        }
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.received.len() >= MOST_RECEIVED || self.held >= MOST_IN_ALL {
            self.counters.overflowed += 1;
            return;
        }
        let mut buffer = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(MOST));
        buffer.clear();
        buffer.extend_from_slice(data);
        channel.received.push_back(buffer);
        let is_crowded = channel.holds_up && channel.received.len() == CROWDED;
        self.crowded += usize::from(is_crowded);
        self.held += 1;
        self.counters.received += 1;
        self.tell(number);
    }
}
