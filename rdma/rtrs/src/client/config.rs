//! Settings of the client.

use super::Policy;
use core::time::Duration;

/// Settings of a session, with Linux's values where Linux has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections of a path besides the service connection (Linux: one per CPU).
    pub connections: u16,
    /// Most concurrent requests, even if the server offers a larger queue depth.
    pub max_queue_depth: u16,
    /// Depth of the completion queue that all connections share.
    pub completions: u32,
    /// Multipath policy.
    pub policy: Policy,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Consecutive heartbeats that may remain unanswered.
    pub heartbeat_misses: u8,
    /// Timeout for a path to come up.
    pub connect_timeout: Duration,
    /// Pause before a failed path is reconnected (Linux: 31 s).
    pub reconnect_delay: Duration,
    /// Most random time added to the pause.
    pub reconnect_jitter: Duration,
    /// Most attempts to reconnect a path; None for no limit.
    pub max_reconnect_attempts: Option<u16>,
    /// Silence after which a path with outstanding requests is probed by a heartbeat.
    pub probe_after: Duration,
    /// Timeout of a probe, after which the path's requests move to another path, if one is up. (Linux waits for the
    /// transport's retries, or for the heartbeat.)
    pub probe_patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            connections: 1,
            max_queue_depth: 512,
            completions: 8192,
            policy: Policy::MinInflight,
            heartbeat_interval: Duration::from_millis(5000),
            heartbeat_misses: 5,
            connect_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_secs(1),
            reconnect_jitter: Duration::from_millis(250),
            max_reconnect_attempts: None,
            probe_after: Duration::from_millis(250),
            probe_patience: Duration::from_millis(350),
        }
    }
}
