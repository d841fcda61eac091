//! The client: asks each server at its own interval, and derives the time.

use super::packet::{self, Answer, Fault, LENGTH};
use super::selection::{Estimate, Sample, Samples, majority};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use rand_core::Rng;

/// Servers that are used.
pub(super) const MOST_SERVERS: usize = 16;
/// First and last interval between two requests to a server. A server that answers is asked each minute four times, then
/// ever less; one that does not answer is asked at doubled intervals from the start.
const FIRST_POLL: Duration = Duration::from_secs(64);
const LAST_POLL: Duration = Duration::from_secs(1024);
const FIRST_RETRY: Duration = Duration::from_secs(4);
/// Answers before the interval grows.
const EAGER: u32 = 4;
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Round trip beyond which an answer is not used.
const LONGEST_TRIP: Duration = Duration::from_secs(1);
/// By how much a server's clock may exceed ours between request and answer.
const SLACK: Duration = Duration::from_millis(1);
/// Least interval after a server has demanded fewer requests.
const RATE_POLL: Duration = Duration::from_secs(256);
/// First of our ports, and RoCEv2's, whose datagrams never reach the client.
const FIRST_PORT: u16 = 1024;
const ROCE: u16 = 4791;
/// Events that wait for the caller.
const MOST_EVENTS: usize = 32;

/// A time server, and the number of the interface that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address and port.
    pub address: SocketAddr,
    /// Number of the interface.
    pub interface: usize,
    /// Number of the entry of the configuration that it belongs to. The servers of an entry share one vote.
    pub entry: usize,
}

/// State of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It was not asked yet, or has not answered its first request yet.
    New,
    /// It answers, and agrees with the majority.
    Good,
    /// It answers, and disagrees with the majority.
    Falseticker,
    /// It answers, and there is no majority.
    NoMajority,
    /// It does not answer.
    Silent,
    /// It says that it is not synchronised.
    Unsynchronised,
    /// It is too far from its reference, or its answers take too long.
    Distant,
    /// Its time is impossible.
    Nonsense,
    /// It demands that it is asked less often.
    Rate,
    /// It refuses service, and is not asked any more.
    Denied,
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerState::New => "not asked yet",
            ServerState::Good => "good",
            ServerState::Falseticker => "falseticker: its time differs from that of most servers",
            ServerState::NoMajority => "no majority: the servers differ, and none is believed",
            ServerState::Silent => "does not answer",
            ServerState::Unsynchronised => "is not synchronised itself",
            ServerState::Distant => "too far from its reference, or too slow",
            ServerState::Nonsense => "gives an impossible time",
            ServerState::Rate => "demands fewer requests",
            ServerState::Denied => "refuses service, and is not asked any more",
        })
    }
}

/// A server, for reports.
#[derive(Clone, Copy, Debug)]
pub struct ServerStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its state.
    pub state: ServerState,
    /// Its stratum; 0 before its first answer.
    pub stratum: u8,
    /// Its time less ours, in nanoseconds, if both are known.
    pub offset: Option<i64>,
    /// Round trip of the best sample.
    pub round_trip: Option<Duration>,
    /// Requests sent.
    pub sent: u64,
    /// Usable answers.
    pub answers: u64,
    /// Seconds until it is asked again; None if it is not.
    pub next: Option<u64>,
}

/// A change of a server's state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The server.
    pub address: SocketAddr,
    /// Its new state.
    pub state: ServerState,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that were no answer to a request: another source or timestamp.
    pub foreign: u64,
    /// Answers that were not usable.
    pub refused: u64,
}

/// What the caller has to do for a server, by number. A datagram replaces the server's former socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram from this random port.
    Send {
        /// Number of the server.
        server: usize,
        /// Number of the interface.
        interface: usize,
        /// The server.
        to: SocketAddr,
        /// Our port.
        port: u16,
        /// The message.
        message: [u8; LENGTH],
    },
    /// Close the socket.
    Close {
        /// Number of the server.
        server: usize,
    },
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Pending {
    nonce: u64,
    sent: Instant,
}

#[derive(Debug)]
struct Source {
    server: Server,
    state: ServerState,
    samples: Samples,
    pending: Option<Pending>,
    /// When to ask, or to give the request up; None: never.
    due: Option<Instant>,
    interval: Duration,
    /// Least interval, as the server demands.
    least: Duration,
    stratum: u8,
    sent: u64,
    answers: u64,
    in_a_row: u32,
}

/// The time client.
#[derive(Debug, Default)]
pub struct Client {
    sources: Vec<Source>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// Seconds since 1970 between which a time is possible.
    possible: (u64, u64),
    estimate: Option<Estimate>,
    counters: Counters,
}

