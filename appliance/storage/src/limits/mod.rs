//! Limits of a volume's users: requests and bytes in a second, of reads, of writes, and of both together.
//!
//! # Token bucket
//!
//! A limit is a bucket that holds what its rate gives in [`BURST`]. It is kept as one number, the time at which it is
//! full again (the generic cell rate algorithm, ITU-T I.371): a request moves that time on by its cost, and is admitted
//! while the bucket is not overdrawn. The last admitted request may overdraw it, so that a request of any size is
//! admitted at last. In a time T, a limit admits at most its rate times (T + `BURST`), and one request. Costs are
//! integers: 1/16 ns with 32 bits of fraction.
//!
//! # Cores
//!
//! The buckets are atomics that the loops of all cores share, so a limit holds for all of them together. Requests that
//! have to wait do so in their own loop, in a [`Throttle`]. Where several loops have waiting requests, a loop takes its
//! part of what is in the bucket, and at least one request. The loop that comes last in each round of turns gets no less
//! than 1/e (37 %) of the first one's share.
//!
//! # What counts
//!
//! A read, a comparison or a verification is a read of its bytes. A write or a zeroing is a write of its bytes. A
//! deallocation is a write of no bytes. A flush is not limited: it does not move data, and others may wait for it.

mod throttle;

#[cfg(test)]
mod tests;

pub use throttle::Throttle;

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use drivers::hal::Instant;

/// What a bucket holds, in time at its rate.
pub const BURST: Duration = Duration::from_millis(100);
/// Units of time in a nanosecond.
const TICKS: u64 = 16;
/// Bits of a cost below one unit of time.
const FRACTION: u32 = 32;

/// Requests and bytes in a second. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Requests.
    pub requests: Option<u32>,
    /// Bytes.
    pub bytes: Option<u64>,
}

