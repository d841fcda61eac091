//! Settings of the server.

use crate::wire::{Addressing, MAX_CONNECTIONS, MAX_HEADER, MAX_PATHS};
use core::fmt;
use core::time::Duration;

/// Inline payload that the provider must support: an RKEY_RSP.
pub(super) const MIN_INLINE: usize = crate::wire::RkeyResponse::SIZE;
/// Smallest queue depth that is offered, with any amount of memory.
const MIN_DEPTH: u16 = 8;
/// Number of sessions that memory must suffice for at a queue depth.
const SESSIONS: u64 = 4;

/// The queue depth of all sessions on a machine with `memory` bytes for their chunks: `wanted`, or halved until a few
/// sessions have room. It depends only on values that survive a restart of the gateway, because Linux's client gives up
/// a path for good that reconnects to another depth.
pub fn offered_depth(wanted: u16, chunk_size: u32, memory: u64) -> u16 {
    let mut depth = wanted;
    while depth > MIN_DEPTH && u64::from(depth) * u64::from(chunk_size) * SESSIONS > memory {
        depth = (depth / 2).max(MIN_DEPTH);
    }
    depth
}

/// Settings of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port to listen on.
    pub port: u16,
    /// Chunks of a session: the same for all sessions, and after a restart ([`offered_depth`]).
    pub queue_depth: u16,
    /// Size of a chunk in bytes: a power of two, 8192 or more.
    pub chunk_size: u32,
    /// How many times the provider's memory for chunks on demand is promised. With 1 each session has memory of its
    /// own, and the provider's is not used.
    pub oversubscribe: u16,
    /// Whether every use of a chunk invalidates its key.
    pub always_invalidate: bool,
    /// Most sessions.
    pub max_sessions: usize,
    /// Most sessions of one host, by its address.
    pub sessions_per_host: usize,
    /// Most bytes of the chunks of one host's sessions. None: three quarters of the memory for chunks that is taken or
    /// free, but at least one session.
    pub memory_per_host: Option<u64>,
    /// Most paths of a session.
    pub max_paths: usize,
    /// Most connections of a path.
    pub max_connections: u16,
    /// Receives posted on an I/O connection, if the queue has that depth. More requests than this must never arrive on
    /// one connection between two polls, because clients may not survive an RNR NAK.
    pub receives: u16,
    /// Depth of the completion queue that all connections share.
    pub completions: u32,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// Consecutive heartbeats that may remain unanswered.
    pub heartbeat_misses: u8,
    /// Random number of the gateway's boot, which is sent to our clients: they detect a restart, and with it the loss
    /// of unflushed data. 0 to send none.
    pub incarnation: u64,
    /// Timeout for a path to establish its connections and to send INFO_REQ.
    pub handshake_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            port: crate::wire::PORT,
            queue_depth: 512,
            chunk_size: 128 << 10,
            oversubscribe: 1,
            always_invalidate: true,
            max_sessions: 64,
            sessions_per_host: 32,
            memory_per_host: None,
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

