//! The cache: what is known about each name, for how long, and when to ask again.

use super::message::{Family, Reply};
use super::{MOST_NAMES, Name};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Least and most seconds for which an answer is kept. The least protects servers, the most bounds how late a change is
/// followed.
const TTL: (u32, u32) = (5, 3600);
/// Seconds for which an answer without addresses is kept if its server does not say (RFC 2308 section 5 forbids more than
/// for this query).
const NEGATIVE_TTL: u32 = 5;
/// First and last pause after a failure; it doubles each time (RFC 2308 section 7: at most five minutes).
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// How long the last addresses are used while no server answers (RFC 8767 section 5).
const STALE: Duration = Duration::from_secs(86_400);

/// Why a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No name server is known, or none has a route.
    NoServer,
    /// No server has answered in time.
    NoAnswer,
    /// The servers have answered with this RCODE.
    Failed(u8),
    /// The answers of the servers were malformed.
    Malformed,
    /// The servers do not resolve names of others.
    NotRecursive,
    /// The name does not exist.
    NoSuchName,
    /// The name exists, but has no address.
    NoAddress,
    /// No host can have the address that the servers give.
    Unusable(IpAddr),
    /// The cache is full of names of the configuration.
    TooMany,
}

impl Problem {
    /// Label of a refusal.
    pub fn label(self) -> &'static str {
        match self {
            Problem::NoServer => "no_name_server",
            Problem::NoAnswer => "no_answer",
            Problem::Failed(_) => "server_failure",
            Problem::Malformed => "malformed_answer",
            Problem::NotRecursive => "no_recursion",
            Problem::NoSuchName => "no_such_name",
            Problem::NoAddress => "no_address",
            Problem::Unusable(_) => "unusable_address",
            Problem::TooMany => "too_many_names",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoServer => f.write_str(
                "no name server with a route is known: set system.dns, or let DHCP or a router announce one",
            ),
            Problem::NoAnswer => f.write_str(
                "no name server answers: check that one runs, and the route to it; see `show dns`",
            ),
            Problem::Failed(rcode) => {
                let word = match rcode {
                    1 => "FORMERR",
                    2 => "SERVFAIL",
                    4 => "NOTIMP",
                    5 => "REFUSED",
                    _ => return write!(f, "the name servers fail with RCODE {rcode}: see their logs"),
                };
                write!(f, "the name servers fail with {word}: see their logs")
            }
            Problem::Malformed => {
                f.write_str("the name servers' answers are malformed: use other servers")
            }
            Problem::NotRecursive => f.write_str(
                "the name servers do not know the name and do not ask others: use recursive name servers",
            ),
            Problem::NoSuchName => {
                f.write_str("the name does not exist: correct it, or its zone on the name server")
            }
            Problem::NoAddress => f.write_str(
                "the name has no A and no AAAA record: correct it, or its zone on the name server",
            ),
            Problem::Unusable(address) => write!(
                f,
                "the name servers give {address}, which cannot be a host's address: correct the zone"
            ),
            Problem::TooMany => write!(f, "the configuration has more than {MOST_NAMES} names"),
        }
    }
}

/// What is known about a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Its addresses, at least one: IPv6 before IPv4, each ascending.
    Known(Vec<IpAddr>),
    /// It was asked for. [`super::Resolver::next_event`] reports the end.
    Pending,
    /// It has no address.
    Failed(Problem),
}

/// A name, for reports.
#[derive(Clone, Debug)]
pub struct NameStatus<'a> {
    /// The name.
    pub name: &'a Name,
    /// The configuration has it.
    pub followed: bool,
    /// What is known.
    pub lookup: Lookup,
    /// Seconds until the first of its answers ends. 0 if it has ended, and the last addresses are used.
    pub seconds: u64,
    /// Why the last query failed, although addresses are known.
    pub stale: Option<Problem>,
}

/// What is known about the addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not asked for yet, or the first query is in flight.
    New,
    /// There was an answer with addresses.
    Good,
    /// There was an answer without addresses.
    None { exists: bool },
    /// The last query has failed.
    Failed(Problem),
}

/// Addresses of one family.
#[derive(Clone, Debug)]
struct Half {
    state: State,
    addresses: Vec<IpAddr>,
    /// When the addresses end even if no server answers.
    stale_until: Instant,
    /// When to ask; None while a query is in flight.
    due: Option<Instant>,
    /// Failures in a row.
    failures: u32,
}

impl Half {
    fn new(now: Instant) -> Half {
        let (addresses, failures) = (Vec::new(), 0);
        Half { state: State::New, addresses, stale_until: now, due: Some(now), failures }
    }