impl Client {
    /// A client without servers. Times outside `possible`, in seconds since 1970, are nonsense.
    pub fn new(possible: core::ops::Range<u64>) -> Client {
        Client { possible: (possible.start, possible.end), ..Client::default() }
    }

    /// Sets the servers. Those that stay keep their state.
    pub fn set_servers(&mut self, servers: &[Server], now: Instant) {
        let servers = &servers[..servers.len().min(MOST_SERVERS)];
        if self.sources.iter().map(|source| &source.server).eq(servers) {
            return;
        }
        for server in 0..self.sources.len() {
            self.actions.push_back(Action::Close { server });
        }
        let mut before = core::mem::take(&mut self.sources);
        for server in servers {
            let is_same = |source: &Source| {
                let Server { address, interface, .. } = source.server;
                (address, interface) == (server.address, server.interface)
            };
            let known = before.iter().position(is_same);
            let source = known.map(|at| before.swap_remove(at)).map(|source| Source {
                server: *server,
                due: source.pending.map_or(source.due, |_| Some(now)),
                pending: None,
                ..source
            });
            self.sources.push(source.unwrap_or_else(|| Source {
                server: *server,
                state: ServerState::New,
                samples: Samples::default(),
                pending: None,
                due: Some(now),
                interval: FIRST_RETRY,
                least: FIRST_RETRY,
                stratum: 0,
                sent: 0,
                answers: 0,
                in_a_row: 0,
            }));
        }
        self.select(now);
    }

    /// Asks servers that are due, and handles time limits.
    pub fn poll(&mut self, rng: &mut dyn Rng, now: Instant) {
        for at in 0..self.sources.len() {
            let source = &mut self.sources[at];
            if source.due.is_none_or(|due| now < due) {
                continue;
            }
            if source.pending.take().is_some() {
                self.actions.push_back(Action::Close { server: at });
                self.fail(at, ServerState::Silent, now);
                continue;
            }
            let nonce = u64::from(rng.next_u32()) << 32 | u64::from(rng.next_u32());
            source.pending = Some(Pending { nonce, sent: now });
            source.due = Some(now + PATIENCE);
            source.sent += 1;
            let Server { address, interface, .. } = source.server;
            let (port, message) = (port(rng), packet::request(nonce));
            self.actions.push_back(Action::Send {
                server: at,
                interface,
                to: address,
                port,
                message,
            });
        }
    }

