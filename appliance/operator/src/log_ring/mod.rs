//! The log: the last messages, in memory allocated once, filled through the `log` crate.
//!
//! Each [`Kind`] of message has its own share of the memory, so that messages caused by clients displace neither
//! operators' actions nor problems. Within a kind, the chattiest source loses its messages first (`share.rs`); the source
//! of an operator's action is the operator. Repeats are counted instead of kept (`repeats.rs`), and so are actions of
//! operators who are not administrators, above a limit (`action.rs`). Console and syslog follow the log with cursors; a slow reader learns
//! how many messages it missed. Logging neither allocates nor sleeps, so any loop may log. A message longer than a
//! record is cut.

mod action;
mod levels;
mod repeats;
mod share;
mod source;

pub use action::Action;
pub use levels::{Subject, set_levels};

use crate::caller::Caller;
use crate::config::Role;
use action::{Actors, Held};
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, Ordering};
use drivers::hal::Instant;
use levels::LEVELS;
use log::{Level, Metadata, Record};
use net::syslog::Timestamp;
use repeats::{About, Key, Repeats, Run};
use share::{Line, Share};
use spin::{Mutex, MutexGuard};

/// Bytes of text that an entry holds.
const TEXT: usize = 240;
/// Target of messages about operators' actions.
const AUDIT: &str = "audit";
/// Marks a message about an action of a user below the role admin.
const LIMITED: &str = "limited";
/// Target of messages about refusals to peers.
const REFUSED: &str = "refused";

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An operator's action, or attempt.
    Audit,
    /// A refusal to a peer. Any host can cause these.
    Refused,
    /// A warning or an error.
    Problem,
    /// Everything else.
    Note,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Audit, Kind::Refused, Kind::Problem, Kind::Note];

    /// Name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Audit => "audit",
            Kind::Refused => "refused",
            Kind::Problem => "problem",
            Kind::Note => "note",
        }
    }

    fn of(record: &Record<'_>) -> Kind {
        match record.target() {
            AUDIT => Kind::Audit,
            REFUSED => Kind::Refused,
            _ if record.level() <= Level::Warn => Kind::Problem,
            _ => Kind::Note,
        }
    }

    /// Number of lines for this kind, of `lines` in total.
    fn share(self, lines: usize) -> usize {
        let percent = match self {
            Kind::Audit | Kind::Refused => 15,
            Kind::Problem => 30,
            Kind::Note => 40,
        };
        lines * percent / 100
    }
}

/// Filter of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All messages.
    #[default]
    All,
    /// Operators' actions.
    Audit,
    /// Warnings, errors and refusals.
    Errors,
}

impl Filter {
    /// Whether messages of a kind pass.
    pub fn wants(self, kind: Kind) -> bool {
        match self {
            Filter::All => true,
            Filter::Audit => kind == Kind::Audit,
            Filter::Errors => matches!(kind, Kind::Problem | Kind::Refused),
        }
    }
}

/// Logs an operator's action, at any configured level.
pub fn audit(by: &Caller, what: fmt::Arguments<'_>) {
    log_action(Level::Info, by.role < Role::Admin, format_args!("{by}: {what}"));
}

/// Logs that an action of an operator was refused, at any configured level.
pub fn audit_refused(by: &Caller, what: fmt::Arguments<'_>) {
    log_action(Level::Warn, by.role < Role::Admin, format_args!("{by}: {what}"));
}

/// Logs that somebody has pressed the power button.
pub fn audit_button(what: fmt::Arguments<'_>) {
    log_action(Level::Info, true, format_args!("power button: {what}"));
}

fn log_action(level: Level, is_limited: bool, what: fmt::Arguments<'_>) {
    let mut record = Record::builder();
    record.level(level).target(AUDIT).module_path(is_limited.then_some(LIMITED));
    log::logger().log(&record.args(what).build());
}

/// Logs a refusal to a peer, with its reason.
pub fn refused(reason: &str, what: fmt::Arguments<'_>) {
    if LEVELS.base() >= Level::Warn {
        let mut record = Record::builder();
        record.level(Level::Warn).target(REFUSED).module_path(Some(reason));
        log::logger().log(&record.args(what).build());
    }
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Number of the message. Numbers of evicted messages are missing.
    pub number: u64,
    /// Time of the message.
    pub at: Instant,
    /// Severity.
    pub level: Level,
    /// Kind.
    pub kind: Kind,
    /// Wall-clock time at `Instant::ZERO`, in nanoseconds since 1970, if known.
    epoch: Option<u64>,
    text: Text,
}

