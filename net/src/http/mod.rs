//! A small HTTP/1.1 server (RFC 9110, RFC 9112) for metrics, state and commands.
//!
//! [`Server`] has a fixed number of connections on an interface. [`Connection`] is one of them without its TCP socket.
//! The [`Handler`] implements the routes. Supported: GET, HEAD, POST, PUT, PATCH and DELETE, keep-alive, pipelining, `Expect:
//! 100-continue`, streamed bodies, and TLS with [`crate::tls`]. Not supported: compression, ranges, and chunked
//! requests.
//!
//! [`access`] controls access. Connections call the handler one at a time, and in a round only while it has time.
//! [`Limits`] bounds the size and duration of requests and responses.

pub mod access;
mod connection;
mod open;
mod request;
mod response;
mod server;

pub use connection::Connection;
pub use request::{Method, Request};
pub use response::{Body, Read, Response, Status};
pub use server::Server;

use crate::refusal::Refusal;
use core::time::Duration;

/// Answers requests.
pub trait Handler {
    /// Whether it has time for another request or part of a response in this round. The server checks before each, and
    /// continues in the next round.
    fn has_time(&self) -> bool {
        true
    }

    /// Called when a client is refused before its first request.
    fn refused(&mut self, _refusal: Refusal) {}

    /// Answers a request. A HEAD request is passed as GET, and the body of the response is dropped.
    fn handle(&mut self, request: &Request<'_>) -> Response;

    /// Writes the next bytes of a [`Body::Stream`] to `_into`.
    fn read(&mut self, _stream: u64, _into: &mut [u8]) -> Read {
        Read::End
    }

    /// Called at the end of a stream: it was sent completely, or the connection is gone.
    fn close(&mut self, _stream: u64) {}
}

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One host may have half of them.
    pub connections: usize,
    /// Bytes of a request's line and headers.
    pub head: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// Time from the first byte of a request to its last.
    pub request: Duration,
    /// Time between two requests of a connection.
    pub idle: Duration,
    /// Time without progress of a response.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 16,
            head: 8 << 10,
            body: 64 << 10,
            request: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            stall: Duration::from_secs(20),
        }
    }
}
