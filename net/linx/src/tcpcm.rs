//! LINX's TCP connection manager, version 3: a connection over a stream of bytes. It has no sockets: its user opens and
//! closes streams, which are identified by numbers.
//!
//! Both ends listen. An end with a stream opened by the peer waits for the peer's CONN and answers it. An end without
//! one opens a stream, sends CONN and waits for the answer. If both open a stream at the same time, neither gets a
//! CONN. Both wait for a random time, and the first to finish uses the other's stream. A connection is dead if no
//! message arrives between two PINGs. ("LINX Protocols" version 21, section 7.1; times as in LINX for Linux.)

use crate::pool::{AccountId, Chain, Cursor, Pool};
use crate::riocm::{BadConfig, Down, Fault, Message, SendError};
use crate::rng::Rng;
use crate::wire::tcp::{Header, Kind, LEN, MOST, VERSION};
use alloc::collections::VecDeque;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// Longest body of a CONN that is skipped. It has features, none of which are defined.
const LONGEST_CONN: u32 = 4096;

/// Configuration of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Interval of PINGs.
    pub live: Duration,
    /// Longest message in bytes, received or sent.
    pub max_message: u32,
    /// Memory reserved for received messages, in bytes.
    pub receive_bytes: usize,
    /// Memory for copied messages to be sent, in bytes.
    pub send_bytes: usize,
    /// Queued messages.
    pub sends: usize,
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            live: Duration::from_secs(1),
            max_message: MOST,
            receive_bytes: 512 << 10,
            send_bytes: 256 << 10,
            sends: 128,
        }
    }
}

/// Identifies a stream of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u32);

/// An order for the owner of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOrder {
    /// Open a TCP connection to the link's peer, with this id.
    Open(StreamId),
    /// Close the stream.
    Close(StreamId),
}

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    Connected,
    Disconnected { why: Down, unsent: usize },
    Message(Message),
    Sent { cookie: u64, done: bool },
    Room,
}

/// States of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not wanted.
    Disconnected,
    /// The next attempt is due at the deadline.
    Pausing,
    /// A stream is being opened.
    Opening,
    /// Our CONN was sent.
    Active,
    /// Waits for the peer's CONN.
    Passive,
    /// Messages can be sent, and are delivered.
    Connected,
}

/// Bytes of a message.
#[derive(Debug)]
enum Body {
    Copied(Chain, Cursor),
    Windows([Window; 2], u64),
}

/// A queued message.
#[derive(Debug)]
struct Outgoing {
    header: [u8; LEN],
    size: usize,
    body: Body,
}

/// State of the receiver.
#[derive(Debug, Default)]
struct Reading {
    header: [u8; LEN],
    have: usize,
    /// The message being received, and its missing bytes.
    message: Option<(Message, usize)>,
    skip: usize,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct TcpCm {
    config: TcpConfig,
    accounts: (AccountId, AccountId),
    state: State,
    stream: Option<StreamId>,
    /// A stream opened by the peer, which is used when the present one has ended.
    waiting: Option<StreamId>,
    last_stream: u32,
    pub orders: VecDeque<StreamOrder>,
    pub events: VecDeque<ConnectionEvent>,
    pub deadline: Option<Instant>,
    is_alive: bool,
    reading: Reading,
    queue: VecDeque<Outgoing>,
    /// Bytes of the first queued message that were sent.
    sent: usize,
    /// Pending headers: CONN, PING, PONG. They are sent between messages.
    owed: [bool; 3],
    /// The header that is being sent, and its bytes sent.
    writing: ([u8; LEN], usize),
    wants_room: bool,
    pub sent_messages: u64,
    pub received_messages: u64,
}

const CONN: usize = 0;
const PING: usize = 1;
const PONG: usize = 2;

impl TcpCm {
    pub fn new(pool: &mut Pool, config: TcpConfig) -> Result<TcpCm, BadConfig> {
        let most = config.max_message as usize;
        if config.receive_bytes / 2 < most || config.send_bytes < most || config.sends == 0 {
            return Err(BadConfig::TooLittle);
        }
        let wanted = config.receive_bytes + config.send_bytes;
        let receive = pool.open(config.receive_bytes).ok_or(BadConfig::Memory { wanted })?;
        let Some(send) = pool.open(config.send_bytes) else {
            pool.close(receive);
            return Err(BadConfig::Memory { wanted });
        };
        Ok(TcpCm {
            config,
            accounts: (receive, send),
            state: State::Disconnected,
            stream: None,
            waiting: None,
            last_stream: 0,
            orders: VecDeque::with_capacity(8),
            events: VecDeque::with_capacity(64),
            deadline: None,
            is_alive: false,
            reading: Reading { header: [0; LEN], have: 0, message: None, skip: 0 },
            queue: VecDeque::with_capacity(config.sends),
            sent: 0,
            owed: [false; 3],
            writing: ([0; LEN], LEN),
            wants_room: false,
            sent_messages: 0,
            received_messages: 0,
        })
    }

