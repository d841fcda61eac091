//! NBD client (doc/proto.md of NetworkBlockDevice/nbd): a volume of another server over TCP. An engine without I/O:
//! received bytes, time and randomness are arguments, and bytes to send are written to buffers of the caller.
//!
//! [`Client`] has one export and one to 16 connections. It does the fixed newstyle handshake with `NBD_OPT_GO` and
//! structured replies, and uses further connections only if the server says that a flush on one covers all
//! (`CAN_MULTI_CONN`). Payload is copied once in each direction, between the caller's buffer and a window.
//!
//! # Loss of a connection
//!
//! Requests without a reply are sent again, in the order of their submission, over the next connection. No request
//! completes before the server has replied to it. A request that has waited for `give_up` fails.
//!
//! A server has a volatile cache, and NBD does not tell a restarted server from one that was only disconnected. So the
//! client counts writes that the server has acknowledged and no flush has covered. They are safe as long as one
//! connection lives that was open when they were acknowledged, because a flush over it covers them. When the last such
//! connection ends, they count as lost: the next flush fails, like that of a disk whose cache lost power
//! ([`Losses::ToFlush`]), or every request until the user knows ([`Losses::ToAll`]). Nothing is lost with FUA on each
//! write ([`Settings::write_through`]).
//!
//! # Hostile servers
//!
//! A cookie counts only on the connection that it was sent on, after its whole request was sent. Lengths, counts of
//! replies and of chunks, and the time of each reply are bounded. What a server may not send ends its connection with a
//! [`Failure`].
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod client;
mod connection;
mod coverage;
mod export;
mod failure;
mod handshake;
mod request;
#[cfg(test)]
mod tests;
pub mod wire;

pub use client::{Action, Client, Notice, State, Stats, Status};
pub use export::Export;
pub use failure::{Failure, Text};
pub use request::{Error, Operation, Request};

use core::time::Duration;

/// TCP port of servers.
pub const PORT: u16 = 10809;
/// Most connections of a client.
pub const MOST_CONNECTIONS: u16 = 16;
/// Longest name of an export, in bytes (the protocol allows 4096).
pub const LONGEST_NAME: usize = 1024;

/// Settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections, 1 to [`MOST_CONNECTIONS`].
    pub connections: u16,
    /// Addresses of the server, at least 1. All connections go to one of them at a time.
    pub paths: u16,
    /// Most requests of the user at a time, at most 4096.
    pub depth: u16,
    /// The user may not write.
    pub read_only: bool,
    /// Every write is durable before it completes. The server has to offer FUA.
    pub write_through: bool,
    /// Longest time from a request to its complete reply.
    pub keepalive: Duration,
    /// Delay before a connection is opened again. It doubles with each failure, up to eight times this.
    pub reconnect: Duration,
    /// Longest time that a request waits without a connection.
    pub give_up: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connections: 1,
            paths: 1,
            depth: 128,
            read_only: false,
            write_through: false,
            keepalive: Duration::from_secs(30),
            reconnect: Duration::from_secs(1),
            give_up: Duration::from_secs(60),
        }
    }
}

/// Which requests report that the server may have lost acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Losses {
    /// The next flush or durable write fails with [`Error::Io`], as file systems expect.
    #[default]
    ToFlush,
    /// All requests that were submitted before the first report fail with [`Error::Lost`]: for a user with another copy
    /// of the data.
    ToAll,
}
