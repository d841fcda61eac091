//! Messages that come again and again: of those that one line of code logs about one host, or with one text, a few a
//! minute are kept, and of the others how many there were.

use super::{Kind, Text};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use log::Level;

/// How long is counted until the number is logged.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Lines of one host, or with one text, that are kept of each window.
pub(super) const KEPT: u16 = 8;
/// Lines of one place in the code that are kept of each window, whatever they are about.
pub(super) const KEPT_OF_SITE: u16 = 120;
/// Hosts and texts that are counted at a time.
const RUNS: usize = 64;

/// What is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub site: u32,
    /// None: all of the site.
    pub source: Option<u32>,
}

/// What a message is, but for its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub kind: Kind,
    pub level: Level,
    /// The host that it is about.
    pub host: Option<IpAddr>,
}

/// Messages of one key since the window began.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub key: Key,
    pub about: About,
    pub since: Instant,
    kept: u16,
    /// Those that were not kept.
    pub held: u64,
    /// The last one.
    pub text: Text,
}

/// All that are counted.
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
    /// Counts a message. Whether it is kept, and the run that was over or had to give way, if it has a number to tell.
    pub fn admit(
        &mut self,
        key: Key,
        about: About,
        text: &Text,
        now: Instant,
    ) -> (bool, Option<Run>) {
        let most = if key.source.is_some() { KEPT } else { KEPT_OF_SITE };
        let (at, told) = match self.runs.iter().position(|run| run.key == key) {
            Some(at) => (at, self.restart(at, now)),
            None => self.place(key, about, now),
        };
        let Some(run) = self.runs.get_mut(at) else { return (true, told) };
        if run.kept < most {
            run.kept += 1;
            return (true, told);
        }
        (run.held, run.about, run.text) = (run.held + 1, about, *text);
        (false, told)
    }

    /// Begins the window anew if it is over.
    fn restart(&mut self, at: usize, now: Instant) -> Option<Run> {
        let run = self.runs.get_mut(at).filter(|run| run.since + WINDOW <= now)?;
        let told = (run.held > 0).then(|| run.clone());
        (run.since, run.kept, run.held) = (now, 0, 0);
        told
    }

    /// A place for a key that has none: that of the oldest window if there is no other.
    fn place(&mut self, key: Key, about: About, now: Instant) -> (usize, Option<Run>) {
        let run = Run { key, about, since: now, kept: 0, held: 0, text: Text::default() };
        if self.runs.len() < RUNS {
            self.runs.push(run);
            return (self.runs.len() - 1, None);
        }
        // One that holds nothing back goes first.
        let age = |(_, run): &(usize, &Run)| (run.held > 0, run.since);
        let at = self.runs.iter().enumerate().min_by_key(age).map_or(0, |(at, _)| at);
        let gone = core::mem::replace(&mut self.runs[at], run);
        (at, (gone.held > 0).then_some(gone))
    }

    /// The next run whose window is over and that has a number to tell.
    pub fn take_due(&mut self, now: Instant) -> Option<Run> {
        let is_due = |run: &Run| run.held > 0 && run.since + WINDOW <= now;
        let at = self.runs.iter().position(is_due)?;
        Some(self.runs.swap_remove(at))
    }

    /// When the first number is due.
    pub fn due(&self) -> Option<Instant> {
        self.runs.iter().filter(|run| run.held > 0).map(|run| run.since + WINDOW).min()
    }
}
