//! The client of one export: requests of the user, connections, and what they share.

mod life;
mod receive;
mod steps;
mod transmit;

use crate::connection::{Connection, Life};
use crate::export::Export;
use crate::failure::Failure;
use crate::request::{Active, Error, Operation, Request};
use crate::wire::flag;
use crate::{LONGEST_NAME, Losses, MOST_CONNECTIONS, Settings};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::{Features, Geometry, Instant};

/// Notices that wait for the caller; older ones are dropped.
const MOST_NOTICES: usize = 16;
/// Time limit of a TCP handshake, and of the NBD handshake behind it.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time in which a request to disconnect has to be sent.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the caller has to do with its TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to an address of the server, then call [`Client::connected`] or [`Client::closed`].
    Connect {
        /// Number of the connection.
        connection: usize,
        /// Number of the address, below [`Settings::paths`].
        path: u16,
        /// A connection that is up. This one has to go to the same address and port, also if `path` is a name with
        /// several: a flush on one of them covers the other only at one server.
        beside: Option<usize>,
    },
    /// Close the connection: by a reset if `abort`, or else after the written data. It must not be reported as closed.
    Close {
        /// Number of the connection.
        connection: usize,
        /// By a reset.
        abort: bool,
    },
}

/// News for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The first connection is up, with this address.
    Up {
        /// Number of the address.
        path: u16,
    },
    /// A connection ended or was refused.
    Down {
        /// Number of the connection.
        connection: usize,
        /// Number of the address.
        path: u16,
        /// Why.
        why: Failure,
    },
    /// The export has grown, in bytes.
    Grown {
        /// Size before.
        before: u64,
        /// Size now.
        now: u64,
    },
    /// The server may have lost acknowledged writes that no flush had covered.
    WritesLost,
    /// The server answered a request with this errno.
    Failed(u32),
}

/// State of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was never open.
    Connecting,
    /// It accepts requests.
    Open,
    /// No connection is up, and requests wait.
    Reconnecting,
    /// The server is there and its operator has to correct something.
    Refused,
}

impl State {
    /// The state as the console shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Open => "open",
            State::Reconnecting => "reconnecting",
            State::Refused => "refused",
        }
    }
}

/// Counts of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads sent, and the bytes asked for.
    pub reads: u64,
    /// Bytes asked for.
    pub read_bytes: u64,
    /// Writes sent.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes sent.
    pub flushes: u64,
    /// Discards and write-zeroes sent.
    pub others: u64,
    /// Requests that the server answered with an error.
    pub errors: u64,
    /// Requests that were sent again, because their connection had ended.
    pub replays: u64,
    /// Connections that became ready.
    pub connects: u64,
    /// Connections that failed, before or after they were ready.
    pub failures: u64,
    /// Times that the server may have lost acknowledged writes.
    pub losses: u64,
}

/// Status of a client.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// State.
    pub state: State,
    /// The export, once it was open.
    pub export: Option<Export>,
    /// Number of the address in use.
    pub path: u16,
    /// Connections that are up.
    pub ready: usize,
    /// Requests of the user.
    pub requests: usize,
    /// Why the last connection ended, if it is not open.
    pub last_failure: Option<Failure>,
    /// Counts.
    pub stats: Stats,
}

/// A client; `T` is the tag of a request.
#[derive(Debug)]
pub struct Client<T> {
    settings: Settings,
    name: String,
    export: Option<Export>,
    geometry: Geometry,
    connections: Vec<Connection>,
    /// One more than the user's requests, for a flush of its own.
    slots: Vec<Option<Active<T>>>,
    free: Vec<u16>,
    /// Steps to send, in the order of submission; flushes apart.
    waiting: VecDeque<u16>,
    flushes: VecDeque<u16>,
    done: VecDeque<(T, Result<(), Error>)>,
    /// Requests that were submitted and whose completion was not polled.
    in_use: usize,
    turn: u64,
    /// Steps that the server acknowledged and that need a flush.
    acknowledged: u64,
    /// How many of them a flush covered, or were reported as lost.
    stable: u64,
    losses: u64,
    losses_reported: u64,
    loss_reporting: Losses,
    path: u16,
    /// Requests have to be checked for timeouts.
    timer: Option<Instant>,
    /// Up to this turn requests know since when they wait.
    stamped: u64,
    /// The user has given up all requests.
    is_giving_up: bool,
    /// Until then the server may execute given-up requests.
    unsettled_until: Option<Instant>,
    /// All connections are to be opened anew, once nothing is in flight.
    is_remapping: bool,
    /// The flush before that was tried.
    has_flushed: bool,
    is_ended: bool,
    last_failure: Option<Failure>,
    notices: VecDeque<Notice>,
    stats: Stats,
}

