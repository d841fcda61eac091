//! Settings of the server.

use crate::rtrs::wire::{Addressing, MAX_CONNECTIONS, MAX_HEADER, MAX_PATHS};
use core::fmt;
use core::time::Duration;

/// Inline payload that the provider has to take: an RKEY_RSP.
pub(super) const MIN_INLINE: usize = crate::rtrs::wire::RkeyResponse::SIZE;
/// Smallest queue depth that is offered where memory is short.
pub(super) const MIN_OFFERED_DEPTH: u16 = 8;

/// Settings of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port to listen on.
    pub port: u16,
    /// Chunks of a session.
    pub queue_depth: u16,
    /// Size of a chunk in bytes: a power of two, 8192 or more.
    pub chunk_size: u32,
    /// How many times over the provider's memory for chunks on demand is promised. With 1 each
    /// session has memory of its own, and nothing is taken from the provider.
    pub oversubscribe: u16,
    /// Whether a chunk's key dies with every use.
    pub always_invalidate: bool,
    /// Most sessions.
    pub max_sessions: usize,
    /// Most paths of a session.
    pub max_paths: usize,
    /// Most connections of a path.
    pub max_connections: u16,
    /// Receives posted on an I/O connection, if the queue is that deep. More requests than this
    /// must never arrive on one connection between two polls: clients may not survive an RNR NAK.
    pub receives: u16,
    /// Depth of the completion queue that all connections share.
    pub completions: u32,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Heartbeats in a row that may stay without answer.
    pub heartbeat_misses: u8,
    /// A number drawn anew each time that the gateway starts, which clients of ours learn: they
    /// then know that it was started anew, and what was not flushed is lost. 0 for not telling.
    pub incarnation: u64,
    /// Time that a path has to establish its connections and to send INFO_REQ.
    pub handshake_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            port: crate::rnbd::wire::PORT,
            queue_depth: 512,
            chunk_size: 128 << 10,
            oversubscribe: 1,
            always_invalidate: true,
            max_sessions: 64,
            max_paths: 16,
            max_connections: 256,
            receives: 128,
            completions: 1 << 16,
            heartbeat_interval: Duration::from_millis(5000),
            heartbeat_misses: 5,
            incarnation: 0,
            handshake_timeout: Duration::from_secs(30),
        }
    }
}

/// A setting that cannot be, and what is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadConfig(&'static str);

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Config {
    /// Whether stock clients can work with these settings.
    pub fn check(&self) -> Result<(), BadConfig> {
        let whole = u64::from(self.chunk_size) * u64::from(self.queue_depth);
        let complaint = if self.queue_depth < 2 {
            "queue_depth: at least 2 (Linux clients hang with 1)"
        } else if self.chunk_size < 2 * MAX_HEADER || !self.chunk_size.is_power_of_two() {
            "chunk_size: a power of two, at least 8192"
        } else if whole > u64::from(u32::MAX) {
            "queue_depth times chunk_size: less than 4 GiB"
        } else if !Addressing::new(self.queue_depth).reaches(self.chunk_size) {
            "queue_depth times chunk_size: at most 2^28 bytes, each rounded up to a power of two"
        } else if !(1..=MAX_PATHS).contains(&self.max_paths) {
            "max_paths: 1 to 128"
        } else if !(2..=MAX_CONNECTIONS).contains(&self.max_connections) {
            "max_connections: 2 to 4096"
        } else if self.oversubscribe == 0 {
            "oversubscribe: at least 1"
        } else if self.max_sessions == 0 || self.receives == 0 || self.completions == 0 {
            "max_sessions, receives, completions: at least 1"
        } else if self.heartbeat_interval.is_zero() || self.handshake_timeout.is_zero() {
            "heartbeat_interval, handshake_timeout: longer than nothing"
        } else {
            return Ok(());
        };
        Err(BadConfig(complaint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_linux_clients() {
        let config = |queue_depth, chunk_size| {
            Config { queue_depth, chunk_size, ..Config::default() }.check().is_ok()
        };
        assert!(Config::default().check().is_ok());
        assert!(config(2, 8192) && config(64, 1 << 20) && config(2048, 1 << 17));
        assert!(!config(1, 8192) && !config(8, 4096) && !config(8, 10_000));
        assert!(!config(4096, 1 << 17), "28 bits name a place in the chunks");
        assert!(Config { max_connections: 1, ..Config::default() }.check().is_err());
    }
}
