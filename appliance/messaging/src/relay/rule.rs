//! A rule, and what it tells of itself.

use super::frames::Framing;
use crate::names::{Listen, Target};
use crate::transport::Reason;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use net::tcp::Limits;
use smcr::admission::Gate;

/// What is relayed where.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// What it listens on.
    pub listen: Listen,
    /// Whether SMC-R is offered to clients.
    pub offers: bool,
    /// The servers, at most [`super::balance::MAX_BACKENDS`].
    pub backends: Vec<Target>,
    /// Whether SMC-R is offered to servers.
    pub smc: bool,
    /// Whether servers are told the client's address.
    pub proxy: bool,
    /// How long a server may take to answer over TCP. An SMC handshake has times of its own.
    pub connect_timeout: Duration,
    /// How long a connection may be silent, with zero for ever; without it for a time that depends on what carries it.
    pub idle_timeout: Option<Duration>,
    /// How often servers are asked whether they are there.
    pub health_interval: Option<Duration>,
    /// Who may connect.
    pub gate: Gate,
    /// Of the TCP connections on either side.
    pub limits: Limits,
    /// How messages go into streams, and which are taken.
    pub framing: Framing,
    /// The number of all signals of LINX, if it is no part of messages.
    pub signal: Option<u32>,
}

/// What a rule counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that came over SMC-R.
    pub smc: u64,
    /// Clients that came over TCP.
    pub tcp: u64,
    /// Clients that came over a transport of messages.
    pub messages: u64,
    /// Messages that had arrived, and did not get to the other side because a connection ended first.
    pub lost: u64,
    /// Servers that were reached over SMC-R.
    pub smc_servers: u64,
    /// Clients for whom there was no server.
    pub refused: u64,
    /// Connections that ended by a loss on either side.
    pub aborted: u64,
    /// Connections that were silent for too long.
    pub timed_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// What the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A server came, or went.
    Backend {
        /// Where it is.
        backend: Target,
        /// It answers.
        up: bool,
    },
    /// Connections that carry messages ended otherwise than by both of their ends, the last of them for this reason.
    Ended {
        /// Why.
        why: Reason,
        /// How many ended.
        connections: u64,
        /// Messages that were lost with them.
        lost: u64,
    },
}
