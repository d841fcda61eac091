//! What the server counts.

use core::time::Duration;

/// Latencies by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    sum_nanos: u64,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 24;

    /// Counts one, of so many nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        let bucket = (nanos >> 10 | 1).ilog2() as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
        self.sum_nanos = self.sum_nanos.wrapping_add(nanos);
    }

    /// Counts with the upper bound of each bucket (exclusive, 2048 ns and its doubles); the last
    /// also holds everything above.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(i, &n)| (Duration::from_nanos(2048 << i), n))
    }

    /// Counts what another has counted as well.
    pub fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, from)| *to += from);
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }
}

/// What a path counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes (and everything else without answer data) answered.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Completions taken from the provider.
    pub completions: u64,
    /// Requests that had to wait for room for their answer in the send queue.
    pub parked: u64,
    /// Requests that had to wait for the same chunk's request of another path.
    pub chunk_waits: u64,
    /// Reads that had to wait for memory for their data.
    pub memory_waits: u64,
    /// From the arrival of reads to their answer.
    pub read_latency: Histogram,
    /// From the arrival of writes to their answer.
    pub write_latency: Histogram,
}

/// What the server counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Completions taken from the provider.
    pub completions: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Half-open sessions that made room for others.
    pub displaced: u64,
    /// Paths that came up.
    pub paths_up: u64,
    /// Paths that ended.
    pub paths_closed: u64,
    /// Requests refused because the client broke the protocol.
    pub malformed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn every_latency_has_its_bucket() {
        let mut histogram = Histogram::default();
        for nanos in [0, 1023, 2047, 2048, 4095, 4096, u64::MAX] {
            histogram.record(nanos);
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, n)| n).collect();
        assert_eq!(counts[..4], [3, 2, 1, 0]);
        assert_eq!(counts[23], 1);
        assert_eq!(histogram.count(), 7);
        assert_eq!(histogram.buckets().nth(1).unwrap().0, Duration::from_nanos(4096));
        let mut other = Histogram::default();
        other.record(5000);
        other.add(&histogram);
        assert_eq!(other.count(), 8);
        assert_eq!(other.buckets().nth(2).unwrap().1, 2);
    }
}
