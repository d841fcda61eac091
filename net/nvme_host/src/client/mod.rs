//! The client of one namespace: requests of the user, paths, and what they share.

mod life;
mod report;
mod steps;
mod transfer;

pub use report::{Notice, PathStatus, State, Stats, Status};

use crate::controller::{Path, Shared};
use crate::failure::Failure;
use crate::identify::{Controller, Namespace};
use crate::request::{Active, Error, Operation, Request};
use crate::{Identity, Losses, PAGE, RANGE, Settings};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::{Features, Geometry, Instant, Window};

/// Notices that wait for the caller; older ones are dropped.
const MOST_NOTICES: usize = 16;

/// What the caller has to do with its TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to an address of the subsystem, then call [`Client::connected`] or [`Client::closed`].
    Connect {
        /// Number of the connection.
        connection: usize,
        /// Number of the address, below [`Settings::paths`].
        path: u16,
        /// The connection of the path's admin queue. This one has to go to the same address and port, also if `path` is
        /// a name with several: both are queues of one controller.
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

/// A client; `T` is the tag of a request.
#[derive(Debug)]
pub struct Client<T> {
    shared: Shared,
    /// The namespace, with the size that the user knows.
    namespace: Option<Namespace>,
    /// Abilities of the first controller. All others have at least the same.
    abilities: Option<Controller>,
    geometry: Geometry,
    paths: Vec<Path>,
    /// All memory of the client, and the part for ranges of deallocations, by slot.
    memory: Window,
    ranges: Window,
    slots: Vec<Option<Active<T>>>,
    free: Vec<u16>,
    /// Steps to send, in the order of submission; flushes apart.
    waiting: VecDeque<u16>,
    flushes: VecDeque<u16>,
    /// Steps that are not sent before a time, or only over the path that they were lost on.
    held: Vec<u16>,
    done: VecDeque<(T, Result<(), Error>)>,
    /// Requests that were submitted and whose completion was not polled.
    in_use: usize,
    turn: u64,
    losses: u64,
    losses_reported: u64,
    loss_reporting: Losses,
    /// Requests have to be checked for timeouts.
    timer: Option<Instant>,
    /// Up to this turn requests know since when they wait.
    stamped: u64,
    /// The user has given up all requests.
    is_giving_up: bool,
    /// Until then a controller may execute given-up requests.
    unsettled_until: Option<Instant>,
    is_ended: bool,
    notices: VecDeque<Notice>,
    stats: Stats,
}

impl<T: Copy> Client<T> {
    /// A client without a connection. It uses [`Settings::memory`] bytes of `memory`; None if that is smaller.
    pub fn new(settings: Settings, identity: Identity, memory: Window) -> Option<Client<T>> {
        let settings = settings.limited();
        let mut paths = Vec::new();
        for path in 0..usize::from(settings.paths) {
            paths.push(Path::new(&settings, memory.slice(path * PAGE, PAGE)?));
        }
        let slots = settings.depth;
        let ranges = memory.slice(paths.len() * PAGE, usize::from(slots) * RANGE)?;
        Some(Client {
            shared: Shared::new(settings, identity),
            namespace: None,
            abilities: None,
            geometry: Geometry::ABSENT,
            paths,
            memory,
            ranges,
            slots: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            waiting: VecDeque::with_capacity(slots.into()),
            flushes: VecDeque::with_capacity(slots.into()),
            held: Vec::with_capacity(slots.into()),
            done: VecDeque::with_capacity(slots.into()),
            in_use: 0,
            turn: 0,
            losses: 0,
            losses_reported: 0,
            loss_reporting: Losses::default(),
            timer: None,
            stamped: 0,
            is_giving_up: false,
            unsettled_until: None,
            is_ended: false,
            notices: VecDeque::with_capacity(MOST_NOTICES),
            stats: Stats::default(),
        })
    }

    /// Its settings, with limits applied.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Names of the two ends.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Its memory. It is not used any more after [`Client::is_over`].
    pub fn memory(&self) -> Window {
        self.memory
    }

    /// Number of TCP connections that it may use: for each path, that of the admin queue and those of I/O queues.
    pub fn connections(&self) -> usize {
        self.paths.len() * self.queues()
    }

    /// Geometry of the namespace; without sectors before it was first open.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Changes which requests report losses.
    pub fn report_losses(&mut self, losses: Losses) {
        self.loss_reporting = losses;
    }

    /// Queues of a path.
    fn queues(&self) -> usize {
        usize::from(self.shared.settings.connections) + 1
    }

    /// The path and queue of a connection.
    fn place(&self, connection: usize) -> (usize, usize) {
        (connection / self.queues(), connection % self.queues())
    }

    /// Submits a request, whose offset and length the caller has compared with the geometry.
    pub fn submit(&mut self, request: &Request<T>) -> Result<(), Error> {
        let Some(abilities) = self.abilities.filter(|_| !self.is_ended) else {
            return Err(Error::Io);
        };
        if self.in_use >= self.shared.settings.depth.into() {
            return Err(Error::Busy);
        }
        let Request { tag, operation, offset, data } = *request;
        let supports = match operation {
            Operation::Read | Operation::Write { .. } | Operation::Flush => true,
            Operation::Discard(_) => abilities.deallocate,
            Operation::WriteZeroes(_) => abilities.zeroes,
        };
        if !supports {
            return Err(Error::Unsupported);
        }
        if u32::try_from(data.len()).is_err() {
            return Err(Error::Invalid);
        }
        self.in_use += 1;
        let is_empty = match operation {
            Operation::Read | Operation::Write { .. } => data.is_empty(),
            Operation::Discard(bytes) | Operation::WriteZeroes(bytes) => bytes == 0,
            Operation::Flush => !self.has_cache(),
        };
        if is_empty {
            self.done.push_back((tag, Ok(())));
            return Ok(());
        }
        let slot = self.insert(tag, operation, offset, data).ok_or(Error::Busy)?;
        match operation {
            Operation::Flush => self.flushes.push_back(slot),
            _ => self.waiting.push_back(slot),
        }
        Ok(())
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

    /// Whether no request is in flight, and no controller can execute a given-up one any more.
    pub fn is_idle(&self) -> bool {
        self.in_use == 0 && self.unsettled_until.is_none() && !self.is_giving_up
    }

    /// Gives up all requests: the next [`Client::poll`] completes them with an error.
    pub fn give_up(&mut self) {
        self.is_giving_up |= self.in_use > self.done.len();
    }

    /// Reads the size of the namespace again, and opens paths that are down at once.
    pub fn remap(&mut self, now: Instant) {
        for path in &mut self.paths {
            if path.is_down() {
                path.retry_at(now);
            }
            path.pending.namespace |= path.is_ready();
        }
    }

    /// Whether completed writes need a flush.
    fn has_cache(&self) -> bool {
        self.geometry.features.contains(Features::VOLATILE_CACHE)
    }

    /// Whether a path's completed writes without FUA need a flush.
    fn needs_flush(&self, path: usize) -> bool {
        let controller = self.paths.get(path).and_then(|path| path.controller);
        self.has_cache() && controller.is_some_and(|controller| controller.cache)
    }

    /// Checks the client's tables against each other, for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let used = self.slots.iter().flatten().count();
        assert_eq!(used + self.free.len(), self.slots.len());
        let queued = self.waiting.len() + self.flushes.len() + self.held.len();
        let on = self.slots.iter().flatten().filter(|active| active.on.is_some()).count();
        assert_eq!(queued + on, used, "each request is queued or in flight");
        let in_flight: usize = self.paths.iter().map(Path::in_flight).sum();
        assert_eq!(in_flight, on);
        assert!(self.paths.iter().all(|path| path.stable <= path.acknowledged));
    }
}

/// Why no path is in use: the last failure of the first path that an operator has to correct, or of any.
fn worst_failure(paths: &[Path]) -> Option<Failure> {
    let failures = || paths.iter().filter_map(|path| path.last_failure);
    failures().find(Failure::is_refusal).or_else(|| failures().next())
}