/// The limits of an export or a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of reads.
    pub reads: Rate,
    /// Of writes.
    pub writes: Rate,
    /// Of both together.
    pub all: Rate,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// The limits that there are, by the names of their keys in the configuration.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names =
            ["read_iops", "read_bandwidth", "write_iops", "write_bandwidth", "iops", "bandwidth"];
        names.into_iter().zip(self.rates()).filter_map(|(name, rate)| Some((name, rate?)))
    }

    fn rates(&self) -> [Option<u64>; 6] {
        let of = |rate: &Rate| [rate.requests.map(u64::from), rate.bytes];
        let ([a, b], [c, d], [e, f]) = (of(&self.reads), of(&self.writes), of(&self.all));
        [a, b, c, d, e, f]
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl Class {
    /// Places of the buckets of requests and of bytes that a request of this class takes from.
    const fn buckets(self) -> [(usize, usize); 2] {
        match self {
            Class::Read => [(0, 1), (4, 5)],
            Class::Write => [(2, 3), (4, 5)],
        }
    }
}

/// A bucket.
#[derive(Debug, Default)]
struct Bucket {
    /// Time of one request or byte, with [`FRACTION`] bits of fraction; 0 without a limit.
    cost: AtomicU64,
    /// When it is full.
    full_at: AtomicU64,
}

impl Bucket {
    /// Time for which it can be drawn on, at most [`BURST`]. None if it is overdrawn.
    fn credit(&self, now: u64) -> Option<u64> {
        if self.cost.load(Ordering::Relaxed) == 0 {
            return Some(u64::MAX);
        }
        let full_at = self.full_at.load(Ordering::Relaxed).max(now);
        (now + burst()).checked_sub(full_at)
    }

    fn charge(&self, units: u64, now: u64) {
        let cost = self.cost.load(Ordering::Relaxed);
        if cost == 0 || units == 0 {
            return;
        }
        let time = (u128::from(units) * u128::from(cost)).div_ceil(1 << FRACTION);
        let time = u64::try_from(time).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        let later = |full_at: u64| Some(full_at.max(now).saturating_add(time));
        // The closure always returns a value.
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// When it is not overdrawn any more.
    fn ready_at(&self) -> u64 {
        match self.cost.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.full_at.load(Ordering::Relaxed).saturating_sub(burst()),
        }
    }

    fn set(&self, rate: Option<u64>) {
        let second = u128::from(1_000_000_000 * TICKS) << FRACTION;
        let cost = rate.map_or(0, |rate| {
            u64::try_from(second.div_ceil(u128::from(rate.max(1)))).unwrap_or(u64::MAX)
        });
        if self.cost.swap(cost, Ordering::Relaxed) != cost {
            // What was overdrawn at another rate does not count.
            self.full_at.store(0, Ordering::Relaxed);
        }
    }
}

fn burst() -> u64 {
    BURST.as_nanos() as u64 * TICKS
}

fn ticks(now: Instant) -> u64 {
    now.as_nanos().saturating_mul(TICKS)
}

/// Limits in force, shared by the loops of all cores. They change at run time.
#[derive(Debug, Default)]
pub struct Limiter {
    is_limited: AtomicBool,
    /// Rates as they were set; 0 without one.
    rates: [AtomicU64; 6],
    buckets: [Bucket; 6],
    /// Loops with waiting requests.
    loops: AtomicU32,
    delayed: AtomicU64,
    nanos: AtomicU64,
}

impl Limiter {
    /// With these limits.
    pub fn new(limits: &Limits) -> Limiter {
        let limiter = Limiter::default();
        limiter.set(limits);
        limiter
    }

    /// Changes the limits. Requests that wait continue by the new ones within 10 ms.
    pub fn set(&self, limits: &Limits) {
        let places = self.buckets.iter().zip(&self.rates);
        for ((bucket, place), rate) in places.zip(limits.rates()) {
            bucket.set(rate);
            place.store(rate.unwrap_or(0), Ordering::Relaxed);
        }
        self.is_limited.store(!limits.is_none(), Ordering::Release);
    }

    /// The limits that were set.
    pub fn limits(&self) -> Limits {
        let at = |place: usize| self.rates.get(place).map(|rate| rate.load(Ordering::Relaxed));
        let rate = |place| Rate {
            requests: at(place).filter(|rate| *rate > 0).map(|rate| rate as u32),
            bytes: at(place + 1).filter(|rate| *rate > 0),
        };
        Limits { reads: rate(0), writes: rate(2), all: rate(4) }
    }

    /// Whether anything is limited. Where nothing is, this is all that a request costs.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Acquire)
    }

    /// How far the least full bucket of a class can be drawn on, in units of time. None if the request has to wait.
    pub fn credit(&self, class: Class, now: Instant) -> Option<u64> {
        let now = ticks(now);
        let mut least = u64::MAX;
        for (requests, bytes) in class.buckets() {
            for place in [requests, bytes] {
                least = least.min(self.buckets[place].credit(now)?);
            }
        }
        Some(least)
    }

    /// Takes a request of that many bytes from its buckets.
    pub fn charge(&self, class: Class, bytes: u64, now: Instant) {
        let now = ticks(now);
        for (requests, of_bytes) in class.buckets() {
            self.buckets[requests].charge(1, now);
            self.buckets[of_bytes].charge(bytes, now);
        }
    }

    /// When a request of the class does not have to wait any more.
    fn ready_at(&self, class: Class) -> Instant {
        let places = class.buckets().into_iter().flat_map(|(requests, bytes)| [requests, bytes]);
        let latest = places.map(|place| self.buckets[place].ready_at()).max().unwrap_or(0);
        Instant::from_nanos(latest.div_ceil(TICKS))
    }

    /// Requests that had to wait, and the time in which any did. Several cores count the same time each.
    pub fn delays(&self) -> (u64, Duration) {
        let nanos = self.nanos.load(Ordering::Relaxed);
        (self.delayed.load(Ordering::Relaxed), Duration::from_nanos(nanos))
    }
}