    /// Ends the connection, closes its streams and frees its memory.
    pub fn close(&mut self, pool: &mut Pool) {
        self.end(pool, Down::Asked);
        for stream in [self.stream.take(), self.waiting.take()].into_iter().flatten() {
            self.orders.push_back(StreamOrder::Close(stream));
        }
        pool.close(self.accounts.0);
        pool.close(self.accounts.1);
    }

    /// Starts to connect.
    pub fn connect(&mut self, rng: &mut Rng, now: Instant) {
        if self.state == State::Disconnected {
            self.attempt(rng, now);
        }
    }

    /// Ends the connection.
    pub fn end(&mut self, pool: &mut Pool, why: Down) {
        if self.state == State::Disconnected {
            return;
        }
        self.state = State::Disconnected;
        self.deadline = None;
        self.drop_stream(pool);
        let mut unsent = 0;
        while let Some(message) = self.queue.pop_front() {
            unsent += 1;
            self.finish(pool, message, false);
        }
        self.events.push_back(ConnectionEvent::Disconnected { why, unsent });
    }

    /// Handles the opening of a stream.
    pub fn opened(&mut self, stream: StreamId, rng: &mut Rng, now: Instant) {
        if self.state == State::Opening && self.stream == Some(stream) {
            self.state = State::Active;
            self.owed[CONN] = true;
            self.deadline = Some(now + random_pause(rng));
        }
    }

    /// Handles a stream opened by the peer. Returns its id.
    pub fn accepted(&mut self, rng: &mut Rng, now: Instant) -> StreamId {
        let stream = self.next_stream();
        if let Some(old) = self.waiting.replace(stream) {
            self.orders.push_back(StreamOrder::Close(old));
        }
        if self.state == State::Pausing {
            self.attempt(rng, now);
        }
        stream
    }

    /// Handles the end of a stream, or a failure to open it.
    pub fn closed(&mut self, pool: &mut Pool, stream: StreamId, rng: &mut Rng, now: Instant) {
        if self.waiting == Some(stream) {
            self.waiting = None;
        }
        if self.stream != Some(stream) {
            return;
        }
        self.stream = None;
        if self.state == State::Connected {
            return self.end(pool, Down::Reset);
        }
        self.drop_stream(pool);
        if self.waiting.is_some() {
            return self.attempt(rng, now);
        }
        self.state = State::Pausing;
        self.deadline = Some(now + random_pause(rng));
    }

    /// Handles the deadline.
    pub fn timer(&mut self, pool: &mut Pool, rng: &mut Rng, now: Instant) {
        self.deadline = None;
        match self.state {
            State::Disconnected => (),
            State::Pausing | State::Opening | State::Active | State::Passive => {
                self.drop_stream(pool);
                self.attempt(rng, now);
            }
            State::Connected if !self.is_alive => self.end(pool, Down::Silent),
            State::Connected => {
                self.is_alive = false;
                self.owed[PING] = true;
                self.deadline = Some(now + self.config.live);
            }
        }
    }

    /// Handles received bytes. Returns the number accepted. The others must wait until memory is freed.
    pub fn receive(
        &mut self,
        pool: &mut Pool,
        stream: StreamId,
        bytes: &[u8],
        rng: &mut Rng,
        now: Instant,
    ) -> usize {
        let mut rest = bytes;
        while self.stream == Some(stream) {
            match self.step(pool, &mut rest, now) {
                Ok(true) => (),
                Ok(false) => {
                    // The peer is alive: its data waits for memory.
                    self.is_alive |= !rest.is_empty();
                    return bytes.len() - rest.len();
                }
                Err(fault) => {
                    if self.state == State::Connected {
                        self.end(pool, Down::Fault(fault));
                    } else {
                        self.drop_stream(pool);
                        self.state = State::Pausing;
                        self.deadline = Some(now + random_pause(rng));
                    }
                    return bytes.len();
                }
            }
        }
        if self.waiting == Some(stream) { 0 } else { bytes.len() }
    }