#[derive(Clone, Copy, Debug)]
struct Text {
    len: u16,
    bytes: [u8; TEXT],
}

impl Default for Text {
    fn default() -> Self {
        Text { len: 0, bytes: [0; TEXT] }
    }
}

impl Text {
    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or_default()
    }
}

impl Entry {
    /// The message, one line.
    pub fn text(&self) -> &str {
        self.text.as_str()
    }

    /// UTC time of the message, if the appliance knows the time.
    pub fn utc(&self) -> Option<Timestamp> {
        let nanos = self.epoch?.saturating_add(self.at.as_nanos());
        Some(Timestamp(core::time::Duration::from_nanos(nanos)))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.kind == Kind::Audit { "AUDIT" } else { self.level.as_str() };
        match self.utc() {
            Some(utc) => write!(f, "[{utc:.3}] {word:5} {}", self.text()),
            None => {
                let micros = self.at.as_nanos() / 1000;
                let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
                write!(f, "[{seconds:5}.{rest:06}] {word:5} {}", self.text())
            }
        }
    }
}

impl fmt::Write for Text {
    /// Appends as much as fits, up to a character boundary. Control characters become spaces.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            let (at, length) = (usize::from(self.len), c.len_utf8());
            let Some(place) = self.bytes.get_mut(at..at + length) else {
                return Err(fmt::Error);
            };
            c.encode_utf8(place);
            self.len += length as u16;
        }
        Ok(())
    }
}

/// Counters of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were kept, by [`Kind::ALL`].
    pub kept: [u64; 4],
    /// Repeats that were counted instead.
    pub repeats: u64,
    /// Messages evicted before they were sent to the syslog server.
    pub lost: u64,
    /// Clients that followed the log too slowly, and were disconnected.
    pub slow_followers: u64,
}

/// The log.
#[derive(Debug)]
pub struct LogRing {
    clock: fn() -> Instant,
    /// Wall-clock time at `Instant::ZERO`, in nanoseconds since 1970; 0 if unknown.
    epoch: AtomicU64,
    /// Time in nanoseconds at which the next number of repeats is due; `u64::MAX` if none is.
    due: AtomicU64,
    /// Number of messages about operators' actions.
    audits: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By [`Kind::ALL`].
    shares: [Share; 4],
    /// Repeats by host or text, and by place in the code. The second limits one place even if many hosts cause its
    /// messages.
    repeats: [Repeats; 2],
    /// Limits of operators who are not administrators.
    actors: Actors,
    counters: Counters,
    /// Number of messages ever kept, which is the next message's number.
    next: u64,
}

/// Position of a reader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(u64);

impl Cursor {
    /// The position of the message with this number.
    pub fn at(number: u64) -> Cursor {
        Cursor(number)
    }

    /// The number of the next message to read.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl LogRing {
    /// A log of the last `lines` messages, stamped by `clock`.
    pub fn new(lines: usize, clock: fn() -> Instant) -> LogRing {
        let shares = Kind::ALL.map(|kind| Share::new(kind.share(lines)));
        let repeats = [Repeats::default(), Repeats::default()];
        let (actors, counters) = (Actors::default(), Counters::default());
        let state = State { shares, repeats, actors, counters, next: 0 };
        let (epoch, due) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let audits = AtomicU64::new(0);
        LogRing { clock, epoch, due, audits, state: Mutex::new(state) }
    }

