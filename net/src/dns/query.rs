//! A query in flight: its message, its server, and what a caller has to do for it.

use super::message::Family;
use super::{Name, Problem};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Name of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryId(pub(super) u64);

/// What the caller has to do for a query. Each replaces the query's former socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram.
    Datagram {
        /// The query.
        query: QueryId,
        /// Number of the interface.
        interface: usize,
        /// The server.
        to: SocketAddr,
        /// Our port. It is random.
        port: u16,
        /// The message.
        message: Vec<u8>,
    },
    /// Connect, and send these bytes.
    Stream {
        /// The query.
        query: QueryId,
        /// Number of the interface.
        interface: usize,
        /// The server.
        to: SocketAddr,
        /// The message, behind its length.
        message: Vec<u8>,
    },
    /// Close the query's socket: it has ended.
    Close {
        /// The query.
        query: QueryId,
    },
}

/// A query.
#[derive(Debug)]
pub(super) struct Query {
    pub id: QueryId,
    pub name: Name,
    pub family: Family,
    /// The name that is asked for, on the wire: `name`, or the last of its aliases.
    pub asked: Vec<u8>,
    pub aliases: usize,
    /// Least TTL of the aliases, in seconds.
    pub of_aliases: u32,
    /// The message as it was sent.
    pub message: Vec<u8>,
    /// The server's number, address, and interface.
    pub server: usize,
    pub to: SocketAddr,
    /// Messages sent so far.
    pub attempts: u32,
    pub sent: Instant,
    pub deadline: Instant,
    pub over_tcp: bool,
    /// Bytes received over TCP.
    pub stream: Vec<u8>,
    /// Messages that were no answer to it.
    pub foreign: u32,
    /// Why the last attempt failed.
    pub problem: Option<Problem>,
}

/// Time limit of attempt number `attempt` of a query, with this number of servers: a second in the first turn of all
/// servers, then two.
pub(super) fn patience(attempt: u32, servers: usize, over_tcp: bool) -> Duration {
    let seconds = match (over_tcp, attempt as usize <= servers) {
        (true, _) => 4,
        (false, true) => 1,
        (false, false) => 2,
    };
    Duration::from_secs(seconds)
}

/// Most attempts of a query: two of each server, three of a single one, eight in all.
pub(super) fn most_attempts(servers: usize) -> u32 {
    (2 * servers as u32).clamp(3, 8)
}
