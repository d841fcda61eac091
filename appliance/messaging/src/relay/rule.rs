//! Settings, counters and notices of a rule.

use super::frames::Framing;
use crate::names::{Listen, Target};
use crate::transport::Reason;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use net::tcp::Limits;
use smcr::admission::Gate;
use smcr::engine::BufferSizes;

/// Settings of a rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// The end to listen on.
    pub listen: Listen,
    /// Whether SMC-R is offered to clients.
    pub offers: bool,
    /// The servers, at most [`super::balance::MAX_BACKENDS`].
    pub backends: Vec<Target>,
    /// Whether SMC-R is offered to servers.
    pub smc: bool,
    /// Whether servers get the client's address by the PROXY protocol.
    pub proxy: bool,
    /// Connect timeout over TCP. An SMC handshake has timeouts of its own.
    pub connect_timeout: Duration,
    /// Idle timeout. Zero: never. None: a default that depends on the transport.
    pub idle_timeout: Option<Duration>,
    /// Interval of health probes.
    pub health_interval: Option<Duration>,
    /// Admission of clients.
    pub gate: Gate,
    /// Limits of the TCP connections on either side.
    pub limits: Limits,
    /// Sizes of the SMC-R buffers of connections on either side. None for those of the engine.
    pub buffers: Option<BufferSizes>,
    /// Framing of messages in streams, and their maximum length.
    pub framing: Framing,
    /// LINX: fixed signal number. None if each message starts with its number.
    pub signal: Option<u32>,
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients over SMC-R.
    pub smc: u64,
    /// Clients over TCP.
    pub tcp: u64,
    /// Clients over a message transport.
    pub messages: u64,
    /// Messages that arrived and were not forwarded, because a connection ended first.
    pub lost: u64,
    /// Connections to servers over SMC-R.
    pub smc_servers: u64,
    /// Clients that were refused, for example because no server could be reached.
    pub refused: u64,
    /// Connections that were aborted, because a side was reset or lost.
    pub aborted: u64,
    /// Connections ended by the idle timeout.
    pub timed_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// An event for the operator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A server is up or down.
    Backend {
        /// Its address.
        backend: Target,
        /// Whether it answers.
        up: bool,
    },
    /// Connections that carry messages ended, and not by both of their ends.
    Ended {
        /// Reason of the last one.
        why: Reason,
        /// Number of connections.
        connections: u64,
        /// Messages lost with them.
        lost: u64,
    },
}