/// An invalid setting, and the accepted values.
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
        let complaint = if self.queue_depth < 2 {
            "queue_depth: at least 2 (Linux clients hang with 1)"
        } else if self.chunk_size < 2 * MAX_HEADER || !self.chunk_size.is_power_of_two() {
            "chunk_size: a power of two, at least 8192"
        } else if !Addressing::new(self.queue_depth).reaches(self.chunk_size) {
            "queue_depth times chunk_size: at most 2^28 bytes, each rounded up to a power of two"
        } else if !(1..=MAX_PATHS).contains(&self.max_paths) {
            "max_paths: 1 to 128"
        } else if !(2..=MAX_CONNECTIONS).contains(&self.max_connections) {
            "max_connections: 2 to 4096"
        } else if self.oversubscribe == 0 {
            "oversubscribe: at least 1"
        } else if self.max_sessions.min(self.sessions_per_host) == 0
            || self.receives == 0
            || self.completions == 0
        {
            "max_sessions, sessions_per_host, receives, completions: at least 1"
        } else if self.heartbeat_interval.is_zero() || self.handshake_timeout.is_zero() {
            "heartbeat_interval, handshake_timeout: more than 0"
        } else {
            return Ok(());
        };
        Err(BadConfig(complaint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// The default settings with a change.
    fn with(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        change(&mut config);
        config
    }

    /// Each setting is checked at its limits.
    #[test]
    fn invalid_setting_is_reported_by_its_name() {
        let nothing = Duration::ZERO;
        let shortest = Duration::from_nanos(1);
        let cases: [(&str, Config, Config); 11] = [
            ("queue_depth", with(|c| c.queue_depth = 2), with(|c| c.queue_depth = 1)),
            ("chunk_size", with(|c| c.chunk_size = 8192), with(|c| c.chunk_size = 4096)),
            ("chunk_size", with(|c| c.chunk_size = 1 << 14), with(|c| c.chunk_size = 12_288)),
            ("queue_depth", with(|c| c.chunk_size = 1 << 19), with(|c| c.chunk_size = 1 << 20)),
            ("max_paths", with(|c| c.max_paths = 128), with(|c| c.max_paths = 129)),
            ("max_paths", with(|c| c.max_paths = 1), with(|c| c.max_paths = 0)),
            ("max_connections", with(|c| c.max_connections = 2), with(|c| c.max_connections = 1)),
            (
                "max_connections",
                with(|c| c.max_connections = 4096),
                with(|c| c.max_connections = 4097),
            ),
            ("oversubscribe", with(|c| c.oversubscribe = 2), with(|c| c.oversubscribe = 0)),
            (
                "heartbeat_interval",
                with(|c| c.heartbeat_interval = shortest),
                with(|c| c.heartbeat_interval = nothing),
            ),
            (
                "heartbeat_interval",
                with(|c| c.handshake_timeout = shortest),
                with(|c| c.handshake_timeout = nothing),
            ),
        ];
        for (key, least, wrong) in cases {
            assert_eq!(least.check(), Ok(()), "{key}");
            let message = wrong.check().unwrap_err().to_string();
            assert!(message.starts_with(key), "{key}: {message}");
        }
        let at_least_one: [fn(&mut Config, u16); 4] = [
            |c, n| c.max_sessions = n.into(),
            |c, n| c.sessions_per_host = n.into(),
            |c, n| c.receives = n,
            |c, n| c.completions = n.into(),
        ];
        for (n, set) in at_least_one.into_iter().enumerate() {
            assert_eq!(with(|c| set(c, 1)).check(), Ok(()), "setting {n}");
            let message = with(|c| set(c, 0)).check().unwrap_err().to_string();
            assert!(message.starts_with("max_sessions, "), "setting {n}: {message}");
        }
    }

    #[test]
    fn offered_depth_follows_memory_and_leaves_room_for_several_sessions() {
        let mib = |n: u64| n << 20;
        let depth = |memory| offered_depth(512, 128 << 10, memory);
        assert_eq!([0, 4, 16, 32, 64].map(|n| depth(mib(n))), [8, 8, 32, 64, 128]);
        assert_eq!([128, 255, 256, 4096].map(|n| depth(mib(n))), [256, 256, 512, 512]);
        assert_eq!(offered_depth(4, 128 << 10, 0), 4, "fewer than the minimum were requested");
        assert_eq!(offered_depth(100, 64 << 10, mib(24)), 50);
    }

    #[test]
    fn limits_of_linux_clients_are_enforced() {
        let config = |queue_depth, chunk_size| {
            Config { queue_depth, chunk_size, ..Config::default() }.check().is_ok()
        };
        assert!(Config::default().check().is_ok());
        assert!(config(2, 8192) && config(64, 1 << 20) && config(2048, 1 << 17));
        assert!(!config(1, 8192) && !config(8, 4096) && !config(8, 10_000));
        assert!(!config(4096, 1 << 17), "28 bits address chunk and offset");
    }
}
