//! The server's side of `ib_write_lat` (perftest, `run_iter_lat_write`): each side waits until the last byte of its
//! memory becomes the number of the round, then answers with a WRITE of the same size. The server begins without
//! knowing the size: the client does not send it.
//!
//! The peer's memory holds at least its cycle buffer, one page. So the server writes a page full of ones, which starts
//! every test up to that size. For larger sizes it writes a one at the end of each power of two, upwards, and leaves
//! the peer time to react in between, because the server must not write beyond the peer's message. With `--all` the
//! sizes go from 2 bytes to 8 MiB in memory that holds all of them, so the ones can be written in advance.
//!
//! [`Arrivals`] finds the peer's WRITEs in local memory, which only the peer writes: each WRITE holds zeros and, as its
//! last byte, the number of the round (perftest, `create_single_mr`).

use core::time::Duration;
use drivers::hal::{Instant, Window};

/// Largest message size that is measured: 8 MiB, the last of `--all`.
pub const MAX_MESSAGE: usize = 8 << 20;
/// Bytes of the page of ones.
pub const PAGE: usize = 4096;
/// A peer that sends nothing for this long waits for the server to begin. Peers of other tests send at once. But on a
/// busy host `ib_send_lat` was seen to take half a second for its first message, and a wrong guess ends its test.
const START_DELAY: Duration = Duration::from_secs(2);
/// How long the peer may take to notice the server's WRITE.
const RESPONSE_TIME: Duration = Duration::from_millis(250);
/// The largest message size, as a power of two.
const LARGEST: u32 = 23;

/// After an arrival the memory is searched on every poll for this long, if the provider does not count requests.
const BUSY_SEARCH: Duration = Duration::from_secs(1);
/// Interval of the searches after that.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1);

/// A WRITE into the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// A page of ones, at the start of the memory.
    Page,
    /// A byte of one, at this offset.
    One(u64),
}

/// State of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLatency {
    /// Since when the peer is silent, until the test has begun.
    begin: Option<Instant>,
    /// Before the first answer: the next size to try, as a power of two, and when.
    search: Option<(u32, Instant)>,
    /// With `--all`: the next size whose one is to be written in advance, as a power of two.
    layout: Option<u32>,
    /// Bytes of the last message.
    size: u32,
}

impl WriteLatency {
    /// Starts when the keys are exchanged: the peer is silent since `now`.
    pub fn new(now: Instant) -> Self {
        WriteLatency { begin: Some(now), search: None, layout: None, size: 0 }
    }

    /// Whether the server has written the first page.
    pub const fn has_begun(&self) -> bool {
        self.begin.is_none()
    }

    /// Records the peer's answer of `size` bytes.
    pub fn record_answer(&mut self, size: u32) {
        self.search = None;
        // Only `--all` changes the size.
        if (self.size, size) == (2, 4) {
            self.layout = Some(PAGE.ilog2() + 1);
        }
        self.size = size;
    }

    /// Returns the next WRITE that is due.
    pub fn poll(&mut self, now: Instant) -> Option<Write> {
        if self.begin.is_some_and(|since| since + START_DELAY <= now) {
            self.begin = None;
            self.search = Some((PAGE.ilog2() + 1, now + RESPONSE_TIME));
            return Some(Write::Page);
        }
        let power = match (self.search, self.layout) {
            (Some((power, due)), _) if due <= now => {
                self.search = (power < LARGEST).then_some((power + 1, now + RESPONSE_TIME));
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

    /// When the next WRITE is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.begin.map(|since| since + START_DELAY).or(self.search.map(|(_, due)| due))
    }
}

/// Detects messages in memory that held zeros before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Bytes of the last message; 0 before the first.
    size: usize,
    /// Last byte of that message: the number of its round, modulo 256.
    round: u8,
    /// When that message arrived.
    since: Instant,
    /// Time of the last search.
    searched: Instant,
}

impl Arrivals {
    /// Expects the first message from `now` on.
    pub fn new(now: Instant) -> Self {
        Arrivals { since: now, searched: now, ..Arrivals::default() }
    }

    /// Searches for a new message; returns its size and the number of its round.
    pub fn search(&mut self, memory: &Window, now: Instant) -> Option<(u32, u8)> {
        let byte = |size: usize| memory.read_array(size - 1).map_or(0, |[byte]| byte);
        self.searched = now;
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
        *self = Arrivals { size, round, since: now, searched: now };
        Some((size as u32, round))
    }

    /// When to search for the next message.
    pub fn next_search(&self) -> Instant {
        if self.searched < self.since + BUSY_SEARCH {
            self.searched
        } else {
            self.searched + SEARCH_INTERVAL
        }
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
    fn large_sizes_are_tried_upwards_until_answer() {
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
        test.record_answer(65536);
        assert_eq!((test.poll_timeout(), test.poll(now + RESPONSE_TIME * 2)), (None, None));
    }

    #[test]
    fn arrivals_are_detected_by_last_byte() {
        let now = Instant::from_nanos(1);
        for size in [1, 2, 63, 64, PAGE, 2 * PAGE, MAX_MESSAGE] {
            let memory = zeros();
            let mut arrivals = Arrivals::new(now);
            for round in (1..=600).map(|round| round as u8) {
                assert_eq!(arrivals.search(&memory, now), None);
                memory.write(size - 1, &[round]).unwrap();
                assert_eq!(arrivals.search(&memory, now), Some((size as u32, round)));
            }
        }
    }

    #[test]
    fn growing_sizes_are_detected() {
        let memory = zeros();
        let mut now = Instant::from_nanos(1);
        let mut arrivals = Arrivals::new(now);
        for power in 1..=LARGEST {
            for round in 1..=5 {
                memory.write((1 << power) - 1, &[round]).unwrap();
                assert_eq!(arrivals.search(&memory, now), Some((1 << power, round)));
                assert_eq!((arrivals.search(&memory, now), arrivals.next_search()), (None, now));
            }
        }
        now = now + BUSY_SEARCH;
        assert_eq!(
            (arrivals.search(&memory, now), arrivals.next_search()),
            (None, now + SEARCH_INTERVAL)
        );
    }

    #[test]
    fn search_for_size_ends_at_8_mib() {
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
    fn ones_are_written_in_advance_when_size_changes() {
        let mut test = WriteLatency::new(Instant::from_nanos(1));
        let now = test.poll_timeout().unwrap();
        assert_eq!(test.poll(now), Some(Write::Page));
        for _ in 0..3 {
            test.record_answer(2);
            assert_eq!(test.poll(now), None);
        }
        test.record_answer(4);
        let all: Vec<Write> = core::iter::from_fn(|| test.poll(now)).collect();
        assert_eq!(all.len(), 11);
        assert_eq!(all[0], Write::One(8191));
    }
}
