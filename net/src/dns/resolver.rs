//! The resolver: asks servers in turn, checks their answers, and keeps them.

use super::cache::{Cache, Lookup, NameStatus, Problem};
use super::message::{self, Reply, Unfit};
use super::query::{Action, Query, QueryId, most_attempts, patience};
use super::{MOST_ALIASES, MOST_NAMES, Name};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use rand_core::Rng;

/// Queries at a time. Further ones wait.
const MOST_QUERIES: usize = 16;
/// Servers that are used.
const MOST_SERVERS: usize = 8;
/// Longest answer over TCP.
const LONGEST: usize = 16 << 10;
/// Messages that are no answer to a query, after which it is repeated over TCP.
const MOST_FOREIGN: u32 = 8;
/// How long names wait for a server after the start, because DHCP and routers need a while.
const GRACE: Duration = Duration::from_secs(15);
/// Events that wait for the caller: one of each name, because all of them may fail at once, and of one without room. The
/// oldest are dropped.
const MOST_EVENTS: usize = MOST_NAMES + 1;
/// First of our ports. Lower ones may belong to services.
const FIRST_PORT: u16 = 1024;
/// Port of RoCEv2, whose datagrams never reach the resolver.
const ROCE: u16 = 4791;

/// A name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address and port.
    pub address: SocketAddr,
    /// Number of the interface that leads to it; None without a route.
    pub interface: Option<usize>,
    /// Where its address is from.
    pub origin: &'static str,
}

/// A name server with its counters, for reports.
#[derive(Clone, Copy, Debug)]
pub struct ServerStatus {
    /// The server.
    pub server: Server,
    /// Messages sent to it.
    pub sent: u64,
    /// Answers from it, including failures.
    pub answers: u64,
    /// Messages that it has not answered in time.
    pub timeouts: u64,
    /// Answers that were failures or malformed.
    pub failures: u64,
    /// Duration of the last answer.
    pub round_trip: Option<Duration>,
}

/// Counters of the resolver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Queries that ended with an answer.
    pub answered: u64,
    /// Queries that ended without one.
    pub failed: u64,
    /// Datagrams that were no answer to a query: another source, ID or question.
    pub foreign: u64,
    /// Messages that were sent over TCP.
    pub over_tcp: u64,
}

/// A change of what is known about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name.
    pub name: Name,
    /// What is known now; never [`Lookup::Pending`].
    pub lookup: Lookup,
    /// The configuration has the name.
    pub followed: bool,
}

/// The DNS client.
#[derive(Debug)]
pub struct Resolver {
    cache: Cache,
    servers: Vec<ServerStatus>,
    /// The server that is asked first: the last one that answered.
    preferred: usize,
    queries: Vec<Query>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// Changes with every event.
    generation: u64,
    /// Until then names wait for a server.
    grace: Instant,
    next_id: u64,
    counters: Counters,
}

impl Resolver {
    /// A resolver without servers and names.
    pub fn new(now: Instant) -> Resolver {
        Resolver {
            cache: Cache::default(),
            servers: Vec::new(),
            preferred: 0,
            queries: Vec::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            generation: 0,
            grace: now + GRACE,
            next_id: 0,
            counters: Counters::default(),
        }
    }

    /// Sets the servers, in the order of preference. Those that stay keep their counters. If they change, queries in
    /// flight and failed names are asked for again.
    pub fn set_servers(&mut self, servers: &[Server], now: Instant) {
        let servers = &servers[..servers.len().min(MOST_SERVERS)];
        if self.servers.iter().map(|known| &known.server).eq(servers) {
            return;
        }
        let known = |server: &Server| {
            let same = |one: &&ServerStatus| one.server.address == server.address;
            let old = self.servers.iter().find(same);
            let new = ServerStatus {
                server: *server,
                sent: 0,
                answers: 0,
                timeouts: 0,
                failures: 0,
                round_trip: None,
            };
            old.map_or(new, |old| ServerStatus { server: *server, ..*old })
        };
        self.servers = servers.iter().map(known).collect();
        self.preferred = 0;
        for query in core::mem::take(&mut self.queries) {
            self.actions.push_back(Action::Close { query: query.id });
            self.cache.ask_again(&query.name, query.family, now);
        }
        self.cache.retry(now);
    }