    /// Current time of the clock that stamps messages.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Shows all messages, including earlier ones, with UTC from now on. `epoch` is the wall-clock time at
    /// `Instant::ZERO`, in nanoseconds since 1970.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::Relaxed)).filter(|&epoch| epoch > 0)
    }

    /// Number of messages ever kept.
    pub fn count(&self) -> u64 {
        self.lock().next
    }

    /// Number of messages about operators' actions that were ever kept.
    #[inline]
    pub fn audits(&self) -> u64 {
        self.audits.load(Ordering::Relaxed)
    }

    /// Counters of the log.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Counts messages that were evicted before they were sent to the syslog server.
    pub fn lost(&self, messages: u64) {
        if messages > 0 {
            self.lock().counters.lost += messages;
        }
    }

    /// Counts a client that followed the log too slowly, and was disconnected.
    pub fn note_slow_follower(&self) {
        self.lock().counters.slow_followers += 1;
    }

    /// Time at which [`LogRing::settle`] has work.
    pub fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != u64::MAX).then(|| Instant::from_nanos(due))
    }

    /// Logs the numbers of repeats that are due.
    pub fn settle(&self, now: Instant) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let mut state = self.lock();
        while let Some(run) = state.repeats.iter_mut().find_map(|repeats| repeats.take_due(now)) {
            state.keep_repeats(&run, now);
        }
        while let Some(held) = state.actors.take_due(now) {
            state.keep_held(&held, now);
        }
        self.audits.store(state.counters.kept[Kind::Audit as usize], Ordering::Relaxed);
        self.note_due(&state);
    }

    fn note_due(&self, state: &State) {
        let due = state.repeats.iter().filter_map(Repeats::due).chain(state.actors.due()).min();
        let due = due.map_or(u64::MAX, Instant::as_nanos);
        self.due.store(due, Ordering::Relaxed);
    }

    /// The next message at `cursor`, and the number of messages lost before it. Advances the cursor.
    pub fn next(&self, cursor: &mut Cursor) -> Option<(Entry, u64)> {
        let epoch = self.epoch();
        let state = self.lock();
        let entry = state.at_or_after(cursor.0, Filter::All, epoch)?;
        let missed = entry.number - cursor.0;
        cursor.0 = entry.number + 1;
        Some((entry, missed))
    }

    /// The next message at `cursor` that passes the filter. Advances the cursor.
    pub fn next_of(&self, cursor: &mut Cursor, filter: Filter) -> Option<Entry> {
        let epoch = self.epoch();
        let entry = self.lock().at_or_after(cursor.0, filter, epoch)?;
        cursor.0 = entry.number + 1;
        Some(entry)
    }

    /// At most `count` of the kept messages, from index `from`, oldest first.
    pub fn page(&self, from: usize, count: usize) -> Vec<Entry> {
        let epoch = self.epoch();
        let state = self.lock();
        let mut at = [0; 4];
        let mut entries = Vec::new();
        for number in 0..from.saturating_add(count) {
            let Some(which) = state.oldest(&at, Filter::All) else { break };
            if number >= from {
                entries.extend(state.entry(which, at[which], epoch));
            }
            at[which] += 1;
        }
        entries
    }

    /// Passes the last `most` messages to `show`, oldest first, for the crash handler: it neither waits nor allocates.
    /// False if the log is locked, possibly by a core that never releases it.
    pub fn try_last(&self, most: usize, mut show: impl FnMut(&Entry)) -> bool {
        let epoch = self.epoch();
        let Some(state) = self.state.try_lock() else { return false };
        let mut at = [0; 4];
        for (at, share) in at.iter_mut().zip(&state.shares) {
            *at = share.len();
        }
        for _ in 0..most {
            let number = |&which: &usize| {
                at[which].checked_sub(1).and_then(|before| state.shares[which].number(before))
            };
            let Some(which) = (0..4).filter(|which| number(which).is_some()).max_by_key(number)
            else {
                break;
            };
            at[which] -= 1;
        }
        while let Some(which) = state.oldest(&at, Filter::All) {
            if let Some(entry) = state.entry(which, at[which], epoch) {
                show(&entry);
            }
            at[which] += 1;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// The kind of the oldest line at these positions that passes the filter.
    fn oldest(&self, at: &[usize; 4], filter: Filter) -> Option<usize> {
        let wanted = (0..4).filter(|&which| filter.wants(Kind::ALL[which]));
        let numbered =
            wanted.filter_map(|which| Some((self.shares[which].number(at[which])?, which)));
        numbered.min().map(|(_, which)| which)
    }

    fn entry(&self, which: usize, at: usize, epoch: Option<u64>) -> Option<Entry> {
        let (line, text) = self.shares[which].get(at)?;
        Some(Entry::of(Kind::ALL[which], line, text, epoch))
    }

    fn at_or_after(&self, number: u64, filter: Filter, epoch: Option<u64>) -> Option<Entry> {
        if number >= self.next {
            return None;
        }
        let at = [0, 1, 2, 3].map(|which: usize| self.shares[which].position(number));
        let which = self.oldest(&at, filter)?;
        self.entry(which, at[which], epoch)
    }

    /// Keeps a message.
    fn keep(&mut self, about: &About, key: Key, text: Text, now: Instant) {
        let which = about.kind as usize;
        let line = Line::new(self.next, now, about.level, key.site, key.source.unwrap_or(0));
        self.shares[which].push(line, text);
        self.counters.kept[which] += 1;
        self.next += 1;
    }

    /// Keeps a message about an operator's action. The operator with the most lines loses lines first, and of these the
    /// oldest of the kind of action with the most.
    fn keep_action(&mut self, about: &About, action_kind: u32, text: Text, now: Instant) {
        let key = Key { site: Action::of(text.as_str()).actor(), source: Some(action_kind) };
        self.keep(about, key, text, now);
    }

    /// Keeps the number of actions of an operator that were not kept.
    fn keep_held(&mut self, held: &Held, now: Instant) {
        let about = About { kind: Kind::Audit, level: held.level, host: None };
        let number = format_args!("{} more, not kept one by one; the last", held.count);
        self.keep_action(&about, held.kind, with_number(&held.text, number), now);
    }

    /// Keeps a line with the number of repeats of a run.
    fn keep_repeats(&mut self, run: &Run, now: Instant) {
        let mut text = Text::default();
        let seconds = now.since(run.since).as_secs();
        if run.about.kind == Kind::Audit {
            let number = format_args!("{} more like this in {seconds} s", run.held);
            let kind = Action::of(run.text.as_str()).kind();
            return self.keep_action(&run.about, kind, with_number(&run.text, number), now);
        }
        let host = run.about.host.filter(|_| run.key.source.is_some());
        // An error means that the text was cut.
        let _ = match host {
            Some(host) => {
                write!(text, "… {} more like this from {host} in {seconds} s: ", run.held)
            }
            None => write!(text, "… {} more like this in {seconds} s: ", run.held),
        };
        let _ = text.write_str(run.text.as_str());
        self.keep(&run.about, run.key, text, now);
    }

    /// Keeps a message, or counts it as a repeat.
    fn take(&mut self, about: &About, site: u32, text: Text, now: Instant) {
        let source = about.host.map_or_else(
            || hash(&[text.as_str().as_bytes()]),
            |host| match host {
                core::net::IpAddr::V4(ip) => hash(&[&ip.octets()]),
                core::net::IpAddr::V6(ip) => hash(&[&ip.octets()]),
            },
        );
        let key = Key { site, source: Some(source) };
        for (repeats, key) in [key, Key { site, source: None }].into_iter().enumerate() {
            let (kept, ended) = self.repeats[repeats].admit(key, *about, &text, now);
            if let Some(run) = ended {
                self.keep_repeats(&run, now);
            }
            if !kept {
                self.counters.repeats += 1;
                return;
            }
        }
        self.keep(about, key, text, now);
    }

    /// Keeps a message about an operator's action, or counts it: repeats of one action from any address, and actions
    /// above the limit of an operator who is not an administrator.
    fn take_action(&mut self, about: &About, is_limited: bool, text: Text, now: Instant) {
        let action = Action::of(text.as_str());
        let kind = match is_limited {
            true => self.actors.admit(action, about.level, &text, now),
            false => Some(action.kind()),
        };
        let Some(kind) = kind else {
            self.counters.repeats += 1;
            return;
        };
        let key = Key { site: action.actor(), source: Some(action.whole()) };
        let (kept, ended) = self.repeats[0].admit(key, *about, &text, now);
        if let Some(run) = ended {
            self.keep_repeats(&run, now);
        }
        match kept {
            true => self.keep_action(about, kind, text, now),
            false => self.counters.repeats += 1,
        }
    }
}

/// The last of some lines that were not kept, with their number behind the operator.
fn with_number(last: &Text, number: fmt::Arguments<'_>) -> Text {
    let (mut text, action) = (Text::default(), Action::of(last.as_str()));
    // An error means that the text was cut.
    let _ = write!(text, "{}{number}: {}", action.prefix(last.as_str()), action.what);
    text
}

/// FNV-1a. A collision only makes two sources share their limits.
pub(crate) fn hash(parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl log::Log for LogRing {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        LEVELS.takes(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut text = Text::default();
        // An error means that the text was cut.
        let _ = text.write_fmt(*record.args());
        let kind = Kind::of(record);
        let about = About { kind, level: record.level(), host: source::of(text.as_str()) };
        let site = [record.file(), record.module_path(), Some(record.target())];
        let site = site.map(|part| part.unwrap_or_default().as_bytes());
        let line = record.line().unwrap_or(0).to_le_bytes();
        let site = hash(&[site[0], site[1], site[2], &line]);
        let now = self.now();
        let mut state = self.lock();
        match kind {
            Kind::Audit => {
                let is_limited = record.module_path() == Some(LIMITED);
                state.take_action(&about, is_limited, text, now);
            }
            _ => state.take(&about, site, text, now),
        }
        self.audits.store(state.counters.kept[Kind::Audit as usize], Ordering::Relaxed);
        self.note_due(&state);
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests;