    /// When [`Client::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|source| source.due).min()
    }

    /// Takes what the caller has to do next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes the next change of a server's state.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Handles a datagram that arrived at the socket of a server.
    pub fn handle_datagram(&mut self, server: usize, from: SocketAddr, bytes: &[u8], now: Instant) {
        let Some(source) = self.sources.get_mut(server) else { return };
        let answer = match source.pending {
            Some(pending) if from == source.server.address => packet::parse(bytes, pending.nonce),
            _ => Answer::Foreign,
        };
        let Some(Pending { sent, .. }) = source.pending.filter(|_| answer != Answer::Foreign)
        else {
            self.counters.foreign += 1;
            return;
        };
        source.pending = None;
        self.actions.push_back(Action::Close { server });
        let state = match answer {
            Answer::Time { received, sent: answered, distance, stratum } => {
                source.stratum = stratum;
                let (elapsed, within) = (now.since(sent), answered.abs_diff(received));
                let within = Duration::from_nanos(within);
                let trip = elapsed.saturating_sub(within);
                let epoch = answered + (trip / 2).as_nanos() as i64 - now.as_nanos() as i64;
                let seconds = answered.div_euclid(1_000_000_000);
                let (first, last) = self.possible;
                if !(first as i64..last as i64).contains(&seconds) || within > elapsed + SLACK {
                    ServerState::Nonsense
                } else if trip > LONGEST_TRIP {
                    ServerState::Distant
                } else {
                    let error = trip / 2 + distance;
                    source.samples.add(Sample { epoch, error, round_trip: trip, at: now });
                    return self.answered(server, now);
                }
            }
            Answer::Faulty(Fault::Unsynchronised) => ServerState::Unsynchronised,
            Answer::Faulty(Fault::Distant) => ServerState::Distant,
            Answer::Faulty(Fault::Rate) => ServerState::Rate,
            Answer::Faulty(Fault::Denied(_)) => ServerState::Denied,
            Answer::Faulty(Fault::Nonsense) | Answer::Foreign => ServerState::Nonsense,
        };
        self.counters.refused += 1;
        self.fail(server, state, now);
    }

    /// Handles a usable answer.
    fn answered(&mut self, at: usize, now: Instant) {
        let source = &mut self.sources[at];
        source.answers += 1;
        source.in_a_row = source.in_a_row.saturating_add(1);
        source.interval = match source.in_a_row {
            ..=EAGER => FIRST_POLL,
            _ => (source.interval * 2).min(LAST_POLL),
        };
        source.interval = source.interval.max(source.least);
        source.due = Some(now + source.interval);
        if !matches!(source.state, ServerState::Falseticker | ServerState::NoMajority) {
            self.set_state(at, ServerState::Good);
        }
        self.select(now);
    }

    /// Handles an unusable answer, or none.
    fn fail(&mut self, at: usize, state: ServerState, now: Instant) {
        let source = &mut self.sources[at];
        source.in_a_row = 0;
        source.interval = (source.interval * 2).min(LAST_POLL);
        match state {
            ServerState::Denied => source.due = None,
            ServerState::Rate => {
                source.least = (source.least * 2).clamp(RATE_POLL, LAST_POLL);
                source.interval = source.interval.max(source.least);
                source.due = Some(now + source.interval);
            }
            _ => source.due = Some(now + source.interval.max(source.least)),
        }
        // What a server has said before it was found to be unusable does not count. Silence proves nothing.
        if !matches!(state, ServerState::Silent | ServerState::Rate) {
            source.samples.clear();
        }
        self.set_state(at, state);
        self.select(now);
    }

    fn set_state(&mut self, at: usize, state: ServerState) {
        let source = &mut self.sources[at];
        if core::mem::replace(&mut source.state, state) != state {
            if self.events.len() == MOST_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(Event { address: source.server.address, state });
        }
    }

    /// Derives the time from the samples of all servers.
    fn select(&mut self, now: Instant) {
        // The first to answer must not set the clock against the others, neither at the start nor when a name has other
        // addresses. A new server has answered or is silent in two seconds.
        let is_open = |source: &Source| source.state == ServerState::New;
        if self.sources.iter().any(is_open) {
            return;
        }
        let best = |(at, source): (usize, &Source)| {
            Some((at, (source.server.entry, source.samples.best(now)?)))
        };
        let (places, samples): (Vec<usize>, Vec<(usize, Sample)>) =
            self.sources.iter().enumerate().filter_map(best).unzip();
        let agreeing = majority(&samples, now);
        let mut chosen: Option<(usize, Sample)> = None;
        for (n, (&at, &(_, sample))) in places.iter().zip(&samples).enumerate() {
            let agrees = agreeing.is_some_and(|set| set >> n & 1 == 1);
            let answers = matches!(
                self.sources[at].state,
                ServerState::Good | ServerState::Falseticker | ServerState::NoMajority
            );
            if answers {
                self.set_state(
                    at,
                    match (agreeing, agrees) {
                        (None, _) => ServerState::NoMajority,
                        (Some(_), true) => ServerState::Good,
                        (Some(_), false) => ServerState::Falseticker,
                    },
                );
            }
            let is_better = |other: Sample| sample.error_at(now) < other.error_at(now);
            if agrees && chosen.is_none_or(|(_, other)| is_better(other)) {
                chosen = Some((at, sample));
            }
        }
        if let Some((at, sample)) = chosen {
            self.estimate = Some(Estimate {
                epoch: u64::try_from(sample.epoch).unwrap_or(0),
                error: sample.error_at(now),
                server: self.sources[at].server.address,
            });
        }
    }

    /// The time, once a majority of the servers has agreed on it. It stays while they are silent.
    pub fn estimate(&self) -> Option<Estimate> {
        self.estimate
    }

    /// The servers that answer and agree with the majority.
    pub fn good(&self) -> impl Iterator<Item = Server> + '_ {
        let good = self.sources.iter().filter(|source| source.state == ServerState::Good);
        good.map(|source| source.server)
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The servers, for reports. `epoch` is our own wall-clock time at `Instant::ZERO`.
    pub fn servers(&self, epoch: u64, now: Instant) -> impl Iterator<Item = ServerStatus> + '_ {
        self.sources.iter().map(move |source| {
            let best = source.samples.best(now);
            ServerStatus {
                address: source.server.address,
                state: source.state,
                stratum: source.stratum,
                offset: best.map(|best| best.epoch.saturating_sub_unsigned(epoch)),
                round_trip: best.map(|best| best.round_trip),
                sent: source.sent,
                answers: source.answers,
                next: source.due.map(|due| due.since(now).as_secs()),
            }
        })
    }
}

/// A random port.
fn port(rng: &mut dyn Rng) -> u16 {
    loop {
        let port = rng.next_u32() as u16;
        if port >= FIRST_PORT && port != ROCE {
            return port;
        }
    }
}
