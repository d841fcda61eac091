//! Settings of the client.

use core::time::Duration;

/// Settings of the devices of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most requests in flight on a device.
    pub depth: usize,
    /// Longest wait of a request for a device that is not open, because no path is up or the server
    /// refuses to open it. With zero, requests fail at once, as in Linux.
    pub wait: Duration,
    /// Delay before OPEN is sent again after a refusal.
    pub open_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { depth: 128, wait: Duration::from_secs(60), open_delay: Duration::from_secs(1) }
    }
}
