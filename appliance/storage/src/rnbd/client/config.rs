//! Settings of the client.

use core::time::Duration;

/// Settings of the devices of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests that a device takes at a time.
    pub depth: usize,
    /// How long requests wait for a device that is not open, because no path is up or the server
    /// does not let it be opened yet; zero fails them at once, as Linux does.
    pub wait: Duration,
    /// Pause before a device is opened again that the server refused.
    pub open_delay: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { depth: 128, wait: Duration::from_secs(60), open_delay: Duration::from_secs(1) }
    }
}