    /// Records an answer, or the failure of a query.
    fn settle(&mut self, outcome: Result<&Reply, Problem>, now: Instant) {
        let after = |ttl: u32| Some(now + Duration::from_secs(ttl.clamp(TTL.0, TTL.1).into()));
        let failed = match outcome {
            Ok(Reply::Addresses { addresses, ttl }) => {
                self.due = after(*ttl);
                self.stale_until = self.due.unwrap_or(now) + STALE;
                self.addresses.clone_from(addresses);
                (self.state, self.failures) = (State::Good, 0);
                return;
            }
            Ok(Reply::Nothing { exists, ttl }) => {
                self.due = after(ttl.unwrap_or(NEGATIVE_TTL));
                self.addresses.clear();
                (self.state, self.failures) = (State::None { exists: *exists }, 0);
                return;
            }
            // The zone is wrong; its former addresses are so as well.
            Ok(Reply::Unusable(address)) => {
                self.addresses.clear();
                Problem::Unusable(*address)
            }
            Ok(Reply::Failed(rcode)) => Problem::Failed(*rcode),
            Ok(Reply::Lame) => Problem::NotRecursive,
            // The resolver follows aliases, and repeats truncated answers over TCP.
            Ok(Reply::Alias { .. } | Reply::Truncated) => Problem::Malformed,
            Err(problem) => problem,
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(6)).min(LAST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Failed(failed);
        self.due = Some(now + pause);
        if self.stale_until <= now {
            self.addresses.clear();
        }
    }
}

/// A name in the cache.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub followed: bool,
    used: Instant,
    /// Of IPv6 and IPv4, as [`Family::ALL`].
    halves: [Half; 2],
    /// What was last reported about it.
    reported: Option<Lookup>,
}

impl Entry {
    pub fn lookup(&self) -> Lookup {
        let [v6, v4] = &self.halves;
        if v6.state == State::New || v4.state == State::New {
            return Lookup::Pending;
        }
        let all: Vec<IpAddr> = v6.addresses.iter().chain(&v4.addresses).copied().collect();
        if !all.is_empty() {
            return Lookup::Known(all);
        }
        Lookup::Failed(self.problem().unwrap_or(Problem::NoAddress))
    }

    /// The failure of a query, or else why there is no address.
    fn problem(&self) -> Option<Problem> {
        let states = self.halves.iter().map(|half| half.state);
        let failed = states.clone().find_map(|state| match state {
            State::Failed(problem) => Some(problem),
            _ => None,
        });
        let missing = states.clone().any(|state| state == State::None { exists: false });
        let none = states.clone().all(|state| matches!(state, State::None { .. }));
        failed.or(missing.then_some(Problem::NoSuchName)).or(none.then_some(Problem::NoAddress))
    }

    fn due(&self) -> Option<Instant> {
        self.halves.iter().filter_map(|half| half.due).min()
    }
}

/// The names, at most [`MOST_NAMES`].
#[derive(Debug, Default)]
pub(super) struct Cache {
    names: BTreeMap<Name, Entry>,
    /// When the first query is due.
    due: Option<Instant>,
    /// A name was added since this was cleared.
    pub is_new: bool,
    /// The first name of the configuration without room.
    left_out: Option<Name>,
}