    /// Makes these the names whose answers are renewed.
    pub fn follow<'a>(&mut self, names: impl Iterator<Item = &'a Name>, now: Instant) {
        if let Some(name) = self.cache.follow(names, now) {
            let lookup = Lookup::Failed(Problem::TooMany);
            self.report(Event { name, lookup, followed: true });
        }
    }

    /// What is known about a name. A name that is not known is asked for: call [`Resolver::poll`].
    pub fn lookup(&mut self, name: &Name, now: Instant) -> Lookup {
        self.cache.lookup(name, now)
    }

    /// What is known about a name, without asking.
    pub fn peek(&self, name: &Name) -> Lookup {
        self.cache.peek(name)
    }

    /// A counter that changes when something about any name changes.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes the next change of a name.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes what the caller has to do next.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Starts queries that are due, and handles time limits.
    pub fn poll(&mut self, rng: &mut dyn Rng, now: Instant) {
        self.cache.is_new = false;
        while let Some(at) = self.queries.iter().position(|query| query.deadline <= now) {
            let server = self.queries[at].server;
            if let Some(server) = self.servers.get_mut(server) {
                server.timeouts += 1;
            }
            self.next_attempt(at, Problem::NoAnswer, rng, now);
        }
        if self.usable() == 0 && now < self.grace {
            return;
        }
        while self.queries.len() < MOST_QUERIES {
            let Some((name, family)) = self.cache.next_due(now) else { break };
            self.next_id += 1;
            let asked = message::wire_name(name.as_str());
            self.queries.push(Query {
                id: QueryId(self.next_id),
                name,
                family,
                asked,
                aliases: 0,
                of_aliases: u32::MAX,
                message: Vec::new(),
                server: self.preferred,
                to: SocketAddr::from(([0, 0, 0, 0], 0)),
                attempts: 0,
                sent: now,
                deadline: now,
                over_tcp: false,
                stream: Vec::new(),
                foreign: 0,
                problem: None,
            });
            self.attempt(self.queries.len() - 1, rng, now);
        }
    }

    /// Whether [`Resolver::poll`] is due at once, because of a new name.
    pub fn wants_poll(&self) -> bool {
        self.cache.is_new
    }

    /// When [`Resolver::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let queries = self.queries.iter().map(|query| query.deadline).min();
        let mut due = self.cache.due().filter(|_| self.queries.len() < MOST_QUERIES);
        if self.usable() == 0 {
            due = due.map(|due| due.max(self.grace));
        }
        Instant::first([queries, due])
    }

    /// Handles a datagram that arrived at the socket of a query.
    pub fn handle_datagram(
        &mut self,
        query: QueryId,
        from: SocketAddr,
        datagram: &[u8],
        rng: &mut dyn Rng,
        now: Instant,
    ) {
        let Some(at) = self.place(query).filter(|&at| !self.queries[at].over_tcp) else { return };
        let one = &self.queries[at];
        let parsed = match from == one.to {
            true => message::parse(datagram, &one.message, one.family),
            false => Err(Unfit::Foreign),
        };
        if parsed == Err(Unfit::Foreign) {
            self.counters.foreign += 1;
            let one = &mut self.queries[at];
            one.foreign += 1;
            if one.foreign >= MOST_FOREIGN {
                self.repeat_over_tcp(at, rng, now);
            }
            return;
        }
        self.handle_reply(at, parsed, rng, now);
    }

    /// Handles bytes that arrived over the connection of a query. False if the query needs no more of them: the
    /// connection is about to be closed, and its end is not the failure of what the query does next.
    pub fn handle_stream(
        &mut self,
        query: QueryId,
        bytes: &[u8],
        rng: &mut dyn Rng,
        now: Instant,
    ) -> bool {
        let Some(at) = self.place(query).filter(|&at| self.queries[at].over_tcp) else {
            return false;
        };
        let one = &mut self.queries[at];
        let room = (LONGEST + 2).saturating_sub(one.stream.len());
        one.stream.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let Some((length, rest)) = one.stream.split_first_chunk::<2>() else { return true };
        let length = usize::from(u16::from_be_bytes(*length));
        let parsed = match rest.get(..length) {
            None if length <= LONGEST => return true,
            None => Err(Unfit::Malformed),
            Some(answer) => message::parse(answer, &one.message, one.family),
        };
        self.handle_reply(at, parsed, rng, now);
        false
    }

    /// Handles the failure of a query's socket: there is no route, or the server refused or closed the connection.
    pub fn handle_failure(&mut self, query: QueryId, rng: &mut dyn Rng, now: Instant) {
        if let Some(at) = self.place(query) {
            self.next_attempt(at, Problem::NoAnswer, rng, now);
        }
    }

    fn handle_reply(
        &mut self,
        at: usize,
        parsed: Result<Reply, Unfit>,
        rng: &mut dyn Rng,
        now: Instant,
    ) {
        let query = &mut self.queries[at];
        if let Some(server) = self.servers.get_mut(query.server) {
            server.answers += 1;
            server.round_trip = Some(now.since(query.sent));
            let is_failure = matches!(parsed, Err(_) | Ok(Reply::Failed(_) | Reply::Lame));
            server.failures += u64::from(is_failure);
        }
        match parsed {
            Err(_) => self.next_attempt(at, Problem::Malformed, rng, now),
            Ok(Reply::Failed(rcode)) => self.next_attempt(at, Problem::Failed(rcode), rng, now),
            Ok(Reply::Lame) => self.next_attempt(at, Problem::NotRecursive, rng, now),
            Ok(Reply::Truncated) if query.over_tcp => {
                self.next_attempt(at, Problem::Malformed, rng, now);
            }
            Ok(Reply::Truncated) => self.repeat_over_tcp(at, rng, now),
            Ok(Reply::Alias { target, ttl }) if query.aliases < MOST_ALIASES => {
                query.aliases += 1;
                query.of_aliases = query.of_aliases.min(ttl);
                query.asked = target;
                (query.over_tcp, query.attempts) = (false, 0);
                self.attempt(at, rng, now);
            }
            Ok(Reply::Alias { .. }) => self.end(at, Err(Problem::Malformed), now),
            Ok(reply) => {
                self.preferred = query.server;
                let reply = reply.behind_alias(query.of_aliases);
                self.end(at, Ok(&reply), now);
            }
        }
    }

    fn place(&self, query: QueryId) -> Option<usize> {
        self.queries.iter().position(|one| one.id == query)
    }

    /// Number of servers with a route.
    fn usable(&self) -> usize {
        self.servers.iter().filter(|one| one.server.interface.is_some()).count()
    }

    fn repeat_over_tcp(&mut self, at: usize, rng: &mut dyn Rng, now: Instant) {
        self.queries[at].over_tcp = true;
        self.attempt(at, rng, now);
    }

    /// Asks the next server, or ends the query.
    fn next_attempt(&mut self, at: usize, problem: Problem, rng: &mut dyn Rng, now: Instant) {
        let count = self.servers.len().max(1);
        let query = &mut self.queries[at];
        // A server's word counts more than the silence of another.
        if problem != Problem::NoAnswer || query.problem.is_none() {
            query.problem = Some(problem);
        }
        if query.attempts >= most_attempts(count) {
            let problem = query.problem.unwrap_or(problem);
            return self.end(at, Err(problem), now);
        }
        query.server = (query.server + 1) % count;
        query.over_tcp = false;
        self.attempt(at, rng, now);
    }

    /// Sends a query to its server, or the next one with a route.
    fn attempt(&mut self, at: usize, rng: &mut dyn Rng, now: Instant) {
        let count = self.servers.len();
        let first = self.queries[at].server;
        let mut order = (0..count).map(|n| (first + n) % count);
        let found = order.find_map(|n| Some((n, self.servers[n].server.interface?)));
        let Some((number, interface)) = found else {
            return self.end(at, Err(Problem::NoServer), now);
        };
        let (query, server) = (&mut self.queries[at], &mut self.servers[number]);
        query.attempts += 1;
        (query.server, query.to, query.sent) = (number, server.server.address, now);
        query.deadline = now + patience(query.attempts, count, query.over_tcp);
        query.stream.clear();
        server.sent += 1;
        let mut name = query.asked.clone();
        // A server that does not repeat the case has a second chance.
        if query.attempts as usize <= count {
            message::mix_case(&mut name, || rng.next_u32());
        }
        query.message = message::query(rng.next_u32() as u16, &name, query.family);
        let (id, to, mut message) = (query.id, query.to, query.message.clone());
        self.actions.push_back(match query.over_tcp {
            true => {
                self.counters.over_tcp += 1;
                let length = (message.len() as u16).to_be_bytes();
                message.splice(0..0, length);
                Action::Stream { query: id, interface, to, message }
            }
            false => Action::Datagram { query: id, interface, to, port: port(rng), message },
        });
    }

    /// Ends a query.
    fn end(&mut self, at: usize, outcome: Result<&Reply, Problem>, now: Instant) {
        let query = self.queries.swap_remove(at);
        self.actions.push_back(Action::Close { query: query.id });
        match outcome {
            Ok(_) => self.counters.answered += 1,
            Err(_) => self.counters.failed += 1,
        }
        let changed = self.cache.settle(&query.name, query.family, outcome, now);
        let Some(lookup) = changed else { return };
        let followed = self.cache.is_followed(&query.name);
        self.report(Event { name: query.name, lookup, followed });
    }

    fn report(&mut self, event: Event) {
        self.generation += 1;
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Number of queries in flight.
    #[cfg(test)]
    pub fn queries_in_flight(&self) -> usize {
        self.queries.len()
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The servers, in the order of preference.
    pub fn servers(&self) -> &[ServerStatus] {
        &self.servers
    }

    /// The names in the cache.
    pub fn names(&self, now: Instant) -> impl Iterator<Item = NameStatus<'_>> {
        self.cache.statuses(now)
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
