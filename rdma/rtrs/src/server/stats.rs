//! Statistics of the server and its paths.

use core::time::Duration;

/// Histogram of latencies in powers of two, with the classes in milliseconds of Linux's `stats/rdma_lat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    sum_nanos: u64,
    max_nanos: u64,
    /// Latencies of 2^n to 2^(n+1) milliseconds; the last class has all longer ones.
    slow: [u64; Histogram::MILLISECOND_CLASSES - 1],
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 24;
    /// Number of classes in milliseconds: below 1, below 2, ... below 65536, and all longer latencies.
    pub const MILLISECOND_CLASSES: usize = 18;

    /// Counts a latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        let bucket = (nanos >> 10 | 1).ilog2() as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
        self.sum_nanos = self.sum_nanos.wrapping_add(nanos);
        self.max_nanos = self.max_nanos.max(nanos);
        if nanos >= 1_000_000 {
            self.record_slow(nanos);
        }
    }

    /// Counts a latency of a millisecond or more in its class.
    #[cold]
    fn record_slow(&mut self, nanos: u64) {
        let class = ((nanos / 1_000_000) | 1).ilog2() as usize;
        self.slow[class.min(self.slow.len() - 1)] += 1;
    }

    /// Counts of the classes in milliseconds. Class `n` has the latencies below `2^n` ms that no class before it has;
    /// the last has all others.
    pub fn millisecond_classes(&self) -> [u64; Self::MILLISECOND_CLASSES] {
        let mut classes = [0; Self::MILLISECOND_CLASSES];
        classes[1..].copy_from_slice(&self.slow);
        classes[0] = self.count() - self.slow.iter().sum::<u64>();
        classes
    }

    /// The longest latency.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// Upper bound (exclusive: 2048 ns, doubled for each bucket) and count of each bucket; the last also has all longer
    /// latencies.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(i, &n)| (Duration::from_nanos(2048 << i), n))
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, from)| *to += from);
        self.slow.iter_mut().zip(&other.slow).for_each(|(to, from)| *to += from);
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }
}

/// Runs of completions that were polled one after the other, as Linux counts them for `stats/wc_completion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionRuns {
    /// Number of runs (`calls`).
    pub calls: u64,
    /// Completions of the longest run (`max`).
    pub max: u32,
    run: u32,
    poll: u32,
}

impl CompletionRuns {
    /// Counts a completion that was polled in the `poll`th run of its completion queue. The first is 1.
    #[inline]
    pub fn count(&mut self, poll: u32) {
        if self.poll != poll {
            (self.poll, self.run) = (poll, 0);
            self.calls += 1;
        }
        self.run += 1;
        self.max = self.max.max(self.run);
    }
}

/// Statistics of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes (and all other requests without response data) answered.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Completions polled.
    pub completions: u64,
    /// Runs of completions.
    pub runs: CompletionRuns,
    /// Requests that waited for room for their response in the send queue.
    pub parked: u64,
    /// Requests that waited for another path's request in the same chunk.
    pub chunk_waits: u64,
    /// Reads that waited for memory for their data.
    pub memory_waits: u64,
    /// Time from the arrival of a read to its response.
    pub read_latency: Histogram,
    /// Time from the arrival of a write to its response.
    pub write_latency: Histogram,
}

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Completions polled.
    pub completions: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Half-open sessions evicted for others.
    pub displaced: u64,
    /// Paths that came up.
    pub paths_up: u64,
    /// Paths that ended.
    pub paths_closed: u64,
    /// Malformed requests, answered with EINVAL.
    pub malformed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn latencies_fall_into_their_buckets() {
        let mut histogram = Histogram::default();
        for nanos in [0, 1023, 2047, 2048, 4095, 4096, u64::MAX] {
            histogram.record(nanos);
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, n)| n).collect();
        assert_eq!(counts[..4], [3, 2, 1, 0]);
        assert_eq!(counts[23], 1);
        assert_eq!(histogram.count(), 7);
        assert_eq!(histogram.buckets().nth(1).unwrap().0, Duration::from_nanos(4096));
        assert_eq!(histogram.max(), Duration::from_nanos(u64::MAX));
        let mut other = Histogram::default();
        other.record(5000);
        other.add(&histogram);
        assert_eq!(other.count(), 8);
        assert_eq!(other.buckets().nth(2).unwrap().1, 2);
        assert_eq!(other.max(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn latencies_fall_into_classes_of_milliseconds() {
        let mut histogram = Histogram::default();
        let ms = |n: u64| n * 1_000_000;
        for nanos in [0, ms(1) - 1, ms(1), ms(2) - 1, ms(2), ms(65536) - 1, ms(65536), ms(1 << 20)]
        {
            histogram.record(nanos);
        }
        let mut sum = Histogram::default();
        sum.add(&histogram);
        for classes in [histogram.millisecond_classes(), sum.millisecond_classes()] {
            assert_eq!(classes[..4], [2, 2, 1, 0]);
            assert_eq!(classes[16..], [1, 2]);
            assert_eq!(classes.iter().sum::<u64>(), histogram.count());
        }
        assert_eq!(histogram.max(), Duration::from_millis(1 << 20));
    }

    #[test]
    fn runs_of_completions_have_a_longest_one() {
        let mut runs = CompletionRuns::default();
        for poll in [1, 1, 1, 2, 4, 4] {
            runs.count(poll);
        }
        assert_eq!((runs.calls, runs.max), (3, 3));
    }
}