    /// Processes the next part of the input. Returns whether more can be processed.
    fn step(&mut self, pool: &mut Pool, rest: &mut &[u8], now: Instant) -> Result<bool, Fault> {
        let mut take = |most: usize| {
            let (taken, others) = rest.split_at(rest.len().min(most));
            *rest = others;
            taken
        };
        let reading = &mut self.reading;
        if reading.skip > 0 {
            let skipped = take(reading.skip).len();
            reading.skip -= skipped;
            return Ok(skipped > 0);
        }
        if let Some((message, missing)) = &mut reading.message {
            // Limited to free pieces; the last piece of the chain may have additional room.
            let part = take((*missing).min(pool.room(self.accounts.0)));
            if !pool.append(&mut message.chain, part) {
                return Err(Fault::NoRoom);
            }
            *missing -= part.len();
            if *missing > 0 {
                return Ok(!part.is_empty());
            }
            self.is_alive = true;
            if let Some((message, _)) = reading.message.take() {
                self.received_messages += 1;
                self.events.push_back(ConnectionEvent::Message(message));
            }
            return Ok(true);
        }
        let part = take(LEN - reading.have);
        reading.header[reading.have..reading.have + part.len()].copy_from_slice(part);
        reading.have += part.len();
        if reading.have < LEN {
            return Ok(false);
        }
        let header = Header::parse(&reading.header).map_err(|wrong| Fault::Stream(wrong.0))?;
        let is_up = self.state == State::Connected;
        match header.kind {
            Kind::Connect => {
                if header.size > LONGEST_CONN {
                    return Err(Fault::TooLong(header.size));
                }
                // A second CONN violates the protocol. A CONN of another version is not answered.
                match self.state {
                    State::Connected => return Err(Fault::Stream(0x43)),
                    State::Active | State::Passive if header.version == VERSION => {
                        self.owed[CONN] |= self.state == State::Passive;
                        self.state = State::Connected;
                        self.deadline = Some(now);
                        self.events.push_back(ConnectionEvent::Connected);
                    }
                    _ => (),
                }
                self.is_alive = true;
                self.reading.skip = header.size as usize;
            }
            Kind::Ping | Kind::Pong => {
                self.is_alive = true;
                self.owed[PONG] |= is_up && header.kind == Kind::Ping;
            }
            Kind::Data if header.size > self.config.max_message => {
                return Err(Fault::TooLong(header.size));
            }
            Kind::Data if !is_up => self.reading.skip = header.size as usize,
            Kind::Data => {
                let mut chain = Chain::new(self.accounts.0);
                // At least one piece for each message, so there are no more messages than pieces.
                if !pool.append_apart(&mut chain, 0, &[]) {
                    return Ok(false);
                }
                let Header { source, destination, size, .. } = header;
                let message = Message { source, destination, chain };
                self.reading.message = Some((message, size as usize));
            }
        }
        self.reading.have = 0;
        Ok(true)
    }

    /// Sends a message of the concatenated `parts`.
    pub fn send(
        &mut self,
        pool: &mut Pool,
        addresses: (u32, u32),
        parts: [&[u8]; 2],
    ) -> Result<(), SendError> {
        let size = parts[0].len() + parts[1].len();
        self.may_send(size)?;
        let mut chain = Chain::new(self.accounts.1);
        if !parts.iter().all(|part| pool.append(&mut chain, part)) {
            self.wants_room = true;
            pool.free(chain);
            return Err(SendError::Full);
        }
        let cursor = pool.start(&chain);
        self.enqueue(addresses, size, Body::Copied(chain, cursor));
        Ok(())
    }

    /// Sends a message from the user's memory.
    pub fn send_windows(
        &mut self,
        addresses: (u32, u32),
        windows: [Window; 2],
        cookie: u64,
    ) -> Result<(), SendError> {
        let size = windows[0].len().checked_add(windows[1].len()).ok_or(SendError::TooLong)?;
        self.may_send(size)?;
        self.enqueue(addresses, size, Body::Windows(windows, cookie));
        Ok(())
    }

    fn may_send(&mut self, size: usize) -> Result<(), SendError> {
        if self.state != State::Connected {
            return Err(SendError::NotConnected);
        }
        if size > self.config.max_message as usize {
            return Err(SendError::TooLong);
        }
        if self.queue.len() >= self.config.sends {
            self.wants_room = true;
            return Err(SendError::Full);
        }
        Ok(())
    }

