//! What a path counts, by the names of Linux's sysfs (`stats/rdma`, `stats/reconnects`).

use crate::server::Histogram;

/// What a path counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Reads sent (`rd_cnt`).
    pub reads: u64,
    /// Bytes asked for (`rd_bytes`).
    pub read_bytes: u64,
    /// Writes, and everything else without answer data, sent (`wr_cnt`).
    pub writes: u64,
    /// Bytes written (`wr_bytes`).
    pub write_bytes: u64,
    /// Requests taken over from paths that failed (`failover`).
    pub failovers: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Times that it came up again (`reconnects`, first number).
    pub reconnects: u64,
    /// Attempts to bring it up again that failed (`reconnects`, second number).
    pub reconnects_failed: u64,
    /// Completions taken (`wc_completion`).
    pub completions: u64,
    /// From the sending of reads to their answer (`rdma_lat`).
    pub read_latency: Histogram,
    /// From the sending of writes to their answer (`rdma_lat`).
    pub write_latency: Histogram,
}