impl<T: Copy> Client<T> {
    /// A client without a connection. None for a name that is longer than [`LONGEST_NAME`].
    pub fn new(settings: Settings, name: &str) -> Option<Client<T>> {
        let depth = settings.depth.clamp(1, 4096);
        let connections = settings.connections.clamp(1, MOST_CONNECTIONS);
        let settings = Settings { depth, connections, paths: settings.paths.max(1), ..settings };
        let slots = depth + 1;
        (name.len() <= LONGEST_NAME).then(|| Client {
            settings,
            name: name.into(),
            export: None,
            geometry: Geometry::ABSENT,
            connections: (0..connections).map(|_| Connection::new()).collect(),
            slots: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            waiting: VecDeque::with_capacity(slots.into()),
            flushes: VecDeque::with_capacity(slots.into()),
            done: VecDeque::with_capacity(slots.into()),
            in_use: 0,
            turn: 0,
            acknowledged: 0,
            stable: 0,
            losses: 0,
            losses_reported: 0,
            loss_reporting: Losses::default(),
            path: 0,
            timer: None,
            stamped: 0,
            is_giving_up: false,
            unsettled_until: None,
            is_remapping: false,
            has_flushed: false,
            is_ended: false,
            last_failure: None,
            notices: VecDeque::with_capacity(MOST_NOTICES),
            stats: Stats::default(),
        })
    }

    /// Its settings, with limits applied.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Name of the export.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Geometry of the export; without sectors before it was first open.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Changes which requests report losses.
    pub fn report_losses(&mut self, losses: Losses) {
        self.loss_reporting = losses;
    }

    /// Submits a request, whose offset and length the caller has compared with the geometry.
    pub fn submit(&mut self, request: &Request<T>) -> Result<(), Error> {
        if self.is_ended || self.export.is_none() {
            return Err(Error::Io);
        }
        if self.in_use >= self.settings.depth.into() {
            return Err(Error::Busy);
        }
        let Request { tag, operation, offset, data } = *request;
        let supports = match operation {
            Operation::Read | Operation::Write { durable: false } => true,
            // Without a flush, durability of earlier writes can only come from FUA on each of them.
            Operation::Write { durable: true } | Operation::Flush => {
                self.offers(flag::FLUSH) || self.offers(flag::FUA)
            }
            Operation::Discard(_) => self.offers(flag::TRIM),
            Operation::WriteZeroes(_) => self.offers(flag::WRITE_ZEROES),
        };
        if !supports {
            return Err(Error::Unsupported);
        }
        self.in_use += 1;
        if self.is_empty(&operation, data.len()) {
            self.done.push_back((tag, Ok(())));
            return Ok(());
        }
        let slot = self.insert(Some(tag), operation, offset, data).ok_or(Error::Busy)?;
        match operation {
            Operation::Flush => self.flushes.push_back(slot),
            _ => self.waiting.push_back(slot),
        }
        Ok(())
    }

    /// Whether a request needs nothing of the server: it has no bytes, or every write is durable already.
    fn is_empty(&self, operation: &Operation, length: usize) -> bool {
        match operation {
            Operation::Read | Operation::Write { .. } => length == 0,
            Operation::Discard(bytes) | Operation::WriteZeroes(bytes) => *bytes == 0,
            Operation::Flush => !self.offers(flag::FLUSH),
        }
    }

    /// The next completion.
    pub fn poll_done(&mut self) -> Option<(T, Result<(), Error>)> {
        let done = self.done.pop_front()?;
        self.in_use -= 1;
        Some(done)
    }

    /// Completions that were not polled.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// Whether no request is in flight, and the server can no longer execute a given-up one.
    pub fn is_idle(&self) -> bool {
        self.in_use == 0 && self.unsettled_until.is_none() && !self.is_giving_up
    }

    /// Gives up all requests: the next [`Client::poll`] completes them with an error.
    pub fn give_up(&mut self) {
        self.is_giving_up |= self.in_use > self.done.len();
    }

    /// Opens all connections anew once nothing is in flight and a flush has covered all writes, for example to read the
    /// size. A client without a connection connects at once.
    pub fn remap(&mut self, now: Instant) {
        self.is_remapping = self.connections.iter().any(Connection::is_ready);
        for connection in &mut self.connections {
            if connection.is_down() {
                (connection.life, connection.attempts) = (Life::Down(now), 0);
            }
        }
    }

    /// The next news.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Status for reports.
    pub fn status(&self) -> Status {
        let ready = self.connections.iter().filter(|connection| connection.is_ready()).count();
        let state = match (self.export, self.last_failure) {
            _ if ready > 0 => State::Open,
            (_, Some(failure)) if failure.is_refusal() => State::Refused,
            (None, _) => State::Connecting,
            _ => State::Reconnecting,
        };
        Status {
            state,
            export: self.export,
            path: self.path,
            ready,
            requests: self.in_use,
            last_failure: self.last_failure.filter(|_| ready == 0),
            stats: self.stats,
        }
    }

    fn offers(&self, flag: u16) -> bool {
        self.export.is_some_and(|export| export.offers(flag))
    }

    /// Whether every write carries FUA.
    fn writes_through(&self) -> bool {
        self.settings.write_through || !self.offers(flag::FLUSH) && self.offers(flag::FUA)
    }

    /// Whether completed writes need a flush.
    fn has_cache(&self) -> bool {
        self.geometry.features.contains(Features::VOLATILE_CACHE)
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() == MOST_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Checks the client's tables against each other, for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let used = self.slots.iter().flatten().count();
        assert_eq!(used + self.free.len(), self.slots.len());
        let queued = self.waiting.len() + self.flushes.len();
        let on = self.slots.iter().flatten().filter(|active| active.on.is_some()).count();
        assert_eq!(queued + on, used, "each request is queued or in flight");
        let in_flight: usize = self.connections.iter().map(|one| usize::from(one.in_flight)).sum();
        assert_eq!(in_flight, on);
        assert!(self.stable <= self.acknowledged);
    }
}
