//! Statistics of a path, as in Linux's sysfs (`stats/rdma`, `stats/reconnects`).

use crate::server::{CompletionRuns, Histogram};

/// Statistics of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Reads sent (`rd_cnt`).
    pub reads: u64,
    /// Bytes requested (`rd_bytes`).
    pub read_bytes: u64,
    /// Writes, and all other requests without response data, sent (`wr_cnt`).
    pub writes: u64,
    /// Bytes written (`wr_bytes`).
    pub write_bytes: u64,
    /// Requests taken over from failed paths (`failover`).
    pub failovers: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Successful reconnects (`reconnects`, first number).
    pub reconnects: u64,
    /// Failed reconnects (`reconnects`, second number).
    pub reconnects_failed: u64,
    /// Completions polled (`wc_completion`).
    pub completions: u64,
    /// Runs of completions (`wc_completion`).
    pub runs: CompletionRuns,
    /// Time from sending a read to its response (`rdma_lat`).
    pub read_latency: Histogram,
    /// Time from sending a write to its response (`rdma_lat`).
    pub write_latency: Histogram,
}
