//! Statistics of a volume.

use rtrs::server::{Histogram, RequestKind, Served};

/// Requests of clients to a volume.
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
    /// Requests that were queued because the volume was busy.
    pub waits: u64,
    /// Time from the arrival of a read to its response.
    pub read_latency: Histogram,
    /// Time from the arrival of a write to its response.
    pub write_latency: Histogram,
}

impl VolumeStats {
    #[inline]
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
