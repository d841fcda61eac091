//! The server's part in `ib_write_lat` (perftest, `run_iter_lat_write`): each side waits for the
//! last byte of its memory to become the number of the round, and answers by a WRITE of the same
//! size. The server begins, and has to find out the size, which nobody has told it.
//!
//! The peer's memory holds at least its cycle buffer, a page: a page full of ones begins every
//! test up to that size. A larger message is looked for at powers of two, upwards and with time to
//! react between, because what lies beyond its end is not ours to touch. With `--all` sizes go from
//! 2 to 8 MiB in memory for all of them, so that the ones can be laid out in advance.
//!
//! What arrives is found in our memory, which nobody else writes to ([`Arrivals`]): the peer sends zeros, and behind
//! them the number of the round (perftest, `create_single_mr`).

use super::session::MAX_MESSAGE;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// The page of ones.
pub const PAGE: usize = 4096;
/// How long a peer is silent that waits for us to begin. Those of other tests are not: but on a busy host
/// `ib_send_lat` was seen to take half a second for its first message, and what is not its test ends it.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the peer may take to see that it is its turn.
const REACTION: Duration = Duration::from_millis(250);
/// The largest size is 2 to the power of this.
const LARGEST: u32 = 23;

/// For how long the memory is looked at all the time, where nobody tells that something was written.
const ATTENTION: Duration = Duration::from_secs(1);
/// And how often from then on.
const LOOK: Duration = Duration::from_millis(1);

/// What is to be written into the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A page of ones, at the beginning of the memory.
    Page,
    /// A one, so many bytes from the beginning.
    One(u64),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLatency {
    /// When the test begins.
    begin: Option<Instant>,
    /// Power of two of the size that is looked for next, and when; before the first answer.
    search: Option<(u32, Instant)>,
    /// Ones that are still to be laid out: power of two of the next size.
    layout: Option<u32>,
    /// Size of the last message.
    size: u32,
}

impl WriteLatency {
    /// All is said, and the peer is silent since `now`.
    pub fn new(now: Instant) -> Self {
        WriteLatency { begin: Some(now), search: None, layout: None, size: 0 }
    }

    /// Whether anything was written.
    pub const fn has_begun(&self) -> bool {
        self.begin.is_none()
    }

    /// A message of so many bytes has arrived.
    pub fn answered(&mut self, size: u32) {
        self.search = None;
        // Only `--all` changes the size.
        if (self.size, size) == (2, 4) {
            self.layout = Some(PAGE.ilog2() + 1);
        }
        self.size = size;
    }

    /// The next write that is due.
    pub fn poll(&mut self, now: Instant) -> Option<Write> {
        if self.begin.is_some_and(|since| since + SILENCE <= now) {
            self.begin = None;
            self.search = Some((PAGE.ilog2() + 1, now + REACTION));
            return Some(Write::Page);
        }
        let power = match (self.search, self.layout) {
            (Some((power, due)), _) if due <= now => {
                self.search = (power < LARGEST).then_some((power + 1, now + REACTION));
                power
            }
            (None, Some(power)) => {
                self.layout = (power < LARGEST).then_some(power + 1);
                power
            }
            _ => return None,
        };
        Some(Write::One((1 << power) - 1))
    }

    /// When a write is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.begin.map(|since| since + SILENCE).or(self.search.map(|(_, due)| due))
    }
}

/// Messages in memory that was zeros before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Bytes of the last message; none has come while it is 0.
    size: usize,
    /// Its last byte: the number of its round, modulo 256.
    round: u8,
    /// When it came, and when it was looked for another.
    since: Instant,
    looked: Instant,
}

impl Arrivals {
    /// Nothing has come; it may from `now` on.
    pub fn new(now: Instant) -> Self {
        Arrivals { since: now, looked: now, ..Arrivals::default() }
    }

