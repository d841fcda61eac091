//! NVMe/TCP host (NVM Express Base Specification 2.0, TCP Transport Specification 1.0; Linux: drivers/nvme/host): a
//! volume of another machine's NVMe subsystem. An engine without I/O: received bytes, time and randomness are
//! arguments, and bytes to send are written to buffers of the caller.
//!
//! [`Client`] has one namespace and one to 16 paths. A path is an address of the subsystem with a controller of its own:
//! an admin queue and one to 16 I/O queues, each a TCP connection. Payload is copied once in each direction, between
//! the caller's buffer and a window.
//!
//! | module | what it is |
//! |---|---|
//! | `client` | requests, the choice of a path, losses, timers |
//! | `controller` | a path: its queues, and the admin commands from Connect to the shutdown |
//! | `command` | submission queue entries |
//! | `identify` | structures that a controller describes itself and its namespaces with |
//! | `status` | meaning of a completion's status |
//!
//! # Paths
//!
//! A path is used while its ANA state is optimized, or non-optimized if no path is optimized. Requests go to its queues
//! in turn. A controller that loses one queue loses all of them.
//!
//! Requests without a completion are sent again, and no request completes before a controller has completed it. A read
//! is sent again at once, over any path. A write that was in flight on a lost path is sent again over the same path as
//! soon as it is back. Over another path it is sent only after [`Settings::keepalive`], because until then the lost
//! controller may execute the first copy, also after a newer write to the same blocks. A request that has waited for
//! [`Settings::give_up`] fails.
//!
//! # Volatile caches
//!
//! A flush covers writes that its controller has completed, and a controller with a volatile write cache may have lost
//! power when it is gone. So a flush goes to each path with unflushed writes. Unflushed writes of a path that ends count
//! as lost: the next flush fails, like that of a disk whose cache lost power ([`Losses::ToFlush`]), or every request
//! until the user knows ([`Losses::ToAll`]). Nothing is lost with FUA on each write ([`Settings::write_through`]), nor
//! by a controller without such a cache.
//!
//! # Hostile controllers
//!
//! `nvme_tcp` checks PDUs: a controller cannot write outside of the memory of a command in flight, and cannot complete a
//! command whose memory it still uses. Numbers in structures are checked before use, logs and lists are read up to a
//! bound, and every command has a deadline. What a controller may not send ends its path with a [`Failure`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod client;
mod command;
mod controller;
mod failure;
mod identify;
mod request;
mod status;
#[cfg(test)]
mod tests;

pub use client::{Action, Client, Notice, PathStatus, State, Stats, Status};
pub use controller::Random;
pub use failure::Failure;
pub use identify::{Access, Namespace};
pub use nvme_auth::DhchapSecret;
pub use request::{Error, Operation, Request};

use alloc::string::String;
use core::time::Duration;

/// TCP port of I/O controllers.
pub const PORT: u16 = 4420;
/// Most I/O queues of a path.
pub const MOST_CONNECTIONS: u16 = 16;
/// Most paths.
pub const MOST_PATHS: u16 = 16;

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// I/O queues of each path, 1 to [`MOST_CONNECTIONS`]. A controller may grant fewer.
    pub connections: u16,
    /// Addresses of the subsystem, 1 to [`MOST_PATHS`].
    pub paths: u16,
    /// Most requests of the user at a time, at most 4096.
    pub depth: u16,
    /// Number of the namespace. None: the only one that the host may use.
    pub nsid: Option<u32>,
    /// The user may not write.
    pub read_only: bool,
    /// Every write is durable before it completes.
    pub write_through: bool,
    /// Digests to ask for: bit 0 of headers, bit 1 of data.
    pub digests: u8,
    /// Keep alive timeout of the controllers, and the longest time from a command to its completion.
    pub keepalive: Duration,
    /// Delay before a path is opened again. It doubles with each failure, up to eight times this.
    pub reconnect: Duration,
    /// Longest time that a request waits without a usable path.
    pub give_up: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections: 1,
            paths: 1,
            depth: 128,
            nsid: None,
            read_only: false,
            write_through: false,
            digests: 0,
            keepalive: Duration::from_secs(30),
            reconnect: Duration::from_secs(1),
            give_up: Duration::from_secs(60),
        }
    }
}

/// Bytes of memory for the data of a path's admin commands, one at a time.
const PAGE: usize = 4096;
/// Bytes of memory for the range of a deallocation.
const RANGE: usize = 16;

impl Settings {
    /// The settings with limits applied.
    pub fn limited(self) -> Settings {
        Settings {
            depth: self.depth.clamp(1, 4096),
            connections: self.connections.clamp(1, MOST_CONNECTIONS),
            paths: self.paths.clamp(1, MOST_PATHS),
            ..self
        }
    }

    /// Bytes of memory that a client needs.
    pub fn memory(&self) -> usize {
        let limited = self.limited();
        usize::from(limited.paths) * PAGE + usize::from(limited.depth) * RANGE
    }
}

/// Names and secrets of the two ends.
#[derive(Clone, Debug)]
pub struct Identity {
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// The host's secret of DH-HMAC-CHAP, for controllers that ask for it.
    pub secret: Option<DhchapSecret>,
    /// The controller's secret. With it, a controller has to prove its name.
    pub controller_secret: Option<DhchapSecret>,
}

/// Which requests report that a controller may have lost acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Losses {
    /// The next flush or durable write fails with [`Error::Io`], as file systems expect.
    #[default]
    ToFlush,
    /// All requests that were submitted before the first report fail with [`Error::Lost`]: for a user with another copy
    /// of the data.
    ToAll,
}