impl Cache {
    /// Makes these the followed names. Others are kept until their TTL ends. Returns the first name without room, if it
    /// is another than at the last call.
    pub fn follow<'a>(
        &mut self,
        names: impl Iterator<Item = &'a Name>,
        now: Instant,
    ) -> Option<Name> {
        let names: Vec<&Name> = names.collect();
        self.names.values_mut().for_each(|entry| entry.followed = false);
        // A new name must not evict one that stays.
        for name in &names {
            if let Some(entry) = self.names.get_mut(*name) {
                entry.followed = true;
            }
        }
        let mut left_out = None;
        for name in names {
            match self.entry(name, now) {
                Some(entry) => entry.followed = true,
                None => left_out = left_out.or(Some(name.clone())),
            }
        }
        self.note_due();
        let is_new = left_out != self.left_out;
        self.left_out.clone_from(&left_out);
        left_out.filter(|_| is_new)
    }

    /// What is known about a name. One that is not known yet becomes due.
    pub fn lookup(&mut self, name: &Name, now: Instant) -> Lookup {
        let known = self.entry(name, now);
        let lookup = known.map_or(Lookup::Failed(Problem::TooMany), |entry| entry.lookup());
        self.note_due();
        lookup
    }

    /// As [`Cache::lookup`], without asking.
    pub fn peek(&self, name: &Name) -> Lookup {
        let unknown = match self.left_out {
            Some(_) => Lookup::Failed(Problem::TooMany),
            None => Lookup::Pending,
        };
        self.names.get(name).map_or(unknown, Entry::lookup)
    }

    /// Whether a name is followed.
    pub fn is_followed(&self, name: &Name) -> bool {
        self.names.get(name).is_some_and(|entry| entry.followed)
    }

    /// The entry of a name, an old or a new one. None if there is no room.
    fn entry(&mut self, name: &Name, now: Instant) -> Option<&mut Entry> {
        if !self.names.contains_key(name) {
            if self.names.len() >= MOST_NAMES {
                let idle = self.names.iter().filter(|(_, entry)| !entry.followed);
                let (oldest, _) = idle.min_by_key(|(_, entry)| entry.used)?;
                let oldest = oldest.clone();
                self.names.remove(&oldest);
            }
            let halves = [Half::new(now), Half::new(now)];
            let entry = Entry { followed: false, used: now, halves, reported: None };
            self.names.insert(name.clone(), entry);
            self.is_new = true;
        }
        let entry = self.names.get_mut(name)?;
        entry.used = now;
        Some(entry)
    }

    /// The next name to ask for. Removes names whose answers have ended and that are not followed.
    pub fn next_due(&mut self, now: Instant) -> Option<(Name, Family)> {
        if self.due.is_none_or(|due| now < due) {
            return None;
        }
        let is_due = |half: &Half| half.due.is_some_and(|due| due <= now);
        self.names.retain(|_, entry| {
            let is_new = |half: &Half| half.state == State::New;
            entry.followed
                || entry.halves.iter().any(|half| is_new(half) || half.due.is_none())
                || !entry.halves.iter().any(is_due)
        });
        let found = self.names.iter_mut().find_map(|(name, entry)| {
            let halves = entry.halves.iter_mut().zip(Family::ALL);
            let (half, family) = halves.into_iter().find(|(half, _)| is_due(half))?;
            half.due = None;
            Some((name.clone(), family))
        });
        self.note_due();
        found
    }

    /// Records the outcome of a query. Returns what is known now, if that has changed.
    pub fn settle(
        &mut self,
        name: &Name,
        family: Family,
        outcome: Result<&Reply, Problem>,
        now: Instant,
    ) -> Option<Lookup> {
        let entry = self.names.get_mut(name)?;
        let at = usize::from(family != Family::ALL[0]);
        entry.halves[at].settle(outcome, now);
        let lookup = entry.lookup();
        let changed = lookup != Lookup::Pending && entry.reported.as_ref() != Some(&lookup);
        if changed {
            entry.reported = Some(lookup.clone());
        }
        self.note_due();
        changed.then_some(lookup)
    }

    /// Makes a query due that was in flight.
    pub fn ask_again(&mut self, name: &Name, family: Family, now: Instant) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.halves[usize::from(family != Family::ALL[0])].due = Some(now);
        }
    }

    /// Makes failed queries due, because there are other servers.
    pub fn retry(&mut self, now: Instant) {
        for half in self.names.values_mut().flat_map(|entry| &mut entry.halves) {
            if matches!(half.state, State::Failed(_)) && half.due.is_some() {
                (half.due, half.failures) = (Some(now), 0);
            }
        }
        self.note_due();
    }

    fn note_due(&mut self) {
        self.due = self.names.values().filter_map(Entry::due).min();
    }

    /// When [`Cache::next_due`] is due.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The names, for reports.
    pub fn statuses(&self, now: Instant) -> impl Iterator<Item = NameStatus<'_>> {
        self.names.iter().map(move |(name, entry)| {
            let lookup = entry.lookup();
            let is_known = matches!(lookup, Lookup::Known(_));
            let failed = entry.halves.iter().any(|half| matches!(half.state, State::Failed(_)));
            NameStatus {
                name,
                followed: entry.followed,
                seconds: entry.due().map_or(0, |due| due.since(now).as_secs()),
                stale: entry.problem().filter(|_| is_known && failed),
                lookup,
            }
        })
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lookup::Known(addresses) => {
                let list: Vec<String> = addresses.iter().map(|ip| format!("{ip}")).collect();
                f.write_str(&list.join(", "))
            }
            Lookup::Pending => f.write_str("being resolved"),
            Lookup::Failed(problem) => problem.fmt(f),
        }
    }
}
