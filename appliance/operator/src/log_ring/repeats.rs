//! Rate limit of repeated messages: of the messages that one line of code logs about one host, or with one text, a few
//! per minute are kept and the others counted.

use super::{Kind, Text};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use log::Level;

/// Interval at which the number of repeats is logged.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Lines about one host, or with one text, kept per window.
pub(super) const KEPT: u16 = 8;
/// Lines of one place in the code kept per window, about any hosts.
pub(super) const KEPT_OF_SITE: u16 = 120;
/// Maximum hosts and texts counted at a time.
const RUNS: usize = 64;

/// Identifies messages that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub site: u32,
    /// Hash of the host or text. None for all messages of the site.
    pub source: Option<u32>,
}

/// Properties of a message without its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub kind: Kind,
    pub level: Level,
    /// The host that the message is about.
    pub host: Option<IpAddr>,
}

/// Messages of one key since the window began.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub key: Key,
    pub about: About,
    pub since: Instant,
    kept: u16,
    /// Messages that were not kept.
    pub held: u64,
    /// Text of the last message that was not kept.
    pub text: Text,
}

/// The messages counted at a time.
#[derive(Debug)]
pub(super) struct Repeats {
    runs: Vec<Run>,
}

impl Default for Repeats {
    fn default() -> Self {
        Repeats { runs: Vec::with_capacity(RUNS) }
    }
}

impl Repeats {
    /// Counts a message. Returns whether to keep it, and an expired or evicted run whose number is to be logged.
    pub fn admit(
        &mut self,
        key: Key,
        about: About,
        text: &Text,
        now: Instant,
    ) -> (bool, Option<Run>) {
        let most = if key.source.is_some() { KEPT } else { KEPT_OF_SITE };
        let (at, ended) = match self.runs.iter().position(|run| run.key == key) {
            Some(at) => (at, self.restart(at, now)),
            None => self.place(key, about, now),
        };
        let Some(run) = self.runs.get_mut(at) else { return (true, ended) };
        if run.kept < most {
            run.kept += 1;
            return (true, ended);
        }
        (run.held, run.about, run.text) = (run.held + 1, about, *text);
        (false, ended)
    }

    /// Starts a new window if the current one has expired.
    fn restart(&mut self, at: usize, now: Instant) -> Option<Run> {
        let run = self.runs.get_mut(at).filter(|run| run.since + WINDOW <= now)?;
        let ended = (run.held > 0).then(|| run.clone());
        (run.since, run.kept, run.held) = (now, 0, 0);
        ended
    }

    /// Allocates a run for a new key. Evicts the oldest window if all are in use.
    fn place(&mut self, key: Key, about: About, now: Instant) -> (usize, Option<Run>) {
        let run = Run { key, about, since: now, kept: 0, held: 0, text: Text::default() };
        if self.runs.len() < RUNS {
            self.runs.push(run);
            return (self.runs.len() - 1, None);
        }
        // A run without withheld messages is evicted first.
        let age = |(_, run): &(usize, &Run)| (run.held > 0, run.since);
        let at = self.runs.iter().enumerate().min_by_key(age).map_or(0, |(at, _)| at);
        let evicted = core::mem::replace(&mut self.runs[at], run);
        (at, (evicted.held > 0).then_some(evicted))
    }

    /// Takes the next expired run whose number is to be logged.
    pub fn take_due(&mut self, now: Instant) -> Option<Run> {
        let is_due = |run: &Run| run.held > 0 && run.since + WINDOW <= now;
        let at = self.runs.iter().position(is_due)?;
        Some(self.runs.swap_remove(at))
    }

    /// Time at which the first number is due.
    pub fn due(&self) -> Option<Instant> {
        self.runs.iter().filter(|run| run.held > 0).map(|run| run.since + WINDOW).min()
    }
}
