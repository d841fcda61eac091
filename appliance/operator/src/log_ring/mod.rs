//! The log: a ring of the last messages in memory taken once, filled through the `log` crate.
//! Console and syslog each follow it with a cursor; whoever is too slow learns how much it missed.
//! Logging allocates nothing and never sleeps: any loop may log. A message longer than a record is cut.

use core::fmt::{self, Write as _};
use drivers::hal::Instant;
use log::{Level, Metadata, Record};
use spin::{Mutex, MutexGuard};

/// Bytes of text that an entry holds.
const TEXT: usize = 224;

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// When it was logged.
    pub at: Instant,
    /// How severe it is.
    pub level: Level,
    text: Text,
}

#[derive(Clone, Copy, Debug)]
struct Text {
    len: usize,
    bytes: [u8; TEXT],
}

impl Entry {
    /// The message, one line.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.text.bytes[..self.text.len]).unwrap_or_default()
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.as_nanos() / 1000;
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        write!(f, "[{seconds:5}.{rest:06}] {:5} {}", self.level.as_str(), self.text())
    }
}

impl fmt::Write for Text {
    /// Takes what fits, at a character's boundary; a line end or other control becomes a space.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            let Some(place) = self.bytes.get_mut(self.len..self.len + c.len_utf8()) else {
                return Err(fmt::Error);
            };
            c.encode_utf8(place);
            self.len += c.len_utf8();
        }
        Ok(())
    }
}

/// The ring.
#[derive(Debug)]
pub struct LogRing {
    clock: fn() -> Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    entries: Vec<Entry>,
    capacity: usize,
    /// Messages ever logged; the next one's number.
    next: u64,
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(u64);

impl LogRing {
    /// A ring of the last `capacity` messages, stamped by `clock`.
    pub fn new(capacity: usize, clock: fn() -> Instant) -> LogRing {
        let state = State { entries: Vec::with_capacity(capacity), capacity, next: 0 };
        LogRing { clock, state: Mutex::new(state) }
    }

    /// The present, by the clock that stamps messages.
    pub fn now(&self) -> Instant {
        (self.clock)()
    }

    /// Messages ever logged.
    pub fn count(&self) -> u64 {
        self.lock().next
    }

    /// The next message after `cursor`, which moves past it, and how many were lost before it.
    pub fn next(&self, cursor: &mut Cursor) -> Option<(Entry, u64)> {
        let state = self.lock();
        let oldest = state.next - state.entries.len() as u64;
        let number = cursor.0.max(oldest);
        if number >= state.next {
            return None;
        }
        let missed = number - cursor.0;
        cursor.0 = number + 1;
        let entry = state.entries.get((number % state.capacity as u64) as usize)?;
        Some((*entry, missed))
    }

    /// All messages that are still there, oldest first.
    pub fn entries(&self) -> Vec<Entry> {
        let state = self.lock();
        let (newer, older) = match state.entries.len() {
            len if len < state.capacity || len == 0 => (&[][..], &state.entries[..]),
            len => state.entries.split_at((state.next % len as u64) as usize),
        };
        older.iter().chain(newer).copied().collect()
    }

    /// Hands the last `most` messages to `tell`, oldest first, without waiting for anybody and without
    /// memory: for last words. False if the log is in use, perhaps by who will never let go of it.
    pub fn try_last(&self, most: usize, mut tell: impl FnMut(&Entry)) -> bool {
        let Some(state) = self.state.try_lock() else { return false };
        let kept = state.entries.len() as u64;
        let first = state.next - kept.min(most as u64);
        for number in first..state.next {
            if let Some(entry) = state.entries.get((number % state.capacity.max(1) as u64) as usize)
            {
                tell(entry);
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl log::Log for LogRing {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let mut text = Text { len: 0, bytes: [0; TEXT] };
        // An error says that the text was cut, which its end shows.
        let _ = text.write_fmt(*record.args());
        let entry = Entry { at: (self.clock)(), level: record.level(), text };
        let mut state = self.lock();
        let capacity = state.capacity as u64;
        if state.entries.len() < state.capacity {
            state.entries.push(entry);
        } else {
            let at = (state.next % capacity.max(1)) as usize;
            if let Some(place) = state.entries.get_mut(at) {
                *place = entry;
            }
        }
        state.next += 1;
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Log as _;

    fn say(ring: &LogRing, text: &str) {
        log::set_max_level(log::LevelFilter::Trace);
        ring.log(&Record::builder().level(Level::Warn).args(format_args!("{text}")).build());
    }

    #[test]
    fn readers_follow_and_learn_what_they_missed() {
        let ring = LogRing::new(4, || Instant::from_nanos(1_500_000_000));
        let mut cursor = Cursor::default();
        assert!(ring.next(&mut cursor).is_none());
        say(&ring, "a\nb");
        let (entry, missed) = ring.next(&mut cursor).unwrap();
        assert_eq!((entry.to_string().as_str(), missed), ("[    1.500000] WARN  a b", 0));
        (0..10).for_each(|i| say(&ring, &i.to_string()));
        let (entry, missed) = ring.next(&mut cursor).unwrap();
        assert_eq!((entry.text(), missed), ("6", 6));
        let all: Vec<String> = ring.entries().iter().map(|e| e.text().to_string()).collect();
        assert_eq!(all, ["6", "7", "8", "9"]);
        let rest = core::iter::from_fn(|| ring.next(&mut cursor));
        assert_eq!(rest.map(|(e, _)| e.text().to_string()).collect::<Vec<_>>(), ["7", "8", "9"]);
        let mut last = Vec::new();
        assert!(ring.try_last(2, |entry| last.push(entry.text().to_string())));
        assert_eq!(last, ["8", "9"]);
        let held = ring.lock();
        assert!(!ring.try_last(2, |_| unreachable!("nobody may wait")));
        drop(held);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let ring = LogRing::new(1, || Instant::ZERO);
        say(&ring, &format!("x{}", "é".repeat(500)));
        let (entry, _) = ring.next(&mut Cursor::default()).unwrap();
        assert_eq!(entry.text(), format!("x{}", "é".repeat((TEXT - 1) / 2)));
    }
}
