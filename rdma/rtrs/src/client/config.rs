//! Settings of the client.

use super::Policy;
use core::time::Duration;

/// Settings of a session, as Linux's client has them where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Connections of a path beside the service connection (Linux: one per CPU).
    pub connections: u16,
    /// Most requests at a time; a server that offers more is not used to the full.
    pub max_queue_depth: u16,
    /// Depth of the completion queue that all connections share.
    pub completions: u32,
    /// Which path a request takes.
    pub policy: Policy,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Heartbeats in a row that may stay without answer.
    pub heartbeat_misses: u8,
    /// Time that a path has to come up.
    pub connect_timeout: Duration,
    /// Pause before a path that failed is connected again (Linux: 31 s).
    pub reconnect_delay: Duration,
    /// At most this much is added to the pause, at random.
    pub reconnect_jitter: Duration,
    /// Attempts to connect a path again before it is given up; None for no end.
    pub max_reconnect_attempts: Option<u16>,
    /// A path that has requests outstanding and was silent for so long is asked for a sign of
    /// life, …
    pub probe_after: Duration,
    /// … and if none comes for so long, and another path is up, its requests go there. (Linux
    /// waits for the transport's retries, or for the heartbeat.)
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
