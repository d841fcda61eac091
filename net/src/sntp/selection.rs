//! Combines samples: the best of one server, and the time on which a majority of the servers agree.

use super::client::MOST_SERVERS;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Samples kept of each server (RFC 5905 section 10: NSTAGE).
const SAMPLES: usize = 8;
/// Growth of a sample's error with its age: 200 millionths. RFC 5905 section 7.2 has 15 (PHI) for a clock whose
/// frequency NTP corrects. Ours is as measured at boot (50 millionths), on a crystal (100). With less, honest servers that were
/// asked at different times contradict each other.
const DRIFT: u32 = 5_000;
/// The vote of an entry of the configuration, which its servers share: all numbers up to 16 divide it.
const VOTE: u64 = 720_720;
/// Servers of an entry of the configuration: the names of public pools have several.
const OF_AN_ENTRY: usize = 4;
/// Least error of a sample, because the monotonic clock and the wire are not exact.
const LEAST_ERROR: Duration = Duration::from_millis(1);

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Wall-clock time at `Instant::ZERO`, in nanoseconds since 1970.
    pub epoch: i64,
    /// Its largest error: half the round trip, and the server's own.
    pub error: Duration,
    /// Duration of the exchange, without the server's part.
    pub round_trip: Duration,
    pub at: Instant,
}

impl Sample {
    /// Its largest error now.
    pub fn error_at(&self, now: Instant) -> Duration {
        (self.error + now.since(self.at) / DRIFT).max(LEAST_ERROR)
    }
}

/// The last samples of a server.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    samples: [Option<Sample>; SAMPLES],
    next: usize,
}

impl Samples {
    /// Adds a sample. Older ones that contradict it are dropped: the server's clock was set, or ours stood still.
    pub fn add(&mut self, sample: Sample) {
        let new = Interval::of(&sample, sample.at);
        let contradicts = |old: &Sample| !Interval::of(old, sample.at).overlaps(new);
        for old in self.samples.iter_mut().filter(|old| old.as_ref().is_some_and(contradicts)) {
            *old = None;
        }
        self.samples[self.next] = Some(sample);
        self.next = (self.next + 1) % SAMPLES;
    }

    pub fn clear(&mut self) {
        *self = Samples::default();
    }

    /// The sample with the least error.
    pub fn best(&self, now: Instant) -> Option<Sample> {
        self.samples.iter().flatten().min_by_key(|sample| sample.error_at(now)).copied()
    }
}

/// The wall clock as the servers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Wall-clock time at `Instant::ZERO`, in nanoseconds since 1970.
    pub epoch: u64,
    /// Largest error.
    pub error: Duration,
    /// The server with the least error among those that agree.
    pub server: SocketAddr,
}

/// The interval of a server.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: i64,
    to: i64,
}

impl Interval {
    fn of(sample: &Sample, now: Instant) -> Interval {
        let error = sample.error_at(now).as_nanos() as i64;
        Interval { from: sample.epoch - error, to: sample.epoch + error }
    }

    fn overlaps(self, other: Interval) -> bool {
        self.from <= other.to && other.from <= self.to
    }

    fn has(&self, point: i64) -> bool {
        (self.from..=self.to).contains(&point)
    }
}

/// For each sample whether its server agrees with a majority. None if there is no majority. A sample is preceded by the
/// entry of the configuration that its server belongs to: each entry has one vote, however many servers it has, so that
/// one name in the DNS does not outvote the others.
pub fn majority(samples: &[(usize, Sample)], now: Instant) -> Option<u64> {
    let votes = samples.iter().map(|(entry, sample)| {
        let servers = samples.iter().filter(|(other, _)| other == entry).count() as u64;
        (VOTE / servers, Interval::of(sample, now))
    });
    // The sum of an entry's votes is VOTE, or less by rounding if it has more than 16 servers.
    let all: u64 = votes.clone().map(|(vote, _)| vote).sum();
    // A point that most intervals have is the start of one of them.
    let count = |point: i64| -> u64 {
        votes.clone().filter(|(_, one)| one.has(point)).map(|(vote, _)| vote).sum()
    };
    let point = votes.clone().map(|(_, one)| one.from).max_by_key(|&from| count(from))?;
    if 2 * count(point) <= all {
        return None;
    }
    let agree = |(n, (_, one)): (usize, (u64, Interval))| u64::from(one.has(point)) << n;
    Some(votes.clone().enumerate().map(agree).sum())
}

/// The servers of an entry of the configuration, of `entries` in all. Those in use that are good stay, although the
/// entry's name has other addresses now: the names of public pools change with each answer, and a server is judged by
/// several samples.
pub fn choose(good: &[SocketAddr], answer: &[SocketAddr], entries: usize) -> Vec<SocketAddr> {
    let most = (MOST_SERVERS / entries.max(1)).clamp(1, OF_AN_ENTRY);
    let mut chosen = Vec::new();
    for server in good.iter().chain(answer) {
        if chosen.len() < most && !chosen.contains(server) {
            chosen.push(*server);
        }
    }
    chosen
}
