//! What is counted for a volume.

use rtrs::server::{Histogram, RequestKind, Served};

/// What was done on a volume on behalf of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes, discards, write-zeroes, secure erases.
    pub others: u64,
    /// Requests that ended in an error.
    pub errors: u64,
    /// Requests that had to wait because the volume was busy.
    pub waits: u64,
    /// From the arrival of reads to their answer.
    pub read_latency: Histogram,
    /// From the arrival of writes to their answer.
    pub write_latency: Histogram,
}

impl VolumeStats {
    #[inline(always)]
    pub(super) fn count(&mut self, served: &Served, ok: bool) {
        if !ok {
            self.errors += 1;
            return;
        }
        match served.kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += u64::from(served.bytes);
                self.read_latency.record(served.nanos);
            }
            RequestKind::Write if served.bytes > 0 => {
                self.writes += 1;
                self.write_bytes += u64::from(served.bytes);
                self.write_latency.record(served.nanos);
            }
            RequestKind::Write => self.others += 1,
        }
    }
}
