//! A small HTTP/1.1 server (RFC 9110, RFC 9112) for metrics, state and commands.
//!
//! [`Server`] keeps a fixed number of connections on an interface; [`Connection`] is one of them
//! without its TCP socket; the routes are the [`Handler`]'s. Does GET, HEAD, POST, PUT and DELETE,
//! keep-alive, pipelining, `Expect: 100-continue`, and bodies that are made as they are sent.
//! [`access`] says who may do what. Of all its connections one asks the handler for something at a
//! time, and no more often in a round than the handler has time for. With [`crate::tls`] it speaks TLS.
//! Does not do compression, ranges, or chunked requests. Everything a client may send or leave unsent is
//! bounded by [`Limits`].

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

/// What answers requests: the routes of the appliance.
pub trait Handler {
    /// Whether it has time for a further request or part of an answer in this round. The server asks
    /// before each, and comes back in the next round.
    fn has_time(&self) -> bool {
        true
    }

    /// A client was refused before it could ask for anything.
    fn refused(&mut self, _refusal: Refusal) {}

    /// Answers a request. HEAD comes as GET, and what is answered is cut to its head.
    fn handle(&mut self, request: &Request<'_>) -> Response;

    /// The next bytes of a body that was answered as [`Body::Stream`].
    fn read(&mut self, _stream: u64, _into: &mut [u8]) -> Read {
        Read::End
    }

    /// A stream is over: sent to its end, or given up because the client went away.
    fn close(&mut self, _stream: u64) {}
}

/// Bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; one host has half of them at most.
    pub connections: usize,
    /// Bytes of a request's line and headers.
    pub head: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// From the first byte of a request to its last.
    pub request: Duration,
    /// Between two requests of a connection.
    pub idle: Duration,
    /// Without the client taking any byte of an answer.
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
