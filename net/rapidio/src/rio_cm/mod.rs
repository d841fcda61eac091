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
//! Where the other end is ours, too, [`flow`] is what the protocol does not have.

mod channel;
mod flow;
mod wire;

pub use channel::Peer;
pub use wire::{HEADER, Header, MOST, Malformed, Operation};

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use channel::{Channel, Request, State};
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::{Destination, Mailbox, Source};
use flow::{OFFER, Tick};

/// The mailbox that stock peers use.
pub const MAILBOX: Mailbox = Mailbox::ALL[1];
/// The first number of channels whose number nobody chose.
const FIRST_DYNAMIC: u16 = 256;
/// How long an acknowledgement is waited for. Linux waits for 3 s, and acknowledges what has waited longer, as a busy one
/// does; that is taken.
const CONNECT: Duration = Duration::from_secs(10);
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
/// Control messages that wait for room: four for each channel.
const MOST_OUTGOING: usize = 4 * MOST_CHANNELS;
/// Closes that answer who speaks of a channel that there is none of, beside all others.
const MOST_ANSWERS: usize = MOST_CHANNELS;
/// Between ticks of a channel between our own.
const TICK: Duration = Duration::from_secs(1);

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
    /// The peer did not answer in 10 s: nobody listens there, or the device is gone.
    TimedOut,
    /// More than 4076 bytes of data.
    Length,
    /// Between our own: the other end has to take something first; news tell when it has.
    NoCredit,
    /// Between our own: the other end has said everything, and all of it was read.
    Finished,
    /// Between our own: the other end has closed the channel before it had said everything.
    Aborted,
    /// Between our own: nothing was heard of the other end for ten seconds.
    Silent,
    /// Between our own: messages are missing, or counts are none that can be.
    Incomplete,
    /// The device is gone, or was started anew.
    Gone,
    /// The port could not deliver a message to the device.
    Undelivered,
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
            Error::NoCredit => "the other end has to read first",
            Error::Finished => "the other end has said everything",
            Error::Aborted => "the other end has closed the channel in the middle",
            Error::Silent => "nothing is heard of the other end",
            Error::Incomplete => "messages of the other end are missing",
            Error::Gone => "the device is gone",
            Error::Undelivered => "the device does not take messages",
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
    /// Channels between our own, and their next ticks: in the order of that.
    ticks: VecDeque<(Instant, u16)>,
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
            ticks: VecDeque::new(),
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
        self.send_word(peer, operation, from_channel, 0);
    }

    fn send_word(&mut self, peer: Peer, operation: Operation, from_channel: u16, word: u16) {
        let Peer { device, channel } = peer;
        let header =
            Header::new(self.own_id, device, self.mailbox, operation, channel, from_channel);
        let header = Header { word, ..header };
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
        self.ask(to, 0, now)
    }

    /// The same, and offers what [`flow`] is for: where the other end is ours, it takes that.
    pub fn connect_offering(&mut self, to: Peer, now: Instant) -> Result<u16, Error> {
        self.ask(to, OFFER, now)
    }

    fn ask(&mut self, to: Peer, word: u16, now: Instant) -> Result<u16, Error> {
        let until = now + CONNECT;
        let number = self.add(None, State::Connecting(to, until))?;
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.flow = (word == OFFER).then(Box::default);
        }
        self.waiting.push_back((until, number));
        self.send_word(to, Operation::ConnectRequest, number, word);
        Ok(number)
    }

    /// Whether the other end of a connected channel is ours, too.
    pub fn is_own(&self, number: u16) -> bool {
        let channel = self.channels.get(&number);
        channel.is_some_and(|it| it.flow.is_some() && !matches!(it.state, State::Connecting(..)))
    }

    fn start_ticks(&mut self, number: u16, now: Instant) {
        let at = now + TICK;
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.tick = at;
            self.ticks.push_back((at, number));
        }
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
            let offers = request.offers;
            let number = self.add(None, State::Connected(peer))?;
            if offers && let Some(channel) = self.channels.get_mut(&number) {
                channel.flow = Some(Box::default());
                self.start_ticks(number, now);
            }
            let word = if offers { OFFER } else { 0 };
            self.send_word(peer, Operation::ConnectAcknowledge, number, word);
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
        let Peer { device, channel } = peer;
        let mut header =
            Header::new(self.own_id, device, self.mailbox, Operation::Data, channel, number);
        (header.len, header.word) = ((HEADER + len) as u16, word);
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
        self.held -= 1;
        let is_to_be_told = channel.flow.as_mut().is_some_and(|flow| flow.take());
        let left = channel.received.len();
        self.crowded -= usize::from(channel.holds_up && left + 1 == CROWDED);
        let taken = take(&data);
        self.spare.push(data);
        if is_to_be_told {
            self.tell_taken(number);
        }
        Ok(Some(taken))
    }

    /// The other end is told how much was taken.
    fn tell_taken(&mut self, number: u16) {
        if let Ok(Some(peer)) = self.peer(number) {
            self.send(peer, Operation::Credit, number);
        }
    }

    /// Says, where the other end is ours, that nothing more is sent; what comes from there still does.
    pub fn finish(&mut self, number: u16) {
        let Ok(Some(peer)) = self.peer(number) else { return };
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        if let Some(flow) = flow
            && !core::mem::replace(&mut flow.finished, true)
        {
            let (len, word) = (flow.sent(), flow.taken());
            self.send_word(peer, Operation::Finish, number, word);
            if let Some((_, header)) = self.outgoing.back_mut()
                && (header.operation, header.from_channel) == (Operation::Finish, number)
            {
                header.len = len;
            }
        }
    }

    /// Closes a channel, and forgets it; what it has received and nobody read is lost. Where the other end is ours, and
    /// both have said that nothing more comes ([`Engine::finish`]), that is the end in good order; else it is one in the
    /// middle, and the other end is told.
    pub fn close(&mut self, number: u16) {
        let Some(channel) = self.channels.remove(&number) else { return };
        self.held -= channel.received.len();
        let is_crowded = channel.holds_up && channel.received.len() >= CROWDED;
        self.crowded -= usize::from(is_crowded);
        self.spare.extend(channel.received);
        let is_over = channel.flow.is_some_and(|flow| flow.finished && flow.has_ended());
        if let State::Connected(peer) = channel.state
            && !is_over
        {
            self.send(peer, Operation::Close, number);
        }
    }

    /// Closes all channels that are connected: this end point leaves.
    pub fn leave(&mut self) {
        let connected: Vec<(u16, Peer)> = self
            .channels
            .iter()
            .filter_map(|(number, channel)| match channel.state {
                State::Connected(peer) => Some((*number, peer)),
                _ => None,
            })
            .collect();
        for (number, peer) in connected {
            self.send(peer, Operation::Close, number);
            self.broken(number, Error::State);
        }
    }

    /// A message to a device was not delivered: whose it was nobody knows.
    pub fn undelivered(&mut self, to: Destination) {
        let is_its = |channel: &Channel| match channel.state {
            State::Connected(peer) | State::Connecting(peer, _) => peer.device == to,
            _ => false,
        };
        let all = self.channels.iter().filter(|(_, channel)| is_its(channel));
        let all: Vec<u16> = all.map(|(number, _)| *number).collect();
        all.into_iter().for_each(|number| self.broken(number, Error::Undelivered));
    }

    fn broken(&mut self, number: u16, why: Error) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.state = State::Broken(why);
            self.tell(number);
        }
    }

    /// Devices that are gone: channels to them are closed.
    pub fn devices_gone(&mut self, is_gone: impl Fn(Destination) -> bool) {
        let mut told = Vec::new();
        for (number, channel) in &mut self.channels {
            match channel.state {
                State::Connected(peer) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    told.push(*number);
                }
                State::Connecting(peer, _) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    told.push(*number);
                }
                _ => {}
            }
        }
        told.into_iter().for_each(|number| self.tell(number));
    }

    /// The next control message, and who it goes to. It stays until [`Engine::was_sent`].
    pub fn outgoing(&self) -> Option<(Destination, [u8; HEADER])> {
        let (to, mut header) = *self.outgoing.front()?;
        let flow = self.channels.get(&header.from_channel).and_then(|it| it.flow.as_ref());
        if header.operation == Operation::Credit
            && let Some(flow) = flow
        {
            header.word = flow.taken();
        }
        Some((to, header.bytes()))
    }

    /// The control message was taken by the port.
    pub fn was_sent(&mut self) {
        let Some((_, header)) = self.outgoing.pop_front() else { return };
        let flow = self.channels.get_mut(&header.from_channel).and_then(|it| it.flow.as_mut());
        if header.operation == Operation::Credit
            && let Some(flow) = flow
        {
            flow.is_queued = false;
            flow.say();
        }
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

    fn tick(&mut self, number: u16, at: Instant, now: Instant) {
        let Some(channel) = self.channels.get_mut(&number).filter(|it| it.tick == at) else {
            return;
        };
        let Channel { state: State::Connected(peer), flow: Some(flow), .. } = channel else {
            return;
        };
        let peer = *peer;
        // Who has said and heard everything waits for nothing.
        if flow.finished && flow.has_ended() {
            return;
        }
        match flow.tick() {
            Tick::Silent => {
                self.send(peer, Operation::Close, number);
                return self.broken(number, Error::Silent);
            }
            Tick::Speak => self.send(peer, Operation::Credit, number),
            Tick::Rest => {}
        }
        self.start_ticks(number, now);
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
            Operation::ConnectAcknowledge => self.acknowledged(from, &header, now),
            Operation::Close => {
                if self.is_peers(number, from, header.from_channel) {
                    if let Some(channel) = self.channels.get_mut(&number) {
                        channel.state = match channel.flow {
                            Some(_) => State::Broken(Error::Aborted),
                            None => State::ClosedByPeer,
                        };
                    }
                    self.tell(number);
                } else {
                    self.counters.stray += 1;
                }
            }
            Operation::Data => {
                let data = message.get(HEADER..header.len.into()).unwrap_or_default();
                self.data(number, from, &header, data);
            }
            Operation::Credit | Operation::Finish => self.heard(number, from, &header),
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
        let offers = header.word == OFFER;
        requests.push_back(Request { from, channel, at: now, offers });
        self.tell(number);
    }

    fn acknowledged(&mut self, from: Source, header: &Header, now: Instant) {
        let number = header.to_channel;
        let peer = Peer { device: from, channel: header.from_channel };
        match self.channels.get_mut(&number) {
            Some(channel) => match channel.state {
                State::Connecting(asked, _) if asked.device == from => {
                    channel.state = State::Connected(peer);
                    if header.word != OFFER {
                        channel.flow = None;
                    }
                    if channel.flow.is_some() {
                        self.start_ticks(number, now);
                    }
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

    /// Ends a channel between our own whose counts are wrong.
    #[cold]
    fn fail(&mut self, number: u16, why: Error) {
        if let Ok(Some(peer)) = self.peer(number) {
            self.send(peer, Operation::Close, number);
        }
        self.broken(number, why);
    }

    fn data(&mut self, number: u16, from: Source, header: &Header, data: &[u8]) {
        if !self.is_peers(number, from, header.from_channel) {
            self.counters.stray += 1;
            return;
        }
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let mut has_room = false;
        if let Some(flow) = &mut channel.flow {
            match (flow.hear(header.word), flow.receive()) {
                (Ok(news), true) => has_room = news,
                _ => return self.fail(number, Error::Incomplete),
            }
        }
        if has_room {
            self.tell(number);
        }
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.received.len() >= MOST_RECEIVED || self.held >= MOST_IN_ALL {
            self.counters.overflowed += 1;
            if channel.flow.is_some() {
                self.fail(number, Error::Incomplete);
            }
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
