//! Statistics of the server and its paths.

use core::time::Duration;

/// Histogram of latencies in powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Histogram::BUCKETS],
    sum_nanos: u64,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 24;

    /// Counts a latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        let bucket = (nanos >> 10 | 1).ilog2() as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
        self.sum_nanos = self.sum_nanos.wrapping_add(nanos);
    }

    /// Upper bound (exclusive: 2048 ns, doubled for each bucket) and count of each bucket; the last also has all longer
    /// latencies.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(i, &n)| (Duration::from_nanos(2048 << i), n))
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, from)| *to += from);
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
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
        let mut other = Histogram::default();
        other.record(5000);
        other.add(&histogram);
        assert_eq!(other.count(), 8);
        assert_eq!(other.buckets().nth(2).unwrap().1, 2);
    }
}