    fn enqueue(&mut self, (source, destination): (u32, u32), size: usize, body: Body) {
        let header = Header::new(Kind::Data, source, destination, size as u32).emit();
        self.queue.push_back(Outgoing { header, size, body });
    }

    /// Writes bytes to be sent over a stream to `into`. Returns their number; they count as sent.
    pub fn transmit(&mut self, pool: &mut Pool, stream: StreamId, into: &mut [u8]) -> usize {
        let mut done = 0;
        if self.stream != Some(stream) {
            return 0;
        }
        while done < into.len() {
            let (header, at) = &mut self.writing;
            if *at < LEN {
                let count = (LEN - *at).min(into.len() - done);
                into[done..done + count].copy_from_slice(&header[*at..*at + count]);
                (*at, done) = (*at + count, done + count);
                continue;
            }
            if self.sent == 0
                && let Some(which) = self.owed.iter().position(|&owed| owed)
            {
                self.owed[which] = false;
                let kind = [Kind::Connect, Kind::Ping, Kind::Pong][which];
                self.writing = (Header::new(kind, 0, 0, 0).emit(), 0);
                continue;
            }
            let Some(message) = self.queue.front_mut() else { break };
            if self.sent < LEN {
                let count = (LEN - self.sent).min(into.len() - done);
                let part = &message.header[self.sent..self.sent + count];
                into[done..done + count].copy_from_slice(part);
                (self.sent, done) = (self.sent + count, done + count);
            }
            let size = message.size;
            while self.sent >= LEN && self.sent - LEN < size && done < into.len() {
                let (at, most) = (self.sent - LEN, size - (self.sent - LEN));
                let most = most.min(into.len() - done);
                let window = match &mut message.body {
                    Body::Copied(_, cursor) => pool.next_window(cursor, at, most),
                    Body::Windows([first, second], _) if at >= first.len() => {
                        second.slice(at - first.len(), most).unwrap_or(Window::empty())
                    }
                    Body::Windows([first, _], _) => {
                        let most = most.min(first.len() - at);
                        first.slice(at, most).unwrap_or(Window::empty())
                    }
                };
                if window.is_empty()
                    || window.read(0, &mut into[done..done + window.len()]).is_err()
                {
                    break;
                }
                (self.sent, done) = (self.sent + window.len(), done + window.len());
            }
            if self.sent == LEN + size {
                self.sent = 0;
                self.sent_messages += 1;
                if let Some(message) = self.queue.pop_front() {
                    self.finish(pool, message, true);
                }
                if core::mem::take(&mut self.wants_room) {
                    self.events.push_back(ConnectionEvent::Room);
                }
            }
        }
        done
    }

    /// Whether `transmit` would write bytes.
    pub fn has_work(&self) -> bool {
        self.stream.is_some()
            && (self.writing.1 < LEN || self.owed.contains(&true) || !self.queue.is_empty())
    }

    fn finish(&mut self, pool: &mut Pool, message: Outgoing, done: bool) {
        match message.body {
            Body::Copied(chain, _) => pool.free(chain),
            Body::Windows(_, cookie) => {
                self.events.push_back(ConnectionEvent::Sent { cookie, done })
            }
        }
    }

    /// Uses a stream of the peer, or orders one to be opened.
    fn attempt(&mut self, rng: &mut Rng, now: Instant) {
        self.deadline = Some(now + random_pause(rng));
        self.stream = self.waiting.take();
        if self.stream.is_some() {
            self.state = State::Passive;
            return;
        }
        let stream = self.next_stream();
        self.stream = Some(stream);
        self.state = State::Opening;
        self.orders.push_back(StreamOrder::Open(stream));
    }

    /// Closes the stream, and drops partly received and sent messages.
    fn drop_stream(&mut self, pool: &mut Pool) {
        if let Some(stream) = self.stream.take() {
            self.orders.push_back(StreamOrder::Close(stream));
        }
        if let Some((message, _)) = self.reading.message.take() {
            pool.free(message.chain);
        }
        self.reading = Reading::default();
        (self.sent, self.owed, self.writing.1) = (0, [false; 3], LEN);
    }

    fn next_stream(&mut self) -> StreamId {
        self.last_stream = self.last_stream.wrapping_add(1);
        StreamId(self.last_stream)
    }
}

/// Random time of two to ten seconds, as in LINX for Linux.
fn random_pause(rng: &mut Rng) -> Duration {
    Duration::from_secs(2 + (rng.next() & 0xff) / 31)
}