    /// The size of a message that has come, and the number of its round.
    pub fn look(&mut self, memory: &Window, now: Instant) -> Option<(u32, u8)> {
        let byte = |size: usize| memory.read_array(size - 1).map_or(0, |[byte]| byte);
        self.looked = now;
        let (size, round) = match self.size {
            0 => {
                let large = (PAGE.ilog2() + 1..=LARGEST).map(|power| 1 << power);
                let mut page = [0; PAGE];
                let _ = memory.read(0, &mut page);
                let small = page.iter().rposition(|&byte| byte != 0).map(|last| last + 1);
                let size = small.or(large.rev().find(|&size| byte(size) != 0))?;
                (size, byte(size))
            }
            size if byte(size) != self.round => (size, byte(size)),
            // Only `--all` changes the size, to twice as much.
            size if size <= MAX_MESSAGE / 2 && byte(2 * size) != 0 => (2 * size, byte(2 * size)),
            _ => return None,
        };
        *self = Arrivals { size, round, since: now, looked: now };
        Some((size as u32, round))
    }

    /// When to look for the next.
    pub fn next_look(&self) -> Instant {
        if self.looked < self.since + ATTENTION { self.looked } else { self.looked + LOOK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use std::vec::Vec;

    fn zeros() -> Window {
        let memory = Arena::on_heap(MAX_MESSAGE + PAGE).alloc(MAX_MESSAGE, PAGE).unwrap();
        memory.fill(0);
        memory
    }

    #[test]
    fn a_large_size_is_looked_for_upwards_until_it_answers() {
        let mut now = Instant::from_nanos(1);
        let mut test = WriteLatency::new(now);
        assert_eq!(test.poll(now), None);
        now = test.poll_timeout().unwrap();
        assert_eq!(test.poll(now), Some(Write::Page));
        for power in 13..=16 {
            now = test.poll_timeout().unwrap();
            assert_eq!(test.poll(now), Some(Write::One((1 << power) - 1)));
            assert_eq!(test.poll(now), None);
        }
        test.answered(65536);
        assert_eq!((test.poll_timeout(), test.poll(now + REACTION * 2)), (None, None));
    }

    #[test]
    fn a_message_is_its_last_byte_and_the_next_another() {
        let now = Instant::from_nanos(1);
        for size in [1, 2, 63, 64, PAGE, 2 * PAGE, MAX_MESSAGE] {
            let memory = zeros();
            let mut arrivals = Arrivals::new(now);
            for round in (1..=600).map(|round| round as u8) {
                assert_eq!(arrivals.look(&memory, now), None);
                memory.write(size - 1, &[round]).unwrap();
                assert_eq!(arrivals.look(&memory, now), Some((size as u32, round)));
            }
        }
    }

    #[test]
    fn all_sizes_follow_each_other() {
        let memory = zeros();
        let mut now = Instant::from_nanos(1);
        let mut arrivals = Arrivals::new(now);
        for power in 1..=LARGEST {
            for round in 1..=5 {
                memory.write((1 << power) - 1, &[round]).unwrap();
                assert_eq!(arrivals.look(&memory, now), Some((1 << power, round)));
                assert_eq!((arrivals.look(&memory, now), arrivals.next_look()), (None, now));
            }
        }
        now = now + ATTENTION;
        assert_eq!((arrivals.look(&memory, now), arrivals.next_look()), (None, now + LOOK));
    }

    #[test]
    fn the_search_ends_at_8_mib() {
        let mut now = Instant::from_nanos(1);
        let mut test = WriteLatency::new(now);
        let mut found = Vec::new();
        while let Some(due) = test.poll_timeout() {
            now = due;
            found.extend(test.poll(now));
        }
        assert_eq!(found.last(), Some(&Write::One((8 << 20) - 1)));
        assert_eq!(found.len(), 12);
    }

    #[test]
    fn all_sizes_are_laid_out_when_the_size_changes() {
        let mut test = WriteLatency::new(Instant::from_nanos(1));
        let now = test.poll_timeout().unwrap();
        assert_eq!(test.poll(now), Some(Write::Page));
        for _ in 0..3 {
            test.answered(2);
            assert_eq!(test.poll(now), None);
        }
        test.answered(4);
        let all: Vec<Write> = core::iter::from_fn(|| test.poll(now)).collect();
        assert_eq!(all.len(), 11);
        assert_eq!(all[0], Write::One(8191));
    }
}
